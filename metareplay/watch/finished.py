"""The finished runs of a folder, each of whose files is read once."""

import os
import stat
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from metareplay._core.seal import opened_json
from metareplay._core.text import duration
from metareplay.experiments.folder import parsed, row_of
from metareplay.watch.curves import curves_of
from metareplay.watch.plain import LARGEST, number, plain, text

MEASURES: Final = {  # what runs are compared by, the first that a record has; larger is better
    "va": "validation accuracy",
    "ra": "retained accuracy",
    "accuracy": "prequential accuracy",
    "score": "mean final score",
}
NOT_SETTINGS: Final = {
    *("seed", "seconds", "engine", "date", "key", "ra", "la", "bti", "fti", "va", "ta", "dot", "score"),
    *("accuracy", "kappa", "log_loss", "mae", "rmse"),
}
BROKEN: Final = "this file cannot be read: it is damaged, or of another version"
Stamp = tuple[int, int, int]


@final
@dataclass(frozen=True)
class Finished:
    """Hold what the list of runs shows of one finished run.

    Args:
        key: The key of its record; the name of the file if the record is broken.
        label: The run in a few words.
        learner: The learner's name.
        row: Its settings and results; empty if the record is broken.
        path: Where the record is.
        number: Which line of the file it is; None if the file holds nothing else.
        written: When the file was written, in seconds since 1970.
    """

    key: str
    label: str
    learner: str
    row: dict[str, Any]
    path: Path
    number: int | None
    written: float

    @property
    def measure(self) -> str | None:
        """What the run is compared by; None if it has no such result."""
        return next((name for name in MEASURES if number(self.row.get(name)) is not None), None)

    @property
    def state(self) -> str:
        """Whether the record can be read ("done") or not ("broken")."""
        return "done" if self.row else "broken"

    def summary(self) -> dict[str, Any]:
        """Return what the list of runs shows, as plain JSON values."""
        if not self.row:
            return {"key": self.key, "label": self.label, "state": "broken", "reason": BROKEN}
        took = number(self.row.get("seconds"))
        measure = self.measure
        return {
            "key": self.key,
            "label": self.label,
            "learner": self.learner,
            "state": "done",
            "result": "" if measure is None else f"{MEASURES[measure]} {self.row[measure]:.2f}",
            "took": "" if took is None else duration(took),
            "settings": self.row,
        }

    def details(self) -> dict[str, Any]:
        """Read all of the record and return what the page shows of it, as plain JSON values."""
        try:
            content = self.path.read_bytes() if self.path.is_file() else b""
            record, _ = opened_json(content if self.number is None else content.splitlines()[self.number])
        except (OSError, IndexError, RecursionError, ValueError):
            return {}
        numbers = {name: number(self.row.get(name)) for name in ("ra", "la", "bti", "fti", "va", "ta", "dot", "score")}
        about = {name: plain(record.get(name)) for name in ("learner", "settings", "model", "stream", "game")}
        return {
            "settings": {name: value for name, value in about.items() if value},
            "curves": curves_of(record),
            "results": {name: value for name, value in numbers.items() if value is not None},
        }


@final
class FinishedRuns:
    """Know all records of a folder; a file that has not changed is not read again.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, tuple[Stamp, list[Finished]]] = {}
        self._all: dict[str, Finished] = {}

    def all(self, names: list[str]) -> dict[str, Finished]:
        """Return the finished runs by key: the same object as before if no file has changed.

        Args:
            names: The names of everything in the folder.
        """
        wanted = [name for name in names if name.endswith((".json", ".jsonl")) and not name.startswith(".")]
        found: dict[str, tuple[Stamp, list[Finished]]] = {}
        for name in wanted:
            try:
                about = os.stat(f"{self._folder}/{name}")  # noqa: PTH116 (making the path would take longer)
            except OSError:
                continue
            if not stat.S_ISREG(about.st_mode):
                continue  # reading a pipe or a device might never end
            stamp = (about.st_ino, about.st_mtime_ns, about.st_size)
            before = self._read.get(name)
            found[name] = before if before and before[0] == stamp else (stamp, self._records(name, about.st_mtime))
        if found.keys() != self._read.keys() or any(found[name] is not self._read[name] for name in found):
            self._read = found
            self._all = {one.key: one for _, records in found.values() for one in records}
        return self._all

    def _records(self, name: str, written: float) -> list[Finished]:
        """Read the records of one file; a file that holds something else has none."""
        path = self._folder / name
        try:
            content = path.read_bytes() if path.stat().st_size <= LARGEST or name.endswith("l") else b""
        except OSError:
            return []
        if not name.endswith("l"):
            return _finished(content, path, None, written)
        return [one for at, line in enumerate(content.splitlines()) for one in _finished(line, path, at, written)]


def _finished(content: bytes, path: Path, at: int | None, written: float) -> list[Finished]:
    """Return the finished run that a record tells of; none for a file that is no record."""
    try:
        parts = parsed(content)
        if parts is not None and not {"key", "settings"} <= parts.keys():
            return []
        row = plain(row_of(parts) | _network(content)) if parts is not None else {}
    except (ArithmeticError, AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError):
        row = {}
    where = path.name if at is None else f"{path.name}, line {at + 1}"
    if not row:
        return [Finished(where, where, "", {}, path, at, written)]
    memory = f" {row['memory']}" if number(row.get("memory")) is not None else ""
    label = f"{row['learner']}{memory}, {row['stream']}, seed {row['seed']}"
    return [Finished(text(row["key"]), text(label), text(row["learner"]), row, path, at, written)]


def _network(content: bytes) -> dict[str, str]:
    """Return a short name for the network that a record describes, the same for equal ones; nothing without one."""
    _, found, rest = content.partition(b'"model": ')
    end = min((at for at in (rest.find(name) for name in (b'"stream": ', b'"game": ')) if at >= 0), default=-1)
    return {"network": f"{zlib.crc32(b' '.join(rest[:end].split())):08x}"} if found and end >= 0 else {}


def best_of(runs: list[Finished], most: int = 5) -> dict[str, Any] | None:
    """Return the best settings on the stream of the newest run, each with the mean over its seeds.

    The latest run of each seed counts. None is returned unless there are several settings.

    Args:
        runs: Finished runs.
        most: How many settings are returned.
    """
    measured = sorted((one for one in runs if one.measure is not None), key=lambda one: one.written)
    measured = [one for one in measured if one.row["stream"] == measured[-1].row["stream"]]
    measure = next((name for name in MEASURES if any(one.measure == name for one in measured)), None)
    rows = [one.row for one in measured if one.measure == measure]
    names = list(dict.fromkeys(name for row in rows for name in row if name not in NOT_SETTINGS))
    differ = [name for name in names if len({repr(row.get(name)) for row in rows}) > 1]
    if measure is None or not differ:
        return None
    by_seed: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_seed.setdefault(repr([row.get(name) for name in differ]), {})[repr(row.get("seed"))] = row
    groups = [list(group.values()) for group in by_seed.values()]
    means = [(sum(row[measure] for row in group) / len(group), group) for group in groups]
    means.sort(key=lambda one: -one[0])
    return {
        "measure": MEASURES[measure],
        "fields": differ[:8],
        "rows": [
            {"values": [text(group[0].get(name), 40) for name in differ[:8]], "mean": mean, "seeds": len(group)}
            for mean, group in means[:most]
        ],
    }
