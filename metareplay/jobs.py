"""Experiments side by side on all cores: threads that share the data, one display, nothing lost when interrupted."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from metareplay.errors import InputError
from metareplay.experiment import Experiment
from metareplay.files import exists, remove
from metareplay.loop import Run
from metareplay.record import Record

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
    full_matrix: bool = False,
) -> list[Record]:
    """Run experiments, so many at a time, and write their records; the records in the order of the experiments.

    Ctrl-C, or an error in one of them, stops all where they are; given again, they go on from there. The compiled
    engine holds no lock while it works, so threads are enough; a run's result does not depend on those beside it.
    """
    stop = Event()
    with _display(console) as bar, ThreadPoolExecutor(jobs) as pool:
        works = [
            pool.submit(_carry_out, label, one, folder, bar, console, stop, fresh, full_matrix)
            for label, one in experiments
        ]
        try:
            _watch(works)
        finally:
            stop.set()
            for work in works:
                work.cancel()
    return [work.result() for work in works]


def _watch(works: list[Future[Record]]) -> None:
    """Wait for all, or for the first that fails; wake up often, so that Ctrl-C is heard."""
    while True:
        done, running = wait(works, timeout=LOOK, return_when=FIRST_EXCEPTION)
        for work in done:
            work.result()
        if not running:
            return


def _carry_out(
    label: str,
    experiment: Experiment,
    folder: Path,
    bar: Progress,
    console: Console,
    stop: Event,
    fresh: bool,
    full_matrix: bool,
) -> Record:
    """One experiment: go on from its checkpoint if there is one, show how far it is, write its record."""
    learner, stream = experiment.build()
    work = Run(learner, stream, full_matrix=full_matrix, alignment=experiment.alignment)
    work.path = folder / f".{work.key}.ckpt"
    if fresh:
        remove(work.path)
    elif exists(work.path):
        console.print(f"{label}: going on from {work.path}", highlight=False, soft_wrap=True)
    line = bar.add_task(label, total=stream.total)
    for step in work.steps():
        where = f"task {min(step.finished + 1, stream.tasks)}/{stream.tasks}"
        bar.update(line, description=f"{label}: {step.doing}, {where}", completed=step.seen)
        if stop.is_set():
            work.save()
            raise StoppedError
    record = work.record()
    record.write(folder)
    remove(work.path)
    bar.remove_task(line)
    return record


@contextmanager
def _display(console: Console) -> Iterator[Progress]:
    """Bars with the time left; nothing where nobody is looking."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    hidden = not console.is_terminal
    with Progress("{task.description}", *columns, console=console, transient=True, disable=hidden) as bar:
        yield bar
