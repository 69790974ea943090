"""Trained agents, read from their checkpoints."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from metareplay.errors import InputError

if TYPE_CHECKING:
    from metareplay.environments.players import Policy


class Agent(NamedTuple):
    """Hold a trained agent and the environment that it knows.

    Args:
        policy: Chooses an action, given an observation.
        options: The options of the environment whose observations it was trained on, such as `observation` and `size`.
    """

    policy: "Policy"
    options: Mapping[str, Any]


def load_agent(path: Path) -> Agent:
    """Return the trained agent of a checkpoint.

    Args:
        path: The checkpoint.
    """
    raise InputError(f"--agent {path}: trained agents cannot be loaded yet; use --player greedy, random or me")
