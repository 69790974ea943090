"""Grids of settings: every combination of some lists of values, or a random sample of these."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from metareplay._core.checks import described, shown, text, whole
from metareplay._core.draws import Draws
from metareplay._core.rows import plain_text
from metareplay.errors import InputError

Settings = dict[str, Any]


@final
class Grid:
    """Combine lists of values: every value of one field with every value of all others.

    Settings come in the order of nested loops over the fields as they are given: the last field changes fastest.

    Args:
        values: The list of values of each field.

    >>> grid = Grid({"lr": [0.01, 0.1], "k": [6, 11, 26]})
    >>> len(grid), list(grid)[1]
    (6, {'lr': 0.01, 'k': 11})
    >>> list(grid.random(2, seed=0))
    [{'lr': 0.01, 'k': 26}, {'lr': 0.1, 'k': 6}]
    """

    def __init__(self, values: Mapping[str, Sequence[Any] | NDArray[Any]]) -> None:
        if not isinstance(values, Mapping):
            raise InputError(f"a grid is {described(values)}: give a dictionary of lists, such as {{'lr': [0.1]}}")
        self.values = {name: _checked(name, some) for name, some in values.items()}
        self._places: tuple[int, ...] | None = None  # of the settings that were sampled

    @property
    def fields(self) -> list[str]:
        """The fields that have several values."""
        return [name for name, values in self.values.items() if len(values) > 1]

    @property
    def sampled(self) -> bool:
        """Whether this is a random sample of the combinations."""
        return self._places is not None

    @property
    def whole(self) -> int:
        """How many combinations there are, whether sampled or not."""
        found = 1
        for values in self.values.values():
            found *= len(values)
        return found

    def random(self, count: int, seed: int = 0) -> "Grid":
        """Return a random sample of the combinations, without repetition.

        A larger sample with the same seed contains the smaller one, so it can be extended later.

        Args:
            count: How many combinations to draw.
            seed: Decides which ones.
        """
        if not 1 <= whole("count", count) <= self.whole:
            raise InputError(
                f"a random sample of {shown(count)} settings: the grid has {self.whole}; use 1 to {self.whole}"
            )
        made = Grid(self.values)
        drawn = np.random.default_rng(Draws(seed).seed).permutation(self.whole)[:count]
        made._places = tuple(sorted(drawn.tolist()))
        return made

    def __len__(self) -> int:
        """Return how many settings there are."""
        return self.whole if self._places is None else len(self._places)

    def __iter__(self) -> Iterator[Settings]:
        """Go through the settings."""
        wanted = None if self._places is None else set(self._places)
        for place, values in enumerate(product(*self.values.values())):
            if wanted is None or place in wanted:
                yield dict(zip(self.values, values, strict=True))


def _checked(name: str, values: Sequence[Any] | NDArray[Any]) -> tuple[Any, ...]:
    """Return the values of a field; raise InputError if they are no list, none at all, or one is there twice."""
    text("the name of a field of the grid", name)
    if not isinstance(values, list | tuple | range | np.ndarray) or (
        isinstance(values, np.ndarray) and not values.ndim
    ):
        raise InputError(f"{name}={shown(values)} in the grid: give a list of values, such as [{shown(values)}]")
    found = tuple(value.item() if isinstance(value, np.generic) else value for value in values)
    if not found:
        raise InputError(f"{name}=[] in the grid: give at least one value, or leave {name} out")
    for place, value in enumerate(found):
        try:
            is_known = value in found[:place]
        except Exception as error:  # arrays have no truth value
            raise InputError(f"{name} in the grid has {described(value)} as a value: give plain values") from error
        if is_known:
            raise InputError(f"{name} in the grid has the value {shown(value)} twice: give each value once")
    return found


def told(settings: Settings) -> str:
    """Return settings in a few words.

    Args:
        settings: The value of each field.

    >>> told({"lr": 0.1, "k": 11})
    'lr=0.1, k=11'
    """
    return ", ".join(f"{name}={plain_text(value)}" for name, value in settings.items())
