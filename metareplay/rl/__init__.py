"""Reinforcement learning: agents that play games whose rules change, and the records of their scores.

Importing this package makes `metareplay/Catcher-v0` and `metareplay/FlappyBird-v0` known to Gymnasium, if that is
installed (`pip install 'metareplay[rl]'`).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from metareplay import environments
from metareplay.environments.registration import need_gymnasium
from metareplay.learners import DQN, DQNMER, QLearner
from metareplay.rl.evaluation import Evaluation
from metareplay.rl.game_experiment import GameExperiment
from metareplay.rl.game_record import GameRecord

if TYPE_CHECKING:
    from metareplay.rl.training import Training, train

__all__ = [
    "DQN",
    "DQNMER",
    "Evaluation",
    "GameExperiment",
    "GameRecord",
    "QLearner",
    "Training",
    "environments",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import what needs Gymnasium when it is first asked for."""
    if name not in ("Training", "train"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    need_gymnasium()
    return getattr(import_module(f"{__name__}.training"), name)
