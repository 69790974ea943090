"""Successive halving over tasks: hopeless settings are given up after the first tasks of the stream."""

from metareplay._core.checks import whole
from metareplay.errors import InputError

ROUNDS = 3  # how often settings are compared, the last time after all tasks


def rounds(tasks: int, factor: int | None) -> list[int | None]:
    """Return after how many tasks settings are compared; None stands for all tasks.

    Args:
        tasks: How many tasks there are.
        factor: Each round keeps one setting out of this many and goes over this many times as many tasks; None for a
            single round over all tasks.

    >>> rounds(20, 3), rounds(2, 3), rounds(20, None)
    ([3, 7, None], [1, None], [None])
    """
    if factor is None:
        return [None]
    if whole("halving", factor) < 2:
        raise InputError(f"halving={factor}: each round keeps one setting out of this many; use at least 2")
    sizes = [-(-tasks // factor**power) for power in range(ROUNDS - 1, 0, -1)]
    return [*sorted({size for size in sizes if size < tasks}), None]


def kept(settings: int, factor: int) -> int:
    """Return how many settings go on to the next round.

    Args:
        settings: How many there are.
        factor: One out of this many is kept.

    >>> kept(300, 3), kept(100, 3), kept(1, 3)
    (100, 34, 1)
    """
    return -(-settings // factor)
