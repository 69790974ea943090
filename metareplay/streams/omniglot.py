"""Omniglot as a stream (Riemer et al., 2019): every alphabet is a task, learned character after character."""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, fields
from numbers import Real
from typing import Literal, final, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from metareplay._core.checks import choice, instance, shown
from metareplay.data import Characters, omniglot
from metareplay.data.characters import Pixels, check_pixels, check_resolution
from metareplay.data.omniglot import ALPHABETS, DRAWINGS
from metareplay.errors import InputError
from metareplay.streams.images import Drawn, check_whole, generator
from metareplay.streams.stream import CHUNK, Chunk, Examples, Stream

SIZES = tuple(ALPHABETS.values())  # so that nothing has to be read only to know how many examples there are

Order = Literal["given", "shuffled"]
Split = Literal["drawings", "drawers"]
Labels = Literal["alphabet", "all"]
Rows = NDArray[np.int64]  # of shape (characters, n): numbers of n drawings of each character of an alphabet


@final
@dataclass(frozen=True, eq=False, repr=False)
class Omniglot(Stream):
    """Show the characters of one alphabet after another; each task has the classes of its own alphabet.

    Within an alphabet all training drawings of a character come before those of the next one. Inputs are uint8 of shape
    (1, resolution, resolution), with 255 for ink.

    >>> stream = Omniglot(seed=0)
    >>> stream.total, stream.classes[:5]
    (29214, (20, 29, 26, 41, 40))
    >>> Omniglot(3, examples=72).classes  # four characters of 18 training drawings in each task
    (4, 4, 4)

    Args:
        tasks: The number of tasks: the first alphabets in `order`.
        seed: Decides which drawings are for testing, the order of the others, and that of shuffled alphabets.
        characters: The characters to show; by default Omniglot, which is read when it is first needed.
        examples: Training examples per task; the first characters of the alphabet are shown, as many as are needed for
            that many examples. By default all of them.
        test_examples: The most test images per task, drawn from all of them; by default all.
        order: The order of the alphabets: "given" for that of the data, or "shuffled" by the seed.
        split: How the test drawings are chosen: "drawings" draws them for each character by itself; "drawers" takes the
            drawings with the same numbers of every character, which within an alphabet of Omniglot are those of the
            same people.
        test_share: The share of each character's drawings that are for testing: 2 of 20 by default.
        resolution: The number of pixels on each side, from 1 to 105; the original drawings have 105.
        pixels: "grey" for the share of each pixel's area that is covered with ink, or "binary" for 255 where that is at
            least half and for 0 elsewhere.
        labels: "alphabet" to number the characters within their alphabet, for a head per task; "all" to number all
            characters of the data, for one head.
    """

    tasks: int = 50
    seed: int = 0
    _: KW_ONLY
    characters: Characters | None = None
    examples: int | None = None
    test_examples: int | None = None
    order: Order = "given"
    split: Split = "drawings"
    test_share: float = 0.1
    resolution: int = 28
    pixels: Pixels = "grey"
    labels: Labels = "alphabet"

    def __post_init__(self) -> None:
        """Refuse options that cannot be used, without touching the disk or the network."""
        if self.characters is not None:
            instance("characters", self.characters, Characters, "metareplay.data.Characters, or None for Omniglot")
        check_whole("tasks", self.tasks, 1, len(self._sizes))
        check_whole("seed", self.seed, 0)
        if self.examples is not None:
            check_whole("examples", self.examples, 1)
        if self.test_examples is not None:
            check_whole("test_examples", self.test_examples, 1)
        for name, value, known in (
            ("order", self.order, get_args(Order)),
            ("split", self.split, get_args(Split)),
            ("labels", self.labels, get_args(Labels)),
        ):
            choice(name, value, known)
        share = self.test_share
        if not isinstance(share, Real) or not 0 < share < 1 or not 0 < self._tests < self._drawings:
            raise InputError(
                f"test_share={shown(share)}: use a number between 0 and 1 that leaves some of each character's "
                f"{self._drawings} drawings for training and some for testing"
            )
        check_resolution(self.resolution)
        check_pixels(self.pixels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of one input."""
        return 1, self.resolution, self.resolution

    @property
    def classes(self) -> tuple[int, ...]:
        """The number of classes of each task, which is how many outputs its head must have."""
        if self.labels == "all":
            return (sum(self._sizes),) * self.tasks
        return tuple(self._shown(task) for task in range(self.tasks))

    @property
    def total(self) -> int:
        """The number of training examples in all tasks together."""
        return sum(self.sizes())

    def sizes(self) -> list[int]:
        """Return the number of training examples of each task."""
        return [self._count(task) for task in range(self.tasks)]

    def chunks(self, start: int = 0) -> Iterator[Chunk]:
        """Yield the training examples in order.

        Args:
            start: The number of examples to skip; tasks that are skipped entirely cost nothing.
        """
        check_whole("start", start, 0, self.total)
        for task in range(self.tasks):
            if start < self._count(task):
                rows = self.train(task)
                for low in range(start, len(rows), CHUNK):
                    yield Chunk(rows.xs[low : low + CHUNK], rows.ys[low : low + CHUNK], task)
            start = max(start - self._count(task), 0)

    def train(self, task: int) -> Examples:
        """Return the training examples of one task in the order in which they come.

        Args:
            task: The number of the task, counted from 0.
        """
        training, _ = self._drawn(task)
        return self._show(task, training)

    def test(self, task: int) -> Examples:
        """Return the test images of one task: those of the characters that it shows, character after character.

        Args:
            task: The number of the task, counted from 0.
        """
        _, testing = self._drawn(task)
        found = self._show(task, testing)
        if self.test_examples is None or self.test_examples >= len(found):
            return found
        drawn = generator(self.seed, self._alphabet(task), Drawn.TEST_EXAMPLES).permutation(len(found))
        some = np.sort(drawn[: self.test_examples])
        return Examples(found.xs[some], found.ys[some])

    def settings(self) -> dict[str, object]:
        """Return everything that defines the stream as plain JSON values; the record of a run keeps it."""
        return {
            "stream": type(self).__name__,
            "characters": "omniglot" if self.characters is None else self.characters.name,
            "tasks": int(self.tasks),
            "seed": int(self.seed),
            "examples": None if self.examples is None else int(self.examples),
            "test_examples": None if self.test_examples is None else int(self.test_examples),
            "order": self.order,
            "split": self.split,
            "test_share": float(self.test_share),
            "resolution": int(self.resolution),
            "pixels": self.pixels,
            "labels": self.labels,
        }

    def __repr__(self) -> str:
        """Show tasks, seed, and every other option that is not at its default."""
        settings = self.settings()
        usual = {one.name: one.default for one in fields(self)} | {"characters": "omniglot"}
        shown = [name for name in usual if name in ("tasks", "seed") or settings[name] != usual[name]]
        return f"{type(self).__name__}({', '.join(f'{name}={settings[name]!r}' for name in shown)})"

    @property
    def _sizes(self) -> tuple[int, ...]:
        """The number of characters of each alphabet of the data."""
        return SIZES if self.characters is None else self.characters.sizes

    @property
    def _drawings(self) -> int:
        """The number of drawings of each character."""
        return DRAWINGS if self.characters is None else self.characters.drawings.shape[1]

    @property
    def _tests(self) -> int:
        """The number of each character's drawings that are for testing."""
        return round(float(self.test_share) * self._drawings)

    def _alphabet(self, task: int) -> int:
        """Return the number in the data of a task's alphabet."""
        check_whole("task", task, 0, self.tasks - 1)
        if self.order == "given":
            return task
        return int(generator(self.seed, 0, Drawn.ALPHABETS).permutation(len(self._sizes))[task])

    def _shown(self, task: int) -> int:
        """Return how many characters of its alphabet a task shows."""
        all_of_them = self._sizes[self._alphabet(task)]
        if self.examples is None:
            return all_of_them
        return min(all_of_them, -(-int(self.examples) // (self._drawings - self._tests)))

    def _count(self, task: int) -> int:
        """Return the number of training examples of a task."""
        return self._shown(task) * (self._drawings - self._tests)

    def _drawn(self, task: int) -> tuple[Rows, Rows]:
        """Return which drawings of each character that a task shows are for training, in order, and for testing."""
        alphabet = self._alphabet(task)
        every = np.tile(np.arange(self._drawings), (self._sizes[alphabet], 1))
        drawn = generator(self.seed, alphabet, Drawn.DRAWINGS).permuted(every, axis=1)[: self._shown(task)]
        if self.split == "drawings":
            return drawn[:, self._tests :], np.sort(drawn[:, : self._tests], axis=1)
        drawers = generator(self.seed, 0, Drawn.DRAWERS).permutation(self._drawings)[: self._tests]
        testing = np.isin(drawn, drawers)
        return drawn[~testing].reshape(len(drawn), -1), np.tile(np.sort(drawers), (len(drawn), 1))

    def _show(self, task: int, drawings: Rows) -> Examples:
        """Return drawings of the characters of a task as tensors."""
        data = omniglot() if self.characters is None else self.characters
        first = sum(self._sizes[: self._alphabet(task)])
        numbers = np.repeat(np.arange(len(drawings)), drawings.shape[1])
        xs = data.images(self.resolution, self.pixels)[first + numbers, drawings.ravel()]
        ys = numbers if self.labels == "alphabet" else first + numbers
        return Examples(torch.from_numpy(xs).view(-1, *self.shape), torch.from_numpy(ys))
