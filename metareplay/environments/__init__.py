"""Games to learn: Catcher and Flappy Bird, compiled and as Gymnasium environments, and schedules that change them.

Importing this package makes `metareplay/Catcher-v0` and `metareplay/FlappyBird-v0` known to Gymnasium, if that is
installed (`pip install 'metareplay[rl]'`). The compiled games and the schedules need no Gymnasium.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from metareplay.environments.registration import is_installed, need_gymnasium, register
from metareplay.environments.schedule import CATCHER_SPEEDS, CATCHER_SPEEDS_640, FLAPPY_BIRD_GAPS, Schedule

if TYPE_CHECKING:
    from metareplay.environments.catcher import Catcher
    from metareplay.environments.environment import CatcherEnv, FlappyBirdEnv
    from metareplay.environments.flappy_bird import FlappyBird
    from metareplay.environments.game import Game, Rewards
    from metareplay.environments.scheduled import ScheduledEnv

__all__ = [
    "CATCHER_SPEEDS",
    "CATCHER_SPEEDS_640",
    "FLAPPY_BIRD_GAPS",
    "Catcher",
    "CatcherEnv",
    "FlappyBird",
    "FlappyBirdEnv",
    "Game",
    "Rewards",
    "Schedule",
    "ScheduledEnv",
    "register",
]

# These are imported when they are first asked for: the games bring a compiler along, the environments Gymnasium.
_GAMES = {"Catcher": "catcher", "FlappyBird": "flappy_bird", "Game": "game", "Rewards": "game"}
_ENVIRONMENTS = {"CatcherEnv": "environment", "FlappyBirdEnv": "environment", "ScheduledEnv": "scheduled"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _GAMES | _ENVIRONMENTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _ENVIRONMENTS:
        need_gymnasium()
    return getattr(import_module(f"{__name__}.{(_GAMES | _ENVIRONMENTS)[name]}"), name)


if is_installed():
    register()
