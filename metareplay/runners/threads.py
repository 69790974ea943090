"""Experiments side by side on the cores of this machine, or on its GPU, in threads that share the data."""

import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event
from typing import Final, Generic, Literal, TypeAlias, final

from metareplay._core.checks import shown, whole
from metareplay.engines.cuda.formation import Formation
from metareplay.errors import InputError
from metareplay.experiments.base import AnyRecord, BaseExperiment
from metareplay.runners.failure import Failure
from metareplay.runners.runner import SILENT, Runner, Watcher, carry_out
from metareplay.runners.worklist import OTHERS, Assignment, Worklist

LOOK: Final = 0.1  # seconds after which Ctrl-C is noticed
GPU_JOBS: Final = 8  # runs at a time on a GPU: beside one run, each further one costs little

_Attempt: TypeAlias = Future[AnyRecord | Failure | None]


@final
class Threads(Runner):
    """Run experiments in threads, the longest first.

    The compiled engine does not hold Python's lock while it works, so threads are enough. The result of a run does not
    depend on the runs beside it.

    Args:
        jobs: How many runs at a time; "auto" for one per core, and at least eight on a GPU.
    """

    def __init__(self, jobs: int | Literal["auto"] = "auto") -> None:
        self.jobs = count_jobs(jobs)
        self._choose = isinstance(jobs, str) and jobs == "auto"

    def run(
        self,
        experiments: Sequence[BaseExperiment[AnyRecord]],
        folder: Path,
        *,
        fresh: bool = False,
        keep_going: bool = False,
        watcher: Watcher = SILENT,
    ) -> list[AnyRecord | Failure | None]:
        """Run every experiment that has no record in the folder yet; they are all of one kind.

        Ctrl-C, or an error in one of the runs, stops all of them after saving; the next call continues from there. A
        run whose numbers are no longer finite does not stop the others: its error is raised when they have finished.
        """
        work = Worklist(experiments, folder, fresh=fresh, keep_going=keep_going, watcher=watcher)
        todo = work.due
        while todo or work.waits or (todo := work.unreadable()):
            for turn in _turns(todo):
                self._take_turn(turn, work)
            todo = work.free_again()
            if work.waits and not todo:
                time.sleep(OTHERS)
        return work.results()

    def _take_turn(self, turn: "_Turn[AnyRecord]", work: Worklist[AnyRecord]) -> None:
        """Run some experiments side by side."""
        jobs = max(self.jobs, GPU_JOBS) if self._choose and turn.on_gpu else self.jobs
        formation = Formation(min(jobs, len(turn.experiments))) if turn.on_gpu else None
        stop, ended = Event(), SimpleQueue[_Attempt[AnyRecord]]()
        left: dict[_Attempt[AnyRecord], BaseExperiment[AnyRecord]] = {}
        try:
            with ThreadPoolExecutor(jobs) as pool:
                for one in turn.experiments:
                    attempt = pool.submit(_attempt, work.assignment(one), work.watcher, stop, formation)
                    left[attempt] = one
                    attempt.add_done_callback(ended.put)
                try:
                    while left:
                        attempt = _next(ended)
                        error, one = attempt.exception(), left.pop(attempt)
                        if error is None:
                            work.settle(one, attempt.result())
                        else:
                            work.refuse(one, error)
                finally:
                    stop.set()
                    for attempt in left:
                        attempt.cancel()
        finally:
            for one in left.values():
                work.watcher.end(one, finished=False)


def count_jobs(jobs: str | int) -> int:
    """Return how many runs to do at a time.

    Args:
        jobs: A number, or "auto" for one per core.

    >>> count_jobs("3")
    3
    """
    if isinstance(jobs, str) and jobs == "auto":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    number = int(jobs) if isinstance(jobs, str) and jobs.isdecimal() and len(jobs) < 10 else jobs
    if isinstance(number, str) or whole("jobs", number) < 1:
        raise InputError(f"jobs {shown(jobs)}: use 'auto' or a whole number of at least 1")
    return whole("jobs", number)


@final
@dataclass
class _Turn(Generic[AnyRecord]):
    """List experiments that run side by side.

    Args:
        on_gpu: Whether they run on a GPU.
        experiments: The experiments.
    """

    on_gpu: bool
    experiments: list[BaseExperiment[AnyRecord]]


def _turns(experiments: Sequence[BaseExperiment[AnyRecord]]) -> list[_Turn[AnyRecord]]:
    """Divide experiments into those that share the cores, and for a GPU those of each shape, which take steps together.

    Shapes on a GPU come one after another: graphs of several shapes would only slow each other down.

    Args:
        experiments: What is going to run, in order.
    """
    found: dict[str | None, _Turn[AnyRecord]] = {}
    for one in experiments:
        on_gpu = one.engine == "cuda"
        found.setdefault(one.shape if on_gpu else None, _Turn(on_gpu, [])).experiments.append(one)
    return list(found.values())


def _attempt(
    assignment: Assignment[AnyRecord], watcher: Watcher, stop: Event, formation: Formation | None
) -> AnyRecord | Failure | None:
    """Do one run, unless somebody else is doing it."""
    work = partial(carry_out, assignment.experiment, assignment.folder, fresh=assignment.fresh, watcher=watcher)
    return assignment.attempt(partial(work, stop=stop, formation=formation))


def _next(ended: "SimpleQueue[_Attempt[AnyRecord]]") -> "_Attempt[AnyRecord]":
    """Wait for the next attempt that has ended; wake up often to notice Ctrl-C."""
    while True:
        with suppress(Empty):
            return ended.get(timeout=LOOK)
