"""Progress bars."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import final

from rich.console import Console
from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from metareplay.experiments import AnyExperiment, Progress
from metareplay.runners import Watcher


@contextmanager
def bars(console: Console) -> Iterator[Watcher]:
    """Show progress bars with the time left; show nothing if the console is not a terminal.

    Args:
        console: Where to show them.
    """
    text = TextColumn("{task.description}", markup=False)  # labels may have brackets
    columns = (text, BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    hidden = not console.is_terminal
    with RichProgress(*columns, console=console, transient=True, disable=hidden) as progress:
        yield Bars(progress)


@final
class Bars(Watcher):
    """Draw one bar for all runs and one for each run that is under way.

    Args:
        progress: Draws them.
        with_all: Whether to draw the bar for all runs.
    """

    def __init__(self, progress: RichProgress, with_all: bool = True) -> None:
        self._progress, self._with_all = progress, with_all
        self._bars: dict[int, TaskID] = {}  # by run
        self._all: TaskID | None = None
        self._together: TaskID | None = None
        self._ended = self._count = 0

    def begin(self, experiments: Sequence[AnyExperiment]) -> None:
        """Show the bar for all runs, if there are several."""
        self._ended, self._count = 0, len(experiments)
        if self._all is not None:
            self._progress.remove_task(self._all)
        if self._together is not None:
            self._progress.remove_task(self._together)
            self._together = None
        total = sum(one.work for one in experiments)
        self._all = self._progress.add_task(self._text(), total=total, visible=self._with_all and self._count > 1)

    def step(self, experiment: AnyExperiment, progress: Progress, tasks: int) -> None:
        """Move the bar of one run."""
        text = f"{experiment.label}: {progress.doing}, task {min(progress.finished + 1, tasks)}/{tasks}"
        text += f", {progress.remark}" if progress.remark else ""
        if id(experiment) not in self._bars:
            self._bars[id(experiment)] = self._progress.add_task(text, total=progress.total)
        self._progress.update(self._bars[id(experiment)], description=text, completed=progress.seen)

    def together(self, count: int, seen: int, total: int) -> None:
        """Move the bar of runs that advance together."""
        if self._together is None:
            self._together = self._progress.add_task(f"{count} runs at once", total=total)
            if self._all is not None:
                self._progress.update(self._all, visible=False)
        self._progress.update(self._together, completed=seen)

    def end(self, experiment: AnyExperiment, finished: bool) -> None:
        """Remove the bar of a run."""
        bar = self._bars.pop(id(experiment), None)
        if bar is not None:
            self._progress.remove_task(bar)
        if finished and self._all is not None:
            self._ended += 1
            self._progress.update(self._all, advance=experiment.work, description=self._text())

    def remark(self, text: str) -> None:
        """Print a remark above the bars."""
        self._progress.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _text(self) -> str:
        return f"all runs: {self._ended} of {self._count} done"
