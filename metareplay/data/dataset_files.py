"""The files of a dataset on this machine: where they may be, and whether they are intact."""

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metareplay.data.sources import SOURCES, TEST_YS, Source
from metareplay.errors import DataError

Bytes = NDArray[np.uint8]
LARGEST = 2**28  # bytes of a file, at most; the largest of ours has 47 million


def cache_folder() -> Path:
    """Return the folder into which datasets are downloaded, `$XDG_CACHE_HOME/metareplay` or `~/.cache/metareplay`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "metareplay"


def folders(source: Source) -> Iterator[Path]:
    """Yield the folders in which a dataset may be found, in the order in which they are searched.

    Args:
        source: The dataset.
    """
    if given := os.environ.get("METAREPLAY_DATA"):
        folder = Path(given)
        if not folder.is_dir():
            raise DataError(f"METAREPLAY_DATA={given} is not a folder; create it, or unset METAREPLAY_DATA")
        yield folder / source.name
        if not _holds_another(folder, source):
            yield folder
    yield cache_folder() / source.name
    yield from map(Path, source.folders)


def _holds_another(folder: Path, source: Source) -> bool:
    """Return True if the files in a folder belong to another known dataset, since those like MNIST use its names."""
    path = file_path(folder, TEST_YS) if TEST_YS in source.files else None
    others = [other for other in SOURCES.values() if TEST_YS in other.files and other.files != source.files]
    return path is not None and any(unpacked(path.read_bytes(), o.files[TEST_YS]) is not None for o in others)


def complete(folder: Path, source: Source) -> bool:
    """Return True if a folder has all files of a dataset.

    Args:
        folder: The folder to look into.
        source: The dataset.
    """
    return all(file_path(folder, file) for file in source.files)


def file_path(folder: Path, file: str) -> Path | None:
    """Return the path of a file, or of its gzipped form, or None if neither exists.

    Args:
        folder: The folder to look into.
        file: The name of the file, without `.gz`.
    """
    return next((path for path in (folder / file, folder / f"{file}.gz") if path.is_file()), None)


def unpacked(data: bytes, sha256: str) -> bytes | None:
    """Return the data, unpacked if they are gzipped, or None if they do not match the checksum.

    Args:
        data: The content of a file, gzipped or not.
        sha256: The checksum of the unpacked content.
    """
    with suppress(OSError, EOFError, zlib.error):
        if data.startswith(b"\x1f\x8b"):
            with gzip.GzipFile(fileobj=BytesIO(data)) as file:
                data = file.read(LARGEST)  # a bomb is not unpacked any further
    return data if hashlib.sha256(data).hexdigest() == sha256 else None


def verified(folder: Path, file: str, source: Source) -> bytes:
    """Return the unpacked content of a file of a dataset, or raise a `DataError` if it does not match its checksum.

    Args:
        folder: The folder that holds the file, gzipped or not.
        file: The name of the file, without `.gz`.
        source: The dataset.
    """
    path = file_path(folder, file) or folder / file
    with disk(f"read {path}", "check the permissions"):
        data = unpacked(path.read_bytes(), source.files[file])
    if data is None:
        raise DataError(
            f"{path} is damaged (its SHA-256 is not {source.name}'s); delete it and run "
            f"`metareplay data fetch {source.name}`"
        )
    return data


def intact(folder: Path, file: str, sha256: str) -> bool:
    """Return True if a file exists and matches its checksum.

    Args:
        folder: The folder to look into.
        file: The name of the file, without `.gz`.
        sha256: The checksum of the unpacked content.
    """
    with suppress(OSError):
        path = file_path(folder, file)
        return path is not None and unpacked(path.read_bytes(), sha256) is not None
    return False


@contextmanager
def disk(action: str, advice: str) -> Iterator[None]:
    """Turn an error of the file system into a `DataError` of one line.

    Args:
        action: What is being done, as in "cannot <action>".
        advice: What the user can do about it.
    """
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot {action}: {error.strerror or error}; {advice}") from error
