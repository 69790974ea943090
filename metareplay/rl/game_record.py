"""The record of an agent's run: what was run and its scores on every task, as a small JSON file."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Self, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from metareplay.environments.schedule import Schedule
from metareplay.experiments.base import FORMAT, BaseRecord, check_format
from metareplay.experiments.record import fingerprint, now, versions_with
from metareplay.rl.evaluation import Evaluation, Scores


@final
@dataclass(frozen=True, kw_only=True)
class GameIdentity:
    """Say what an agent's run is. Runs with the same identity are the same run.

    Args:
        learner: The name of the agent's class.
        settings: Its options, as plain JSON values; the engine is not part of the identity.
        model: The Q-network in one line.
        game: The environment, its changes and how the agent is evaluated, as plain JSON values.
    """

    learner: str
    settings: dict[str, Any]
    model: str
    game: dict[str, Any]

    @staticmethod
    def of(
        learner: str,
        settings: dict[str, Any],
        model: str,
        world: Mapping[str, Any],
        *,
        frames: int,
        seed: int,
        evaluation: Evaluation | None,
    ) -> "GameIdentity":
        """Describe a run.

        Args:
            learner: The name of the agent's class.
            settings: Its options.
            model: The Q-network in one line.
            world: The environment and its changes, as plain JSON values.
            frames: How many frames are played.
            seed: The seed of the environment.
            evaluation: How the agent is evaluated.
        """
        exam = {} if evaluation is None else {"evaluation": evaluation.settings()}
        game = {**world, "total_frames": frames, "game_seed": seed, **exam}
        return GameIdentity(learner=learner, settings=settings, model=model, game=game)

    @property
    def key(self) -> str:
        """A short hash of everything that the identity says."""
        settings = {name: value for name, value in self.settings.items() if name != "engine"}
        what = [self.learner, settings, self.model, self.game]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


@final
@dataclass(frozen=True, kw_only=True)
class GameRecord(BaseRecord):
    """Hold the settings and the scores of one finished run of an agent.

    Args:
        learner: The name of the agent's class.
        settings: Its options.
        model: The Q-network in one line.
        game: The environment, its changes and how the agent is evaluated.
        seed: The agent's seed.
        engine: Which engine did the arithmetic.
        frames: After how many frames the agent was evaluated each time.
        scores: For each evaluation, for each task, the score of each episode.
        episodes: How many episodes ended while it learned.
        weights: The SHA-256 hash of the final weights; equal runs have the same weights, bit for bit.
        seconds: The time spent on playing and learning, and on evaluating.
        versions: The versions of the software, and the machine.
        date: When the run ended.
    """

    kind: ClassVar[str] = "game"

    learner: str
    settings: dict[str, Any]
    model: str
    game: dict[str, Any]
    seed: int
    engine: str
    frames: list[int]
    scores: list[Scores]
    episodes: int
    weights: str
    seconds: dict[str, float]
    versions: dict[str, str]
    date: str

    @staticmethod
    def of(
        identity: GameIdentity,
        *,
        seed: int,
        engine: str,
        frames: list[int],
        scores: list[Scores],
        episodes: int,
        theta: Tensor,
        seconds: dict[str, float],
    ) -> "GameRecord":
        """Make the record of a run that has finished now.

        Args:
            identity: What was run.
            seed: The agent's seed.
            engine: Which engine did the arithmetic.
            frames: After how many frames the agent was evaluated each time.
            scores: For each evaluation, for each task, the score of each episode.
            episodes: How many episodes ended while it learned.
            theta: The final weights.
            seconds: The time spent on playing and learning, and on evaluating.
        """
        return GameRecord(
            learner=identity.learner,
            settings=identity.settings,
            model=identity.model,
            game=identity.game,
            seed=seed,
            engine=engine,
            frames=list(frames),
            scores=scores,
            episodes=episodes,
            weights=fingerprint(theta),
            seconds={name: round(value, 3) for name, value in seconds.items()},
            versions=versions_with(theta),
            date=now(),
        )

    @cached_property
    def means(self) -> NDArray[np.float64]:
        """The mean score over the episodes, of shape (evaluations, tasks)."""
        if not self.scores:
            return np.zeros((0, 0))
        return np.array([[np.mean(of_task) for of_task in one] for one in self.scores])

    @property
    def final(self) -> NDArray[np.float64]:
        """The mean score on each task at the end; empty if the agent was never evaluated."""
        found: NDArray[np.float64] = self.means[-1] if self.scores else np.zeros(0)
        return found

    @property
    def final_mean(self) -> float:
        """The mean over all tasks of the scores at the end; NaN if the agent was never evaluated."""
        return float(self.final.mean()) if self.scores else math.nan

    @property
    def forgetting(self) -> NDArray[np.float64]:
        """How far each task's score at the end is below its best one at any time."""
        found: NDArray[np.float64] = self.means.max(axis=0, initial=-math.inf) - self.final
        return found

    @property
    def first_task(self) -> int:
        """The number of the task that was learned first, counted from 0."""
        return self.stretches()[0][2]

    def stretches(self) -> list[tuple[int, int, int]]:
        """Return from which frame to which one each task was played, with the task's number, counted from 0."""
        total = self.game["total_frames"]
        if self.game.get("task") is not None or "frames_per_task" not in self.game:
            return [(0, total, (self.game.get("task") or 1) - 1)]
        schedule = Schedule(
            range(len(self.game["values"])), self.game["frames_per_task"], self.game["order"], self.game["game_seed"]
        )
        starts = [start for start in (0, *schedule.switches) if start < total]
        return [(start, min(start + schedule.frames, total), schedule.task(start)) for start in starts]

    @property
    def average(self) -> float:
        """The mean over all tasks and all evaluations but the one before the first frame: the area under the curves."""
        return float(self.means[1:].mean()) if len(self.means) > 1 else self.final_mean

    @property
    def identity(self) -> GameIdentity:
        """What was run."""
        return GameIdentity(learner=self.learner, settings=self.settings, model=self.model, game=self.game)

    @property
    def key(self) -> str:
        """A short hash of what was run, which does not depend on the results."""
        return self.identity.key

    @property
    def name(self) -> str:
        """The name of its file: <learner>-<game>-seed<seed>-<key>."""
        return f"{self.learner}-{self.game.get('game', 'own')}-seed{self.seed}-{self.key}"

    def to_json(self, *, compact: bool = False) -> dict[str, Any]:
        """Return plain JSON values: the final scores, then everything else."""
        del compact
        parts = {one.name: getattr(self, one.name) for one in fields(self)}
        parts["scores"] = [[[_short(score) for score in task] for task in one] for one in self.scores]
        final = [round(value, 3) for value in self.final.tolist()]
        return {"format": FORMAT, "kind": self.kind, "key": self.key, "final": final, **parts}

    @classmethod
    def from_json(cls, parts: dict[str, Any]) -> Self:
        """Make a record from what `to_json` returned."""
        check_format(parts, cls.kind)
        return cls(**{one.name: parts[one.name] for one in fields(cls)})


def _short(score: float) -> float | int:
    """Return a whole number without its point."""
    return int(score) if score == int(score) else score
