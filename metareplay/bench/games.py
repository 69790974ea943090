"""How long a frame takes: the compiled engine of the CPU against the same agent on torch, frame by frame, in turns.

From states, game and agent are one compiled loop; from pictures, only the agent's arithmetic is compiled.

`metareplay bench --on games`.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, final

from metareplay.bench.frame import (
    AGAINST_TORCH,
    Benchmark,
    Clock,
    Column,
    Effort,
    Say,
    Sheet,
    Timing,
    announced,
    clock_in_turns,
    document,
)
from metareplay.environments.registration import need_gymnasium
from metareplay.experiments.record import versions
from metareplay.rl.game_experiment import GameExperiment, Observed

FRAMES: Final = 150_000  # of a run of the paper
WARM_UP: Final = 600  # frames, after which everything is compiled and agents learn
COLUMNS: Final = (
    Column("setting", "name"),
    Column("ours, us per frame", "ours", ".1f"),
    Column("torch, us per frame", "torch", ".0f"),
    Column("times faster", "ratio", ".0f"),
    Column("150,000 frames, s", "run", ".1f"),
    Column("promised, s", "at_most", ".0f"),
    Column("aim, s", "wanted", ".0f"),
)


@final
@dataclass(frozen=True)
class Setting:
    """Describe what to time.

    Args:
        name: What people call it.
        experiment: The agent and the game.
        promised: How many seconds a run may take at most, if we promise anything.
        aim: How many seconds we aim at, if we do.
    """

    name: str
    experiment: GameExperiment
    promised: float | None = None
    aim: float | None = None


def _experiment(learner: str, game: str, observation: Observed = "state", **options: Any) -> GameExperiment:
    return GameExperiment(learner=learner, game=game, observation=observation, options=options)


SETTINGS: Final = (
    Setting("DQN-MER, SGD, Catcher", _experiment("dqn-mer", "catcher", lr=0.015), promised=15, aim=6),
    Setting("DQN-MER, Adam, Catcher", _experiment("dqn-mer", "catcher", lr=1e-4, optimizer="adam")),
    Setting("DQN, Adam, Catcher", _experiment("dqn", "catcher", lr=1e-4, optimizer="adam")),
    Setting("DQN-MER, SGD, Flappy Bird", _experiment("dqn-mer", "flappy-bird", lr=0.015)),
    Setting("DQN-MER, SGD, Catcher, pictures", _experiment("dqn-mer", "catcher", "pixels", lr=0.01)),
    Setting("DQN-MER, Adam, Catcher, pictures", _experiment("dqn-mer", "catcher", "pixels", lr=3e-5, optimizer="adam")),
    Setting("DQN, Adam, Catcher, pictures", _experiment("dqn", "catcher", "pixels", lr=3e-4, optimizer="adam")),
    Setting("DQN-MER, SGD, Flappy Bird, pictures", _experiment("dqn-mer", "flappy-bird", "pixels", lr=0.03)),
)


@final
@dataclass(frozen=True)
class GamesBenchmark(Benchmark):
    """Time agents that play on the CPU, from states and from pictures."""

    def run(self, effort: Effort, say: Say) -> dict[str, Any]:
        """Time everything and return the JSON document: see `Benchmark.run`."""
        settings = announced(SETTINGS[:1] if effort.quick else SETTINGS, say)
        timings = [measure(setting, effort).to_json(AGAINST_TORCH) for setting in settings]
        return document(versions()["processor"], timings=timings)

    def sheets(self, found: Mapping[str, Any]) -> list[Sheet]:
        """Return the tables that show a document to people: see `Benchmark.sheets`."""
        title = f"A frame, k = 17, one core of {found['versions']['processor']}"
        return [Sheet(title, COLUMNS, found["timings"])]


def measure(setting: Setting, effort: Effort) -> Timing:
    """Time one setting by the compiled engine, and frame by frame on torch.

    Args:
        setting: What to time.
        effort: How much time to spend.
    """
    need_gymnasium()
    ours, theirs = _clock(setting.experiment, "auto"), _clock(setting.experiment, "torch")
    turns = clock_in_turns(ours, theirs, effort, warm_up=WARM_UP, most=FRAMES)
    timing = Timing(setting.name, 1e6 * turns.first, 1e6 * turns.second, turns.ratio)
    return timing.with_extra(run=FRAMES * turns.first, at_most=setting.promised, wanted=setting.aim)


def _clock(experiment: GameExperiment, engine: Any) -> Clock:
    """Return a function that plays the next frames and returns the seconds that it took."""
    from metareplay.rl.playing import playing  # which needs Gymnasium

    training = replace(experiment, engine=engine).start()
    seen, _ = training.env.reset(seed=0)
    way = playing(training.agent, training.env, seen)

    def play(frames: int) -> float:
        start = time.perf_counter()
        way.play(frames)
        return time.perf_counter() - start

    return play
