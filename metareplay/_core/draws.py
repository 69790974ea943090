"""Random draws as a pure function of (seed, purpose, example, draw number).

Nothing has to be advanced or saved: the 7th draw for example 1000 is the same number whether the examples came one by
one or in chunks, or the stream was resumed there, and whichever engine asks for it. The function is SplitMix64
(Steele, Lea and Flood, OOPSLA 2014), addressed by position.
"""

from enum import IntEnum
from typing import final

import numpy as np
from numpy.typing import NDArray

from metareplay._core.checks import shown, whole
from metareplay.errors import InputError

Ints = NDArray[np.int64]
Fractions = NDArray[np.float64]
_Words = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Purpose(IntEnum):
    """Name what a draw is for; each purpose has its own, independent numbers."""

    KEEP = 0  # where the memory puts an example
    REPLAY = 1  # which stored examples are replayed
    PLACE = 2  # where the current example stands in a batch (Algorithm 7)
    MODULE = 3  # randomness inside the user's module, such as dropout
    ALIGNMENT = 4  # which past examples an incoming one is compared with
    GAME = 5  # what a game draws, such as where the next pellet appears
    ACTION = 6  # whether an agent explores, and what it then does
    AUGMENT = 7  # how replayed examples are transformed


@final
class Draws:
    """Draw uniform numbers for each example of a stream, addressed by purpose, example and number.

    Args:
        seed: Decides every draw.

    >>> draws = Draws(seed=0)
    >>> draws.integers(Purpose.REPLAY, example=5, count=4, high=100)
    array([81, 71, 87, 37])
    >>> draws.each(Purpose.KEEP, first=0, highs=np.array([10, 10, 10]))
    array([8, 6, 2])
    """

    def __init__(self, seed: int) -> None:
        seed = whole("seed", seed)
        if not 0 <= seed < 2**64:
            raise InputError(f"seed={shown(seed)}: use a whole number from 0 to 2**64 - 1")
        self.seed = seed
        start = _mix(np.array([seed], np.uint64))
        self._keys = {purpose: _mix(start + np.array([purpose], np.uint64) * _GOLDEN) for purpose in Purpose}

    def integers(self, purpose: Purpose, example: int, count: int, high: int) -> Ints:
        """Draw `count` independent integers in [0, high) for one example, with replacement.

        Args:
            purpose: What the draws are for.
            example: The number of the example in the stream.
            count: How many integers to draw.
            high: The integers are below this.
        """
        return below(self.fractions(purpose, example, 1, count)[0], high)

    def each(self, purpose: Purpose, first: int, highs: Ints) -> Ints:
        """Draw one integer in [0, high) for each of the examples first, first + 1, ...

        Args:
            purpose: What the draws are for.
            first: The number of the first example in the stream.
            highs: For each example, what its integer is below.
        """
        return below(self.fractions(purpose, first, len(highs), 1)[:, 0], highs)

    def fractions(self, purpose: Purpose, first: int, examples: int, count: int) -> Fractions:
        """Draw `count` numbers in [0, 1) for each of the examples first, first + 1, ..., one example per row.

        Args:
            purpose: What the draws are for.
            first: The number of the first example in the stream.
            examples: How many examples to draw for.
            count: How many numbers to draw per example.
        """
        states = self._states(purpose, np.arange(first, first + examples, dtype=np.uint64))
        words = _mix(states[:, None] + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN)
        return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def of(self, purpose: Purpose, examples: Ints) -> Fractions:
        """Draw one number in [0, 1) for each of some examples; it is the first that `fractions` draws.

        Args:
            purpose: What the draws are for.
            examples: The numbers of the examples in the stream.
        """
        words = _mix(self._states(purpose, examples.astype(np.uint64)) + _GOLDEN)
        return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def word(self, purpose: Purpose, example: int) -> int:
        """Draw one 63-bit number for one example, to seed another generator with.

        Args:
            purpose: What the draws are for.
            example: The number of the example in the stream.
        """
        return self.words(purpose, example, 1)[0]

    def words(self, purpose: Purpose, first: int, examples: int) -> list[int]:
        """Draw one 63-bit number for each of the examples first, first + 1, ..., to seed other generators with.

        Args:
            purpose: What the draws are for.
            first: The number of the first example in the stream.
            examples: How many examples to draw for.
        """
        states = self._states(purpose, np.arange(first, first + examples, dtype=np.uint64))
        found: list[int] = (states >> np.uint64(1)).tolist()
        return found

    def key(self, purpose: Purpose) -> int:
        """Return what the draws of a purpose start from, for code that reproduces them elsewhere, such as on a GPU.

        Args:
            purpose: What the draws are for.
        """
        return int(self._keys[purpose][0])

    def _states(self, purpose: Purpose, examples: _Words) -> _Words:
        return _mix(self._keys[purpose] + examples * _GOLDEN)


def _mix(words: _Words) -> _Words:
    """Apply SplitMix64's output function: every bit of the result depends on every bit given."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def below(fractions: Fractions, high: int | Ints) -> Ints:
    """Return floor(u * high), whole numbers in [0, high); they are uniform up to a bias below high / 2**53."""
    return (fractions * high).astype(np.int64)
