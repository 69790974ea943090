"""Experiments side by side on the cores of this machine, or on its GPU, in threads that share the data."""

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Final, Generic, Literal, final

from metareplay.engines.cuda.formation import Formation
from metareplay.errors import InputError, NonFiniteError
from metareplay.experiments.base import AnyExperiment, AnyRecord, BaseExperiment
from metareplay.experiments.record import versions
from metareplay.runners.runner import SILENT, Runner, Watcher, carry_out, finished

LOOK: Final = 0.1  # seconds after which Ctrl-C is noticed
GPU_JOBS: Final = 8  # runs at a time on a GPU: beside one run, each further one costs little


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
        self._choose = jobs == "auto"

    def run(
        self,
        experiments: Sequence[BaseExperiment[AnyRecord]],
        folder: Path,
        *,
        fresh: bool = False,
        watcher: Watcher = SILENT,
    ) -> list[AnyRecord | None]:
        """Run every experiment that has no record in the folder yet; they are all of one kind.

        Ctrl-C, or an error in one of the runs, stops all of them after saving; the next call continues from there. A
        run whose numbers are no longer finite does not stop the others: its error is raised when they have finished.
        """
        versions()  # notes the commit now, in case the files change while this runs
        wanted = {one.key: one for one in reversed(experiments)}
        done = {} if fresh else finished(experiments, folder)
        order = {one.key: number for number, one in reversed(list(enumerate(experiments)))}
        due = sorted(wanted.keys() - done.keys(), key=lambda key: (-wanted[key].work, order[key]))
        if done:
            watcher.remark(f"{len(done)} of {len(wanted)} runs are in {folder} already")
        watcher.begin([wanted[key] for key in due])
        failed: list[str] = []
        for turn in _turns([wanted[key] for key in due]):
            for key, work in self._take_turn(turn, folder, fresh=fresh, watcher=watcher).items():
                error = work.exception()
                if isinstance(error, NonFiniteError):
                    failed.append(f"{wanted[key].label}: {error}")
                else:
                    done[key] = work.result()
        if failed:
            others = f" (and {len(failed) - 1} other runs likewise)" if len(failed) > 1 else ""
            raise NonFiniteError(failed[0] + others)
        return [done[one.key] for one in experiments]

    def _take_turn(
        self, turn: "_Turn[AnyRecord]", folder: Path, *, fresh: bool, watcher: Watcher
    ) -> dict[str, Future[AnyRecord]]:
        """Run some experiments side by side; return what became of them by key."""
        jobs = max(self.jobs, GPU_JOBS) if self._choose and turn.on_gpu else self.jobs
        formation = Formation(min(jobs, len(turn.experiments))) if turn.on_gpu else None
        stop, works = Event(), dict[str, Future[AnyRecord]]()
        with ThreadPoolExecutor(jobs) as pool:
            for one in turn.experiments:
                work = pool.submit(carry_out, one, folder, fresh=fresh, watcher=watcher, stop=stop, formation=formation)
                work.add_done_callback(partial(_tell, watcher, one))
                works[one.key] = work
            try:
                _wait(list(works.values()))
            finally:
                stop.set()
                for work in works.values():
                    work.cancel()
        return works


def count_jobs(jobs: str | int) -> int:
    """Return how many runs to do at a time.

    Args:
        jobs: A number, or "auto" for one per core.

    >>> count_jobs("3")
    3
    """
    if jobs == "auto":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not str(jobs).isdecimal() or int(jobs) < 1:
        raise InputError(f"jobs {jobs!r}: use 'auto' or a whole number of at least 1")
    return int(jobs)


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


def _tell(watcher: Watcher, experiment: AnyExperiment, work: Future[AnyRecord]) -> None:
    watcher.end(experiment, finished=not work.cancelled() and work.exception() is None)


def _wait(works: list[Future[AnyRecord]]) -> None:
    """Wait for all, or until one fails for another reason than its numbers; wake up often to notice Ctrl-C."""
    while True:
        done, running = wait(works, timeout=LOOK)
        for work in done:
            if not isinstance(work.exception(), NonFiniteError):
                work.result()
        if not running:
            return
