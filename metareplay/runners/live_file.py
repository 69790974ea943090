"""What a run shows of itself while it learns: a small file beside its checkpoint, read by `metareplay watch`."""

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, final

from metareplay._core.files import MACHINE, write_atomically
from metareplay.errors import DiskError
from metareplay.experiments.base import BaseRecord, Curves
from metareplay.experiments.following import FollowedRun, Follower, Measurements
from metareplay.runners.memory_view import MemoryView

FORMAT: Final = 1
SUFFIX: Final = ".live"
POINTS: Final = 300  # points of a curve, at most
CURVES: Final = 128  # curves, at most


@final
class LiveFile(Follower):
    """Write how a run is going into a hidden file, whole or not at all; the file goes when the record has come.

    A file that cannot be written is no reason to disturb anybody: the run goes on, only nobody sees it.

    Args:
        folder: Where the record is going to be. If there is no such folder, as on another machine, nothing is written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path: Path | None = None
        self._about: dict[str, Any] = {}
        self._memory: MemoryView | None = None

    def begin(self, run: FollowedRun) -> None:
        """Show that the run has begun."""
        if not self._folder.is_dir():
            return
        self._path = live_path(self._folder, run.key)
        self._memory = MemoryView(run.learner)
        self._about = {
            "format": FORMAT,
            "key": run.key,
            "label": run.label,
            "learner": run.settings.get("learner", ""),
            "settings": run.settings,
            "tasks": run.tasks,
            "machine": MACHINE,
            "process": os.getpid(),
            "began": time.time(),
        }
        self._write({"state": "running"})

    def measure(self, news: Measurements) -> None:
        """Show how the run is going, and some of what its memory holds."""
        if self._path is None or self._memory is None:
            return
        self._write(
            {
                "state": "running",
                "doing": news.doing,
                "task": news.task,
                "seen": news.seen,
                "total": news.total,
                "seconds": round(news.seconds, 1),
                "per_second": news.per_second,
                "accuracy": news.accuracy,
                "curves": {name: _thinned(points) for name, points in _latest(news.curves)},
                "memory": self._memory.shown(),
            }
        )

    def end(self, record: BaseRecord) -> None:
        """Leave the rest to the record."""
        del record
        self._remove()

    def stop(self, reason: str | None) -> None:
        """Show why the run has failed, or that it was interrupted; the next attempt replaces this."""
        self._write({"state": "stopped"} if reason is None else {"state": "failed", "reason": reason})

    def _write(self, news: dict[str, Any]) -> None:
        """Write the file; it need not survive a loss of power, so nothing waits for the disk."""
        if self._path is not None:
            text = json.dumps({**self._about, "written": time.time(), **news}, separators=(",", ":"), default=str)
            with suppress(DiskError), write_atomically(self._path, sync=False) as file:
                file.write(text.encode())

    def _remove(self) -> None:
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()


def live_path(folder: Path, key: str) -> Path:
    """Return the path of the file in which a run shows how it is going."""
    return folder / f".{key}{SUFFIX}"


def _latest(curves: Curves) -> list[tuple[str, Sequence[tuple[int, float]]]]:
    """Return the last curves; those with a single point, such as of tasks to come, only if there is room."""
    return sorted(curves.items(), key=lambda one: len(one[1]) > 1)[-CURVES:]


def _thinned(points: Any) -> list[Any]:
    """Return at most some of the points of a curve, evenly spread, and always the last one."""
    step = -(-len(points) // POINTS) or 1
    return [(at, float(f"{value:.6g}")) for at, value in points[::-step][::-1]]
