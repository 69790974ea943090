"""MNIST Permutations (Kirkpatrick et al., 2017): every task shuffles the pixels in a way of its own."""

from dataclasses import dataclass
from typing import final

from metareplay.streams.images import PIXELS, Drawn, ImageStream, Map, generator


@final
@dataclass(frozen=True, eq=False, repr=False)
class Permutations(ImageStream):
    """Shuffle the 784 pixels of all images of a task, the first task included, by one random permutation.

    >>> stream = Permutations(tasks=20, examples=1000, seed=0)
    >>> stream.total
    20000
    >>> stream.pixel_map(0)[:5], stream.pixel_map(1)[:5]
    (array([383,  76,  36, 596, 146]), array([324, 452, 710, 188, 585]))

    Args:
        tasks: The number of tasks.
        examples: Training examples per task, drawn without replacement from the training images.
        seed: Decides which images each task shows and the permutation of their pixels.
        images: The images to draw from; by default MNIST, which is read when it is first needed.
        shape: The shape of one input, for example (784,), (28, 28) or (1, 28, 28).
        test_examples: How many of the test images to use, counted from the first; by default all of them.
    """

    def pixel_map(self, task: int) -> Map:
        """Return a task's permutation.

        Args:
            task: The number of the task, counted from 0.
        """
        return permutation(self.seed, task)


def permutation(seed: int, task: int) -> Map:
    """Return the permutation of the 784 pixels that one task uses.

    Args:
        seed: The seed of the stream.
        task: The number of the task, counted from 0.
    """
    return generator(seed, task, Drawn.PERMUTATION).permutation(PIXELS)
