"""Many Permutations (Riemer et al., 2019): five times as many tasks with a fifth of the examples each."""

from dataclasses import dataclass
from typing import final

from metareplay.streams.images import ImageStream, Map
from metareplay.streams.permutations import permutation


@final
@dataclass(frozen=True, eq=False, repr=False)
class ManyPermutations(ImageStream):
    """Shuffle pixels like `Permutations`, but in 100 tasks of 200 examples: more change in as many examples.

    >>> ManyPermutations(seed=0).total
    20000

    Args:
        tasks: The number of tasks.
        examples: Training examples per task, drawn without replacement from the training images.
        seed: Decides which images each task shows and the permutation of their pixels.
        images: The images to draw from; by default MNIST, which is read when it is first needed.
        shape: The shape of one input, for example (784,), (28, 28) or (1, 28, 28).
        test_examples: How many of the test images to use, counted from the first; by default all of them.
    """

    tasks: int = 100
    examples: int = 200

    def pixel_map(self, task: int) -> Map:
        """Return a task's permutation.

        Args:
            task: The number of the task, counted from 0.
        """
        return permutation(self.seed, task)
