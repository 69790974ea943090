"""The record of a run: what ran, on what, and what came out, as a small JSON file that rebuilds every table."""

import hashlib
import json
import math
import platform
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from metareplay.errors import MetareplayError
from metareplay.files import write_atomically
from metareplay.metrics import Matrix, Metrics
from metareplay.version import __version__

FORMAT = 1


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Record:
    """One finished run. `accuracy` is (T + 1, T), row 0 before training, in percent; NaN: not measured."""

    learner: str
    settings: dict[str, Any]
    model: str
    stream: dict[str, Any]
    seed: int
    engine: str
    examples: int  # how many were learned
    accuracy: Matrix
    weights: str  # SHA-256 of the final weights: equal runs have equal weights, bit for bit
    seconds: dict[str, float]  # spent learning and evaluating
    versions: dict[str, str]
    date: str
    alignment: dict[str, Any] | None = None  # dot products of gradients, `Alignment.summary`; None: not measured

    @property
    def metrics(self) -> Metrics:
        """The four metrics; NaN where the stream has no test sets."""
        if self.accuracy.size == 0:
            return Metrics(math.nan, math.nan, math.nan, math.nan)
        return Metrics.of(self.accuracy)

    @property
    def ra(self) -> float:
        """Retained accuracy: mean over tasks at the end."""
        return self.metrics.ra

    @property
    def la(self) -> float:
        """Learning accuracy: mean over tasks, each just after it was learned."""
        return self.metrics.la

    @property
    def bti(self) -> float:
        """Backward transfer and interference: mean change from just after learning to the end."""
        return self.metrics.bti

    @property
    def fti(self) -> float:
        """Forward transfer and interference: mean gain on a task before learning it."""
        return self.metrics.fti

    @property
    def dot(self) -> float:
        """The mean dot product of an example's gradient with past ones; NaN where it was not measured."""
        found = self.alignment["mean"] if self.alignment else None
        return math.nan if found is None else float(found)

    @property
    def key(self) -> str:
        """A short hash of what was run; results do not enter it."""
        samples = self.alignment["samples"] if self.alignment else 0
        return run_key(self.learner, self.settings, self.model, self.stream, samples)

    @property
    def name(self) -> str:
        """What its files are called: <learner>-<stream>-seed<seed>-<key>."""
        return f"{self.learner}-{self.stream.get('stream', 'own')}-seed{self.seed}-{self.key}"

    def __eq__(self, other: object) -> bool:
        """All of it is equal; not measured equals not measured."""
        return isinstance(other, Record) and self.to_json() == other.to_json()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values: the metrics, then everything else; null where something was not measured."""
        metrics = {name: _number(value) for name, value in asdict(self.metrics).items()}
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        parts["accuracy"] = [[_number(value) for value in row] for row in self.accuracy.tolist()]
        return {"format": FORMAT, "key": self.key, **metrics, **parts}

    def write(self, folder: str | Path) -> Path:
        """Write the record as <name>.json, whole or not at all."""
        path = Path(folder) / f"{self.name}.json"
        with write_atomically(path) as file:
            file.write(json.dumps(self.to_json(), indent=1).encode())
        return path

    @staticmethod
    def from_json(parts: dict[str, Any]) -> "Record":
        """The record that `to_json` gave."""
        if parts["format"] != FORMAT:
            raise MetareplayError(f"a record of format {parts['format']}: this version reads format {FORMAT}")
        rows = [[math.nan if value is None else value for value in row] for row in parts["accuracy"]]
        parts = {"alignment": None} | parts  # earlier records have none
        kept = {f.name: parts[f.name] for f in fields(Record)}
        return Record(**kept | {"accuracy": np.array(rows, np.float64)})

    @staticmethod
    def read(path: str | Path) -> "Record":
        """A record from its file."""
        try:
            return Record.from_json(json.loads(Path(path).read_text()))
        except FileNotFoundError as error:
            raise MetareplayError(f"no record at {path}: check the path") from error
        except MetareplayError as error:
            raise MetareplayError(f"{path} is {error}") from error
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise MetareplayError(f"{path} is damaged or is no record: delete it and run again") from error


def run_key(learner: str, settings: dict[str, Any], model: str, stream: dict[str, Any], alignment: int = 0) -> str:
    """A short hash of learner, settings (the seed among them), model and stream; any engine gives the same run.

    A run that compares gradients is another one.
    """
    what: list[object] = [learner, {k: v for k, v in settings.items() if k != "engine"}, model, stream]
    what += [{"alignment": alignment}] if alignment else []
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def versions() -> dict[str, str]:
    """What the run stood on."""
    return {
        "metareplay": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }


def now() -> str:
    """The date and time, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
