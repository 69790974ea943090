"""Finished runs on disk, found by the hash of their configuration."""

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import final

from metareplay.errors import MetareplayError
from metareplay.files import write_atomically
from metareplay.record import Record

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
            try:
                self._known |= {record.key: record for record in unpack(path)}
            except MetareplayError as error:
                logger.warning("%s", error)

    def find(self, key: str) -> Record | None:
        """The record of a finished run; None if there is none yet."""
        path = self._files.pop(key, None)
        if path is not None:
            try:
                self._known[key] = Record.read(path)
            except MetareplayError as error:
                logger.warning("%s; it is left alone", error)
        return self._known.get(key)


def pack(records: Iterable[Record], path: Path) -> None:
    """Write records into one file, a line each, in the order of their names; equal ones once."""
    lines = {record.name: json.dumps(record.to_json(compact=True)) for record in records}
    with write_atomically(path) as file:
        file.writelines(f"{lines[name]}\n".encode() for name in sorted(lines))


def unpack(path: Path) -> list[Record]:
    """The records that `pack` wrote."""
    try:
        return [Record.from_json(json.loads(line)) for line in path.read_text().splitlines()]
    except (MetareplayError, OSError, KeyError, TypeError, ValueError) as error:
        raise MetareplayError(
            f"{path} holds no records that this version can read ({error}); it is left alone"
        ) from error
