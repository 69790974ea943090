"""Many runs at once on one GPU: a fleet of small MLPs, each with its own seed, rates, batches, memory and stream.

`fly` takes experiments and gives their records, the same kind as from any other engine; `Fleet` is what flies.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import torch

from metareplay._core.files import exists, remove, write_atomically
from metareplay.errors import InputError, MetareplayError
from metareplay.experiments.experiment import Experiment
from metareplay.experiments.record import Record, versions
from metareplay.experiments.store import Records
from metareplay.runners.fleet.fleet import WINDOW, Fleet, Terms, chain_of, check_device

__all__ = ["Fleet", "Terms", "check_device", "fleets", "fly"]

NAME: Final = "fleet"
SAVE_EVERY = 20.0  # seconds between checkpoints
TURN: Final = 1.0  # seconds that one launch should take, so that progress is seen and Ctrl-C is heard
Report = Callable[[int, int], None]  # examples learned, examples in all


def fly(
    experiments: Sequence[Experiment],
    folder: Path,
    *,
    fresh: bool = False,
    report: Report | None = None,
    device: torch.device | str = "cuda",
) -> list[Record | None]:
    """Run experiments as one fleet, write their records; None for one whose numbers left their range.

    What has a record in the folder is not run again. Interrupted and called again it goes on from its last checkpoint.
    """
    versions()  # the commit as it is now
    if any(one.alignment for one in experiments):
        raise InputError("a fleet does not compare gradients: use engine='cpu' with alignment")
    started = [replace(one, engine="torch").start() for one in experiments]
    runs = {run.key: run for run in started}
    known = Records(folder)
    found: dict[str, Record | None] = {} if fresh else {key: known.find(key) for key in runs}
    path = folder / f".fleet-{hashlib.sha256(' '.join(runs).encode()).hexdigest()[:16]}.ckpt"
    due = [key for key in runs if found.get(key) is None]
    if exists(path) and (fresh or not due):
        remove(path)
    state = _load(path) if exists(path) else None
    while due:
        flying = due if state is None else state["keys"]
        flight = _Flight(Fleet([runs[key] for key in flying], device), path, state)
        flight.go(report)
        for record in flight.records():
            if found.get(record.key) is None:
                record.write(folder)
                found[record.key] = record
        remove(path)
        due, state = [key for key in due if key not in flying], None
    return [found.get(run.key) for run in started]


def fleets(experiments: Sequence[Experiment]) -> list[list[Experiment]]:
    """Those among the experiments that can fly, in fleets of one shape of net and stream."""
    kinds: dict[str, object] = {}  # by all but the seed
    found: dict[object, list[Experiment]] = {}
    for one in experiments:
        name = repr(replace(one, seed=0))
        if name not in kinds:
            kinds[name] = _kind(one)
        if kinds[name] is not None:
            found.setdefault(kinds[name], []).append(one)
    return list(found.values())


def _kind(experiment: Experiment) -> object:
    """What the runs of one fleet have in common; None if this one cannot fly."""
    run = replace(experiment, engine="torch").start()
    try:
        Terms.of(run.learner)
        widths = chain_of(run.learner).widths
    except InputError:
        return None
    return None if experiment.alignment else (widths, run.stream.tasks, run.stream.total)


@final
class _Flight:
    """A fleet on its way through the streams: learns, measures, saves."""

    def __init__(self, fleet: Fleet, path: Path, state: dict[str, Any] | None) -> None:
        self.fleet, self._path = fleet, path
        self._seconds = {"learn": 0.0, "evaluate": 0.0}
        self._saved = time.monotonic()
        if state is None:
            self.save()  # a folder that cannot be written is known before the work
        else:
            self._go_on_from(state)

    def go(self, report: Report | None) -> None:
        """All examples of all streams, whole windows at a time, or up to a task's end; every accuracy wanted."""
        fleet, size, total = self.fleet, 1, self.fleet.ends[-1]
        for finished, end in enumerate((0, *fleet.ends)):
            while fleet.seen < end:
                count = min((fleet.seen // WINDOW + size) * WINDOW, end) - fleet.seen
                took = self._timed("learn", partial(fleet.learn, count))
                size = 2 * size if took < TURN / 2 else size
                if report is not None:
                    report(fleet.seen, total)
                if time.monotonic() - self._saved > SAVE_EVERY:
                    self.save()
            if fleet.seen == end:
                self._timed("evaluate", partial(self._measure, finished))

    def records(self) -> Iterator[Record]:
        """Of each run that stayed finite."""
        share = {name: round(value / len(self.fleet.runs), 3) for name, value in self._seconds.items()}
        for number, (run, failed) in enumerate(zip(self.fleet.runs, self.fleet.failed, strict=True)):
            theta = self.fleet.theta(number)
            if failed is None and torch.isfinite(theta).all():
                run.learner.weights.theta.copy_(theta)
                run.learner.seen = self.fleet.seen
                record = run.record()
                yield replace(record, settings=record.settings | {"engine": NAME}, engine=NAME, seconds=share)

    def _measure(self, finished: int) -> None:
        for number, run in enumerate(self.fleet.runs):
            for task in run.missing(finished):
                run.accuracy[finished, task] = self.fleet.accuracy(number, task)

    def _timed(self, what: str, work: Callable[[], None]) -> float:
        start = time.perf_counter()
        work()
        took = time.perf_counter() - start
        self._seconds[what] += took
        return took

    def save(self) -> None:
        """Write the checkpoint."""
        accuracy = torch.from_numpy(np.stack([run.accuracy for run in self.fleet.runs]))
        about = {"keys": [run.key for run in self.fleet.runs], "accuracy": accuracy, "seconds": self._seconds}
        with write_atomically(self._path) as file:
            torch.save(self.fleet.state() | about, file)
        self._saved = time.monotonic()

    def _go_on_from(self, state: dict[str, Any]) -> None:
        try:
            self.fleet.restore(state)
            for run, accuracy in zip(self.fleet.runs, state["accuracy"], strict=True):
                run.accuracy[:] = accuracy.numpy()
            self._seconds = dict(state["seconds"])
        except Exception as error:
            raise _damaged(self._path) from error


def _load(path: Path) -> dict[str, Any]:
    """A checkpoint, and with it the runs that were under way."""
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
        return state | {"keys": list(state["keys"])}
    except Exception as error:
        raise _damaged(path) from error


def _damaged(path: Path) -> MetareplayError:
    return MetareplayError(f"{path} is damaged: delete it and start again")
