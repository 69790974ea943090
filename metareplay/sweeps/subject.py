"""What a sweep tries settings of: one of our experiments, a game, or a function of the user's own."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, final

from metareplay._core.checks import answer, function, instance, mapping, shown
from metareplay.errors import InputError, MetareplayError
from metareplay.experiments.base import AnyExperiment, BaseRecord
from metareplay.experiments.benchmarks import BENCHMARKS
from metareplay.experiments.experiment import Experiment
from metareplay.experiments.names import STREAMS_BY_NAME, find
from metareplay.experiments.own_experiment import Build, OwnExperiment
from metareplay.experiments.record import Record
from metareplay.rl.game_experiment import GAMES, GameExperiment
from metareplay.rl.game_record import GameRecord
from metareplay.sweeps.grid import Grid, Settings

Measure = Literal["va", "ra", "score"]  # what settings are compared by

MEASURES: Final[dict[Measure, str]] = {"va": "validation accuracy", "ra": "test accuracy", "score": "score"}
RUN_FIELDS: Final = ("memory", "memory_kind", "hidden", "tasks", "examples", "images", "test_examples")
GAME_FIELDS: Final = (
    *("memory", "memory_kind", "hidden", "observation"),
    *("order", "task", "frames", "every", "episodes", "cap"),
)


class Subject(ABC):
    """Make the experiment of each setting and seed."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What is tried, in a few words."""

    @abstractmethod
    def at(
        self, settings: Settings, seed: int, *, held_out: float = 0.0, first_tasks: int | None = None
    ) -> AnyExperiment:
        """Return the experiment with one setting.

        Args:
            settings: The value of each field of the grid.
            seed: Its seed.
            held_out: The share of the training examples that is held out; 0 for none.
            first_tasks: Learn only this many tasks; None for all of them.
        """

    @property
    def has_streams(self) -> bool:
        """Whether it learns from streams of examples, some of which can be held out."""
        return True

    def check(self, grid: Grid, seed: int) -> None:
        """Refuse fields that are unknown and values that cannot be used; nothing is learned.

        Each value of each field is tried once, together with the first values of the other fields.

        Args:
            grid: The grid.
            seed: A seed to try it with.
        """
        usual = {name: values[0] for name, values in grid.values.items()}
        for name, values in grid.values.items() or [("", [None])]:
            for value in values:
                try:
                    self.at(usual | ({name: value} if name else {}), seed).start()
                except MetareplayError as error:
                    said = any(f"{one}=" in str(error) or repr(one) in str(error) for one in grid.values)
                    raise InputError(str(error) if said or not name else f"{name}={shown(value)}: {error}") from error
                except (TypeError, ValueError) as error:
                    said_first = next(iter(str(error).strip().splitlines()), "")
                    raise InputError(f"{name}={shown(value)} in the grid cannot be used ({said_first})") from error

    def tasks(self, settings: Settings, seed: int) -> int:
        """Return how many tasks there are.

        Args:
            settings: One setting.
            seed: A seed.
        """
        return self.at(settings, seed).start().tasks


@final
@dataclass(frozen=True)
class StreamSubject(Subject):
    """Vary an experiment of the paper's kind.

    Args:
        template: The experiment; what the grid does not name stays as it is here.
        usual: Returns the options that are used where neither template nor grid names them, given the experiment.
    """

    template: Experiment
    usual: Callable[[Experiment], Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        """Refuse what is no experiment, and what is no function."""
        instance("template", self.template, Experiment, "an Experiment")
        if self.usual is not None:
            function("usual", self.usual)

    @property
    def name(self) -> str:
        """What is tried, in a few words."""
        return f"{self.template.learner} on {self.template.stream}"

    def at(self, settings: Settings, seed: int, *, held_out: float = 0.0, first_tasks: int | None = None) -> Experiment:
        """Return the experiment with one setting."""
        base = self.template
        about = BENCHMARKS[find("stream", base.stream, STREAMS_BY_NAME)]
        fields, of_stream, of_network, others = _sorted(
            settings, RUN_FIELDS, about.stream_options, about.network_options
        )
        placed = replace(
            base,
            **fields,
            seed=seed,
            held_out=held_out,
            first_tasks=first_tasks,
            stream_options=base.stream_options | of_stream,
            network=base.network | of_network,
        )
        usual = {} if self.usual is None else mapping("what usual returned", answer("usual", self.usual, placed))
        return replace(placed, options={**usual, **base.options, **others})


@final
@dataclass(frozen=True)
class GameSubject(Subject):
    """Vary an experiment with an agent that plays a game.

    Args:
        template: The experiment; what the grid does not name stays as it is here.
        usual: Returns the options that are used where neither template nor grid names them, given the experiment.
    """

    template: GameExperiment
    usual: Callable[[GameExperiment], Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        """Refuse what is no experiment, and what is no function."""
        instance("template", self.template, GameExperiment, "a GameExperiment")
        if self.usual is not None:
            function("usual", self.usual)

    @property
    def name(self) -> str:
        """What is tried, in a few words."""
        return f"{self.template.learner} on {self.template.game}"

    @property
    def has_streams(self) -> bool:
        """Whether it learns from streams of examples: agents make their own."""
        return False

    def at(
        self, settings: Settings, seed: int, *, held_out: float = 0.0, first_tasks: int | None = None
    ) -> GameExperiment:
        """Return the experiment with one setting; nothing can be held out."""
        if held_out or first_tasks is not None:
            raise InputError("a game has no training examples to hold out, and its tasks are not learned in part")
        base = self.template
        fields, of_game, others = _sorted(settings, GAME_FIELDS, find("game", base.game, GAMES).options)
        placed = replace(base, **fields, seed=seed, game_options=base.game_options | of_game)
        usual = {} if self.usual is None else mapping("what usual returned", answer("usual", self.usual, placed))
        return replace(placed, options={**usual, **base.options, **others})


@final
@dataclass(frozen=True)
class OwnSubject(Subject):
    """Call a function of the user's own with each setting.

    Args:
        build: The function: `build(seed=..., **settings)` returns a learner and a stream.
    """

    build: Build

    def __post_init__(self) -> None:
        """Refuse what is no function."""
        function("build", self.build)

    @property
    def name(self) -> str:
        """The name of the function."""
        return OwnExperiment(build=self.build).learner

    def at(
        self, settings: Settings, seed: int, *, held_out: float = 0.0, first_tasks: int | None = None
    ) -> OwnExperiment:
        """Return the experiment with one setting."""
        return OwnExperiment(build=self.build, settings=settings, seed=seed, held_out=held_out, first_tasks=first_tasks)


def _sorted(settings: Settings, *places: Collection[str]) -> list[dict[str, Any]]:
    """Give each value to the first place that has its name; the last part are those that no place has."""
    parts: list[dict[str, Any]] = [{} for _ in (*places, None)]
    for name, value in settings.items():
        which = next((number for number, names in enumerate(places) if name in names), -1)
        parts[which][name] = value
    return parts


def subject_of(what: "Subject | Experiment | GameExperiment | Build") -> Subject:
    """Return what a sweep tries settings of.

    Args:
        what: An experiment that is varied, or a function that builds a learner and a stream.
    """
    if isinstance(what, Subject):
        return what
    if isinstance(what, Experiment):
        return StreamSubject(what)
    if isinstance(what, GameExperiment):
        return GameSubject(what)
    if not callable(what):
        raise InputError(f"a sweep of a {type(what).__name__}: give an Experiment, or a function build(seed, ...)")
    return OwnSubject(what)


def measured(record: BaseRecord, measure: Measure) -> float:
    """Return what a record says of its setting.

    Args:
        record: The record of one run.
        measure: What settings are compared by.
    """
    if isinstance(record, Record):
        return record.va if measure == "va" else record.ra
    if isinstance(record, GameRecord):
        return record.final_mean
    raise InputError(f"a sweep cannot compare records of the kind {record.kind!r}")
