"""Small agents, environments and experiments with games, for tests of training."""

import json
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import metareplay as mr
from metareplay.rl import GameExperiment, GameRecord, training

Array = NDArray[Any]
KINDS: dict[str, type[mr.DQN] | type[mr.DQNMER]] = {"DQN": mr.DQN, "DQNMER": mr.DQNMER}


class Walk(gymnasium.Env[Array, int]):
    """Walk along a line until one of its ends; at a chosen frame something goes wrong."""

    def __init__(self, trouble: str = "", at: int = 30, limit: int | None = None) -> None:
        self.observation_space: Any = gymnasium.spaces.Box(-9, 9, (3,), np.float32)
        self.action_space: Any = gymnasium.spaces.Discrete(3)
        self.trouble, self.wrong_frame, self.limit = trouble, at, limit
        self.frame = self._at = self._begun = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        del options
        if self.trouble == "reset" and self.frame >= self.wrong_frame:
            raise OSError("the door\nis shut")
        self._at, self._begun = int(self.np_random.integers(-1, 2)), self.frame
        return self._seen(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        wrong = self.frame == self.wrong_frame
        if wrong and self.trouble == "step":
            raise OSError("the floor\nis gone")
        if wrong and self.trouble == "interrupt":
            raise KeyboardInterrupt
        self.frame += 1
        self._at += action - 1
        reward = np.nan if wrong and self.trouble == "reward" else float(self._at)
        seen = self._seen()
        if wrong and self.trouble == "observation":
            seen[1] = np.nan
        if wrong and self.trouble == "shape":
            seen = np.zeros(4, np.float32)
        cut_off = self.limit is not None and self.frame - self._begun >= self.limit
        return seen, reward, abs(self._at) == 4, cut_off, {}

    def snapshot(self) -> dict[str, Array]:
        state = json.dumps(self.np_random.bit_generator.state).encode()
        return {"numbers": np.array([self.frame, self._at, self._begun]), "random": np.frombuffer(state, np.uint8)}

    def restore(self, snapshot: Mapping[str, Array]) -> None:
        self.frame, self._at, self._begun = snapshot["numbers"].tolist()
        self.np_random.bit_generator.state = json.loads(snapshot["random"].tobytes())

    def _seen(self) -> Array:
        return np.array([self._at / 3, self._at**2 / 9 - 0.5, 1], np.float32)


def walker(kind: str = "DQN", outputs: int = 3, seed: int = 3, **options: Any) -> mr.QLearner:
    """A new agent for `Walk`."""
    model: nn.Module = mr.networks.mlp(3, (8,), outputs, seed=1)
    chosen: dict[str, Any] = {"lr": 0.01, "k": 4, "warmup": 10, "epsilon_frames": 50, "target_every": 7, "seed": seed}
    return KINDS[kind](model, memory=mr.Reservoir(20), **chosen | options)


SMALL: dict[str, Any] = {"frames": 20, "every": 35, "episodes": 2, "cap": 40, "memory": 30}
OPTIONS = {"warmup": 10, "k": 3, "target_every": 25, "epsilon_frames": 60}


def small_game(**changes: Any) -> GameExperiment:
    """Six tasks of 20 frames of Catcher, from states."""
    options = {"lr": 0.01, **OPTIONS} | changes.pop("options", {})
    return GameExperiment(**{"observation": "state", "options": options, **SMALL, **changes})


def small_pixels(**changes: Any) -> GameExperiment:
    """Six tasks of 4 frames of Catcher, from small pictures."""
    options = {"warmup": 6, "k": 2, "epsilon_frames": 20, "epsilon_end": 0.2, "target_every": 5}
    small = {"observation": "pixels", "frames": 4, "every": 10, "episodes": 1, "cap": 5, "memory": 15}
    return GameExperiment(**{**small, "options": options, "game_options": {"size": 36}, "engine": "torch", **changes})


def result(record: GameRecord) -> dict[str, Any]:
    """A record but for times and the date."""
    return {name: value for name, value in record.to_json().items() if name not in ("seconds", "date")}


def save_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every run write its checkpoint after every chunk."""
    monkeypatch.setattr(training, "SAVE_EVERY", -1.0)
    monkeypatch.setattr(training, "SAVE_SHARE", float("inf"))


def small_cnn(seed: int = 0, *, actions: int = 3, frames: int = 4, size: int = 36) -> nn.Sequential:
    """A network like `nature_cnn`, small enough for tests of many steps."""
    torch.manual_seed(seed)
    left = ((size - 8) // 4 + 1 - 3) // 2 + 1
    return nn.Sequential(
        nn.Conv2d(frames, 3, 8, 4), nn.ReLU(), nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.Flatten(),
        nn.Linear(4 * left**2, 10), nn.ReLU(), nn.Linear(10, actions),
    )  # fmt: skip
