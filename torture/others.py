"""Files besides checkpoints and records of runs: of agents, language models, sweeps, failures and memories on disk."""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import metareplay as mr
from metareplay import lm
from metareplay._core.state_file import read_state
from metareplay.errors import MetareplayError
from metareplay.experiments import OwnExperiment
from metareplay.reports.reading import read
from metareplay.rl import GameExperiment
from metareplay.rl.agent_file import read_agent, save_agent
from metareplay.runners import Failure
from metareplay.sweeps import Report
from torture.calls import build, played
from torture.subjects import SUBJECTS, examples, mlp, stream

Written = tuple[Path, Callable[[], object]]  # a file, and what reads it


def documents(folder: Path) -> Iterator[Written]:
    """Write files of every other kind, and return what reads each of them.

    Args:
        folder: Where to write them.
    """
    growing = mr.ER(mlp(), memory=mr.Balanced(9), k=3, classes="grow")
    growing.observe_many(examples()[0], list("abac" * 6))
    growing.save(folder / "labels.ckpt")
    yield folder / "labels.ckpt", lambda: mr.load(folder / "labels.ckpt", mlp())
    prequential = partial(mr.prequential, stream=stream(), every=8, checkpoint=folder / "scored.ckpt")
    path = prequential(SUBJECTS["mer"]()).write(folder)
    yield folder / "scored.ckpt", lambda: prequential(SUBJECTS["mer"]())
    yield path, lambda: mr.PrequentialRecord.read(path)
    game = played()
    of_game = game.write(folder)
    yield of_game, lambda: mr.rl.GameRecord.read(of_game)
    experiment = GameExperiment(observation="state", hidden=(3,))
    save_agent(folder / "an.agent", experiment, experiment.make_model())
    yield folder / "an.agent", lambda: read_agent(folder / "an.agent")
    failed = Failure.of(OwnExperiment(build=build), "it went wrong").write(folder)
    yield failed, lambda: Failure.read(failed)
    yield from _of_languages(folder)
    swept = mr.sweep(build, {"lr": [0.1, 0.2]}, seeds=1, folder=folder / "swept", runner=mr.runners.Threads(1))
    Report(swept).write(folder / "sweep")
    yield folder / "sweep" / "sweep.json", lambda: _reported(folder / "sweep" / "sweep.json")


def _of_languages(folder: Path) -> Iterator[Written]:
    """Write the record of a language model, and the checkpoint of another one that was stopped."""
    settings = lm.LmSettings(size=lm.Size(width=8, layers=1, heads=2), context=4, steps=2, rows=2, measures=1)
    languages, place = lm.made_up(2, 400), folder / "lm"
    lm.train(lm.ARMS["replay-0.5"], languages, settings, place)
    [record] = place.glob("*.json")
    yield record, lambda: lm.LmRecord.load(record)
    lm.train(lm.ARMS["mer-0.5"], languages, settings, place, stop=lambda: True)
    [checkpoint] = place.glob("*/checkpoint.pt")
    yield checkpoint, lambda: read_state(checkpoint)


def _reported(path: Path) -> None:
    """Read a file as reports do; raise MetareplayError if it is among those that cannot be read."""
    for broken in read([path]).broken:
        raise MetareplayError(broken.reason)


def reservoirs(folder: Path) -> Iterator[Written]:
    """Write the files of a memory on disk; reading one checks that all rows are what they were, or are refused.

    Args:
        folder: Where to write them.
    """
    place = folder / "reservoir"
    with mr.DiskReservoir(place, 6) as memory:
        for start in range(0, 24, 4):
            memory.offer({"x": torch.arange(start, start + 4)})
            memory.mark()
    names = [path.name for path in sorted(place.iterdir()) if path.is_file() and path.stat().st_size]
    content, before = {name: (place / name).read_bytes() for name in names}, _rows(place, folder / "copy")
    for name in names:
        yield place / name, partial(_same_rows, place, name, content[name], folder / "copy", before)


def _same_rows(place: Path, name: str, content: bytes, copy: Path, before: dict[str, Any]) -> None:
    """Open a copy of a damaged reservoir; raise MetareplayError if nothing is wrong, since then nothing was lost."""
    try:
        now = _rows(place, copy)
    finally:
        (place / name).write_bytes(content)
    if now == before:
        raise MetareplayError("the damage is where nothing is held")


def _rows(place: Path, copy: Path) -> dict[str, Any]:
    """Return what a copy of a reservoir holds, and what it held at each mark."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(place, copy)
    with mr.DiskReservoir(copy) as memory:
        found: dict[str, Any] = {"now": _held(memory.held()), "seen": memory.seen}
        for mark in reversed(memory.marks):
            memory.return_to(mark)
            found[f"mark {mark}"] = _held(memory.held())
    return found


def _held(columns: Any) -> dict[str, list[Any]]:
    return {name: value.tolist() for name, value in columns.items() if isinstance(value, Tensor)}
