"""What a process is going to run in a folder: a small file there, by which `metareplay watch` knows what waits."""

import itertools
import json
import os
import re
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, final

from metareplay._core.files import MACHINE, is_alive, names_in, write_atomically
from metareplay.errors import DiskError
from metareplay.experiments.base import AnyExperiment
from metareplay.experiments.following import EVERY, SHARE

FORMAT: Final = 1
SUFFIX: Final = ".waiting"
_NUMBERS: Final = itertools.count()


@final
class Announcement:
    """List runs in a hidden file, as long as this object lives; the file of a process that was killed is recognised.

    A file that cannot be written is no reason to disturb anybody.

    Args:
        folder: Where the records are going to be.
        experiments: What is going to run; a single run needs no list.
    """

    def __init__(self, folder: Path, experiments: Sequence[AnyExperiment]) -> None:
        self._path = folder / f".{MACHINE}-{os.getpid()}-{next(_NUMBERS)}{SUFFIX}"
        self._about = {
            "format": FORMAT,
            "machine": MACHINE,
            "process": os.getpid(),
            "runs": [{"key": one.key, "label": one.label, "settings": _options(one)} for one in experiments],
        }
        self._due = 0.0
        made = False
        if len(experiments) > 1:
            with suppress(OSError):
                made = not folder.exists()
                folder.mkdir(parents=True, exist_ok=True)
            _clean(folder)
            self._write({})
        self._withdraw = weakref.finalize(self, _remove, self._path, made)

    def withdraw(self) -> None:
        """Delete the file, because everything has been done, and what processes have left that have died."""
        _clean(self._path.parent)
        self._withdraw()

    def together(self, count: int, seen: int, total: int) -> None:
        """Say how far several runs have come that advance together, unless the last news is too recent.

        Args:
            count: How many runs there are.
            seen: How many examples each of them has learned.
            total: How many examples each of them has to learn.
        """
        start = time.monotonic()
        if start >= self._due or seen >= total:
            self._write({"together": {"count": count, "seen": seen, "total": total}})
            took = time.monotonic() - start
            self._due = start + max(EVERY, took / SHARE)

    def _write(self, news: dict[str, Any]) -> None:
        said = json.dumps({**self._about, "written": time.time(), **news}, separators=(",", ":"))
        with suppress(DiskError), write_atomically(self._path, sync=False) as file:
            file.write(said.encode())


def _options(experiment: AnyExperiment) -> dict[str, Any]:
    """Return the settings of an experiment that are plain values, as far as it tells them."""
    given = getattr(experiment, "options", None) or getattr(experiment, "settings", None)
    found = {"memory": getattr(experiment, "memory", None), **(given if isinstance(given, Mapping) else {})}
    return {name: value for name, value in found.items() if isinstance(value, (str, int, float))}


def _remove(path: Path, made: bool) -> None:
    """Delete the file, and the folder if it was made for it and nothing else has come into it."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
        if made:
            path.parent.rmdir()


def _clean(folder: Path) -> None:
    """Delete what processes of this machine have left that have died."""
    for name in names_in(folder):
        writer = re.fullmatch(rf"\.?\.{MACHINE}-(\d+)-\d+{re.escape(SUFFIX)}(\..*part)?", name)
        if writer is not None and not is_alive(int(writer[1])):
            with suppress(OSError):
                (folder / name).unlink()
