"""Experiments with the learners that are tortured, and with agents that play a game."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, final

import metareplay as mr
from metareplay.engines.choose import EngineName
from metareplay.environments import CatcherEnv
from metareplay.environments.environment import Observation
from metareplay.experiments import BaseExperiment
from metareplay.experiments.base import BaseRecord, BaseRun
from metareplay.rl import Evaluation, GameRecord, Training
from torture.subjects import SIDE, SUBJECTS, cnn, stream

AnyRecord = TypeVar("AnyRecord", bound=BaseRecord, covariant=True)
FRAMES = 40  # that an agent plays
ACTIONS, NUMBERS = 3, 4  # of Catcher and its states
CHANGING = ("seconds", "date", "versions")  # what differs between records of the same run


@dataclass(frozen=True, kw_only=True)
class _Small(BaseExperiment[AnyRecord]):
    """Describe a small run.

    Args:
        learner: Its name in SUBJECTS or PLAYERS.
        seed: Does nothing.
        engine: Does nothing.
    """

    learner: str
    seed: int = 7
    engine: EngineName = "auto"

    @cached_property
    def key(self) -> str:
        """The key of the run's record."""
        return self.start().key

    @property
    def work(self) -> float:
        """The cost of the run."""
        return 1.0

    @property
    def label(self) -> str:
        """The experiment in a few words."""
        return self.learner

    @property
    def shape(self) -> str:
        """What runs that can take their steps together share."""
        return self.learner


@final
@dataclass(frozen=True, kw_only=True)
class SubjectRun(_Small[mr.Record]):
    """Describe a run of one of the learners."""

    def start(self, checkpoint: Path | None = None) -> BaseRun[mr.Record]:
        """Build the run."""
        return mr.Run(SUBJECTS[self.learner](), stream(), checkpoint=checkpoint)

    @property
    def result(self) -> type[mr.Record]:
        """The class of its record."""
        return mr.Record


@final
@dataclass(frozen=True, kw_only=True)
class GameRun(_Small[GameRecord]):
    """Describe a run of one of the agents that play Catcher."""

    def start(self, checkpoint: Path | None = None) -> BaseRun[GameRecord]:
        """Build the run."""
        seen: Observation = "pixels" if "pictures" in self.learner else "state"

        def env() -> CatcherEnv:
            return CatcherEnv(observation=seen, size=SIDE, frames=2)

        evaluation = Evaluation([env], episodes=1, cap=5, every=FRAMES // 2)
        return Training(PLAYERS[self.learner](), env(), FRAMES, evaluation=evaluation, checkpoint=checkpoint)

    @property
    def result(self) -> type[GameRecord]:
        """The class of its record."""
        return GameRecord


OPTIONS: dict[str, Any] = {"k": 4, "warmup": 3, "lr": 0.01, "epsilon_frames": 20, "target_every": 5, "seed": 7}
PLAYERS: dict[str, Callable[[], mr.QLearner]] = {
    "dqn plays": lambda: mr.DQN(mr.networks.mlp(NUMBERS, (5,), ACTIONS, seed=1), memory=mr.Recent(9), **OPTIONS),
    "dqn plays, pictures": lambda: mr.DQN(cnn(ACTIONS), memory=mr.Recent(9), optimizer="adam", **OPTIONS),
    "dqn-mer plays, pictures": lambda: mr.DQNMER(cnn(ACTIONS), memory=mr.Reservoir(9), **OPTIONS),
}
RUNS: dict[str, BaseExperiment[BaseRecord]] = {
    **{name: SubjectRun(learner=name) for name in SUBJECTS},
    **{name: GameRun(learner=name) for name in PLAYERS},
}


def same_results(one: BaseRecord, other: BaseRecord) -> bool:
    """Return whether two records are of the same run with the same numbers, whenever and wherever it was done."""
    first, second = (
        {name: value for name, value in record.to_json().items() if name not in CHANGING} for record in (one, other)
    )
    return first == second
