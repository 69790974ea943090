"""A tiny world with Gymnasium's interface but without Gymnasium: walk along a line until one of its ends."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

import metareplay as mr


class Line:
    """Positions 0 to 6, actions left, stay and right; rewards at the ends; every third episode is broken off early."""

    def __init__(self, dtype: type[np.floating[Any]] = np.float64) -> None:
        self._dtype, self._episode, self._at, self._frame = dtype, -1, 3, 0

    def reset(self, **_: Any) -> tuple[NDArray[Any], dict[str, Any]]:
        self._episode += 1
        self._at, self._frame = 2 + self._episode % 3, 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        self._at += action - 1
        self._frame += 1
        final = self._at in (0, 6)
        reward = {0: -1.0, 6: 2.5}.get(self._at, -0.1)
        return self._seen(), reward, final, not final and self._frame >= (4 if self._episode % 3 == 0 else 9), {}

    def _seen(self) -> NDArray[Any]:
        return np.array([self._at / 3 - 1, np.sin(self._at + self._episode % 4), 1.0], self._dtype)


def played(agent: mr.QLearner, frames: int, env: Any = None) -> mr.QLearner:
    """Let an agent play on a line (or elsewhere) and learn, from a new episode on."""
    env = env or Line()
    x, _ = env.reset()
    for _ in range(frames):
        action = agent.act(x)
        following, reward, terminated, truncated, _ = env.step(action)
        agent.observe(x, action, reward, following, terminated, truncated)
        x = env.reset()[0] if terminated or truncated else following
    return agent
