"""What every game is outside of compiled code: settings from which states are made."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metareplay._core.checks import described, mapping, real, shown, whole
from metareplay._core.draws import Draws, Purpose
from metareplay.environments.kernels import KEY_HIGH, KEY_LOW, LENGTH, LOSS, TICK, Canvas, State
from metareplay.errors import InputError

Colours = NDArray[np.uint8]  # of shape (colours, 3): red, green, blue
Bounds = tuple[NDArray[np.float32], NDArray[np.float32]]


class Rewards(NamedTuple):
    """Hold what a game pays.

    Args:
        tick: For every tick.
        positive: For a pellet that was caught, or a pipe that was reached.
        negative: For a pellet that was missed.
        loss: For the end of the game, in addition.
    """

    tick: float = 0.0
    positive: float = 1.0
    negative: float = -1.0
    loss: float = -5.0

    @staticmethod
    def of(given: Mapping[str, float]) -> "Rewards":
        """Return PLE's rewards with some of them replaced.

        Args:
            given: The rewards to replace, by name.
        """
        given = mapping("rewards", given)
        unknown = [name for name in given if name not in Rewards._fields]
        if unknown:
            raise InputError(f"rewards has {unknown[0]!r}; use {', '.join(Rewards._fields)}")
        made = Rewards(**given)
        return made.checked()

    def checked(self) -> "Rewards":
        """Return the same rewards as Python's numbers; raise InputError for those that are none, or not finite."""
        made = Rewards(*(real(f"the reward {name}", value) for name, value in zip(self._fields, self, strict=True)))
        usual = Rewards()._asdict()
        different = {name: value for name, value in made._asdict().items() if value != usual[name]}
        if not all(map(math.isfinite, made)):
            raise InputError(f"rewards={shown(different)}: use finite numbers")
        return made


@dataclass(frozen=True, kw_only=True)
class Game(ABC):
    """Hold the settings of a game; `new_state` makes what the compiled functions play with.

    Args:
        rewards: What the game pays.
    """

    rewards: Rewards = field(default_factory=Rewards)

    def __post_init__(self) -> None:
        """Refuse rewards that are none. Games check their own settings as well."""
        if not isinstance(self.rewards, Rewards):
            raise InputError(f"rewards is {described(self.rewards)}: use environments.Rewards(...)")
        object.__setattr__(self, "rewards", self.rewards.checked())

    actions: ClassVar[int]  # how many there are
    values: ClassVar[int]  # how many numbers a state vector has
    colours: ClassVar[Colours]  # what the game is drawn in
    difficulty: ClassVar[str]  # the setting that makes the game harder
    difficulty_entry: ClassVar[int]  # where this setting is in a state

    @property
    @abstractmethod
    def size(self) -> tuple[int, int]:
        """The height and width of the game's own picture."""

    @abstractmethod
    def checked_difficulty(self, value: object) -> float:
        """Return a value of the difficulty as a number, or refuse one that cannot be played.

        Args:
            value: The value.
        """

    @abstractmethod
    def bounds(self, scaled: bool) -> Bounds:
        """Return the least and the greatest value of each number in a state vector.

        Args:
            scaled: Whether the numbers are on the scale for learning.
        """

    @abstractmethod
    def _fill(self, state: State) -> None:
        """Write the settings into a new state and begin an episode."""

    def new_state(self, seed: int) -> State:
        """Return the state of a new game at the beginning of its first episode.

        Args:
            seed: Decides everything that the game draws, in this episode and in all that follow.
        """
        key = Draws(whole("seed", seed)).key(Purpose.GAME)
        state = np.zeros(LENGTH)
        state[KEY_HIGH], state[KEY_LOW] = divmod(key, 2**32)
        state[TICK : LOSS + 1] = self.rewards
        self._fill(state)
        return state

    def greys(self) -> Canvas:
        """Return the shades of grey that stand for the colours, by PLE's formula.

        >>> from metareplay.environments.catcher import Catcher
        >>> Catcher().greys()
        array([  0, 255, 148], dtype=uint8)
        """
        greys: Canvas = np.round(self.colours @ np.array([0.21, 0.72, 0.07])).astype(np.uint8)
        return greys
