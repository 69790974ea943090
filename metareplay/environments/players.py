"""Players: functions that choose an action when they are given an observation."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metareplay.environments.catcher import LEFT, RIGHT, STAY, Catcher
from metareplay.environments.flappy_bird import BIRD_HEIGHT, FALL, FLAP
from metareplay.environments.game import Game

Policy = Callable[[NDArray[Any]], int]  # from an observation, as the environment gives it, to the number of an action

AHEAD = 3  # the greedy player of Catcher looks this many ticks ahead; with 2 or 3 it misses almost no pellet


def random_player(game: Game, seed: int) -> Policy:
    """Return a player that takes every action equally often, whatever it observes.

    Args:
        game: The game.
        seed: Decides the actions.
    """
    draws = np.random.default_rng(seed)
    return lambda _: int(draws.integers(game.actions))


def greedy_player(game: Game) -> Policy:
    """Return a simple good player, which must observe the numbers of the game as they are (`observation="raw"`).

    In Catcher it moves the paddle to where the pellet will land, and misses almost none. In Flappy Bird it flaps just
    before the bird would fall below the next gap, and passes some dozens of wide gaps and a few of narrow ones.

    Args:
        game: The game.
    """
    return _catch(0.021 * game.screen) if isinstance(game, Catcher) else _fly


def _catch(push: float) -> Policy:
    """Return a player of Catcher, in which an action changes the velocity by `push`."""
    pushes = {LEFT: -push, RIGHT: push, STAY: 0.0}

    def choose(observation: NDArray[Any]) -> int:
        """Bring the paddle, where it will be soon, as near to the pellet as one action can."""
        paddle, velocity, pellet, _ = observation.tolist()
        return min(pushes, key=lambda action: abs(paddle + AHEAD * (velocity + pushes[action]) - pellet))

    return choose


def _fly(observation: NDArray[Any]) -> int:
    """Flap when the next tick would take the bird below the gap, but not again while the last flap still lifts it."""
    y, velocity, _, _, bottom = observation[:5].tolist()
    return FLAP if velocity > -8 and y + BIRD_HEIGHT + velocity + 1 > bottom else FALL
