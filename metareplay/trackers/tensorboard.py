"""Runs in TensorBoard."""

from pathlib import Path
from typing import Any, final

from metareplay._core.checks import path_of
from metareplay._core.imports import needed
from metareplay.experiments.base import BaseRecord
from metareplay.experiments.following import FollowedRun, Follower, Measurements
from metareplay.trackers.points import NewPoints, flat, results, run_name


@final
class TensorBoard(Follower):
    """Write a run for TensorBoard, into a folder of its own: `tensorboard --logdir FOLDER` shows all of them.

    Needs `pip install 'metareplay[tensorboard]'`.

    Args:
        folder: Where the folders of all runs are.
    """

    def __init__(self, folder: str | Path = "runs/tensorboard") -> None:
        self.folder = path_of("folder", folder)
        needed("tensorboard", "TensorBoard", "tensorboard")
        self._points = NewPoints()
        self._settings: dict[str, Any] = {}
        self._writer: Any = None

    def begin(self, run: FollowedRun) -> None:
        """Open the run's folder and write the settings as a text."""
        writers = needed("torch.utils.tensorboard", "TensorBoard", "tensorboard")
        self._points, self._settings = NewPoints(), flat(run.settings)
        self._writer = writers.SummaryWriter(str(self.folder / run_name(run)))
        rows = "\n".join(f"    {name}: {value}" for name, value in self._settings.items())
        self._writer.add_text("settings", f"{run.label}\n\n{rows}")

    def measure(self, news: Measurements) -> None:
        """Write the points that are new."""
        for name, at, value in self._points.of(news.curves):
            self._writer.add_scalar(name, value, at)

    def end(self, record: BaseRecord) -> None:
        """Write the results beside the settings, so that runs can be compared."""
        found = {f"result/{name}": value for name, value in results(record).items()}
        self._writer.add_hparams(self._settings, found, run_name=".")
        self._writer.close()

    def stop(self, reason: str | None) -> None:
        """Write why the run has ended early."""
        self._writer.add_text("ended early", reason or "interrupted")
        self._writer.close()
