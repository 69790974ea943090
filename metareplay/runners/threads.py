"""Experiments side by side on all cores: threads that share the data, one display, nothing lost when interrupted.

Three things are kept apart: what to run (`Experiment`, a plain configuration), where it runs (an executor with the
interface of concurrent.futures), and what is done (`Records`, found by the hash of a configuration).
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Executor, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from threading import Event
from typing import Final, final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TimeElapsedColumn, TimeRemainingColumn

from metareplay._core.files import exists, remove
from metareplay.errors import InputError, NonFiniteError
from metareplay.experiments import loop
from metareplay.experiments.experiment import Experiment
from metareplay.experiments.record import Record, versions
from metareplay.experiments.store import Records
from metareplay.runners.fleet.flight import fly

LOOK: Final = 0.1  # seconds between two looks at the keyboard


class StoppedError(Exception):
    """A run was told to stop; it saved where it was."""


def count_jobs(jobs: str | int) -> int:
    """How many runs at a time: a number, or "auto" for one on each core.

    >>> count_jobs("3")
    3
    """
    if jobs == "auto":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not str(jobs).isdecimal() or int(jobs) < 1:
        raise InputError(f"jobs {jobs!r}: use 'auto' or a number from 1 up")
    return int(jobs)


def carry_out_all(
    experiments: Sequence[tuple[str, Experiment]],
    folder: Path,
    console: Console,
    *,
    jobs: int = 1,
    fresh: bool = False,
    pool: Executor | None = None,
) -> list[Record]:
    """Run what has no record in the folder yet, the longest first; the records in the order of the experiments.

    Ctrl-C, or an error in one of them, stops all where they are; given again, they go on from there. The compiled
    engine holds no lock while it works, so threads are enough; a run's result does not depend on those beside it.
    With a `pool` of your own (processes, a cluster) only whole runs are counted.
    """
    versions()  # the commit as it is now, whatever becomes of the files while this runs
    keys = keys_of([experiment for _, experiment in experiments])
    wanted = dict(zip(keys, experiments, strict=True))
    done = {} if fresh else _finished(wanted, Records(folder))
    due = sorted(wanted.keys() - done.keys(), key=lambda key: (-wanted[key][1].work(), keys.index(key)))
    for path in (_checkpoint(folder, key) for key in done):
        if exists(path):  # of a run that was killed when its record had just been written
            remove(path)
    if done:
        console.print(f"{len(done)} of {len(wanted)} runs are in {folder} already", highlight=False, soft_wrap=True)
    executor: AbstractContextManager[Executor] = nullcontext(pool) if pool is not None else ThreadPoolExecutor(jobs)
    with _display(console) as bar, executor as workers:
        board = _Board(bar, [wanted[key][1] for key in due])
        works: dict[str, Future[Record]] = {}
        for key in due:
            label, experiment = wanted[key]
            line = None if pool is not None else _Line(label, board)
            works[key] = workers.submit(carry_out, experiment, folder, fresh, line)
            works[key].add_done_callback(partial(board.count, line, experiment))
        try:
            _watch(list(works.values()))
        finally:
            board.stop.set()
            for work in works.values():
                work.cancel()
    done |= {key: work.result() for key, work in works.items()}
    return [done[key] for key in keys]


def carry_out_fleet(
    experiments: Sequence[Experiment], folder: Path, console: Console, *, fresh: bool = False
) -> list[Record | None]:
    """The same on one GPU, all runs at once or None; it too goes on when it is interrupted."""
    with _display(console) as bar:
        task = bar.add_task(f"{len(experiments)} runs at once", total=None)
        return fly(
            experiments, folder, fresh=fresh, report=lambda seen, total: bar.update(task, completed=seen, total=total)
        )


def all_of(experiments: Sequence[Experiment], found: Sequence[Record | None], folder: Path) -> list[Record]:
    """The records, if none is missing; otherwise an error that says what to do."""
    lost = [str(one.seed) for one, record in zip(experiments, found, strict=True) if record is None]
    if lost:
        raise NonFiniteError(
            f"the numbers of {len(lost)} of {len(experiments)} runs left what a fleet can hold (seeds "
            f"{', '.join(lost)}): use a smaller lr, or engine cpu; the records of the others are in {folder}"
        )
    return [record for record in found if record is not None]


def keys_of(experiments: Sequence[Experiment]) -> list[str]:
    """The key of each; of equal ones only the first is built to find it."""
    found = {text: one.start().key for text, one in {repr(one): one for one in experiments}.items()}
    return [found[repr(one)] for one in experiments]


def carry_out(experiment: Experiment, folder: Path, fresh: bool = False, line: "_Line | None" = None) -> Record:
    """One experiment: go on from its checkpoint if there is one, show how far it is, write its record."""
    work = experiment.start()
    work.path = _checkpoint(folder, work.key)
    if fresh:
        remove(work.path)
    elif exists(work.path) and line is not None:
        line.remark(f"going on from {work.path}")
    for step in work.steps():
        if line is not None and not line.goes_on(step, work.stream.tasks):
            work.save()
            raise StoppedError
    record = work.record()
    record.write(folder)
    remove(work.path)
    return record


@final
class _Board:
    """A bar for all runs and one for each that is under way."""

    def __init__(self, bar: Progress, experiments: list[Experiment]) -> None:
        self.bar, self.stop = bar, Event()
        self._count = len(experiments)
        self._ended = 0
        total = sum(one.work() for one in experiments)
        self._all = bar.add_task(self._text(), total=total, visible=self._count > 1)

    def count(self, line: "_Line | None", experiment: Experiment, work: Future[Record]) -> None:
        """A run has ended, one way or another."""
        if line is not None:
            line.close()
        if not work.cancelled() and work.exception() is None:
            self._ended += 1
            self.bar.update(self._all, advance=experiment.work(), description=self._text())

    def _text(self) -> str:
        return f"all runs: {self._ended} of {self._count} done"


@final
class _Line:
    """The bar of one run, from its first step to its last."""

    def __init__(self, label: str, board: _Board) -> None:
        self._label, self._board = label, board
        self._task: TaskID | None = None

    def remark(self, text: str) -> None:
        """Say something above the bars."""
        self._board.bar.console.print(f"{self._label}: {text}", highlight=False, soft_wrap=True)

    def goes_on(self, step: loop.Progress, tasks: int) -> bool:
        """Show a step; whether there is to be another."""
        text = f"{self._label}: {step.doing}, task {min(step.finished + 1, tasks)}/{tasks}"
        if self._task is None:
            self._task = self._board.bar.add_task(text, total=step.total)
        self._board.bar.update(self._task, description=text, completed=step.seen)
        return not self._board.stop.is_set()

    def close(self) -> None:
        """Take the bar away."""
        if self._task is not None:
            self._board.bar.remove_task(self._task)


def _checkpoint(folder: Path, key: str) -> Path:
    return folder / f".{key}.ckpt"


def _finished(wanted: Iterable[str], records: Records) -> dict[str, Record]:
    """The records of those that have been run."""
    return {key: record for key in wanted if (record := records.find(key)) is not None}


def _watch(works: list[Future[Record]]) -> None:
    """Wait for all, or for the first that fails; wake up often, so that Ctrl-C is heard."""
    while True:
        done, running = wait(works, timeout=LOOK, return_when=FIRST_EXCEPTION)
        for work in done:
            work.result()
        if not running:
            return


@contextmanager
def _display(console: Console) -> Iterator[Progress]:
    """Bars with the time left; nothing where nobody is looking."""
    columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    hidden = not console.is_terminal
    with Progress("{task.description}", *columns, console=console, transient=True, disable=hidden) as bar:
        yield bar
