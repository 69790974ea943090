"""Records of finished runs on disk, found by the hash of what was run."""

import logging
import re
from collections.abc import Iterable, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, final

from metareplay._core.checks import instance, place_of, several, shown
from metareplay._core.files import names_in, read_file, write_atomically
from metareplay._core.seal import opened_json, sealed_json
from metareplay.errors import InputError, MetareplayError
from metareplay.experiments.base import AnyRecord, BaseRecord, kind_of

logger = logging.getLogger("metareplay")


_KEY = re.compile(rb'\{"format": \d+, "key": "(\w+)"')  # how a packed record begins
_UNREADABLE = (MetareplayError, AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)


@final
class Records(Generic[AnyRecord]):
    """Find records of one kind in a folder: in one JSON file per record, or in .jsonl files with one record per line.

    A record is read when it is asked for. What cannot be read, because it is damaged or from another version, is named
    in a warning and left alone.

    Args:
        folder: The folder with the records.
        kind: The class of the records.
    """

    def __init__(self, folder: Path, kind: type[AnyRecord]) -> None:
        self._kind, folder = _record_class(kind), place_of("folder", folder)
        self._known: dict[str, AnyRecord] = {}
        names = sorted(name for name in names_in(folder) if not name.startswith("."))
        self._files = {
            name.removesuffix(".json").rpartition("-")[2]: folder / name for name in names if name.endswith(".json")
        }
        self._lines: dict[str, list[_Line]] = {}
        for name in names:
            if name.endswith(".jsonl"):
                for line in _lines(folder / name):
                    key = line.key
                    if key is not None:
                        self._lines.setdefault(key, []).append(line)

    @property
    def keys(self) -> Set[str]:
        """The keys of all runs that have a record here, as far as can be told without reading the records."""
        return self._files.keys() | self._lines.keys() | self._known.keys()

    def find(self, key: str) -> AnyRecord | None:
        """Return the record of a finished run; None if there is none yet.

        Args:
            key: The key of the run.
        """
        lines, path = self._lines.pop(key, []), self._files.pop(key, None)
        for record in (line.record(self._kind) for line in lines):
            if record is not None:
                self._known[key] = record
        if path is not None:
            try:
                record = self._kind.read(path)
                if record.key != key:
                    raise MetareplayError(f"{path} holds the record of another run")
                self._known[key] = record
            except MetareplayError as error:
                logger.warning("%s; it is left alone", error)
        return self._known.get(key)


@final
@dataclass(frozen=True)
class _Line:
    """Hold one line of a .jsonl file.

    Args:
        path: The file.
        number: The number of the line, counted from 1.
        content: The line.
    """

    path: Path
    number: int
    content: bytes

    @property
    def key(self) -> str | None:
        """The key of its record; None if it cannot be read."""
        found = _KEY.match(self.content)
        if found is not None:
            return found[1].decode()
        try:
            return str(opened_json(self.content)[0]["key"])
        except _UNREADABLE as error:
            self._warn(error)
            return None

    def record(self, kind: type[AnyRecord]) -> AnyRecord | None:
        """Return its record; None if it is of another kind or cannot be read."""
        try:
            parts, _ = opened_json(self.content)
            if kind_of(parts) != kind.kind:
                return None
            record = kind.from_json(parts)
            if record.key != parts["key"]:
                raise MetareplayError("its key is that of another run")
            return record
        except _UNREADABLE as error:
            self._warn(error)
            return None

    def _warn(self, error: Exception) -> None:
        logger.warning("%s, line %d, cannot be read (%s); it is left alone", self.path, self.number, error)


def _lines(path: Path) -> list[_Line]:
    try:
        content = read_file(path)
    except OSError as error:
        raise MetareplayError(f"cannot read {path}: {error.strerror or error}; check the path") from error
    return [_Line(path, number, line) for number, line in enumerate(content.splitlines(), 1)]


def _record_class(kind: type[AnyRecord]) -> type[AnyRecord]:
    if not isinstance(kind, type) or not issubclass(kind, BaseRecord):
        raise InputError(f"kind={shown(kind)}: use a class of records, such as Record")
    return kind


def pack(records: Iterable[BaseRecord], path: Path) -> None:
    """Write records into one file, one per line, in the order of their names; equal ones are written once.

    Args:
        records: The records.
        path: The file to write, usually *.jsonl.
    """
    for record in (records := several("records", records, "a list of records")):
        instance("records", record, BaseRecord, "a list of records")
    lines = {record.name: sealed_json(record.to_json(compact=True)) for record in records}
    with write_atomically(place_of("path", path)) as file:
        file.writelines(lines[name] + b"\n" for name in sorted(lines))


def unpack(path: Path, kind: type[AnyRecord]) -> list[AnyRecord]:
    """Read the records of one kind that `pack` wrote; a line that cannot be read is named in a warning and left out.

    Args:
        path: The file.
        kind: The class of the records.
    """
    kind = _record_class(kind)
    found = (line.record(kind) for line in _lines(place_of("path", path)))
    return [record for record in found if record is not None]
