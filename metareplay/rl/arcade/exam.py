"""Evaluation of several agents at once: each plays the episodes of its own evaluation."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from metareplay.environments import play
from metareplay.environments.environment import GameEnv
from metareplay.environments.kernels import SCORE
from metareplay.rl.arcade.kernels import play_on
from metareplay.rl.arcade.team import Team, captured
from metareplay.rl.evaluation import Evaluation, Scores


@final
class Exam:
    """Let every agent of a team play all episodes of its evaluation, one frame of each at a time.

    Args:
        team: The agents.
        evaluations: What each of them plays; they have the same numbers of tasks and episodes, and the same cap.
        stack: How many pictures an observation has.
        size: The height and width of a picture.
        device: Where the networks live.
    """

    def __init__(
        self, team: Team, evaluations: Sequence[Evaluation], stack: int, size: tuple[int, int], device: torch.device
    ) -> None:
        self._tasks, self._episodes, self._cap = len(evaluations[0].tasks), evaluations[0].episodes, evaluations[0].cap
        games = [_games(one) for one in evaluations]
        self._shades = games[0][0].game.greys()
        self._first = np.stack([np.stack([game.snapshot()["state"] for game in mine]) for mine in games])
        runs, count = self._first.shape[:2]
        self._here = torch.zeros((runs * count, *size), dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._drawn = self._here.numpy()
        self._new = torch.zeros((runs, count, *size), dtype=torch.uint8, device=device)
        self._seen = torch.zeros((runs, count, stack, *size), dtype=torch.uint8, device=device)
        self._actions = torch.zeros((runs, count), dtype=torch.int64, device=device)
        by = team.nets.passes(count)

        def act() -> None:
            self._seen[:, :, :-1] = self._seen[:, :, 1:].clone()
            self._seen[:, :, -1] = self._new
            self._actions.copy_(team.best(self._seen, by))

        self._act: Callable[[], Any] = captured(act, device, lambda: None)

    def scores(self, pool: ThreadPoolExecutor, parts: int) -> list[Scores]:
        """Return for each agent the score of each episode of each task.

        Args:
            pool: Plays the games and draws the pictures.
            parts: Into how many parts to divide that work.
        """
        states: NDArray[np.float64] = self._first.reshape(-1, self._first.shape[2]).copy()
        over = np.zeros(len(states), np.bool_)
        slices = parts_of(len(states), parts)
        for state, picture in zip(states, self._drawn, strict=True):
            play.draw(state, picture, self._shades)
        self._new.copy_(self._here.view_as(self._new))
        self._seen.copy_(self._new[:, :, None].expand_as(self._seen))
        for _ in range(self._cap):
            self._act()
            actions = self._actions.flatten().cpu().numpy()
            work = [
                pool.submit(play_on, states[at], actions[at], over[at], self._shades, self._drawn[at]) for at in slices
            ]
            for one in work:
                one.result()
            if over.all():
                break
            self._new.copy_(self._here.view_as(self._new), non_blocking=True)
        found = states[:, SCORE].reshape(len(self._first), self._tasks, self._episodes)
        return [[[float(score) for score in task] for task in mine] for mine in found]


def parts_of(count: int, parts: int) -> list[slice]:
    """Divide a number of things into parts of about the same size, none of them empty.

    Args:
        count: How many things there are.
        parts: Into how many parts, at most.

    >>> parts_of(5, 2)
    [slice(0, 2, None), slice(2, 5, None)]
    """
    ends = np.linspace(0, count, min(count, parts) + 1).round().astype(int).tolist()
    return [slice(start, end) for start, end in pairwise(ends)]


def _games(evaluation: Evaluation) -> list[GameEnv]:
    """Make the games of an evaluation, task by task, at the beginning of their episodes."""
    found = []
    for make in evaluation.tasks:
        for episode in range(evaluation.episodes):
            env: Any = make().unwrapped
            env.reset(seed=evaluation.seed + episode)
            found.append(env)
    return found
