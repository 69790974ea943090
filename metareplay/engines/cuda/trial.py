"""A trial before anything is learned: can this be captured, and does replaying it give the same weights?"""

import torch
from torch import Tensor

from metareplay._core.plan import Plan
from metareplay._core.table import Table
from metareplay.engines.cuda.batches import Batches, PlannedRows
from metareplay.engines.cuda.pieces import pieces

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
    weights, piece = batches.weights, pieces(plan, 0)[0]
    rows = PlannedRows(plan, table, weights.theta.device)
    batches.open()
    places = [buffer.data_ptr() for buffer in weights.module.buffers()]
    try:
        generator = _generator(weights.theta.device)
        before = generator.get_state()
        batches.run(piece, rows, batches.eager(piece))
        stepped = weights.theta.clone()
        if not torch.equal(before, generator.get_state()):
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


def _after_first_batch(batches: Batches, plan: Plan, table: Table) -> Tensor:
    """Return the weights after stepping through the first batch, and restore everything."""
    weights, piece = batches.weights, pieces(plan, 0)[0]
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


def _generator(device: torch.device) -> torch.Generator:
    return torch.cuda.default_generators[device.index or 0] if device.type == "cuda" else torch.default_generator
