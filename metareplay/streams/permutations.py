"""MNIST Permutations (Kirkpatrick et al., 2017): every task shuffles the pixels in its own way."""

from dataclasses import dataclass
from typing import final

from metareplay.streams.images import PIXELS, Drawn, ImageStream, Map, generator


@final
@dataclass(frozen=True, eq=False)
class Permutations(ImageStream):
    """Each task, also the first, moves the 784 pixels of all its images by one random permutation.

    >>> stream = Permutations(tasks=20, examples=1000, seed=0)
    >>> stream.total
    20000
    >>> stream.pixel_map(0)[:5], stream.pixel_map(1)[:5]
    (array([383,  76,  36, 596, 146]), array([324, 452, 710, 188, 585]))
    """

    def pixel_map(self, task: int) -> Map:
        """This task's permutation."""
        return permutation(self.seed, task)


def permutation(seed: int, task: int) -> Map:
    """The permutation of the 784 pixels that one task uses."""
    return generator(seed, task, Drawn.PERMUTATION).permutation(PIXELS)
