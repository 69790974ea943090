"""The record of a run: what was run and the results, as a small JSON file from which every table can be rebuilt."""

import hashlib
import math
import platform
import subprocess
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final, final

import numpy as np
import torch
from torch import Tensor

from metareplay._version import __version__
from metareplay.experiments.base import FORMAT, BaseRecord, check_format
from metareplay.experiments.identity import Identity
from metareplay.experiments.metrics import Matrix, Metrics, needed

ADDED: Final = ("training", "held_out", "built_by")  # fields that are not written if they are None


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Record(BaseRecord):
    """Hold the settings and the results of one finished run.

    Args:
        learner: The name of the learner's class.
        settings: Its options.
        model: The module in one line.
        stream: The stream's settings.
        seed: The learner's seed.
        engine: Which engine did the arithmetic.
        examples: How many examples were learned.
        accuracy: A (T + 1, T) matrix in percent, row 0 before training; NaN where nothing was measured.
        weights: The SHA-256 hash of the final weights; equal runs have the same weights, bit for bit.
        seconds: The time spent on learning and on evaluating.
        versions: The versions of the software, and the machine.
        date: When the run ended.
        alignment: Dot products of gradients, from `Alignment.summary`; None if they were not measured.
        training: The accuracy on each task's training examples at the end, in percent; None if it was not measured.
        held_out: The accuracy on each task's validation examples at the end, in percent; None if it has none.
        built_by: The name of a user's own function that built the run, and the settings that it was given.
    """

    kind: ClassVar[str] = "run"

    learner: str
    settings: dict[str, Any]
    model: str
    stream: dict[str, Any]
    seed: int
    engine: str
    examples: int
    accuracy: Matrix
    weights: str
    seconds: dict[str, float]
    versions: dict[str, str]
    date: str
    alignment: dict[str, Any] | None = None
    training: list[float] | None = None
    held_out: list[float] | None = None
    built_by: dict[str, Any] | None = None

    @staticmethod
    def of(
        identity: Identity,
        *,
        seed: int,
        engine: str,
        examples: int,
        accuracy: Matrix,
        theta: Tensor,
        seconds: dict[str, float],
        alignment: dict[str, Any] | None = None,
        training: list[float] | None = None,
        held_out: list[float] | None = None,
    ) -> "Record":
        """Make the record of a run that has finished now.

        Args:
            identity: What was run.
            seed: The learner's seed.
            engine: Which engine did the arithmetic.
            examples: How many examples were learned.
            accuracy: The measured accuracies.
            theta: The final weights.
            seconds: The time spent on learning and on evaluating.
            alignment: Dot products of gradients, from `Alignment.summary`; None if they were not measured.
            training: The accuracy on each task's training examples at the end; None if it was not measured.
            held_out: The accuracy on each task's validation examples at the end; None if it has none.
        """
        return Record(
            learner=identity.learner,
            settings=identity.settings,
            model=identity.model,
            stream=identity.stream,
            seed=seed,
            engine=engine,
            examples=examples,
            accuracy=accuracy,
            weights=fingerprint(theta),
            seconds={name: round(value, 3) for name, value in seconds.items()},
            versions=versions_with(theta),
            date=now(),
            alignment=alignment,
            training=None if training is None else list(training),
            held_out=None if held_out is None else list(held_out),
            built_by=identity.built_by,
        )

    @property
    def metrics(self) -> Metrics:
        """The four metrics; NaN if the stream has no test sets."""
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
    def ta(self) -> float:
        """Retained training accuracy: mean over tasks at the end, on training examples; NaN if it was not measured."""
        return math.nan if self.training is None else float(np.mean(self.training))

    @property
    def va(self) -> float:
        """Validation accuracy: mean over tasks at the end, on examples that were held out; NaN if there are none."""
        return math.nan if self.held_out is None else float(np.mean(self.held_out))

    @property
    def dot(self) -> float:
        """The mean dot product of an example's gradient with past ones; NaN if it was not measured."""
        found = self.alignment["mean"] if self.alignment else None
        return math.nan if found is None else float(found)

    @property
    def identity(self) -> Identity:
        """What was run."""
        compared = self.alignment or {"samples": 0}
        return Identity(
            learner=self.learner,
            settings=self.settings,
            model=self.model,
            stream=self.stream,
            alignment=compared["samples"],
            past=compared.get("past", "before"),
            full_matrix=more_than_needed(self.accuracy),
            training=self.training is not None,
            built_by=self.built_by,
        )

    @property
    def key(self) -> str:
        """A short hash of what was run, which does not depend on the results."""
        return self.identity.key

    @property
    def name(self) -> str:
        """The name of its files: <learner>-<stream>-seed<seed>-<key>."""
        return f"{self.learner}-{self.stream.get('stream', 'own')}-seed{self.seed}-{self.key}"

    def __eq__(self, other: object) -> bool:
        """Compare everything; "not measured" equals "not measured"."""
        return isinstance(other, Record) and self.to_json() == other.to_json()

    def to_json(self, *, compact: bool = False) -> dict[str, Any]:
        """Return plain JSON values: the metrics, then everything else; None where nothing was measured.

        Args:
            compact: If only what the metrics need was measured, write it as four short rows instead of a matrix.
        """
        metrics = {name: _number(value) for name, value in asdict(self.metrics).items()}
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ADDED:
            if parts[name] is None:  # as in earlier records
                del parts[name]
        if compact and np.array_equal(~np.isnan(self.accuracy), needed(self.accuracy.shape[1])):
            parts["accuracy"] = {name: values.round(9).tolist() for name, values in _ends(self.accuracy).items()}
        else:
            parts["accuracy"] = [[_number(value) for value in row] for row in self.accuracy.tolist()]
        return {"format": FORMAT, "key": self.key, **metrics, **parts}

    @classmethod
    def from_json(cls, parts: dict[str, Any]) -> "Record":
        """Make a record from what `to_json` returned."""
        check_format(parts, cls.kind)
        parts = {"alignment": None, **dict.fromkeys(ADDED)} | parts  # which earlier records do not have
        kept = {f.name: parts[f.name] for f in fields(Record)}
        return Record(**kept | {"accuracy": _matrix(parts["accuracy"])})


def fingerprint(theta: Tensor) -> str:
    """Return the SHA-256 hash of weights; equal weights, bit for bit, have the same one.

    Args:
        theta: The weights, on any device.
    """
    here = theta.detach().cpu().contiguous()
    return hashlib.sha256(here.view(torch.uint8).numpy().tobytes()).hexdigest()


def versions_with(theta: Tensor) -> dict[str, str]:
    """Return the versions of everything that a run depends on, and the GPU if its weights are on one.

    Args:
        theta: The weights.
    """
    return versions() | ({"gpu": torch.cuda.get_device_name(theta.device)} if theta.is_cuda else {})


@cache
def versions() -> dict[str, str]:
    """Return the versions of everything that a run depends on, as they were when this was first called."""
    return {
        "metareplay": __version__,
        "commit": _commit(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
    }


def _commit() -> str:
    """Return the commit of the checked-out package, with "+" if there are changes; empty if it is installed."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--abbrev=10", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _processor() -> str:
    """Return the name of the CPU, if the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def now() -> str:
    """Return the date and time, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def more_than_needed(accuracy: Matrix) -> bool:
    """Return whether more was measured than the metrics need."""
    return bool((~np.isnan(accuracy) & ~needed(accuracy.shape[1])).any())


def _ends(accuracy: Matrix) -> dict[str, Matrix]:
    """Return what the metrics need: the first row, each task just before and after learning it, and the last row."""
    before, after = np.diag(accuracy[:-1]), np.diag(accuracy[1:])
    return {"first": accuracy[0], "before": before, "after": after, "last": accuracy[-1]}


def _matrix(written: Any) -> Matrix:
    """Read accuracies in either form of `to_json`."""
    if isinstance(written, dict):
        tasks = len(written["first"])
        each, accuracy = np.arange(tasks), np.full((tasks + 1, tasks), math.nan)
        accuracy[each, each], accuracy[each + 1, each] = written["before"], written["after"]
        accuracy[0], accuracy[-1] = written["first"], written["last"]
        return accuracy
    return np.array([[math.nan if value is None else value for value in row] for row in written], np.float64)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
