"""What all streams of 28x28 images share: each task draws images and moves their pixels in its own way."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import IntEnum
from math import prod
from numbers import Integral

import numpy as np
import torch
from numpy.typing import NDArray

from metareplay._core.checks import instance, shown
from metareplay.data import Bytes, Images, mnist
from metareplay.errors import InputError
from metareplay.streams.stream import CHUNK, Chunk, Examples, Stream

PIXELS = 28 * 28

Map = NDArray[np.int64]  # of shape (784,): for each pixel the one that it is taken from, or -1 to make it black


class Drawn(IntEnum):
    """Name what a task draws random numbers for; each purpose has numbers of its own."""

    EXAMPLES = 1
    ANGLE = 2
    PERMUTATION = 3
    DRAWINGS = 4
    DRAWERS = 5
    ALPHABETS = 6
    TEST_EXAMPLES = 7


def generator(seed: int, task: int, what: Drawn) -> np.random.Generator:
    """Return a generator whose numbers do not depend on what is drawn for other tasks or purposes.

    Args:
        seed: The seed of the stream.
        task: The number of the task.
        what: What the numbers are for.
    """
    return np.random.default_rng([seed, task, what])


@dataclass(frozen=True, eq=False, repr=False)
class ImageStream(Stream):
    """Show the same kind of images in every task, with their pixels moved; a subclass defines `pixel_map`.

    Args:
        tasks: The number of tasks.
        examples: Training examples per task, drawn without replacement from the training images.
        seed: Decides which images each task shows and how it moves their pixels.
        images: The images to draw from; by default MNIST, which is read when it is first needed.
        shape: The shape of one input, for example (784,), (28, 28) or (1, 28, 28).
        test_examples: How many of the test images to use, counted from the first; by default all of them.
    """

    tasks: int = 20
    examples: int = 1000
    seed: int = 0
    _: KW_ONLY
    images: Images | None = None
    shape: tuple[int, ...] = (PIXELS,)
    test_examples: int | None = None

    def __post_init__(self) -> None:
        """Refuse options that cannot be used, without touching the disk or the network."""
        images = self.images
        if images is not None:
            instance("images", images, Images, "metareplay.data.Images, or None for MNIST")
        train, test = (60_000, 10_000) if images is None else (len(images.train_xs), len(images.test_xs))
        check_whole("tasks", self.tasks, 1)
        check_whole("examples", self.examples, 1, train)
        check_whole("seed", self.seed, 0)
        if self.test_examples is not None:
            check_whole("test_examples", self.test_examples, 1, test)
        sizes = self.shape if isinstance(self.shape, Sequence) else ()
        if not all(isinstance(size, Integral) and size > 0 for size in sizes) or prod(sizes) != PIXELS:
            raise InputError(f"shape={shown(self.shape)}: an image has {PIXELS} pixels; use (784,) or (1, 28, 28)")

    @abstractmethod
    def pixel_map(self, task: int) -> Map:
        """Return where each pixel of a task's images is taken from.

        Args:
            task: The number of the task, counted from 0.
        """

    @property
    def total(self) -> int:
        """The number of training examples in all tasks together."""
        return self.tasks * self.examples

    def chunks(self, start: int = 0) -> Iterator[Chunk]:
        """Yield the training examples in order.

        Args:
            start: The number of examples to skip; tasks that are skipped entirely cost nothing.
        """
        check_whole("start", start, 0, self.total)
        images = self.images or mnist()
        skipped, first = divmod(start, self.examples)
        for task in range(skipped, self.tasks):
            rows = self._rows(task, images)
            pixels = self.pixel_map(task)
            for low in range(first, self.examples, CHUNK):
                some = rows[low : low + CHUNK]
                shown = self._show(images.train_xs[some], images.train_ys[some], pixels)
                yield Chunk(shown.xs, shown.ys, task)
            first = 0

    def train(self, task: int) -> Examples:
        """Return the training examples of one task, in the order in which they come.

        Args:
            task: The number of the task, counted from 0.
        """
        check_whole("task", task, 0, self.tasks - 1)
        images = self.images or mnist()
        rows = self._rows(task, images)
        return self._show(images.train_xs[rows], images.train_ys[rows], self.pixel_map(task))

    def sizes(self) -> list[int]:
        """Return the number of training examples of each task."""
        return [int(self.examples)] * int(self.tasks)

    def test(self, task: int) -> Examples:
        """Return the test images as one task shows them.

        Args:
            task: The number of the task, counted from 0.
        """
        check_whole("task", task, 0, self.tasks - 1)
        images = self.images or mnist()
        some = slice(self.test_examples)
        return self._show(images.test_xs[some], images.test_ys[some], self.pixel_map(task))

    def settings(self) -> dict[str, object]:
        """Return everything that defines the stream as plain JSON values; the record of a run keeps it."""
        return {
            "stream": type(self).__name__,
            "images": "mnist" if self.images is None else self.images.name,
            "tasks": int(self.tasks),
            "examples": int(self.examples),
            "seed": int(self.seed),
            "shape": [int(size) for size in self.shape],
            "test_examples": None if self.test_examples is None else int(self.test_examples),
        }

    def __repr__(self) -> str:
        """Show tasks, examples, seed, and every other option that is not at its default."""
        settings = self.settings()
        shown = {name: settings[name] for name in ("tasks", "examples", "seed")}
        if self.images is not None:
            shown["images"] = self.images.name
        if tuple(self.shape) != (PIXELS,):
            shown["shape"] = tuple(self.shape)
        if self.test_examples is not None:
            shown["test_examples"] = settings["test_examples"]
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def _rows(self, task: int, images: Images) -> NDArray[np.int64]:
        """Draw which of the training images a task shows."""
        return generator(self.seed, task, Drawn.EXAMPLES).choice(len(images.train_xs), self.examples, replace=False)

    def _show(self, xs: Bytes, ys: Bytes, pixels: Map) -> Examples:
        """Return images with their pixels moved, as tensors of the shape asked for."""
        moved = np.take(xs.reshape(len(xs), PIXELS), np.maximum(pixels, 0), axis=1)
        if pixels.min() < 0:
            np.multiply(moved, (pixels >= 0).astype(np.uint8), out=moved)
        return Examples(torch.from_numpy(moved).view(-1, *self.shape), torch.from_numpy(ys.astype(np.int64)))


def check_whole(name: str, value: int, low: int, high: int | None = None) -> None:
    """Refuse a value that is not a whole number within its bounds.

    Args:
        name: The name of the option, for the message.
        value: Its value.
        low: The least that it may be.
        high: The most that it may be, if there is a limit.
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or value < low or (high is not None and value > high):
        wanted = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise InputError(f"{name}={shown(value)}: use a whole number {wanted}")
