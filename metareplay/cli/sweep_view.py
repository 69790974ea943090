"""The live view of a sweep: what is done, running, failed and left, the time left, and the best setting so far."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import final

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, TaskProgressColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from metareplay._core.text import duration, spread
from metareplay.cli.progress import Bars
from metareplay.experiments import AnyExperiment, Progress
from metareplay.runners import Failure
from metareplay.runners.failure import failures
from metareplay.sweeps import Case, Standing, SweepWatcher
from metareplay.sweeps.grid import told
from metareplay.sweeps.outcome import Outcome
from metareplay.sweeps.subject import MEASURES, Measure

LOOK = 2.0  # seconds between two looks at the records for the best setting so far
SURE = 5.0  # seconds after which a forecast is made


@contextmanager
def sweep_view(console: Console, name: str, fields: Sequence[str]) -> Iterator[SweepWatcher]:
    """Show how a sweep is going; show nothing but remarks if the console is not a terminal.

    Args:
        console: Where to show it.
        name: What is tried.
        fields: The fields that have several values.
    """
    bars = RichProgress(
        "{task.description}", BarColumn(), TaskProgressColumn(), console=console, disable=not console.is_terminal
    )
    view = SweepView(console, bars, name, fields)
    if not console.is_terminal:
        yield view
        return
    with Live(view, console=console, transient=True, refresh_per_second=4):
        yield view


@final
class SweepView(SweepWatcher):
    """Count runs and draw them.

    Args:
        console: Where remarks are printed.
        bars: Draws the runs that are under way.
        name: What is tried.
        fields: The fields that have several values.
    """

    def __init__(self, console: Console, bars: RichProgress, name: str, fields: Sequence[str]) -> None:
        self._console, self._rich, self._name, self._fields = console, bars, name, fields
        self._bars = Bars(bars, with_all=False)
        self._title = ""
        self._standing: Standing | None = None
        self._best: Outcome | None = None
        self._looked = self._began = time.monotonic()
        self._work: dict[str, float] = {}  # of all runs of the round, by key
        self._ended, self._failed = set[str](), set[str]()
        self._shares: dict[str, float] = {}  # how much is done of each run that is under way
        self._done_work = 0.0  # since the round began
        self._flown = 0.0  # how much is done of runs that advance together

    def round(self, title: str, cases: Sequence[Case], folder: Path, measure: Measure) -> None:
        """Begin to count the runs of a round."""
        self._title, self._standing, self._best = title, Standing(cases, folder, measure), None
        self._work = {one.key: one.work for case in cases for one in case.experiments}
        self._ended, self._failed, self._shares, self._looked = set(), set(), {}, 0.0
        self._began, self._done_work = time.monotonic(), 0.0

    def begin(self, experiments: Sequence[AnyExperiment]) -> None:
        """Learn which of them have no record yet."""
        due = {one.key for one in experiments}
        if self._standing is not None:
            self._failed = set(failures(self._standing.folder, self._work)) - due
        self._ended = self._work.keys() - due - self._failed
        self._began, self._flown = time.monotonic(), 0.0
        self._bars.begin(experiments)

    def step(self, experiment: AnyExperiment, progress: Progress, tasks: int) -> None:
        """Move the bar of one run."""
        self._shares[experiment.key] = progress.seen / progress.total if progress.total else 0.0
        self._bars.step(experiment, progress, tasks)

    def together(self, count: int, seen: int, total: int) -> None:
        """Move the bar of runs that advance together."""
        self._flown = seen / total
        self._bars.together(count, seen, total)

    def end(self, experiment: AnyExperiment, finished: bool) -> None:
        """Count a run that has ended."""
        self._shares.pop(experiment.key, None)
        self._bars.end(experiment, finished)
        if finished:
            self._ended.add(experiment.key)
            self._done_work += self._work.get(experiment.key, 0.0)

    def failed(self, experiment: AnyExperiment, failure: Failure) -> None:
        """Count a run that has failed."""
        del failure
        self._failed.add(experiment.key)
        self._done_work += self._work.get(experiment.key, 0.0)

    def remark(self, text: str) -> None:
        """Print a remark above everything else."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def __rich__(self) -> Group:
        """Return what the terminal shows now."""
        if self._standing is not None and time.monotonic() - self._looked > LOOK:
            self._best, self._looked = self._standing.best(), time.monotonic()
            self._ended |= self._standing.recorded - self._shares.keys()  # other processes may share the work
        return Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in self.lines()), self._rich)

    def lines(self) -> list[str]:
        """Return the lines above the bars: how many runs there are of each kind, and the best setting so far."""
        if not self._work:
            return [f"{self._name}: checking the settings"]
        left = len(self._left()) - len(self._shares)
        counts = f"{len(self._ended)} done, {len(self._shares)} running, {len(self._failed)} failed, {left} left"
        lines = [f"{self._name}, {self._title}: {counts}{self._forecast()}"]
        if self._best is not None:
            words = told({name: self._best.settings[name] for name in self._fields})
            score = f"{MEASURES[self._best.measure]} {spread(self._best.scores)}"
            lines.append(f"best so far: {score}{f' with {words}' if words else ''}")
        return lines

    def _left(self) -> set[str]:
        """Return the runs that have not ended, including those under way."""
        return self._work.keys() - self._ended - self._failed

    def _forecast(self) -> str:
        """Return the time left, from the work that has been done since the round began."""
        took = time.monotonic() - self._began
        under_way = sum(share * self._work.get(key, 0.0) for key, share in list(self._shares.items()))
        done, left = self._done_work + under_way, sum(self._work[key] for key in self._left()) - under_way
        if self._flown:
            done, left = self._flown, 1.0 - self._flown
        if took < SURE or done <= 0 or left <= 0:
            return ""
        return f"; about {duration(took * left / done)} left"
