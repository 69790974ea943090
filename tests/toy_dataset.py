"""A dataset of eight made-up images, as arrays and as files."""

import gzip
import hashlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metareplay.data import Images, Source, download
from metareplay.data.sources import TEST_XS, TEST_YS, TRAIN_XS, TRAIN_YS

rng = np.random.default_rng(0)


def idx(array: np.ndarray[Any, Any]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


ARRAYS = {
    TRAIN_XS: rng.integers(0, 256, (5, 28, 28), np.uint8),
    TRAIN_YS: rng.integers(0, 10, 5, np.uint8),
    TEST_XS: rng.integers(0, 256, (3, 28, 28), np.uint8),
    TEST_YS: rng.integers(0, 10, 3, np.uint8),
}
FILES = {file: idx(array) for file, array in ARRAYS.items()}
PACKED = {file: gzip.compress(content, mtime=0) for file, content in FILES.items()}
TOY = Source("toy", {file: hashlib.sha256(content).hexdigest() for file, content in FILES.items()})


def empty_cache(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Make datasets be cached in an empty folder, without pauses between downloads and without npm; return it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("METAREPLAY_DATA", raising=False)
    monkeypatch.setattr(download, "PAUSE", 0.0)
    return folder / "metareplay"


def write(folder: Path, files: dict[str, bytes], packed: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(content) if packed else content)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


def assert_toy(images: Images) -> None:
    for array, expected in zip(
        (images.train_xs, images.train_ys, images.test_xs, images.test_ys), ARRAYS.values(), strict=True
    ):
        np.testing.assert_array_equal(array, expected)
