"""What the streams of 28x28 images have in common: each task draws images and moves their pixels."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import IntEnum
from math import prod
from numbers import Integral

import numpy as np
import torch
from numpy.typing import NDArray

from metareplay.data import Bytes, Images, mnist
from metareplay.errors import InputError
from metareplay.streams.stream import CHUNK, Chunk, Examples, Stream

PIXELS = 28 * 28

Map = NDArray[np.int64]  # (784,): the pixel each pixel is taken from; -1 leaves it black


class Drawn(IntEnum):
    """What a task draws; each purpose has its own random numbers."""

    EXAMPLES = 1
    ANGLE = 2
    PERMUTATION = 3


def generator(seed: int, task: int, what: Drawn) -> np.random.Generator:
    """The random numbers of one task, whatever the other tasks drew."""
    return np.random.default_rng([seed, task, what])


@dataclass(frozen=True, eq=False)
class ImageStream(Stream):
    """Tasks that show images with their pixels moved, each task in its own way: the `pixel_map` of a task."""

    tasks: int = 20
    examples: int = 1000  # of a task, drawn without replacement from the training images
    seed: int = 0
    _: KW_ONLY
    images: Images | None = field(default=None, repr=False)  # None: MNIST, read when first needed
    shape: tuple[int, ...] = (PIXELS,)  # of one input: (784,), (28, 28), (1, 28, 28), ...
    test_examples: int | None = None  # of a task, the first ones; None: all

    def __post_init__(self) -> None:
        """Refuse options that cannot be met; neither disk nor network is touched."""
        images = self.images
        train, test = (60_000, 10_000) if images is None else (len(images.train_xs), len(images.test_xs))
        _check("tasks", self.tasks, 1)
        _check("examples", self.examples, 1, train)
        _check("seed", self.seed, 0)
        if self.test_examples is not None:
            _check("test_examples", self.test_examples, 1, test)
        sizes = self.shape if isinstance(self.shape, Sequence) else ()
        if not all(isinstance(size, Integral) and size > 0 for size in sizes) or prod(sizes) != PIXELS:
            raise InputError(f"shape={self.shape!r}: an image has {PIXELS} pixels; use (784,) or (1, 28, 28)")

    @abstractmethod
    def pixel_map(self, task: int) -> Map:
        """Where each pixel of this task's images comes from."""

    @property
    def total(self) -> int:
        """How many training examples there are in all."""
        return self.tasks * self.examples

    def chunks(self, start: int = 0) -> Iterator[Chunk]:
        """The training examples in order, from the `start`-th on; earlier tasks are not made."""
        _check("start", start, 0, self.total)
        images = self.images or mnist()
        skipped, first = divmod(start, self.examples)
        for task in range(skipped, self.tasks):
            rows = generator(self.seed, task, Drawn.EXAMPLES).choice(len(images.train_xs), self.examples, replace=False)
            pixels = self.pixel_map(task)
            for low in range(first, self.examples, CHUNK):
                some = rows[low : low + CHUNK]
                shown = self._show(images.train_xs[some], images.train_ys[some], pixels)
                yield Chunk(shown.xs, shown.ys, task)
            first = 0

    def test(self, task: int) -> Examples:
        """The test images as this task shows them."""
        _check("task", task, 0, self.tasks - 1)
        images = self.images or mnist()
        some = slice(self.test_examples)
        return self._show(images.test_xs[some], images.test_ys[some], self.pixel_map(task))

    def settings(self) -> dict[str, object]:
        """Everything that defines the stream, for the record: plain JSON values."""
        return {
            "stream": type(self).__name__,
            "images": "mnist" if self.images is None else self.images.name,
            "tasks": int(self.tasks),
            "examples": int(self.examples),
            "seed": int(self.seed),
            "shape": [int(size) for size in self.shape],
            "test_examples": None if self.test_examples is None else int(self.test_examples),
        }

    def _show(self, xs: Bytes, ys: Bytes, pixels: Map) -> Examples:
        moved = np.take(xs.reshape(len(xs), PIXELS), np.maximum(pixels, 0), axis=1)
        if pixels.min() < 0:
            np.multiply(moved, (pixels >= 0).astype(np.uint8), out=moved)
        return Examples(torch.from_numpy(moved).view(-1, *self.shape), torch.from_numpy(ys.astype(np.int64)))


def _check(name: str, value: int, low: int, high: int | None = None) -> None:
    if not isinstance(value, Integral) or value < low or (high is not None and value > high):
        wanted = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise InputError(f"{name}={value!r}: use a whole number {wanted}")
