"""Files of trained agents: the Q-network's weights and what the agent was trained on, enough to watch it play."""

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from metareplay._core.archive import part, read_archive, write_archive
from metareplay.errors import CheckpointError, InputError
from metareplay.learners.checkpoint_checks import check_model, model_state
from metareplay.learners.input_checks import one_line
from metareplay.rl.game_experiment import GameExperiment

SUFFIX = ".agent"


def save_agent(path: Path, experiment: GameExperiment, model: nn.Module) -> None:
    """Write a trained agent, without its memory.

    Args:
        path: The file to write.
        experiment: What it was trained on.
        model: Its Q-network.
    """
    tensors = {f"model/{name}": value for name, value in model_state(model).items()}
    write_archive(path, {"experiment": asdict(experiment)}, tensors)


def read_agent(path: Path) -> tuple[GameExperiment, nn.Module]:
    """Return what an agent was trained on, and its Q-network in evaluation mode, on the CPU.

    Args:
        path: What `save_agent` wrote.
    """
    about, tensors = read_archive(path, ("experiment",))
    given: dict[str, Any] = about["experiment"]
    try:
        known = {one.name: given[one.name] for one in fields(GameExperiment) if one.name in given}
        experiment = GameExperiment(**known | {"hidden": tuple(given["hidden"])})
        model = experiment.make_model()
    except (InputError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} holds no agent that this version knows: {one_line(error)}") from error
    saved = part(tensors, "model/")
    check_model(path, saved, model)
    with torch.no_grad():
        for name, value in model_state(model).items():
            value.copy_(saved[name])
    return experiment, model.eval()
