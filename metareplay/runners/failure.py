"""The failure of a run: why there is no record of it, as a small JSON file beside the records."""

import json
import logging
import pickle
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, Literal, final, get_args

import torch

from metareplay._core.checks import instance, place_of, several
from metareplay._core.files import names_in, read_file, remove, write_atomically
from metareplay._core.seal import opened_json, sealed_json
from metareplay.errors import MetareplayError, NonFiniteError
from metareplay.experiments.base import AnyExperiment, BaseExperiment
from metareplay.experiments.record import now, versions
from metareplay.learners.input_checks import one_line

logger = logging.getLogger("metareplay")

FORMAT: Final = 1
SUFFIX: Final = ".failed"

FailureKind = Literal["not finite", "memory", "lost", "error"]


@final
@dataclass(frozen=True, kw_only=True)
class Failure:
    """Say why a run could not be finished.

    Args:
        key: The key that its record would have had.
        label: The run in a few words.
        reason: What happened, in one line.
        kind: "not finite" if the loss or the weights left the range of numbers, "memory" if there was not enough of it,
            "lost" if the processes that did the run kept ending, or "error" for everything else.
        settings: The settings of the experiment, as plain JSON values.
        seed: Its seed.
        date: When it failed.
        versions: The versions of the software, and the machine.
    """

    key: str
    label: str
    reason: str
    kind: FailureKind
    settings: dict[str, Any]
    seed: int
    date: str
    versions: dict[str, str]

    @staticmethod
    def of(experiment: AnyExperiment, reason: BaseException | str, kind: FailureKind | None = None) -> "Failure":
        """Describe the failure of a run that has failed now.

        Args:
            experiment: What was run.
            reason: The error that ended it, or what happened in words.
            kind: What kind of failure it is; None to find out from the error.
        """
        if kind is None:
            kind = kind_of_error(reason) if isinstance(reason, BaseException) else "error"
        return Failure(
            key=experiment.key,
            label=experiment.label,
            reason=reason if isinstance(reason, str) else described(reason),
            kind=kind,
            settings=_settings(experiment),
            seed=experiment.seed,
            date=now(),
            versions=versions(),
        )

    @property
    def name(self) -> str:
        """The name of its file: the words of its label, then its key."""
        return f"{'-'.join(re.findall(r'[A-Za-z0-9_.]+', self.label))[:100]}-{self.key}{SUFFIX}"

    @property
    def can_continue(self) -> bool:
        """Whether trying again from the last checkpoint may help, because nothing was wrong with the run itself."""
        return self.kind in ("memory", "lost")

    def write(self, folder: Path) -> Path:
        """Write the failure, whole or not at all.

        Args:
            folder: Where the records are.

        Returns:
            The path of the file.
        """
        with write_atomically(folder / self.name) as file:
            file.write(sealed_json({"format": FORMAT, **asdict(self)}, indent=1))
        return folder / self.name

    @staticmethod
    def read(path: Path) -> "Failure":
        """Read a failure from its file.

        Args:
            path: The file.
        """
        try:
            parts, _ = opened_json(read_file(path))
            if parts["format"] != FORMAT or parts["kind"] not in get_args(FailureKind):
                raise ValueError(path)
            return Failure(**{one.name: parts[one.name] for one in fields(Failure)})
        except (OSError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise MetareplayError(f"{path} is damaged or not a failure: delete it") from error


def described(error: BaseException) -> str:
    """Return an error in one line, with its class if it is not one of ours.

    Args:
        error: The error.
    """
    kind = "" if isinstance(error, MetareplayError) else f"{type(error).__name__}: "
    return kind + one_line(error)


def portable(error: Exception) -> Exception:
    """Return an error as one that can be sent to another process.

    Args:
        error: The error.
    """
    try:
        again = pickle.loads(pickle.dumps(error))
    except Exception:
        return MetareplayError(described(error))
    return error if type(again) is type(error) and str(again) == str(error) else MetareplayError(described(error))


def kind_of_error(error: BaseException) -> FailureKind:
    """Return what kind of failure an error is.

    >>> kind_of_error(MemoryError())
    'memory'

    Args:
        error: The error.
    """
    if isinstance(error, NonFiniteError):
        return "not finite"
    memory = isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError))
    if memory or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error)):  # torch, on a CPU
        return "memory"
    return "error"


def failures(folder: Path, keys: Iterable[str]) -> dict[str, Failure]:
    """Return the failures that are recorded in a folder, by key.

    A file that cannot be read is named in a warning and does not count.

    Args:
        folder: Where the records are.
        keys: The keys of the runs to look for.
    """
    found = {}
    for key, path in failure_paths(names_in(folder), folder, keys).items():
        try:
            found[key] = Failure.read(path)
        except MetareplayError as error:
            logger.warning("%s", error)
    return found


def failure_paths(names: Iterable[str], folder: Path, keys: Iterable[str]) -> dict[str, Path]:
    """Return which of some names in a folder are those of failures of some runs, by key."""
    wanted = set(keys)
    known = {name.removesuffix(SUFFIX).rpartition("-")[2]: name for name in names if name.endswith(SUFFIX)}
    return {key: folder / name for key, name in known.items() if key in wanted and not name.startswith(".")}


def forget_failures(experiments: Iterable[AnyExperiment], folder: str | Path) -> int:
    """Delete the recorded failures of some experiments, so that they are run again.

    Args:
        experiments: The experiments.
        folder: Where the records are.

    Returns:
        How many there were.
    """
    there = place_of("folder", folder)
    experiments = several("experiments", experiments, "a list of experiments")
    for one in experiments:
        instance("experiments", one, BaseExperiment, "a list of experiments")
    found = failure_paths(names_in(there), there, (one.key for one in experiments))
    for path in found.values():
        remove(path)
    return len(found)


def _settings(experiment: AnyExperiment) -> dict[str, Any]:
    """Return the fields of an experiment as plain JSON values; what JSON has no word for becomes text."""
    if not is_dataclass(experiment):
        return {}
    values = {one.name: getattr(experiment, one.name) for one in fields(experiment)}
    plain: dict[str, Any] = json.loads(json.dumps(values, default=_plain))
    return plain


def _plain(value: Any) -> Any:
    """Return a value that JSON has no word for as something that it can write."""
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "item") and getattr(value, "size", None) == 1:  # a number of NumPy's
        return value.item()
    return getattr(value, "__qualname__", None) or repr(value)
