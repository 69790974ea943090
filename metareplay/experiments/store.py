"""Records of finished runs on disk, found by the hash of what was run."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Generic, final

from metareplay._core.files import names_in, write_atomically
from metareplay._core.seal import opened_json, sealed_json
from metareplay.errors import MetareplayError
from metareplay.experiments.base import AnyRecord, BaseRecord, kind_of

logger = logging.getLogger("metareplay")


@final
class Records(Generic[AnyRecord]):
    """Find records of one kind in a folder: in one JSON file per record, or in .jsonl files with one record per line.

    A file that cannot be read, because it is damaged or from another version, is named in a warning and left alone.

    Args:
        folder: The folder with the records.
        kind: The class of the records.
    """

    def __init__(self, folder: Path, kind: type[AnyRecord]) -> None:
        self._kind = kind
        paths = [folder / name for name in sorted(names_in(folder)) if not name.startswith(".")]
        self._files = {path.stem.rpartition("-")[2]: path for path in paths if path.suffix == ".json"}
        self._known: dict[str, AnyRecord] = {}
        for path in paths:
            if path.suffix != ".jsonl":
                continue
            self._known |= {record.key: record for record in unpack(path, kind)}

    def find(self, key: str) -> AnyRecord | None:
        """Return the record of a finished run; None if there is none yet.

        Args:
            key: The key of the run.
        """
        path = self._files.pop(key, None)
        if path is not None:
            try:
                record = self._kind.read(path)
                if record.key != key:
                    raise MetareplayError(f"{path} holds the record of another run")
                self._known[key] = record
            except MetareplayError as error:
                logger.warning("%s; it is left alone", error)
        return self._known.get(key)


def pack(records: Iterable[BaseRecord], path: Path) -> None:
    """Write records into one file, one per line, in the order of their names; equal ones are written once.

    Args:
        records: The records.
        path: The file to write, usually *.jsonl.
    """
    lines = {record.name: sealed_json(record.to_json(compact=True)) for record in records}
    with write_atomically(path) as file:
        file.writelines(lines[name] + b"\n" for name in sorted(lines))


def unpack(path: Path, kind: type[AnyRecord]) -> list[AnyRecord]:
    """Read the records of one kind that `pack` wrote; a line that cannot be read is named in a warning and left out.

    Args:
        path: The file.
        kind: The class of the records.
    """
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            parts, _ = opened_json(line)
            if kind_of(parts) != kind.kind:
                continue
            record = kind.from_json(parts)
            if record.key != parts["key"]:
                raise MetareplayError("its key is that of another run")
            found.append(record)
        except (MetareplayError, AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            logger.warning("%s, line %d, cannot be read (%s); it is left alone", path, number, error)
    return found
