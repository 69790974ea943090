"""Checks of a checkpoint against the learner that is to continue from it, before the learner is touched."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from metareplay._core.archive import part, read_archive
from metareplay._core.columns import Columns
from metareplay._core.stacks import Unpacked
from metareplay.errors import CheckpointError, InputError

if TYPE_CHECKING:
    from metareplay.learners.table_learner import TableLearner
    from metareplay.memories.memory import Memory

PLAIN: dict[str, type] = {"learner": str, "settings": dict, "seen": int, "extra": dict}  # what a checkpoint says
MOST = 2**62  # examples that may have been seen
ROWS = 1000  # of a table to look at in one go


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read a checkpoint, and check the types of what it says about itself.

    Args:
        path: The checkpoint.
    """
    about, tensors = read_archive(path, tuple(PLAIN))
    for name, kind in PLAIN.items():
        if type(about[name]) is not kind:
            raise CheckpointError(f"{path} is damaged ({name} is not of type {kind.__name__}): use an earlier one")
    if not 0 <= about["seen"] < MOST:
        raise CheckpointError(f"{path} is damaged (seen={about['seen']}): use an earlier one")
    return about, tensors


def check_fits(learner: TableLearner, path: Path, seen: int, tensors: dict[str, Tensor], table: Unpacked) -> None:
    """Raise CheckpointError if what a checkpoint holds is not what this learner would have saved.

    Args:
        learner: The learner, which is not changed.
        path: The checkpoint, for messages.
        seen: How many examples it had seen.
        tensors: The checkpoint's tensors.
        table: The rows of its table.
    """
    check_model(path, part(tensors, "model/"), learner.model)
    _check_state(path, "engine", part(tensors, "engine/"), _moments(learner))
    if _is_ours(learner.objective):
        _check_state(path, "objective", part(tensors, "objective/"), learner.objective.state())
    if _is_ours(learner):
        _check_state(path, "private", part(tensors, "private/"), learner.private_state())
    lengths = {len(values) for values in table.columns()}
    if len(lengths) > 1:
        raise CheckpointError(f"{path} is damaged (its columns have {sorted(lengths)} rows): use an earlier one")
    held = len(table)
    if held > learner.slot_count():
        raise CheckpointError(f"{path} holds {held} examples, but this learner holds only {learner.slot_count()}")
    if learner.own_memory is not None:
        _check_memory(path, learner.own_memory, seen, tensors, held)
    try:
        if table.names:
            for start in range(0, max(1, held), ROWS):
                end = min(start + ROWS, held)
                learner.check_held(Columns({name: table.values(name, start, end) for name in table.names}))
    except torch.cuda.OutOfMemoryError:
        raise
    except (InputError, KeyError, IndexError, TypeError, RuntimeError) as error:
        raise CheckpointError(
            f"{path} does not fit: it holds examples that this learner cannot have: {error}"
        ) from error


def check_model(path: Path, saved: dict[str, Tensor], model: nn.Module) -> None:
    """Raise CheckpointError if a model's parameters and buffers differ from the checkpoint in name, shape or dtype."""
    here = model_state(model)
    for name in [*saved, *here]:
        old, new = ((_form(s[name]) if name in s else "missing") for s in (saved, here))
        if old != new:
            raise CheckpointError(
                f"{path} is of another model: {name} is {old} there and {new} here; build the model it was saved with"
            )


def model_state(model: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and buffers, including those that a state_dict leaves out."""
    return {**dict(model.named_buffers()), **model.state_dict()}


def _check_state(path: Path, what: str, saved: dict[str, Tensor], expected: dict[str, Tensor] | None) -> None:
    """Compare names, shapes and dtypes; what is empty in a new learner may have any length in a saved one."""
    if expected is None or (what == "engine" and not saved):  # nothing had been learned when it was saved
        return
    for name in [*saved, *expected]:
        old, new = ((_form(s[name]) if name in s else "missing") for s in (saved, expected))
        empty = name in saved and name in expected and not expected[name].numel() and saved[name].dim() == 1
        if old != new and not (empty and saved[name].dtype == expected[name].dtype):
            other = "was saved with another optimizer" if what == "engine" else "does not fit this learner"
            raise CheckpointError(
                f"{path} {other}: {name} is {old} there and {new} here; use the options it was saved with"
            )


def _check_memory(path: Path, memory: Memory, seen: int, tensors: dict[str, Tensor], held: int) -> None:
    """Check which slots are filled, and the counts of examples."""
    if "memory/mark" in tensors:
        mark = tensors["memory/mark"]
        if mark.dtype != torch.int64 or mark.dim():
            raise CheckpointError(f"{path} is damaged (the memory's mark is not a number): use an earlier one")
        try:
            memory.check_mark(int(mark))
        except InputError as error:
            raise CheckpointError(f"{path} does not fit: {error}") from error
        return
    for name in ("memory/filled", "memory/seen_of"):
        if name not in tensors:
            raise CheckpointError(f"{path} is damaged, {name} is missing: use an earlier one")
    filled, counts = tensors["memory/filled"], tensors["memory/seen_of"]
    whole = all(values.dtype == torch.int64 for values in (filled, counts))
    if not whole or filled.dim() != 1 or counts.dim() != 2 or counts.shape[1] != 2:
        raise CheckpointError(f"{path} is damaged (the memory's lists have other shapes): use an earlier one")
    slots = filled.tolist()
    if len(set(slots)) != len(slots) or any(not 0 <= slot < memory.capacity for slot in slots):
        raise CheckpointError(f"{path} is damaged (a slot is filled twice or not there): use an earlier one")
    if max(slots, default=-1) + 1 != held:
        raise CheckpointError(f"{path} is damaged ({len(slots)} slots are filled by {held} rows): use an earlier one")
    total = tensors.get("memory/seen", torch.tensor(seen))
    if total.dtype != torch.int64 or total.dim():
        raise CheckpointError(f"{path} is damaged (the memory's count is not a number): use an earlier one")
    most = MOST if memory.task_count is None else memory.task_count
    tasks, of_each = counts[:, 0].tolist(), counts[:, 1].tolist()
    if any(not -1 <= task < most for task in tasks) or min(of_each, default=1) < 1 or sum(of_each) != int(total):
        raise CheckpointError(f"{path} is damaged (the counts of its tasks are wrong): use an earlier one")
    numbers = tensors.get("memory/numbers", torch.full_like(filled, -1))
    weights = tensors.get("memory/weights", torch.ones(memory.capacity, dtype=torch.float64))
    if weights.dtype != torch.float64 or weights.shape != (memory.capacity,) or not (weights >= 0).all():
        raise CheckpointError(f"{path} is damaged (the weights of its examples are wrong): use an earlier one")
    wrong = numbers.dtype != torch.int64 or numbers.shape != filled.shape
    if wrong or any(not -1 <= number < int(total) for number in numbers.tolist()):
        raise CheckpointError(f"{path} is damaged (the numbers of its examples are wrong): use an earlier one")


def _moments(learner: TableLearner) -> dict[str, Tensor] | None:
    """Return what the learner's optimizer keeps, as it would be after a step; None if that cannot be found out."""
    theta = nn.Parameter(torch.zeros_like(learner.weights.theta))
    theta.grad = torch.zeros_like(theta)
    try:
        optimizer = learner.make_optimizer(theta)
        if optimizer is None:
            return {}
        optimizer.step()
        kept = optimizer.state_dict()["state"].get(0, {})
        return {name: torch.as_tensor(value) for name, value in kept.items()}
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception:  # an optimizer of the user's own that cannot take such a step
        return None


def _is_ours(thing: object) -> bool:
    """Return whether a class is from this package; a user's own may keep whatever it likes."""
    return type(thing).__module__.startswith("metareplay.")


def _form(value: Tensor) -> str:
    return f"{tuple(value.shape)} {value.dtype}"
