"""Checkpoints: everything that a learner needs to continue bit for bit, in a safe and versioned file."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from metareplay._core.archive import part, write_archive
from metareplay._core.checks import shortened
from metareplay._core.columns import Columns
from metareplay._core.interrupts import HeldBack
from metareplay._core.stacks import Unpacked, packed
from metareplay.errors import CheckpointError, MetareplayError
from metareplay.learners.checkpoint_checks import ROWS, check_fits, model_state, read_checkpoint
from metareplay.learners.heads import sized_like
from metareplay.learners.input_checks import one_line

if TYPE_CHECKING:
    from metareplay.learners.table_learner import TableLearner

FILE_NAMES = {"x": "xs", "y": "ys", "task": "tasks"}  # what files call the columns that every table has


def save(
    learner: TableLearner, path: Path, extra: dict[str, object] | None = None, measured: dict[str, Tensor] | None = None
) -> None:
    """Write a learner and, for a run, what goes with it.

    Args:
        learner: The learner.
        path: The file to write.
        extra: Plain JSON values of a run.
        measured: What a run has measured so far.
    """
    learner.take_over()
    tensors = {f"model/{name}": value for name, value in model_state(learner.model).items()}
    tensors |= {f"engine/{name}": value for name, value in learner.chosen_engine.state().items()}
    tensors |= {f"objective/{name}": value for name, value in learner.objective.state().items()}
    tensors |= {f"private/{name}": value for name, value in learner.private_state().items()}
    tensors |= {f"run/{name}": value for name, value in (measured or {}).items()}
    memory = learner.own_memory
    mark = memory.saved_apart() if memory is not None else None
    if learner.table is not None and mark is None:
        slots = learner.slot_count() if memory is None else int(memory.filled.max(initial=-1)) + 1
        held = packed(learner.table.columns, torch.arange(slots))
        tensors |= {f"table/{FILE_NAMES.get(name, name)}": values for name, values in held.items()}
    if memory is not None and mark is not None:
        tensors["memory/mark"] = torch.tensor(mark)
    elif memory is not None:
        tensors["memory/filled"] = torch.from_numpy(memory.filled)
        seen_of = sorted(memory.seen_of.items())
        tensors["memory/seen_of"] = torch.tensor(seen_of, dtype=torch.int64).reshape(-1, 2)
        tensors["memory/numbers"] = torch.from_numpy(memory.numbers_of(memory.filled))
        if memory.weights is not None:
            tensors["memory/weights"] = torch.from_numpy(memory.weights)
        if memory.seen != learner.seen:  # examples were stored without learning, or came with the memory
            tensors["memory/seen"] = torch.tensor(memory.seen)
    about = {
        "learner": type(learner).__name__,
        "settings": learner.settings(),
        "seen": learner.seen,
        "extra": extra or {},
    }
    labels = learner.written_labels()
    about |= {} if labels is None else {"labels": labels}
    frozen = [name for name, parameter in learner.model.named_parameters() if not parameter.requires_grad]
    about |= {"frozen": frozen} if frozen else {}
    write_archive(path, about, tensors)


def restore(
    learner: TableLearner,
    path: Path,
    settings: dict[str, object],
    take: Callable[[dict[str, Any], dict[str, Tensor]], Callable[[], None]] | None = None,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Put a learner into the saved state of a run. If anything is wrong, nothing has changed.

    Args:
        learner: A learner that was made with the same settings.
        path: The checkpoint.
        settings: The settings of the run, which must be the saved ones.
        take: Checks what was saved beside the learner and what was measured, without changing anything, and returns a
            function that puts the run into that state, which is called when the learner has been restored.

    Returns:
        What was saved beside the learner, and what was measured.
    """
    about, tensors = read_checkpoint(path)
    extra: dict[str, Any] = about["extra"]
    if not isinstance(extra.get("settings"), dict):
        raise CheckpointError(f"{path} holds a learner, not a run: use metareplay.load, or another checkpoint")
    here = plain({"learner": type(learner).__name__, **learner.settings(), **settings})
    there = {"learner": about["learner"], **about["settings"], **extra["settings"]}
    for name in here:
        if name != "engine" and here[name] != there.get(name):
            values = f"{name}={shortened(str(there.get(name)))}, not {shortened(str(here[name]))}"
            raise CheckpointError(f"{path} was saved with {values}: use the same, or another checkpoint")
    measured = part(tensors, "run/")
    try:
        also = take(extra, measured) if take is not None else None
    except CheckpointError as error:
        raise CheckpointError(f"{path} does not fit: {error}") from error
    except torch.cuda.OutOfMemoryError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path} is damaged ({one_line(error)}): start again (--fresh)") from error
    fill(learner, path, about, tensors, also)
    return extra, measured


def fill(
    learner: TableLearner,
    path: Path,
    about: dict[str, Any],
    tensors: dict[str, Tensor],
    also: Callable[[], None] | None = None,
) -> None:
    """Put weights, memory, counts and everything else into a learner that was made with the saved settings.

    Its head may be larger or smaller than the saved one. If anything is wrong, or Ctrl-C comes, the learner and its
    model are left as they were.

    Args:
        learner: The learner.
        path: The checkpoint, for messages.
        about: The checkpoint's JSON values.
        tensors: The checkpoint's tensors.
        also: What else to do when the learner has been filled.
    """
    try:
        labels = learner.read_labels(about.get("labels"))
    except CheckpointError as error:
        raise CheckpointError(f"{path} does not fit: {error}") from error
    names = {name: column for column, name in FILE_NAMES.items()}
    try:
        saved = Unpacked({names.get(name, name): values for name, values in part(tensors, "table/").items()})
    except CheckpointError as error:
        raise CheckpointError(f"{path} is damaged ({error}): use an earlier one") from error
    with HeldBack():
        undo = _remember(learner)
        try:
            with sized_like(learner, part(tensors, "model/"), model_state(learner.model)):
                check_fits(learner, path, about["seen"], tensors, saved)
                _apply(learner, about["seen"], tensors, saved)
                if also is not None:
                    also()
        except BaseException as error:
            undo()
            known = (MetareplayError, torch.cuda.OutOfMemoryError)
            if isinstance(error, Exception) and not isinstance(error, known):
                raise CheckpointError(f"{path} does not fit: {one_line(error)}") from error
            raise
        learner.restore_labels(labels)


def _apply(learner: TableLearner, seen: int, tensors: dict[str, Tensor], saved: Unpacked) -> None:
    """Fill a learner with what has been checked."""
    if saved.names:
        like = Columns({name: saved.values(name, 0, 1) for name in saved.names})
        learner.table = learner.make_table(like, learner.piece_size())
        for name, start in product(saved.names, range(0, len(saved), ROWS)):
            end = min(start + ROWS, len(saved))
            learner.table.fill(name, torch.arange(start, end), saved.values(name, start, end))
        learner.expect(like["x"])
    here = model_state(learner.model)
    for name, value in part(tensors, "model/").items():
        here[name].detach().copy_(value)
    learner.seen = seen
    learner.chosen_engine.restore(part(tensors, "engine/"))
    learner.objective.restore(part(tensors, "objective/"))
    learner.restore_private(part(tensors, "private/"))
    memory = learner.own_memory
    if memory is not None and "memory/mark" in tensors:
        memory.return_to(int(tensors["memory/mark"]))
        if memory.table is not None and learner.table is None:
            like = memory.table.gather(torch.zeros(0, dtype=torch.int64))
            learner.table = learner.make_table(like, learner.piece_size())
            learner.expect(like["x"])
    elif memory is not None:
        filled, seen_of = tensors["memory/filled"].numpy(), dict(tensors["memory/seen_of"].tolist())
        numbers = tensors["memory/numbers"].numpy() if "memory/numbers" in tensors else None
        memory.weights = tensors["memory/weights"].numpy().copy() if "memory/weights" in tensors else None
        memory.restore(filled, seen_of, sum(seen_of.values()), learner.table, numbers)


def _remember(learner: TableLearner) -> Callable[[], None]:
    """Remember everything that filling a learner changes; calling the returned function restores it."""
    model = {name: value.clone() for name, value in model_state(learner.model).items()}
    engine, memory = learner.chosen_engine.remember(), learner.own_memory
    counts = memory.remember() if memory is not None else None
    objective = learner.objective.remember()
    private = {name: value.clone() for name, value in learner.private_state().items()}
    seen, table = learner.seen, learner.table

    def undo() -> None:
        here = model_state(learner.model)
        for name, value in model.items():
            here[name].detach().copy_(value)
        engine()
        objective()
        learner.restore_private(private)
        learner.seen, learner.table = seen, table
        if counts is not None:
            counts()

    return undo


def plain(settings: dict[str, object]) -> dict[str, Any]:
    """Return settings as they look after being written to JSON and read again."""
    found: dict[str, Any] = json.loads(json.dumps(settings))
    return found
