"""Checkpoints: everything that a learner needs to continue bit for bit, in a safe and versioned file."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from metareplay._core.archive import part, read_archive, write_archive
from metareplay._core.columns import Columns
from metareplay._core.stacks import Unpacked, packed
from metareplay.errors import CheckpointError

if TYPE_CHECKING:
    from metareplay.learners.table_learner import TableLearner

NEEDED = ("learner", "settings", "seen", "extra")
ROWS = 1000  # of a table to restore at a time
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
    tensors = {f"model/{name}": value for name, value in model_state(learner.model).items()}
    tensors |= {f"engine/{name}": value for name, value in learner.chosen_engine.state().items()}
    tensors |= {f"objective/{name}": value for name, value in learner.objective.state().items()}
    tensors |= {f"private/{name}": value for name, value in learner.private_state().items()}
    tensors |= {f"run/{name}": value for name, value in (measured or {}).items()}
    memory = learner.own_memory
    if learner.table is not None:
        slots = learner.slot_count() if memory is None else int(memory.filled.max(initial=-1)) + 1
        held = packed(learner.table.columns, torch.arange(slots))
        tensors |= {f"table/{FILE_NAMES.get(name, name)}": values for name, values in held.items()}
    if memory is not None:
        tensors["memory/filled"] = torch.from_numpy(memory.filled)
        seen_of = sorted(memory.seen_of.items())
        tensors["memory/seen_of"] = torch.tensor(seen_of, dtype=torch.int64).reshape(-1, 2)
    about = {
        "learner": type(learner).__name__,
        "settings": learner.settings(),
        "seen": learner.seen,
        "extra": extra or {},
    }
    write_archive(path, about, tensors)


def restore(learner: TableLearner, path: Path, settings: dict[str, object]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Put a learner into the saved state of a run.

    Args:
        learner: A learner that was made with the same settings.
        path: The checkpoint.
        settings: The settings of the run, which must be the saved ones.

    Returns:
        What was saved beside the learner, and what was measured.
    """
    about, tensors = read_archive(path, NEEDED)
    extra: dict[str, Any] = about["extra"]
    if "settings" not in extra:
        raise CheckpointError(f"{path} holds a learner, not a run: use metareplay.load, or another checkpoint")
    here = plain({"learner": type(learner).__name__, **learner.settings(), **settings})
    there = {"learner": about["learner"], **about["settings"], **extra["settings"]}
    for name in here:
        if name != "engine" and here[name] != there.get(name):
            raise CheckpointError(
                f"{path} was saved with {name}={there.get(name)}, not {here[name]}: use the same, or another checkpoint"
            )
    check_model(path, part(tensors, "model/"), learner.model)
    fill(learner, path, about, tensors)
    return extra, part(tensors, "run/")


def fill(learner: TableLearner, path: Path, about: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Put weights, memory, counts and everything else into a learner that was made with the saved settings.

    Args:
        learner: The learner.
        path: The checkpoint, for messages.
        about: The checkpoint's JSON values.
        tensors: The checkpoint's tensors.
    """
    names = {name: column for column, name in FILE_NAMES.items()}
    saved = Unpacked({names.get(name, name): values for name, values in part(tensors, "table/").items()})
    held = len(saved)
    if held > learner.slot_count():
        raise CheckpointError(f"{path} holds {held} examples, but this learner holds only {learner.slot_count()}")
    memory = learner.own_memory
    for name in () if memory is None else ("memory/filled", "memory/seen_of"):
        if name not in tensors:
            raise CheckpointError(f"{path} is damaged, {name} is missing: use an earlier one")
    here = model_state(learner.model)
    for name, value in part(tensors, "model/").items():
        here[name].detach().copy_(value)
    learner.seen = about["seen"]
    learner.chosen_engine.restore(part(tensors, "engine/"))
    learner.objective.restore(part(tensors, "objective/"))
    learner.restore_private(part(tensors, "private/"))
    if saved.names:
        like = Columns({name: saved.values(name, 0, 1) for name in saved.names})
        learner.table = learner.make_table(like, learner.piece_size())
        for name, start in product(saved.names, range(0, held, ROWS)):
            end = min(start + ROWS, held)
            learner.table.fill(name, torch.arange(start, end), saved.values(name, start, end))
        learner.expect(like["x"])
    if memory is not None:
        filled, seen_of = tensors["memory/filled"].numpy(), dict(tensors["memory/seen_of"].tolist())
        memory.restore(filled, seen_of, learner.seen, learner.table)


def check_model(path: Path, saved: dict[str, Tensor], model: nn.Module) -> None:
    """Raise CheckpointError if a model's parameters and buffers differ from the checkpoint in name, shape or dtype."""
    here = model_state(model)
    for name in [*saved, *here]:
        old, new = ((f"{tuple(s[name].shape)} {s[name].dtype}" if name in s else "missing") for s in (saved, here))
        if old != new:
            raise CheckpointError(
                f"{path} is of another model: {name} is {old} there and {new} here; build the model it was saved with"
            )


def model_state(model: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and buffers, including those that a state_dict leaves out."""
    return {**dict(model.named_buffers()), **model.state_dict()}


def plain(settings: dict[str, object]) -> dict[str, Any]:
    """Return settings as they look after being written to JSON and read again."""
    found: dict[str, Any] = json.loads(json.dumps(settings))
    return found
