"""Augmentation on replay: every time a stored example is replayed, its input is transformed anew."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from metareplay._core.columns import Columns
from metareplay._core.draws import Draws, Purpose
from metareplay._core.plan import Plan
from metareplay._core.table import Table
from metareplay.engines.engine import Outcome
from metareplay.engines.torch_engine import own_randomness
from metareplay.errors import InputError
from metareplay.learners.staging import Staging

ROWS: Final = 2**14  # visits to prepare at a time


def execute_augmented(
    plan: Plan,
    table: Table,
    augment: Callable[[Tensor], Any],
    draws: Draws,
    staging: Staging,
    execute: Callable[[Plan, Table], Outcome],
) -> Outcome:
    """Execute a plan so that each visit of a stored example sees an input of its own.

    Args:
        plan: The plan.
        table: The examples by row.
        augment: Takes a batch of inputs as they are stored and returns them transformed.
        draws: The learner's random draws, from which torch's generator is seeded for each incoming example.
        staging: Where the transformed examples are put together.
        execute: Executes a plan on a table.
    """
    learned = 0
    for part in _parts(plan):
        count = len(part)
        batches = np.repeat(np.arange(count * part.s), np.diff(part.ends))
        example = batches // part.s  # for which incoming example each visit is
        replayed = np.flatnonzero(part.rows != part.incoming + example)
        needed = np.concatenate([part.incoming + np.arange(count), part.rows[replayed]])
        found = dict(table.gather(torch.from_numpy(needed)).items())
        with own_randomness(torch.device("cpu")) as randomness, torch.no_grad():
            for i in range(count):
                start, end = count + np.searchsorted(replayed, np.searchsorted(example, [i, i + 1]))
                if end > start:
                    randomness.seed(draws.word(Purpose.AUGMENT, part.first + i))
                    found["x"][start:end] = _checked(found["x"][start:end], augment(found["x"][start:end].clone()))
        rows = example.copy()
        rows[replayed] = count + np.arange(len(replayed))
        outcome = execute(replace(part, rows=rows, incoming=0), staging.put(Columns(found)))
        learned += outcome.learned
        if outcome.learned < count:
            return replace(outcome, learned=learned)
    return Outcome(learned)


def _checked(before: Tensor, after: Any) -> Tensor:
    if not isinstance(after, Tensor) or after.shape != before.shape or after.dtype != before.dtype:
        form = f"{after.dtype} of shape {tuple(after.shape)}" if isinstance(after, Tensor) else type(after).__name__
        raise InputError(
            f"the augmentation made {form} of inputs that are {before.dtype} of shape {tuple(before.shape)}: keep both "
            f"as they are"
        )
    return after


def _parts(plan: Plan) -> Iterator[Plan]:
    """Cut a plan between examples into parts with a moderate number of visits."""
    ends, start = plan.ends[:: plan.s], 0
    while start < len(plan):
        end = max(start + 1, int(np.searchsorted(ends, ends[start] + ROWS, side="right")) - 1)
        batches = plan.ends[start * plan.s : end * plan.s + 1]
        yield replace(
            plan,
            rows=plan.rows[batches[0] : batches[-1]],
            ends=batches - batches[0],
            slots=plan.slots[start:end],
            first=plan.first + start,
            incoming=plan.incoming + start,
        )
        start = end
