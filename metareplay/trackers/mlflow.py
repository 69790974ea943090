"""Runs in MLflow."""

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, final

from metareplay._core.checks import path_of, text
from metareplay._core.folder_lock import holding
from metareplay._core.imports import needed
from metareplay.experiments.base import BaseRecord
from metareplay.experiments.following import FollowedRun, Follower, Measurements
from metareplay.trackers.points import NewPoints, flat, results

LONGEST: Final = 6000  # characters of a parameter: MLflow's own limit
BATCH: Final = 900  # metrics written at a time, at most: MLflow's own limit is 1000
PARAMETERS: Final = 90  # likewise
OPENING = threading.Lock()  # for systems without locks on files, where `holding` does not wait


@final
class MLflow(Follower):
    """Write a run for MLflow, into a database in a folder: `mlflow ui --backend-store-uri sqlite:///FOLDER/mlflow.db`.

    Needs `pip install 'metareplay[mlflow]'`. Nothing is sent over the network.

    Args:
        folder: Where the database of all runs is.
        experiment: The name of the experiment that the run belongs to.
    """

    def __init__(self, folder: str | Path = "runs/mlflow", experiment: str = "metareplay") -> None:
        self.folder, self.experiment = path_of("folder", folder), text("experiment", experiment)
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # otherwise MLflow reports on its use
        needed("mlflow", "MLflow", "mlflow")
        needed("sqlalchemy", "MLflow's database", "mlflow")
        self._points = NewPoints()
        self._client: Any = None
        self._id = ""

    def begin(self, run: FollowedRun) -> None:
        """Make the run, with its settings as parameters."""
        mlflow, entities = needed("mlflow", "MLflow", "mlflow"), needed("mlflow.entities", "MLflow", "mlflow")
        place = self.folder.absolute()
        place.mkdir(parents=True, exist_ok=True)
        # two that make one database at the same time are in each other's way
        with OPENING, holding(place / ".opening"), _quiet("mlflow.store.db.utils", "alembic"):
            self._client = mlflow.MlflowClient(f"sqlite:///{place / 'mlflow.db'}")
            known = self._client.get_experiment_by_name(self.experiment)
            number = known.experiment_id if known else self._client.create_experiment(self.experiment, place.as_uri())
        self._points = NewPoints()
        self._id = self._client.create_run(number, run_name=run.label, tags={"metareplay.key": run.key}).info.run_id
        settings = [(_allowed(name), str(value)[:LONGEST]) for name, value in flat(run.settings).items()]
        for at in range(0, len(settings), PARAMETERS):
            some = [entities.Param(name, value) for name, value in settings[at : at + PARAMETERS]]
            self._client.log_batch(self._id, params=some)

    def measure(self, news: Measurements) -> None:
        """Write the points that are new."""
        self._write(list(self._points.of(news.curves)))

    def end(self, record: BaseRecord) -> None:
        """Write the results and close the run."""
        self._write([(f"result/{name}", 0, value) for name, value in results(record).items()])
        self._client.set_terminated(self._id, "FINISHED")

    def stop(self, reason: str | None) -> None:
        """Close the run as failed, or as killed if it was interrupted."""
        if reason is not None:
            self._client.set_tag(self._id, "metareplay.reason", reason[:LONGEST])
        self._client.set_terminated(self._id, "KILLED" if reason is None else "FAILED")

    def _write(self, points: list[tuple[str, int, float]]) -> None:
        """Write some points with one call, which is far quicker than a call for each."""
        entities = needed("mlflow.entities", "MLflow", "mlflow")
        now = int(time.time() * 1000)
        for start in range(0, len(points), BATCH):
            some = [entities.Metric(name, value, now, at) for name, at, value in points[start : start + BATCH]]
            self._client.log_batch(self._id, metrics=some)


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Let some loggers write warnings only, for a while."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [one.level for one in loggers]
    for one in loggers:
        one.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for one, level in zip(loggers, levels, strict=True):
            one.setLevel(level)


def _allowed(name: str) -> str:
    """Return a name with the characters that MLflow allows."""
    return "".join(one if one.isalnum() or one in "_-. :/" else "_" for one in name)[:250]
