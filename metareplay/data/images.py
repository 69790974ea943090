"""MNIST and Fashion-MNIST as arrays; or your own images of the same form."""

import struct
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import Lock

import numpy as np

from metareplay.data.download import (
    FASHION_MNIST,
    MNIST,
    SOURCES,
    Bytes,
    Source,
    complete,
    disk,
    fetch,
    file_path,
    folders,
    unpacked,
)
from metareplay.errors import DataError


@dataclass(frozen=True, eq=False)
class Images:
    """28x28 images with their labels, for training and for testing: `mnist()`, or your own arrays.

    >>> xs, ys = np.zeros((3, 28, 28), np.uint8), np.array([7, 0, 7], np.uint8)
    >>> Images("blank", xs, ys, xs, ys)
    Images(name='blank')
    """

    name: str
    train_xs: Bytes = field(repr=False)  # (n, 28, 28)
    train_ys: Bytes = field(repr=False)  # (n,)
    test_xs: Bytes = field(repr=False)
    test_ys: Bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse arrays that do not fit together."""
        for part, xs, ys in [
            ("train", self.train_xs, self.train_ys),
            ("test", self.test_xs, self.test_ys),
        ]:
            for array in (xs, ys):
                if not isinstance(array, np.ndarray) or array.dtype != np.uint8:
                    raise DataError(f"{self.name}: give {part}_xs and {part}_ys as NumPy arrays of uint8")
            if xs.ndim != 3 or xs.shape[1:] != (28, 28) or len(xs) == 0:
                raise DataError(f"{self.name}: {part}_xs has shape {xs.shape}; give (n, 28, 28) with n >= 1")
            if ys.shape != (len(xs),):
                raise DataError(
                    f"{self.name}: {part}_ys has shape {ys.shape}; give a label for each of {len(xs)} images"
                )


def mnist() -> Images:
    """MNIST: 60,000 training and 10,000 test images of handwritten digits; fetched if it is not here yet."""
    with _loading:
        return _loaded(MNIST.name)


def fashion_mnist() -> Images:
    """Fashion-MNIST: of the same form as MNIST, with ten kinds of clothing."""
    with _loading:
        return _loaded(FASHION_MNIST.name)


_loading = Lock()  # threads share one copy


@cache
def _loaded(name: str) -> Images:
    return load(SOURCES[name])


def load(source: Source) -> Images:
    """Read a dataset from METAREPLAY_DATA, the cache or a system package; fetch it if it is in none."""
    with disk("read the data in METAREPLAY_DATA or the cache", "make it readable"):
        folder = next((folder for folder in folders(source) if complete(folder, source)), None)
    folder = folder or fetch(source)
    return Images(source.name, *(_read(folder, file, source) for file in source.files))


def _read(folder: Path, file: str, source: Source) -> Bytes:
    """One IDX file as an array."""
    path = file_path(folder, file) or folder / file
    with disk(f"read {path}", "make it readable"):
        data = unpacked(path.read_bytes(), source.files[file])
    if data is None:
        raise DataError(
            f"{path} is damaged (its SHA-256 is not {source.name}'s); delete it and run "
            f"`metareplay data fetch {source.name}`"
        )
    dimensions = data[3] if data[:3] == b"\0\0\x08" and len(data) > 3 else 0  # 8: unsigned bytes
    start = 4 + 4 * dimensions
    shape = struct.unpack(f">{dimensions}I", data[4:start]) if len(data) >= start else ()
    if not shape or len(data) - start != np.prod(shape, dtype=np.int64):
        raise DataError(f"{path} is not an IDX file of unsigned bytes; use the original file of {source.name}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
