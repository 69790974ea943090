"""Evaluation of an agent: it plays several episodes of every task and learns nothing."""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from metareplay._core.checks import check_count, several, shown, whole
from metareplay._core.draws import Draws
from metareplay.errors import InputError
from metareplay.learners.q_learner import QLearner
from metareplay.rl.failures import asking, learning_from, name_of

if TYPE_CHECKING:
    import gymnasium

Scores = list[list[float]]  # of each task, of each episode
WHEN = "in an evaluation"
Environment: TypeAlias = "gymnasium.Env[Any, Any]"


@final
@dataclass(frozen=True)
class Evaluation:
    """Let an agent play every task with the best actions that it knows.

    A score is what the environment calls `info["score"]`, if it does, and otherwise the sum of the rewards. An episode
    that does not end is broken off: a perfect player would go on for ever.

    Args:
        tasks: For each task a function that makes its environment.
        episodes: How many episodes of each task to play.
        cap: The most frames of an episode.
        every: After how many frames of learning to evaluate.
        seed: The first episode of each task begins with this seed, the next with the next one. They are the same
            whenever the agent is evaluated.
    """

    tasks: Sequence[Callable[[], Environment]]
    episodes: int = 10
    cap: int = 1500
    every: int = 5000
    seed: int = 1_000_000

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense."""
        wanted = "a list with one function for each task, which makes its environment"
        makers = several("tasks", self.tasks, wanted)
        if not makers or not all(callable(make) for make in makers):
            raise InputError(f"tasks={shown(self.tasks)}: use {wanted}")
        object.__setattr__(self, "tasks", makers)
        for name in ("episodes", "cap", "every"):
            object.__setattr__(self, name, whole(name, getattr(self, name)))
        object.__setattr__(self, "seed", Draws(self.seed).seed)
        check_count("episodes", self.episodes, "a score needs at least one episode")
        check_count("cap", self.cap, "an episode has at least one frame")
        check_count("every", self.every, "there is at least one frame between evaluations")

    def settings(self) -> dict[str, int]:
        """Return everything but the environments, for records."""
        told = {"episodes": self.episodes, "cap": self.cap, "every": self.every, "seed": self.seed}
        return {"tasks": len(self.tasks), **told}

    def scores(self, agent: QLearner) -> Scores:
        """Return the score of each episode of each task.

        Args:
            agent: The agent, which is left as it is.
        """
        with ExitStack() as stack:
            games = []
            for (task, make), episode in product(enumerate(self.tasks, 1), range(self.episodes)):
                with asking(f"the function of task {task}", WHEN):
                    env = make()
                    stack.callback(env.close)
                games.append(_Game(env, self.seed + episode))
            found = _compiled(agent, games, self.episodes, self.cap) or _frame_by_frame(agent, games, self.cap)
        return [found[at : at + self.episodes] for at in range(0, len(found), self.episodes)]


@final
class _Game:
    """Play one episode.

    Args:
        env: The environment.
        seed: Decides what it draws.
    """

    def __init__(self, env: Environment, seed: int) -> None:
        self.env, self.over, self.score = env, False, 0.0
        with asking(name_of(env), WHEN):
            self.seen, _ = env.reset(seed=seed)

    def play(self, action: int) -> None:
        """Play one frame."""
        with asking(name_of(self.env), WHEN):
            self.seen, reward, terminated, truncated, info = self.env.step(action)
            self.score = float(info["score"]) if "score" in info else self.score + float(reward)
        if not math.isfinite(self.score):
            raise InputError(f"{name_of(self.env)} {WHEN}: the score is {self.score}; use finite numbers")
        self.over = terminated or truncated


def _frame_by_frame(agent: QLearner, games: list[_Game], cap: int) -> list[float]:
    """Play all games at once, one frame of each at a time."""
    for _ in range(cap):
        playing = [game for game in games if not game.over]
        if not playing:
            break
        names = dict.fromkeys(name_of(game.env) for game in playing)
        with learning_from(" or ".join(names), WHEN):
            actions = agent.predict(_stacked([game.seen for game in playing])).tolist()
        for game, action in zip(playing, actions, strict=True):
            game.play(action)
    return [game.score for game in games]


def _stacked(seen: list[Any]) -> NDArray[Any]:
    """Return observations as one batch."""
    try:
        return np.stack(seen)
    except ValueError as error:
        shapes = {np.shape(one) for one in seen}
        raise InputError(f"observations have different shapes: {', '.join(map(str, sorted(shapes)))}") from error


def _compiled(agent: QLearner, games: list[_Game], episodes: int, cap: int) -> list[float] | None:
    """Play all games in one compiled call; None if these cannot be played like that."""
    from metareplay.environments.scheduled import schedules
    from metareplay.rl.compiled import CompiledPlay, obstacle

    firsts = [game.env for game in games[::episodes]]  # one of each task: asking takes time
    if any(schedules(env) or obstacle(agent, env) is not None for env in firsts):
        return None
    envs: list[Any] = [game.env.unwrapped for game in games]
    states = np.stack([env.snapshot()["state"] for env in envs])
    scores, _ = CompiledPlay(agent, envs[0].game, states[0].copy()).scores(agent.weights.theta, states, cap)
    return [float(score) for score in scores]
