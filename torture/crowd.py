"""Crowds: processes that share a folder do every run once, and each of them returns all the records."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, final

from metareplay.experiments import AnyExperiment, Progress
from metareplay.runners import Threads, Watcher
from torture.experiments import SubjectRun
from torture.kills import save_always, undisturbed, what_is_wrong
from torture.subjects import SUBJECTS
from torture.trial import Torture, Try

PROCESSES = 3
DIFFERENT = [name for name in SUBJECTS if not name.endswith(", torch")]  # the engine does not make another run
RUNS = 4


@final
class Crowd(Torture):
    """Let several processes, forked from this one, do the same runs in one folder at the same time."""

    name: ClassVar[str] = "a crowded folder"
    few: ClassVar[int] = 1
    some: ClassVar[int] = 20
    many: ClassVar[int] = 200

    def tries(self, count: int, rng: random.Random, folder: Path) -> Iterator[Try]:
        """Draw some runs for each try."""
        save_always()
        expected = {name: undisturbed(name, folder / "undisturbed")[1] for name in SUBJECTS}
        for number in range(count):
            names = rng.sample(DIFFERENT, RUNS)
            place, notes = folder / f"records {number}", folder / f"notes {number}"
            notes.mkdir()
            children = [_process(names, place, notes) for _ in range(PROCESSES)]
            failed = [child for child in children if os.waitpid(child, 0)[1]]
            records = [expected[name] for name in names]
            wrong = "a process failed" if failed else what_is_wrong(place, records)
            done = sorted(path.name.rpartition(" ")[0] for path in notes.iterdir())
            if wrong is None and done != sorted(names):
                wrong = f"done: {', '.join(done)}"
            yield Try(f"{PROCESSES} processes, {', '.join(names)}", wrong)


@final
class _Noting(Watcher):
    """Note which runs this process does, as files.

    Args:
        folder: Where the files are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def step(self, experiment: AnyExperiment, progress: Progress, tasks: int) -> None:
        """Note that this process does a run."""
        del progress, tasks
        (self._folder / f"{experiment.label} {os.getpid()}").touch()


def _process(names: list[str], folder: Path, notes: Path) -> int:
    """Start a process that does the runs; return its number."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            runs = [SubjectRun(learner=name) for name in names]
            found = Threads(1).run(runs, folder, watcher=_Noting(notes))
            code = int(any(one is None for one in found))
        finally:
            os._exit(code)
    return child
