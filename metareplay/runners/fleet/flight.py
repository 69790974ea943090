"""The way of a fleet through its streams: it learns, measures, saves, and writes a record for each run."""

import hashlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import torch
from torch import Tensor

from metareplay._core.archive import read_archive, write_archive
from metareplay._core.files import exists, remove
from metareplay.errors import CheckpointError, MetareplayError
from metareplay.experiments.experiment import Experiment
from metareplay.experiments.loop import Run
from metareplay.experiments.metrics import Accuracies
from metareplay.experiments.record import Record
from metareplay.runners.fleet.fleet import WINDOW, Fleet
from metareplay.runners.runner import check_key, finished

NAME: Final = "fleet"  # what records give as the engine
SAVE_EVERY = 20.0  # seconds between checkpoints
TURN: Final = 1.0  # seconds that one launch should take, so that progress is shown and Ctrl-C is noticed
Report = Callable[[int, int], None]  # examples learned, examples in all
State = tuple[dict[str, Any], dict[str, Tensor]]


def fly(
    experiments: Sequence[Experiment],
    folder: Path,
    *,
    fresh: bool = False,
    others: Collection[str] = (),
    report: Report | None = None,
    device: torch.device | str = "cuda",
) -> list[Record | None]:
    """Run experiments of one shape as one fleet and write their records.

    What has a record in the folder is not run again. After an interruption, the next call continues from there.

    Args:
        experiments: What to run: nets of one shape, streams of one length.
        folder: Where records and the checkpoint are.
        fresh: Run again what has a record, and start what was interrupted from its beginning.
        others: The keys of runs that other processes are doing, which are left to them.
        report: Called with the number of examples that each run has learned, and how many there are.
        device: The GPU.

    Returns:
        The records in the order of the experiments; None for a run whose numbers left the range of the kernel, or
        that another process is doing.
    """
    wanted = {one.key: one for one in experiments}
    found: dict[str, Record | None] = {} if fresh else dict(finished(experiments, folder))
    path = folder / f".{fleet_key(experiments)}.ckpt"
    due = [key for key in wanted if key not in found and key not in others]
    if exists(path) and (fresh or not (due or others)):
        remove(path)
    state = _load(path) if exists(path) else None
    while due:
        flying = due if state is None else [key for key in state[0]["keys"] if key in wanted]
        runs = [replace(wanted[key], engine="torch").start() for key in flying]
        for key, run in zip(flying, runs, strict=True):
            check_key(wanted[key], run)
        flight = _Flight(Fleet(runs, device), runs, path, state)
        flight.go(report)
        for record in flight.records():
            if found.get(record.key) is None and record.key not in others:
                record.write(folder)
                found[record.key] = record
        remove(path)
        due, state = [key for key in due if key not in flying], None
    return [found.get(one.key) for one in experiments]


def fleet_key(experiments: Sequence[Experiment]) -> str:
    """Return a name for a fleet that depends on its runs alone.

    Args:
        experiments: The runs.
    """
    keys = dict.fromkeys(one.key for one in experiments)
    return f"fleet-{hashlib.sha256(' '.join(keys).encode()).hexdigest()[:16]}"


@final
class _Flight:
    """Take a fleet through its streams.

    Args:
        fleet: The fleet.
        runs: Its runs, in order.
        path: Where the checkpoint is.
        state: The checkpoint to continue from, if there is one.
    """

    def __init__(self, fleet: Fleet, runs: list[Run], path: Path, state: State | None) -> None:
        self.fleet, self.runs, self._path = fleet, runs, path
        self._measured = [Accuracies(run.stream.tasks, run.identity.full_matrix) for run in runs]
        self._held_out: list[list[float] | None] = [None] * len(runs)  # measured at the end
        self._seconds = {"learn": 0.0, "evaluate": 0.0}
        self._saved = time.monotonic()
        if state is None:
            self.save()  # so that a folder that cannot be written is noticed before the work
        else:
            self._go_on_from(*state)

    def go(self, report: Report | None) -> None:
        """Learn all examples of all streams, whole windows at a time or up to a task's end; measure what is wanted."""
        fleet, size, total = self.fleet, 1, self.fleet.ends[-1]
        for learned_tasks, end in enumerate((0, *fleet.ends)):
            while fleet.seen < end:
                count = min((fleet.seen // WINDOW + size) * WINDOW, end) - fleet.seen
                took = self._timed("learn", partial(fleet.learn, count))
                size = 2 * size if took < TURN / 2 else size
                if report is not None:
                    report(fleet.seen, total)
                if time.monotonic() - self._saved > SAVE_EVERY:
                    self.save()
            if fleet.seen == end:
                self._timed("evaluate", partial(self._measure, learned_tasks))
        self._timed("evaluate", self._measure_held_out)

    def records(self) -> Iterator[Record]:
        """Make the record of each run that stayed finite."""
        share = {name: value / len(self.runs) for name, value in self._seconds.items()}
        for number, (run, failed) in enumerate(zip(self.runs, self.fleet.failed, strict=True)):
            theta = self.fleet.theta(number)
            if failed is None and torch.isfinite(theta).all():
                settings = run.identity.settings | {"engine": NAME}
                yield Record.of(
                    replace(run.identity, settings=settings),
                    seed=run.learner.seed,
                    engine=NAME,
                    examples=self.fleet.seen,
                    accuracy=self._measured[number].values,
                    theta=theta,
                    seconds=share,
                    held_out=self._held_out[number],
                )

    def _measure(self, learned_tasks: int) -> None:
        for number, measured in enumerate(self._measured):
            for task in measured.missing(learned_tasks):
                measured.values[learned_tasks, task] = self.fleet.accuracy(number, task)

    def _measure_held_out(self) -> None:
        for number, run in enumerate(self.runs):
            if run.stream.has_validation:
                tasks = range(run.stream.tasks)
                self._held_out[number] = [self.fleet.validation_accuracy(number, task) for task in tasks]

    def _timed(self, what: str, work: Callable[[], None]) -> float:
        start = time.perf_counter()
        work()
        took = time.perf_counter() - start
        self._seconds[what] += took
        return took

    def save(self) -> None:
        """Write the checkpoint."""
        about = {
            "keys": [run.key for run in self.runs],
            "accuracy": [measured.to_json() for measured in self._measured],
            "seconds": self._seconds,
        }
        write_archive(self._path, about, self.fleet.state())
        self._saved = time.monotonic()

    def _go_on_from(self, about: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        try:
            self.fleet.restore(tensors)
            for measured, rows in zip(self._measured, about["accuracy"], strict=True):
                measured.restore(rows)
            self._seconds = dict(about["seconds"])
        except Exception as error:
            raise _damaged(self._path) from error


def _load(path: Path) -> State:
    """Read a checkpoint, and with it which runs were under way."""
    try:
        return read_archive(path, ("keys", "accuracy", "seconds"))
    except CheckpointError as error:
        raise _damaged(path) from error


def _damaged(path: Path) -> MetareplayError:
    return MetareplayError(f"{path} is damaged: delete it, or start again with --fresh")
