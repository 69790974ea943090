"""Ways to play frames and learn from them: one by one with any environment, or many in one compiled call."""

from abc import ABC, abstractmethod
from typing import Any, final

from metareplay.environments.environment import GameEnv
from metareplay.environments.kernels import OVER
from metareplay.environments.scheduled import schedules
from metareplay.learners.q_learner import QLearner
from metareplay.rl.compiled import CompiledPlay, obstacle
from metareplay.rl.evaluation import Environment
from metareplay.rl.failures import asking, learning_from, name_of


class Playing(ABC):
    """Let an agent play an environment and learn.

    Args:
        agent: The agent.
        env: The environment.
        seen: What is observed now.
    """

    def __init__(self, agent: QLearner, env: Environment, seen: Any) -> None:
        self.agent, self.env, self.seen = agent, env, seen

    @abstractmethod
    def play(self, frames: int) -> None:
        """Play some frames and learn from each of them.

        Args:
            frames: How many.
        """


@final
class FrameByFrame(Playing):
    """Play any environment, one frame at a time."""

    def play(self, frames: int) -> None:
        """Act, look at what happens, and learn from it."""
        name = name_of(self.env)
        for _ in range(frames):
            when = f"at frame {self.agent.seen}"
            with learning_from(name, when):
                action = self.agent.act(self.seen)
            with asking(name, when):
                following, reward, terminated, truncated, _ = self.env.step(action)
            with learning_from(name, when):
                self.agent.observe(self.seen, action, reward, following, terminated, truncated)
            if terminated or truncated:
                with asking(name, f"when reset after frame {self.agent.seen - 1}"):
                    following, _ = self.env.reset()
            self.seen = following


@final
class Compiled(Playing):
    """Play Catcher or Flappy Bird from states, many frames in one compiled call: the same bits as frame by frame."""

    def __init__(self, agent: QLearner, env: Environment, seen: Any) -> None:
        super().__init__(agent, env, seen)
        self._schedules = schedules(env)

    def play(self, frames: int) -> None:
        """Play up to the next change of the difficulty, then up to the one after it, and so on."""
        while frames:
            left = [one.schedule.frames - one.frame % one.schedule.frames for one in self._schedules]
            stretch = min([frames, *left])
            self._play(stretch)
            frames -= stretch

    def _play(self, frames: int) -> None:
        """Play some frames of one difficulty."""
        game = self.env.unwrapped
        assert isinstance(game, GameEnv), "`obstacle` has looked"
        for one in self._schedules:
            one.change()
        snapshot, before = game.snapshot(), self.agent.seen
        try:
            CompiledPlay(self.agent, game.game, snapshot["state"]).frames(frames)
        finally:  # also if a frame could not be learned
            for one in self._schedules:
                one.frame += self.agent.seen - before
            game.restore(snapshot)
        self.seen = self.env.reset()[0] if snapshot["state"][OVER] else game.look()


def playing(agent: QLearner, env: Environment, seen: Any) -> Playing:
    """Return the fastest way for this agent to play this environment.

    Args:
        agent: The agent.
        env: The environment.
        seen: What is observed now.
    """
    return Compiled(agent, env, seen) if obstacle(agent, env) is None else FrameByFrame(agent, env, seen)
