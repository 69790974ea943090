"""Everything that is in some files and folders: records of every kind, sweeps, failures, and what cannot be read."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from metareplay._core.checks import shown
from metareplay._core.seal import opened_json
from metareplay.errors import MetareplayError
from metareplay.learners.input_checks import one_line
from metareplay.reports.family import Family
from metareplay.reports.games import Games
from metareplay.reports.languages import Languages
from metareplay.reports.prequential import Prequentials
from metareplay.reports.streams import Streams
from metareplay.reports.sweep_files import SweepFile, sweep_file
from metareplay.runners.failure import SUFFIX, Failure

FAMILIES: Final[tuple[Family[Any], ...]] = (Streams(), Prequentials(), Games(), Languages())
UNREADABLE: Final = (  # what a record can raise that is not what it says it is
    *(MetareplayError, ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError),
)
LONGEST: Final = 1e12  # seconds
ENDINGS: Final = (".json", ".jsonl", SUFFIX)


@final
@dataclass(frozen=True)
class Broken:
    """Name a record that could not be read.

    Args:
        place: The file, and the line if it has several.
        reason: Why, in one line.
    """

    place: str
    reason: str


@final
@dataclass(frozen=True)
class Found:
    """Hold everything that was found.

    Args:
        records: The records of each family, by the family's name and the key of the run.
        sweeps: What sweeps found.
        failures: Runs that failed.
        broken: Records that could not be read.
        others: Names of JSON files that are something else.
        repeated: How many records came more than once; of these, the latest counts.
    """

    records: dict[str, dict[str, Any]] = field(default_factory=lambda: {family.name: {} for family in FAMILIES})
    sweeps: list[SweepFile] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)

    @property
    def runs(self) -> int:
        """How many runs have a record."""
        return sum(map(len, self.records.values()))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.runs or self.sweeps or self.failures or self.broken)


def read(places: Sequence[str | Path]) -> Found:
    """Read everything in some files and folders; what cannot be read is named and left alone.

    Args:
        places: Files, or folders whose files are read, those in folders within them included.
    """
    found = Found()
    for place in places:
        path = Path(place)
        if not path.exists():
            raise MetareplayError(f"{place} does not exist: give a folder with records, such as runs, or a file")
        for file in _files(path):
            _read_file(file, file.name if file == path else str(file.relative_to(path)), found)
    return found


def _files(path: Path) -> Iterator[Path]:
    """Yield the files that may have something to show, in the order of their names."""
    if not path.is_dir():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.endswith(ENDINGS) and not name.startswith("."):
                yield Path(folder) / name


def _read_file(path: Path, name: str, found: Found) -> None:
    """Add what a file has to what was found."""
    try:
        if not path.is_file():  # a pipe or a device may never end
            raise MetareplayError("not a regular file")
        if path.name.endswith(SUFFIX):
            found.failures.append(_checked(Failure.read(path)))
            return
        content = path.read_bytes()
    except UNREADABLE as error:
        found.broken.append(Broken(name, _reason(error)))
        return
    in_lines = path.name.endswith(".jsonl")
    for number, text in enumerate(content.splitlines() if in_lines else [content], 1):
        place = f"{name}, line {number}" if in_lines else name
        try:
            with np.errstate(all="ignore"):
                _add(opened_json(text)[0], place, found)
        except UNREADABLE as error:
            found.broken.append(Broken(place, _reason(error)))


def _add(parts: dict[str, Any], place: str, found: Found) -> None:
    """Add what a JSON document is; raise any exception if it is a broken record."""
    sweep = sweep_file(parts, place)
    if sweep is not None:
        found.sweeps.append(sweep)
        return
    claimed = "key" in parts and "format" in parts
    for family in FAMILIES if claimed else FAMILIES[-1:]:
        record = family.read(parts)
        if record is None:
            continue
        _check_times(record.seconds)
        family.check(record)
        key, known = family.key(record), found.records[family.name]
        if key in known:
            found.repeated.append(place)
            if family.date(record) < family.date(known[key]):
                return
        known[key] = record
        return
    if claimed:
        raise MetareplayError(f"the record of a {parts.get('kind')!r}, which this version does not know")
    found.others.append(place)


def _check_times(seconds: Any) -> None:
    """Raise MetareplayError for times that no run takes, whose sum over seeds may be infinite."""
    for one in seconds.values() if isinstance(seconds, dict) else [seconds]:
        if not 0 <= float(one) < LONGEST:
            raise MetareplayError(f"damaged or not a record: its seconds include {shown(one)}")


def _checked(failure: Failure) -> Failure:
    """Return a failure whose parts can be shown; raise TypeError otherwise."""
    if not isinstance(failure.settings, dict) or not isinstance(failure.versions, dict):
        raise TypeError("not the parts of a failure")
    return failure


def _reason(error: BaseException) -> str:
    """Return in one line why something could not be read."""
    if isinstance(error, MetareplayError):
        return one_line(error)
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return "damaged: it is not a whole JSON document"
    if isinstance(error, KeyError):
        return f"damaged or not a record: it has no {error}"
    return f"damaged or not a record: {one_line(error)}"


def names_of(places: Iterable[str | Path]) -> str:
    """Return the names of files and folders in one line.

    Args:
        places: The files and folders.
    """
    return ", ".join(Path(place).name or str(place) for place in places)
