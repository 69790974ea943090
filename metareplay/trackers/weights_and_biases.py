"""Runs in Weights & Biases, offline."""

import os
from pathlib import Path
from typing import Any, final

from metareplay._core.checks import path_of, text
from metareplay._core.imports import needed
from metareplay.experiments.base import BaseRecord
from metareplay.experiments.following import FollowedRun, Follower, Measurements
from metareplay.trackers.points import NewPoints, flat, results


@final
class WeightsAndBiases(Follower):
    """Write a run for Weights & Biases in its offline mode, into a folder; `wandb sync FOLDER/wandb/*` uploads it.

    Needs `pip install 'metareplay[wandb]'`. Nothing is sent over the network until you call `wandb sync`.

    Args:
        folder: Where the folder `wandb` with all runs is.
        project: The project that the run belongs to.
    """

    def __init__(self, folder: str | Path = "runs", project: str = "metareplay") -> None:
        self.folder, self.project = path_of("folder", folder), text("project", project)
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # otherwise wandb reports its own errors
        needed("wandb", "Weights & Biases", "wandb")
        self._points = NewPoints()
        self._run: Any = None

    def begin(self, run: FollowedRun) -> None:
        """Open the run with its settings; it counts examples itself, since different curves have different steps."""
        wandb = needed("wandb", "Weights & Biases", "wandb")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._points = NewPoints()
        quiet = wandb.Settings(console="off", silent=True, disable_git=True, x_disable_stats=True, save_code=False)
        self._run = wandb.init(
            mode="offline",
            project=self.project,
            dir=str(self.folder.absolute()),
            name=run.label,
            config={**flat(run.settings), "key": run.key},
            settings=quiet,
            reinit="create_new",
        )
        self._run.define_metric("*", step_metric="examples")

    def measure(self, news: Measurements) -> None:
        """Write the points that are new, those of one moment together."""
        moments: dict[int, dict[str, float]] = {}
        for name, at, value in self._points.of(news.curves):
            moments.setdefault(at, {})[name] = value
        for at, values in sorted(moments.items()):
            self._run.log({"examples": at, **values})

    def end(self, record: BaseRecord) -> None:
        """Write the results and close the run."""
        self._run.summary.update({f"result/{name}": value for name, value in results(record).items()})
        self._run.finish()

    def stop(self, reason: str | None) -> None:
        """Close the run as failed; a run that was interrupted can be continued as a new one."""
        self._run.summary.update({"ended early": reason or "interrupted"})
        self._run.finish(exit_code=1)
