"""Finished runs on disk, found by the hash of their configuration."""

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import final

from metareplay._core.files import write_atomically
from metareplay.errors import MetareplayError
from metareplay.experiments.record import Record

logger = logging.getLogger("metareplay")


@final
class Records:
    """A folder of records: a JSON file each, as a run writes it, or many in a .jsonl file, a line each.

    A file that cannot be read (damaged, or written by another version) is named once and left alone.
    """

    def __init__(self, folder: Path) -> None:
        self._files = {path.stem.rpartition("-")[2]: path for path in sorted(folder.glob("*.json"))}
        self._known: dict[str, Record] = {}
        for path in sorted(folder.glob("*.jsonl")):
            self._known |= {record.key: record for record in unpack(path)}

    def find(self, key: str) -> Record | None:
        """The record of a finished run; None if there is none yet."""
        path = self._files.pop(key, None)
        if path is not None:
            try:
                record = Record.read(path)
                if record.key != key:
                    raise MetareplayError(f"{path} holds the record of another run")
                self._known[key] = record
            except MetareplayError as error:
                logger.warning("%s; it is left alone", error)
        return self._known.get(key)


def pack(records: Iterable[Record], path: Path) -> None:
    """Write records into one file, a line each, in the order of their names; equal ones once."""
    lines = {record.name: json.dumps(record.to_json(compact=True)) for record in records}
    with write_atomically(path) as file:
        file.writelines(f"{lines[name]}\n".encode() for name in sorted(lines))


def unpack(path: Path) -> list[Record]:
    """The records that `pack` wrote; a line that cannot be read is named and left out."""
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            parts = json.loads(line)
            record = Record.from_json(parts)
            if record.key != parts["key"]:
                raise MetareplayError("a record of another run than it says")
            found.append(record)
        except (MetareplayError, KeyError, TypeError, ValueError) as error:
            logger.warning("%s, line %d, cannot be read (%s); it is left alone", path, number, error)
    return found
