"""Agents side by side on a real GPU: the draws, scores and weights of the CPU, and the same bits after a resume."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from metareplay.rl import GameExperiment
from metareplay.rl.arcade import Arcade

ARMS: dict[str, tuple[str, str, str | None, dict[str, Any]]] = {
    "dqn-mer": ("dqn-mer", "catcher", None, {"lr": 0.01, "s": 2, "beta": 0.5}),
    "dqn-mer, adam": ("dqn-mer", "flappy-bird", None, {"lr": 1e-4, "optimizer": "adam", "target_in": "episodes"}),
    "dqn": ("dqn", "flappy-bird", None, {"lr": 0.02}),
    "dqn, reservoir, adam": ("dqn", "catcher", "reservoir", {"lr": 1e-4, "optimizer": "adam"}),
}

# A share of the way that the weights went. Adam's steps do not become smaller with the gradient: on the CPU, first
# weights that differ by 1e-7 end up to 3 % apart.
NEAR = {"sgd": 1e-2, "adam": 0.1}


def experiments(name: str) -> list[GameExperiment]:
    learner, game, kind, options = ARMS[name]
    settings = {"warmup": 20, "k": 4, "target_every": 30, "epsilon_frames": 100} | options
    small = GameExperiment(
        learner=learner, game=game, memory=60, memory_kind=kind, frames=30, every=60, episodes=2, cap=40,
        game_options={"size": 36}, engine="torch", options=settings,
    )  # fmt: skip
    return [replace(small, seed=seed, options=settings | {"lr": settings["lr"] * (1 + seed)}) for seed in range(3)]


def played(name: str, device: str) -> Arcade:
    arcade = Arcade([one.start() for one in experiments(name)], device)
    for _ in arcade.steps():
        pass
    arcade.close()
    return arcade


def weights(arcade: Arcade) -> Iterator[torch.Tensor]:
    return (arcade.team.state(run)["theta"].cpu() for run in range(3))


def test_agents_side_by_side_are_those_of_the_cpu() -> str:
    found = []
    for name in ARMS:
        ours, wanted = played(name, "cuda"), played(name, "cpu")
        start = [one.start().agent.weights.theta for one in experiments(name)]
        for run, (one, other) in enumerate(zip(weights(ours), weights(wanted), strict=True)):
            assert ours.record(run).scores == wanted.record(run).scores, name
            found.append(float((one - other).norm() / (other - start[run]).norm()))
            assert found[-1] < NEAR[experiments(name)[run].options.get("optimizer", "sgd")], (name, found)
    return f"largest difference {max(found):.1e} of the way that the weights went"


def test_agents_side_by_side_continue_bit_for_bit() -> None:
    for name in ("dqn-mer", "dqn, reservoir, adam"):
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder) / str(run) for run in range(3)]
            first = Arcade([one.start() for one in experiments(name)])
            for seen in first.steps():
                if seen >= 100:
                    break
            first.save(paths)
            second = Arcade([one.start() for one in experiments(name)])
            second.restore(paths)
            for _ in second.steps():
                pass
        for one, other in zip(weights(second), weights(played(name, "cuda")), strict=True):
            assert torch.equal(one, other), name
