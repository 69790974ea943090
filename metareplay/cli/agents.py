"""Trained agents, read from the files that `metareplay run` wrote."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from metareplay.rl.agent_file import read_agent

if TYPE_CHECKING:
    from metareplay.environments.players import Policy


class Agent(NamedTuple):
    """Hold a trained agent and the environment that it knows.

    Args:
        policy: Chooses an action, given an observation.
        options: The options of the environment whose observations it was trained on, such as `observation` and `size`.
        game: The name of the game that it was trained on.
        tasks: The difficulty of each of the game's tasks, with these options.
    """

    policy: "Policy"
    options: Mapping[str, Any]
    game: str
    tasks: tuple[float, ...]


def load_agent(path: Path) -> Agent:
    """Return the trained agent of a file that `metareplay run` wrote.

    Args:
        path: The file, *.agent.
    """
    experiment, model = read_agent(path)

    def best(observation: Any) -> int:
        """Choose the action with the largest value."""
        x = torch.from_numpy(np.asarray(observation))[None]
        with torch.no_grad():
            return int(model(x.float() / 255 if x.dtype == torch.uint8 else x)[0].argmax())

    return Agent(best, experiment.environment_options, experiment.game, experiment.values)
