"""MNIST, Fashion-MNIST, or your own images of the same size, as NumPy arrays."""

import struct
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np

from metareplay._core.checks import instance, line
from metareplay.data.dataset_files import Bytes, complete, disk, file_path, folders, verified
from metareplay.data.download import fetch
from metareplay.data.sources import FASHION_MNIST, MNIST, Source
from metareplay.errors import DataError


@dataclass(frozen=True, eq=False, repr=False)
class Images:
    """Hold grey images of 28x28 pixels with their labels, for training and testing: `mnist()`, or your own arrays.

    >>> xs, ys = np.zeros((3, 28, 28), np.uint8), np.array([7, 0, 7], np.uint8)
    >>> Images("blank", xs, ys, xs[:2], ys[:2])
    Images(name='blank', train=3, test=2)

    Args:
        name: A name for the images, which appears in records and messages.
        train_xs: The training images, uint8 of shape (n, 28, 28).
        train_ys: The label of each training image, uint8 of shape (n,).
        test_xs: The test images, uint8 of shape (m, 28, 28).
        test_ys: The label of each test image, uint8 of shape (m,).
    """

    name: str
    train_xs: Bytes
    train_ys: Bytes
    test_xs: Bytes
    test_ys: Bytes

    def __post_init__(self) -> None:
        """Refuse arrays that do not fit together."""
        line("name", self.name)
        for part, xs, ys in [
            ("train", self.train_xs, self.train_ys),
            ("test", self.test_xs, self.test_ys),
        ]:
            for name, array in ((f"{part}_xs", xs), (f"{part}_ys", ys)):
                if not isinstance(array, np.ndarray):
                    raise DataError(f"{self.name}: {name} is a {type(array).__name__}; give a NumPy array of uint8")
                if array.dtype != np.uint8:
                    raise DataError(f"{self.name}: {name} has dtype {array.dtype}; give a NumPy array of uint8")
            if xs.ndim != 3 or xs.shape[1:] != (28, 28) or len(xs) == 0:
                raise DataError(f"{self.name}: {part}_xs has shape {xs.shape}; give (n, 28, 28) with n >= 1")
            if ys.shape != (len(xs),):
                raise DataError(
                    f"{self.name}: {part}_ys has shape {ys.shape}; give a label for each of {len(xs)} images"
                )

    def __repr__(self) -> str:
        """Show the name and the numbers of images."""
        return f"Images(name={self.name!r}, train={len(self.train_xs)}, test={len(self.test_xs)})"


def mnist() -> Images:
    """Return MNIST, 60,000 training and 10,000 test images of handwritten digits, downloading it if necessary."""
    return _loaded(MNIST)


def fashion_mnist() -> Images:
    """Return Fashion-MNIST, as many images of ten kinds of clothing, downloading it if necessary."""
    return _loaded(FASHION_MNIST)


_loading = Lock()  # so that threads share one copy
_kept: dict[str, Images] = {}  # what has been read, by name


def _loaded(source: Source) -> Images:
    """Return a dataset, which is read once."""
    with _loading:
        if source.name not in _kept:
            _kept[source.name] = load(source)
        return _kept[source.name]


def keep(images: Images) -> None:
    """Use these images from now on when the dataset of their name is asked for, unless it has been read before."""
    with _loading:
        _kept.setdefault(images.name, images)


def load(source: Source) -> Images:
    """Read a dataset from $METAREPLAY_DATA, the cache or a system package; download it if it is in none of these.

    Args:
        source: The dataset and the checksums of its files.
    """
    instance("source", source, Source, "a Source, or the functions mnist() and fashion_mnist()")
    if len(source.files) != 4:
        raise DataError(f"{source.name} has {len(source.files)} files: images and labels to train and test are four")
    with disk("read the data in METAREPLAY_DATA or the cache", "check the permissions"):
        folder = next((folder for folder in folders(source) if complete(folder, source)), None)
    folder = folder or fetch(source)
    return Images(source.name, *(_read(folder, file, source) for file in source.files))


def _read(folder: Path, file: str, source: Source) -> Bytes:
    """Return the content of one IDX file as an array."""
    data = verified(folder, file, source)
    dimensions = data[3] if data[:3] == b"\0\0\x08" and len(data) > 3 else 0  # 8 stands for unsigned bytes
    start = 4 + 4 * dimensions
    shape = struct.unpack(f">{dimensions}I", data[4:start]) if len(data) >= start else ()
    if not shape or len(data) - start != np.prod(shape, dtype=np.int64):
        path = file_path(folder, file)
        raise DataError(
            f"{path} is not an IDX file of unsigned bytes; replace it with the original file of {source.name}"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
