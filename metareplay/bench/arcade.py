"""How long a frame from pictures takes on a GPU, for one agent and for several side by side, in turns.

`metareplay bench --on arcade`.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, final

import torch

from metareplay.bench.frame import (
    AGAINST_ONE,
    Benchmark,
    Clock,
    Column,
    Effort,
    Say,
    Sheet,
    Timing,
    announced,
    clock_in_turns,
    describe_gpu,
    document,
)
from metareplay.environments.registration import need_gymnasium
from metareplay.errors import InputError
from metareplay.rl.game_experiment import GameExperiment

FRAMES: Final = 150_000  # of a run of the paper
WARM_UP: Final = 600  # frames, after which everything is captured and agents learn
COLUMNS: Final = (
    Column("setting", "name"),
    Column("one, ms per frame", "one", ".2f"),
    Column("all, ms per frame", "all", ".2f"),
    Column("times one", "ratio", ".2f"),
    Column("promised at most", "at_most", "g"),
    Column("aim", "aim", "g"),
    Column("one, 150,000 frames, min", "run", ".1f"),
    Column("promised, min", "run_at_most", "g"),
    Column("aim, min", "run_aim", "g"),
)


@final
@dataclass(frozen=True)
class Setting:
    """Describe what to time.

    Args:
        name: What people call it.
        experiment: The agent and the game.
        agents: How many play side by side.
        promised: How many times as long as one agent they may take, if we promise anything.
        aim: How many times as long we aim at, if we do.
        run_at_most: How many minutes a run of one agent may take, if we promise anything.
        run_aim: How many we aim at, if we do.
    """

    name: str
    experiment: GameExperiment
    agents: int = 5
    promised: float | None = None
    aim: float | None = None
    run_at_most: float | None = None
    run_aim: float | None = None


def _experiment(learner: str, game: str, **options: Any) -> GameExperiment:
    return GameExperiment(learner=learner, game=game, options=options, engine="torch")


CATCHER: Final = _experiment("dqn-mer", "catcher", lr=0.001)
SETTINGS: Final = (
    Setting("5 x DQN-MER, Catcher, 64x64", CATCHER, promised=2.5, aim=1.5, run_at_most=10, run_aim=4),
    Setting("20 x DQN-MER, Catcher, 64x64", CATCHER, agents=20),
    Setting("6 x DQN-MER, Flappy Bird, 84x84", _experiment("dqn-mer", "flappy-bird", lr=0.001), agents=6),
    Setting("10 x DQN-MER, Adam, Catcher", _experiment("dqn-mer", "catcher", lr=1e-5, optimizer="adam"), agents=10),
    Setting("20 x DQN, Adam, Catcher", _experiment("dqn", "catcher", lr=1e-5, optimizer="adam"), agents=20),
)


@final
@dataclass(frozen=True)
class ArcadeBenchmark(Benchmark):
    """Time agents that play from pictures on a GPU, side by side and alone."""

    def run(self, effort: Effort, say: Say) -> dict[str, Any]:
        """Time everything and return the JSON document: see `Benchmark.run`."""
        need_gymnasium()
        if not torch.cuda.is_available():
            raise InputError("--on arcade needs a CUDA GPU, and torch finds none: use --on games")
        settings = announced(SETTINGS[:1] if effort.quick else SETTINGS, say)
        timings = [measure(setting, effort).to_json(AGAINST_ONE) for setting in settings]
        return document(describe_gpu(), timings=timings)

    def sheets(self, found: Mapping[str, Any]) -> list[Sheet]:
        """Return the tables that show a document to people: see `Benchmark.sheets`."""
        return [Sheet(f"A frame from pictures, k = 17, {found['device']}", COLUMNS, found["timings"])]


def measure(setting: Setting, effort: Effort, device: str = "cuda", warm_up: int = WARM_UP) -> Timing:
    """Time one agent and several side by side, in turns.

    Args:
        setting: What to time.
        effort: How much time to spend.
        device: Where they learn.
        warm_up: How many frames to play before the clock runs.
    """
    alone, together = (_clock(setting.experiment, count, device) for count in (1, setting.agents))
    turns = clock_in_turns(together, alone, effort, warm_up=warm_up)
    ratio = 1 / turns.ratio
    timing = Timing(setting.name, 1e3 * turns.first, 1e3 * turns.second, ratio, setting.promised, setting.aim)
    return timing.with_extra(
        run=FRAMES * turns.second / 60, run_at_most=setting.run_at_most, run_aim=setting.run_aim, agents=setting.agents
    )


def _clock(experiment: GameExperiment, agents: int, device: str) -> Clock:
    """Return a function that plays the next frames of all agents and returns the seconds that it took."""
    from metareplay.rl.arcade import Arcade  # which needs Gymnasium

    arcade = Arcade([replace(experiment, seed=seed).start() for seed in range(agents)], device)

    def play(frames: int) -> float:
        start = time.perf_counter()
        arcade.play(frames)
        if arcade.device.type == "cuda":
            torch.cuda.synchronize(arcade.device)
        return time.perf_counter() - start

    return play
