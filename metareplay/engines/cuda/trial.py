"""A trial before anything is learned: can this be captured, and does replaying it give the same weights?"""

from copy import deepcopy
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from metareplay._core.plan import Plan
from metareplay._core.table import Table
from metareplay._core.weights import Weights
from metareplay.engines.cuda.batches import Batches, PlannedRows
from metareplay.engines.cuda.graphs import exclusive
from metareplay.engines.cuda.lockstep import Job, Lockstep
from metareplay.engines.objective import QuadraticPenalty, Supervised
from metareplay.engines.torch_engine import Randomness, TorchEngine

SINGLE: Final = 3  # single steps on which lockstep and torch are compared
STEPS: Final = 8  # steps of whole examples on which they are compared, at least
ALIKE = 1e-2  # how far a replay may differ from stepping, as a share of the distance that the weights moved


def obstacle(batches: Batches, plan: Plan, table: Table, given: Batches) -> str | None:
    """Step through the first batch, capture and replay it, and restore everything.

    The module as it was given must come to the same weights, because compilers make mistakes.

    Args:
        batches: The work to try.
        plan: The plan whose first batch is tried.
        table: The examples by row.
        given: The work with the module as it was given.

    Returns:
        Why it cannot be captured; None if it can.
    """
    weights, piece = batches.weights, batches.pieces(plan, 0)[0]
    rows = PlannedRows(plan, table, weights.theta.device)
    batches.open()
    places = [buffer.data_ptr() for buffer in weights.module.buffers()]
    try:
        randomness = Randomness(weights.theta.device)
        before = randomness.state()
        batches.run(piece, rows, batches.eager(piece))
        stepped = weights.theta.clone()
        if not torch.equal(before, randomness.state()):
            return "the module draws random numbers"
        if places != [buffer.data_ptr() for buffer in weights.module.buffers()]:
            return "the module replaces its buffers"
        batches.undo()
        graph = batches.record(piece)
        batches.undo()
        batches.run(piece, rows, graph)
        if not alike(weights.theta, stepped, batches.start):
            return "replaying gave other weights than stepping"
        batches.undo()
        if given is not batches and not alike(stepped, _after_first_batch(given, plan, table), batches.start):
            return "the rewritten module gave other weights"
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:
        return first_cause(error)
    finally:
        batches.undo()
    return None


def lockstep_obstacle(
    lockstep: Lockstep, plain: TorchEngine, plan: Plan, table: Table, objective: Supervised
) -> str | None:
    """Learn a little in lockstep and with torch in double precision, and restore everything.

    Single steps are compared closely, and most of them must agree: now and then two pixels of a pooling window are so
    close that rounding decides which one is the larger.

    Args:
        lockstep: The work to try, with room for one run.
        plain: The torch engine of the learner.
        plan: The plan whose first examples are tried.
        table: The examples by row.
        objective: What steps minimise.

    Returns:
        Why lockstep cannot be used; None if it can.
    """
    theta = plain.weights.theta
    start = theta.clone()
    try:
        exact = TorchEngine(Weights(deepcopy(plain.weights.module).double()), plain.draws)
        given, apart, rows = _in_double(objective), [], list(dict.fromkeys(plan.rows.tolist()))[:SINGLE]
        for few in [*(_single_step(plan, row) for row in rows), first_examples(plan, STEPS)]:
            exact.weights.theta.copy_(start)
            theta.copy_(start)
            with exclusive:
                learned = exact.execute(few, table, given).learned
            if lockstep.execute([Job(plain.weights, few, table, objective)]) != [learned]:
                return "it learned another number of examples than torch"
            apart.append(_distance(theta, exact.weights.theta, start))
        close = sum(one <= ALIKE for one in apart[:-1])
        return None if 2 * close >= len(apart) - 1 and apart[-1] <= 0.5 else "it gave other weights than torch"
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a compiler raises on another version or GPU
        return first_cause(error)
    finally:
        theta.copy_(start)


def _distance(one: Tensor, other: Tensor, start: Tensor) -> float:
    """Return how far weights are from others, as a share of the way that these came; 0 if both are not finite."""
    if not torch.isfinite(other).all():
        return 0.0 if not torch.isfinite(one).all() else 1.0
    way = max(float((other - start).norm()), 1e-6 * float(start.norm()))
    return float((one - other).norm()) / way


def _single_step(plan: Plan, row: int) -> Plan:
    """Return a plan for one step on one row, with the rates of another plan."""
    one, none = np.array([row]), np.array([-1])
    return replace(plan, rows=one, ends=np.array([0, 1]), s=1, slots=none)


def _in_double(objective: Supervised) -> Supervised:
    """Return the objective with its penalty in double precision."""
    penalty = objective.penalty
    if penalty is None:
        return objective
    exact = QuadraticPenalty(penalty.strength, penalty.importance.double(), penalty.anchor.double())
    return replace(objective, penalty=exact)


def first_examples(plan: Plan, steps: int) -> Plan:
    """Return a plan for only as many of the first examples as cause this many steps.

    Args:
        plan: The whole plan.
        steps: The least number of steps.
    """
    ends = plan.ends[plan.s :: plan.s]
    count = min(len(plan), int(np.searchsorted(ends, steps)) + 1)
    last = count * plan.s
    return replace(plan, rows=plan.rows[: plan.ends[last]], ends=plan.ends[: last + 1], slots=plan.slots[:count])


def _after_first_batch(batches: Batches, plan: Plan, table: Table) -> Tensor:
    """Return the weights after stepping through the first batch, and restore everything."""
    weights, piece = batches.weights, batches.pieces(plan, 0)[0]
    batches.open()
    try:
        batches.run(piece, PlannedRows(plan, table, weights.theta.device), batches.eager(piece))
        return weights.theta.clone()
    finally:
        batches.undo()


def alike(one: Tensor, other: Tensor, start: Tensor) -> bool:
    """Return whether two results are the same up to rounding; two that are both not finite count as the same.

    Args:
        one: The weights that are checked.
        other: The weights that they are compared with.
        start: The weights before both.
    """
    if not torch.isfinite(other).all():
        return not bool(torch.isfinite(one).all())
    apart, way = (one - other).norm(), (other - start).norm()
    return bool(apart <= ALIKE * way + 1e-6 * start.norm())


def first_cause(error: BaseException) -> str:
    """Return in one line what went wrong first; after a failed capture, ending it fails too."""
    while error.__context__ is not None:
        error = error.__context__
    return (str(error).strip() or type(error).__name__).splitlines()[0]
