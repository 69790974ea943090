"""Checkpoints: everything a learner needs to continue bit for bit, in a safe and versioned file.

A NumPy archive (a zip of plain arrays, each with its checksum) and one JSON text inside it; nothing is pickled. Written
whole or not at all.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from metareplay._core.files import write_atomically
from metareplay._core.table import Table
from metareplay._version import __version__
from metareplay.errors import CheckpointError, InputError

if TYPE_CHECKING:
    from metareplay.learners.learner import Learner
    from metareplay.memories.memory import Memory

FORMAT = 1
Arrays = dict[str, NDArray[Any]]


def save(
    learner: Learner, path: Path, extra: dict[str, object] | None = None, measured: dict[str, Tensor] | None = None
) -> None:
    """Write a learner (and, for a run, plain JSON values and what was measured beside it)."""
    tensors = {f"model/{name}": value for name, value in _state(learner.model).items()}
    tensors |= {f"engine/{name}": value for name, value in learner.compute.state().items()}
    tensors |= {f"private/{name}": value for name, value in learner.private_state().items()}
    tensors |= {f"run/{name}": value for name, value in (measured or {}).items()}
    if learner.table is not None:
        slots = learner.slot_count() if learner.held is None else int(learner.held.filled.max(initial=-1)) + 1
        table = {"xs": learner.table.xs, "ys": learner.table.ys, "tasks": learner.table.tasks}
        tensors |= {f"table/{name}": part[:slots] for name, part in table.items()}
    if learner.held is not None:
        tensors["memory/filled"] = torch.from_numpy(learner.held.filled)
        seen_of = sorted(learner.held.seen_of.items())
        tensors["memory/seen_of"] = torch.tensor(seen_of, dtype=torch.int64).reshape(-1, 2)
    about = {
        "format": FORMAT,
        "metareplay": __version__,
        "learner": type(learner).__name__,
        "settings": learner.settings(),
        "seen": learner.seen,
        "dtypes": {name: str(value.dtype) for name, value in tensors.items()},
        "extra": extra or {},
    }
    arrays = {name: _array(value) for name, value in tensors.items()}
    with write_atomically(path) as file:
        np.savez(file, allow_pickle=False, about=np.array(json.dumps(about)), **arrays)


def load(path: str | Path, model: nn.Module, **options: Any) -> Learner:
    """The learner saved at `path`, continuing on `model`, whose weights are replaced.

    `options` replace saved ones: the engine for instance, or a loss of your own, which a file cannot hold. If anything
    is wrong, the model is left as it was.
    """
    path = Path(path)
    about, arrays = _read(path)
    _same_model(path, _part(_tensors(about, arrays), "model/"), model)
    learner = _make(path, about, model, options)
    _fill(learner, path, about, arrays)
    return learner


def restore(learner: Learner, path: Path, settings: dict[str, object]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Put a learner into the saved state of a run; give what was saved beside it, and what was measured.

    The learner must have been made with the same settings, and so must the run, whose own `settings` are given.
    """
    about, arrays = _read(path)
    extra: dict[str, Any] = about["extra"]
    if "settings" not in extra:
        raise CheckpointError(f"{path} holds a learner, not a run: use metareplay.load, or another checkpoint")
    here = _plain({"learner": type(learner).__name__, **learner.settings(), **settings})
    there = {"learner": about["learner"], **about["settings"], **extra["settings"]}
    for name in here:
        if name != "engine" and here[name] != there.get(name):
            raise CheckpointError(
                f"{path} was saved with {name}={there.get(name)}, not {here[name]}: use the same, or another checkpoint"
            )
    _same_model(path, _part(_tensors(about, arrays), "model/"), learner.model)
    _fill(learner, path, about, arrays)
    return extra, _part(_tensors(about, arrays), "run/")


def _fill(learner: Learner, path: Path, about: dict[str, Any], arrays: Arrays) -> None:
    """Weights, memory, counts and all else."""
    tensors = _tensors(about, arrays)
    held = len(tensors.get("table/xs", ()))
    if held > learner.slot_count():
        raise CheckpointError(f"{path} holds {held} examples, but this learner only {learner.slot_count()}")
    here = _state(learner.model)
    for name, value in _part(tensors, "model/").items():
        here[name].detach().copy_(value)
    learner.seen = about["seen"]
    learner.compute.restore(_part(tensors, "engine/"))
    learner.restore_private(_part(tensors, "private/"))
    parts = _part(tensors, "table/")
    if parts:
        learner.table = _restore_table(learner, parts)
        learner.expect(parts["xs"])
    if learner.held is not None:
        filled, seen_of = tensors["memory/filled"].numpy(), dict(tensors["memory/seen_of"].tolist())
        learner.held.restore(filled, seen_of, learner.seen, learner.table)


def _read(path: Path) -> tuple[dict[str, Any], Arrays]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        about = json.loads(str(arrays.pop("about")))
        version = about["format"]
    except FileNotFoundError as error:
        raise CheckpointError(f"no checkpoint at {path}: check the path") from error
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise CheckpointError(f"{path} is damaged or is no metareplay checkpoint: use an earlier one") from error
    if version != FORMAT:
        made_by = about.get("metareplay")
        raise CheckpointError(
            f"{path} has format {version}, made by metareplay {made_by}; this version reads format {FORMAT}"
        )
    missing = [name for name in ("learner", "settings", "seen", "dtypes", "extra") if name not in about]
    missing += [name for name in about.get("dtypes", ()) if name not in arrays]
    if missing:
        raise CheckpointError(f"{path} is damaged, {missing[0]} is missing: use an earlier one")
    return about, arrays


def _make(path: Path, about: dict[str, Any], model: nn.Module, options: dict[str, Any]) -> Learner:
    """A new learner with the saved settings."""
    from metareplay.learners import LEARNERS
    from metareplay.learners.predictor import named_loss

    kinds = {kind.__name__: kind for kind in LEARNERS}
    settings = about["settings"] | options
    if about["learner"] not in kinds:
        raise CheckpointError(f"{path} holds a {about['learner']}, which this version does not know: update metareplay")
    if "memory" in about["settings"]:
        settings["memory"] = _memory(path, about["settings"]["memory"], options.get("memory"))
    if isinstance(settings["loss"], str):
        loss = named_loss(settings["loss"])
        if loss is None:
            raise CheckpointError(
                f"{path} was saved with a loss of your own, {settings['loss']}: pass it, load(path, model, loss=...)"
            )
        settings["loss"] = loss
    try:
        return kinds[about["learner"]](model, **settings)
    except (InputError, TypeError) as error:
        raise CheckpointError(f"{path} does not fit: {error}") from error


def _memory(path: Path, saved: dict[str, Any], given: Memory | None) -> Memory:
    """An empty memory like the saved one."""
    from metareplay.memories import MEMORIES

    if given is not None:
        if _plain(given.settings()) != saved:
            raise CheckpointError(f"{path} was saved with another memory, {saved}: leave memory=... out")
        return given
    kind = saved.get("kind")
    if kind not in MEMORIES:
        raise CheckpointError(
            f"{path} was saved with a memory of your own, {kind}: pass it, load(path, model, memory=...)"
        )
    return MEMORIES[kind](**{name: value for name, value in saved.items() if name != "kind"})


def _same_model(path: Path, saved: dict[str, Tensor], model: nn.Module) -> None:
    here = _state(model)
    for name in [*saved, *here]:
        old, new = ((f"{tuple(s[name].shape)} {s[name].dtype}" if name in s else "missing") for s in (saved, here))
        if old != new:
            raise CheckpointError(
                f"{path} is of another model: {name} is {old} there and {new} here; build the model it was saved with"
            )


def _restore_table(learner: Learner, parts: dict[str, Tensor]) -> Table:
    table = Table(learner.slot_count(), learner.piece_size(), parts["xs"], parts["ys"], learner.weights.device)
    for name, saved in parts.items():
        getattr(table, name)[: len(saved)] = saved
    table.writes += 1
    return table


def _state(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers, those too that a state_dict leaves out."""
    return {**dict(model.named_buffers()), **model.state_dict()}


def _plain(settings: dict[str, object]) -> dict[str, Any]:
    """As JSON gives them back."""
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    return plain


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _tensors(about: dict[str, Any], arrays: Arrays) -> dict[str, Tensor]:
    return {name: _tensor(arrays[name], dtype) for name, dtype in about["dtypes"].items()}


def _array(value: Tensor) -> NDArray[Any]:
    """As NumPy; dtypes it does not have (bfloat16) as their bits."""
    value = value.detach().cpu().contiguous()
    return (value.view(torch.int16) if value.dtype == torch.bfloat16 else value).numpy()


def _tensor(array: NDArray[Any], dtype: str) -> Tensor:
    value = torch.from_numpy(array)
    return value.view(torch.bfloat16) if dtype == "torch.bfloat16" else value
