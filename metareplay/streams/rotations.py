"""MNIST Rotations (Lopez-Paz and Ranzato, 2017): every task rotates the digits by an angle of its own."""

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from metareplay.streams.images import PIXELS, Drawn, ImageStream, Map, check_whole, generator

SIDE = 28


@final
@dataclass(frozen=True, eq=False, repr=False)
class Rotations(ImageStream):
    """Rotate all images of task t of T by one angle, drawn uniformly from 180 t/T to 180 (t+1)/T degrees.

    >>> stream = Rotations(tasks=20, examples=1000, seed=0)
    >>> stream
    Rotations(tasks=20, examples=1000, seed=0)
    >>> stream.total
    20000
    >>> [round(stream.angle(task), 1) for task in (0, 1, 19)]
    [5.6, 16.9, 175.7]

    Args:
        tasks: The number of tasks.
        examples: Training examples per task, drawn without replacement from the training images.
        seed: Decides which images each task shows and the angle by which it rotates them.
        images: The images to draw from; by default MNIST, which is read when it is first needed.
        shape: The shape of one input, for example (784,), (28, 28) or (1, 28, 28).
        test_examples: How many of the test images to use, counted from the first; by default all of them.
    """

    def angle(self, task: int) -> float:
        """Return the angle of one task in degrees, counterclockwise.

        Args:
            task: The number of the task, counted from 0.
        """
        check_whole("task", task, 0, self.tasks - 1)
        width = 180 / self.tasks
        return generator(self.seed, task, Drawn.ANGLE).uniform(width * task, width * (task + 1))

    def pixel_map(self, task: int) -> Map:
        """Return the rotation by a task's angle.

        Args:
            task: The number of the task, counted from 0.
        """
        return rotation(self.angle(task))


def rotation(angle: float) -> Map:
    """Return which pixel each pixel comes from when a 28x28 image is rotated, or -1 if it comes from outside.

    This is exactly what Pillow's `Image.rotate(angle)` does: it takes the nearest pixel, computed with 16 binary
    places.

    >>> bool((rotation(90).reshape(28, 28) == np.rot90(np.arange(784).reshape(28, 28))).all())
    True

    Args:
        angle: The angle in degrees, counterclockwise.
    """
    angle %= 360.0
    if angle % 90 == 0:
        return np.rot90(np.arange(PIXELS).reshape(SIDE, SIDE), int(angle // 90)).ravel()
    cos = round(math.cos(-math.radians(angle)), 15)
    sin = round(math.sin(-math.radians(angle)), 15)
    middle = SIDE / 2
    left = cos * -middle + sin * -middle + middle
    top = -sin * -middle + cos * -middle + middle
    y, x = np.divmod(np.arange(PIXELS), SIDE)
    from_x = (_fixed(left + cos * 0.5 + sin * 0.5) + _fixed(sin) * y + _fixed(cos) * x) >> 16
    from_y = (_fixed(top + -sin * 0.5 + cos * 0.5) + _fixed(cos) * y + _fixed(-sin) * x) >> 16
    inside = (from_x >= 0) & (from_x < SIDE) & (from_y >= 0) & (from_y < SIDE)
    return np.where(inside, from_y * SIDE + from_x, -1)


def _fixed(value: float) -> int:
    """Round a number to 16 binary places."""
    return math.floor(value * 65536.0 + 0.5)
