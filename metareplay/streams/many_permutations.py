"""Many Permutations (Riemer et al., 2019): five times as many tasks with a fifth of the examples each."""

from dataclasses import dataclass
from typing import final

from metareplay.streams.images import ImageStream, Map
from metareplay.streams.permutations import permutation


@final
@dataclass(frozen=True, eq=False)
class ManyPermutations(ImageStream):
    """Permutations of 100 tasks with 200 examples each: more change in as many examples.

    >>> ManyPermutations(seed=0).total
    20000
    """

    tasks: int = 100
    examples: int = 200

    def pixel_map(self, task: int) -> Map:
        """This task's permutation."""
        return permutation(self.seed, task)
