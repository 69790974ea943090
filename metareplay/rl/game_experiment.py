"""Experiments with agents as plain configurations: an agent, a game whose difficulty changes, and the evaluation."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, final, get_args

from torch import nn

from metareplay._core.fields import check_fields
from metareplay.engines.choose import EngineName, check_engine, check_gpu
from metareplay.environments.schedule import CATCHER_SPEEDS, CATCHER_SPEEDS_640, FLAPPY_BIRD_GAPS, Order, Schedule
from metareplay.errors import InputError
from metareplay.experiments.base import BaseExperiment
from metareplay.experiments.identity import describe
from metareplay.experiments.names import find, name_of
from metareplay.learners import Q_LEARNERS, QLearner
from metareplay.learners.option_types import checked, option_types
from metareplay.learners.table_learner import plain_settings
from metareplay.memories import Memory, Recent, Reservoir
from metareplay.memories.memory import check_capacity
from metareplay.networks import mlp, nature_cnn
from metareplay.rl.evaluation import Evaluation
from metareplay.rl.game_record import GameIdentity, GameRecord

if TYPE_CHECKING:
    from metareplay.rl.training import Training

Observed = Literal["pixels", "state"]
NOT_OPTIONS: Final = {"model", "memory", "engine", "seed"}  # fields of an agent that an experiment sets by itself
NOT_PLAIN: Final = {"loss"}  # options that are functions, which no file of an agent can hold
MEMORIES: Final = {"recent": Recent, "reservoir": Reservoir}  # those that need no tasks, which agents are not told
AGENTS_BY_NAME: Final[dict[str, type[QLearner]]] = {name_of(kind): kind for kind in Q_LEARNERS}
STEP_ON_PIXELS: Final = 400.0  # what a step of the convolutional network costs, in steps of a small MLP


@final
@dataclass(frozen=True)
class About:
    """Describe a game to experiments.

    Args:
        environment: The name of its Gymnasium environment.
        parameter: What changes from task to task.
        values: Its value in each of the paper's tasks.
        actions: How many actions there are.
        numbers: How many numbers its state has.
        size: The height and width of its pictures, for learning.
        options: The environment's options that an experiment may set.
    """

    environment: str
    parameter: str
    values: tuple[float, ...]
    actions: int
    numbers: int
    size: int
    options: tuple[str, ...] = ("size", "frames", "rewards")


# On a screen of 640 pixels the paddle is at the very bottom. Of 64x64 the network does not see the last four rows, of
# 68x68 it sees all.
SIZE_OF_LARGE_SCREEN: Final = 68
GAMES: Final = {
    "catcher": About(
        "CatcherEnv", "pellet_speed", CATCHER_SPEEDS, 3, 4, 64, ("size", "frames", "rewards", "screen", "rounding")
    ),
    "flappy-bird": About(
        "FlappyBirdEnv", "pipe_gap", FLAPPY_BIRD_GAPS, 2, 8, 84, ("size", "frames", "rewards", "carry_velocity")
    ),
}


@final
@dataclass(frozen=True, kw_only=True)
class GameExperiment(BaseExperiment[GameRecord]):
    """Describe one run of the paper's second half: an agent plays a game whose difficulty changes without a word.

    Args:
        learner: An agent's name, "dqn" or "dqn-mer".
        game: A game's name, "catcher" or "flappy-bird".
        observation: What the agent sees: "pixels", as in the paper, or "state", a few numbers.
        memory: How many transitions are held.
        memory_kind: A memory's name, such as "recent"; None for the agent's own default.
        hidden: Widths of the hidden layers of the network for states.
        options: The agent's own options, such as lr, gamma and k; the others have the agent's defaults.
        order: The order of the tasks: "published", "reversed" or "shuffled".
        task: Play only this task, counted from 1; None for all of them.
        frames: Frames per task.
        game_options: The environment's own options: size, frames and rewards, for Catcher also screen and rounding, and
            for Flappy Bird carry_velocity.
        every: Frames between two evaluations.
        episodes: Episodes per task in an evaluation.
        cap: The most frames of such an episode.
        seed: The seed of the game, the first weights and the agent.
        engine: What does the arithmetic: "auto", "torch", "cpu" or "cuda".
    """

    learner: str = "dqn-mer"
    game: str = "catcher"
    observation: Observed = "pixels"
    memory: int = 50_000
    memory_kind: str | None = None
    hidden: tuple[int, ...] = (64, 64)
    options: dict[str, Any] = field(default_factory=dict)
    order: Order = "published"
    task: int | None = None
    frames: int = 25_000
    game_options: dict[str, Any] = field(default_factory=dict)
    every: int = 5000
    episodes: int = 10
    cap: int = 1500
    seed: int = 0
    engine: EngineName = "auto"

    def __post_init__(self) -> None:
        """Refuse values of wrong types; whether names and numbers can be used is seen when the run is built."""
        check_fields(self)

    def start(self, checkpoint: Path | None = None) -> "Training":
        """Build the run, without computing anything yet."""
        from metareplay.rl.agent_file import SUFFIX, save_agent
        from metareplay.rl.training import Training  # which needs Gymnasium

        check_engine(self.engine)
        if self.engine == "cuda":
            check_gpu()
        kind = self._kind()
        model = self.make_model().to("cuda" if self.engine == "cuda" else "cpu")
        agent = kind(model, seed=self.seed, engine=self.engine, **self._given(kind))

        def keep(record: GameRecord) -> None:
            if checkpoint is not None:
                save_agent(checkpoint.with_name(record.name + SUFFIX), self, agent.model)

        return Training(
            agent,
            self._world(),
            self.total_frames,
            evaluation=self._evaluation(),
            about=self._told(),
            checkpoint=checkpoint,
            at_the_end=keep,
        )

    @cached_property
    def key(self) -> str:
        """The key of the run's record: a hash of everything that decides its result."""
        kind = self._kind()
        given = self._given(kind) | {"seed": self.seed, "engine": self.engine}
        values = {one.name: given.get(one.name, _default(one)) for one in fields(kind) if one.name != "model"}
        types = option_types(kind)
        return GameIdentity.of(
            kind.__name__,
            plain_settings(kind, {name: checked(name, types[name], value) for name, value in values.items()}),
            describe(self.make_model()),
            self._told(),
            frames=self.total_frames,
            seed=self.seed,
            evaluation=self._evaluation(),
        ).key

    @property
    def total_frames(self) -> int:
        """How many frames are played."""
        return self.frames * (len(self._about.values) if self.task is None else 1)

    @property
    def work(self) -> float:
        """An estimate of the cost of the run, in SGD steps on one example."""
        settings = {
            one.name: self.options.get(one.name, _default(one)) for one in fields(self._kind()) if one.name != "model"
        }
        step = STEP_ON_PIXELS if self.observation == "pixels" else 1.0
        return step * self._kind().work_per_example(settings) * self.total_frames

    @property
    def label(self) -> str:
        """The experiment in a few words."""
        kind = f" {self.memory_kind}" if self.memory_kind else ""
        played = self.game if self.task is None else f"{self.game} task {self.task}"
        return f"{self.learner}{kind}, {played}, {self.order}, seed {self.seed}"

    @property
    def shape(self) -> str:
        """What runs that can take their steps together on a GPU share."""
        return repr(replace(self, seed=0))

    @property
    def result(self) -> type[GameRecord]:
        """The class of its record."""
        return GameRecord

    @property
    def schedule(self) -> Schedule[float]:
        """Which difficulty holds at which frame."""
        values = self.values
        if self.task is not None:
            if not 1 <= self.task <= len(values):
                raise InputError(f"task {self.task}: {self.game} has tasks 1 to {len(values)}")
            return Schedule((values[self.task - 1],), self.frames, self.order, self.seed)
        return Schedule(values, self.frames, self.order, self.seed)

    @property
    def environment_options(self) -> dict[str, Any]:
        """The options of the environment, all but the difficulty."""
        size = SIZE_OF_LARGE_SCREEN if self._has_large_screen else self._about.size
        given = {"size": size} if self.observation == "pixels" else {}
        for name in self.game_options:
            if name not in self._about.options:
                raise InputError(f"{self.game} has no option {name!r}; it takes {', '.join(self._about.options)}")
        return {"observation": self.observation, **given, **self.game_options}

    @property
    def _about(self) -> About:
        about: About = find("game", self.game, GAMES)
        return about

    @property
    def values(self) -> tuple[float, ...]:
        """The difficulty of each of the paper's tasks."""
        return CATCHER_SPEEDS_640 if self._has_large_screen else self._about.values

    @property
    def _has_large_screen(self) -> bool:
        return self.game == "catcher" and self.game_options.get("screen", 64) == 640

    def _evaluation(self) -> Evaluation:
        """Return how the agent is evaluated: on every task, on games that nobody learns from."""
        tasks = [partial(self._environment, value) for value in self.values]
        seed = 1_000_000 + 1000 * self.seed
        return Evaluation(tasks, episodes=self.episodes, cap=self.cap, every=self.every, seed=seed)

    def _kind(self) -> type[QLearner]:
        kind: type[QLearner] = find("learner", self.learner, AGENTS_BY_NAME)
        return kind

    def _told(self) -> dict[str, Any]:
        """Return the game as plain JSON values, for the record."""
        schedule = self.schedule
        return {
            "game": self.game,
            **{name: _plain(value) for name, value in self.environment_options.items()},
            "values": list(schedule.values),
            "order": self.order,
            "frames_per_task": self.frames,
            "task": self.task,
        }

    def _environment(self, value: float) -> Any:
        """Make the game with one difficulty."""
        from metareplay import environments

        make = getattr(environments, self._about.environment)
        return make(**self.environment_options, **{self._about.parameter: value})

    def _world(self) -> Any:
        """Make the game that the agent learns in."""
        from metareplay.environments import ScheduledEnv

        schedule = self.schedule
        return ScheduledEnv(self._environment(schedule.value(0)), schedule, self._about.parameter)

    def make_model(self) -> nn.Module:
        """Make the Q-network with its first weights."""
        about = self._about
        if self.observation not in get_args(Observed):
            raise InputError(f"observation={self.observation!r}: use 'pixels' or 'state'")
        if self.observation == "state":
            return mlp(about.numbers, self.hidden, about.actions, seed=self.seed)
        options = self.environment_options
        return nature_cnn(self.seed, actions=about.actions, frames=options.get("frames", 4), size=options["size"])

    def _given(self, kind: type[QLearner]) -> dict[str, Any]:
        """Return the options that the agent is given, with a new memory."""
        if self.seed >= 2**32:
            raise InputError(f"seed={self.seed}: use a whole number from 0 to 2**32 - 1")
        known = [one.name for one in fields(kind) if one.name not in NOT_OPTIONS | NOT_PLAIN and one.init]
        for name in self.options:
            if name not in known:
                raise InputError(f"{self.learner} has no option {name!r}; it takes {', '.join(sorted(known))}")
        [default] = [one for one in fields(kind) if one.name == "memory"]
        make: Callable[[int], Memory] = type(_default(default))
        if self.memory_kind is not None:
            make = find("memory kind", self.memory_kind, MEMORIES)
        check_capacity("memory", self.memory)
        return {**self.options, "memory": make(self.memory)}


def _default(option: Any) -> Any:
    return option.default if option.default_factory is MISSING else option.default_factory()


def _plain(value: Any) -> Any:
    """Return a value as it looks after being written to JSON and read again."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return list(value) if isinstance(value, tuple) else value
