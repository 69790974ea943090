"""All records of a folder or a file as one table, quickly: thousands of runs in less than a second."""

import gc
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from metareplay._core.checks import place_of
from metareplay._core.files import read_file
from metareplay._core.rows import Rows
from metareplay._core.seal import is_intact
from metareplay.errors import MetareplayError
from metareplay.experiments.names import LEARNERS_BY_NAME, STREAMS_BY_NAME, name_of
from metareplay.learners import Q_LEARNERS

logger = logging.getLogger("metareplay")

NOT_COLUMNS = {
    "loss",
    "regression",
    "classes",
    "head",
    "engine",
    "seed",
    "memory",
}  # settings that have no column, or another one
NOT_SHOWN = {"stream", "game", "seed", "shape", "evaluation", "values"}  # likewise, of a stream or game
UNUSED = (  # parts of a record that a table does not need: where each begins, and what comes after it
    (b'"model": ', b'"stream": '),
    (b'"accuracy": ', b'"weights": '),
    (b'"scores": ', b'"weights": '),
    (b'"versions": ', b'"date": '),
)
KINDS = (*LEARNERS_BY_NAME.values(), *Q_LEARNERS, *STREAMS_BY_NAME.values())
NAMES = {kind.__name__: name_of(kind) for kind in KINDS if isinstance(kind, type)}


def records(place: str | Path) -> Rows:
    """Read all records of a folder, or of one file, into one table: one row per run, with its settings and results.

    The names of the columns are those of the command line: learner, stream, memory, lr, ..., seed. Results are ra, la,
    bti, fti, and where they were measured va (validation), ta (training) and dot; for games the mean final score is
    `score`; for prequential runs they are accuracy, kappa and the other scores at the end. Records are read from files
    *.json with one record each, and from files *.jsonl with one per line; other files are left alone.

    Args:
        place: The folder, such as "runs", or a file *.json or *.jsonl.

    Returns:
        The table, in the order of the files' names.
    """
    path = place_of("place", place)
    files = _files(path)
    with _without_collecting_garbage():
        rows = _rows(files)
    if not rows and not path.is_dir():
        raise MetareplayError(f"{place} holds no records: give a folder such as 'runs', or a file *.json or *.jsonl")
    return Rows(rows.values())


def _files(place: Path) -> list[str]:
    """Return the paths of all files that may hold records."""
    if not place.is_dir():
        return [str(place)] if place.is_file() and place.suffix in (".json", ".jsonl") else []
    names = sorted(os.listdir(place))  # noqa: PTH208 (an entry per file would cost more than reading it)
    return [f"{place}/{name}" for name in names if not name.startswith(".") and name.endswith((".json", ".jsonl"))]


def _rows(paths: list[str]) -> dict[str, dict[str, Any]]:
    """Return the row of each record in some files, by its key."""
    rows: dict[str, dict[str, Any]] = {}
    for path in paths:
        try:
            content = read_file(Path(path))
        except OSError as error:
            logger.warning("%s cannot be read (%s); it is left alone", path, error.strerror or error)
            continue
        for number, text in enumerate(content.splitlines() if path.endswith("l") else [content], 1):
            parts = parsed(text)
            try:
                if parts is None:
                    raise ValueError(text)
                if "key" in parts and "settings" in parts:
                    rows[parts["key"]] = row_of(parts)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
                logger.warning("%s, record %d, cannot be read; it is left alone", path, number)
    return rows


@contextmanager
def _without_collecting_garbage() -> Iterator[None]:
    """Spare Python the search for cycles among millions of new objects, which takes a third of the time."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def parsed(text: bytes) -> dict[str, Any] | None:
    """Read one record, if possible without what a table does not need; None if it is damaged.

    Args:
        text: The content of a record's file, or a line of a file with many.
    """
    if not is_intact(text):
        return None
    short = text
    for start, end in UNUSED:
        first = short.find(start)
        last = short.find(end, first) if first >= 0 else -1
        if last >= 0:
            short = short[:first] + short[last:]
    for some in (short, text):  # all of it, if those words stand somewhere else
        try:
            found = json.loads(some)
            return found if isinstance(found, dict) else {}
        except (RecursionError, ValueError):
            continue
    return None


def row_of(parts: dict[str, Any]) -> dict[str, Any]:
    """Return the row of one record.

    Args:
        parts: The record as plain JSON values.
    """
    settings, where = parts["settings"], parts.get("stream") or parts.get("game") or {}
    stream = where.get("stream", where.get("game", "own"))
    row = {
        "learner": NAMES.get(parts["learner"], parts["learner"]),
        "stream": NAMES.get(stream, stream),
        **{name: value for name, value in settings.items() if name not in NOT_COLUMNS},
        **{name: value for name, value in where.items() if name not in NOT_SHOWN},
    }
    memory = settings.get("memory")
    if isinstance(memory, dict):
        row["memory"], row["memory_kind"] = memory.get("capacity"), str(memory.get("kind", "own")).lower()
    if parts.get("built_by") is not None:
        row |= {"built_by": parts["built_by"]["function"], **parts["built_by"]["settings"]}
    row["seed"] = parts["seed"]
    row |= {name: parts[name] for name in ("ra", "la", "bti", "fti") if name in parts}
    row |= parts["total"] if parts.get("kind") == "prequential" else {}
    for name, values in (("va", parts.get("held_out")), ("ta", parts.get("training")), ("score", parts.get("final"))):
        if values:
            row[name] = sum(values) / len(values)
    if parts.get("alignment"):
        row["dot"] = parts["alignment"]["mean"]
    row["seconds"] = sum(parts["seconds"].values())
    return row | {"engine": parts["engine"], "date": parts["date"], "key": parts["key"]}
