"""Experiments as plain configurations, from which runs are made."""

from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cache, cached_property
from inspect import signature
from pathlib import Path
from typing import Any, final, get_args

from metareplay._core.fields import check_fields
from metareplay.engines.choose import EngineName, check_engine, check_gpu
from metareplay.errors import InputError
from metareplay.experiments.alignment import Moment
from metareplay.experiments.base import BaseExperiment
from metareplay.experiments.benchmarks import BENCHMARKS, HIDDEN, Benchmark, Recipe, check_options, description
from metareplay.experiments.identity import Identity
from metareplay.experiments.loop import Run
from metareplay.experiments.metrics import Accuracies
from metareplay.experiments.names import (
    IMAGES_BY_NAME,
    MEMORIES_BY_NAME,
    STREAMS_BY_NAME,
    find,
    find_learner,
)
from metareplay.experiments.record import Record
from metareplay.learners import Learner
from metareplay.learners.option_types import checked, option_types
from metareplay.learners.table_learner import plain_settings
from metareplay.memories import Memory
from metareplay.memories.memory import check_capacity
from metareplay.streams import FirstTasks, HeldOut, Stream

NOT_OPTIONS = {"model", "memory", "engine", "seed", "classes", "head"}  # fields that an experiment does not leave open
FREE = {"lr", "strength", "clip"}  # options whose values may differ between runs that take steps together


@final
@dataclass(frozen=True, kw_only=True)
class Experiment(BaseExperiment[Record]):
    """Describe one run of the paper's kind.

    Args:
        learner: A learner's name, such as "mer"; or your own class as `path/to/file.py:Class`.
        stream: A stream's name, such as "rotations".
        memory: How many examples are held, for learners with a memory.
        memory_kind: A memory's name, such as "reservoir"; None for the learner's own default.
        hidden: Widths of the MLP's hidden layers, on streams of digits.
        network: The network's own options: on Omniglot norm ("group", "batch" or None) and init ("torch" or
            "glorot"), see `networks.omniglot_cnn`.
        options: The learner's own options, such as lr, beta, s and k; the others have the learner's defaults.
        tasks: Tasks in the stream; None for the stream's default.
        examples: Examples per task; None for the stream's default.
        images: Where images of digits come from, such as "mnist", which is the default.
        stream_options: The stream's own options: on Omniglot order, split, test_share, resolution, pixels and labels.
        test_examples: Test images per task; None for the whole test set.
        seed: The seed of the stream, the first weights and the learner.
        engine: What does the arithmetic: "auto", "torch", "cpu" or "cuda".
        full_matrix: Measure every task after every task.
        training: Measure at the end how much of each task's training examples is retained, too.
        alignment: How many past examples each example's gradient is compared with; 0 for none.
        past: When the gradients of the past examples are taken: "before" or "after" the example is learned.
        held_out: The share of each task's training examples that is not learned but measured at the end, to choose
            settings by; 0 to learn all of them.
        first_tasks: Stop after this many tasks of the stream; None to learn all of them. Memory and network are those
            of the whole stream.
    """

    learner: str = "mer"
    stream: str = "rotations"
    memory: int = 500
    memory_kind: str | None = None
    hidden: tuple[int, ...] = HIDDEN
    network: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    tasks: int | None = None
    examples: int | None = None
    images: str | None = None
    stream_options: dict[str, Any] = field(default_factory=dict)
    test_examples: int | None = None
    seed: int = 0
    engine: EngineName = "auto"
    full_matrix: bool = False
    training: bool = False
    alignment: int = 0
    past: Moment = "before"
    held_out: float = 0.0
    first_tasks: int | None = None

    def __post_init__(self) -> None:
        """Refuse values of wrong types; whether names and numbers can be used is seen when the run is built."""
        check_fields(self)

    def start(self, checkpoint: Path | None = None) -> Run:
        """Build the run, without computing anything yet.

        Args:
            checkpoint: Save the run at this path from time to time, and continue from there if the file exists.
        """
        learner, stream = self.build()
        return Run(
            learner,
            stream,
            full_matrix=self.full_matrix,
            training=self.training,
            alignment=self.alignment,
            past=self.past,
            checkpoint=checkpoint,
        )

    def build(self) -> tuple[Learner, Stream]:
        """Build the learner with its first weights, and the stream."""
        kind, stream = find_learner(self.learner), self._whole_stream()
        check_engine(self.engine)
        if self.engine == "cuda":
            check_gpu()
        given = self._given(kind, stream.tasks)
        model = self._recipe(kind, stream).make(self.seed).to("cuda" if self.engine == "cuda" else "cpu")
        return kind(model, seed=self.seed, engine=self.engine, **given), self._learned(stream)

    @cached_property
    def identity(self) -> Identity:
        """What will be run, derived without building it."""
        kind, stream = find_learner(self.learner), self._whole_stream()
        learned = self._learned(stream)
        given = self._given(kind, stream.tasks) | {"seed": self.seed, "engine": self.engine}
        options = [one for one in fields(kind) if one.name != "model"]
        values = {one.name: given[one.name] if one.name in given else _default(one) for one in options}
        types = option_types(kind)
        settings = plain_settings(kind, {name: checked(name, types[name], value) for name, value in values.items()})
        return Identity(
            learner=kind.__name__,
            settings=settings,
            model=description(self._recipe(kind, stream)),
            stream=learned.settings(),
            alignment=self.alignment,
            past=self.past if self.alignment else "before",
            full_matrix=_more_than_needed(learned.tasks, self.full_matrix),
            training=self.training,
        )

    @property
    def key(self) -> str:
        """The key of the run's record: a hash of everything that decides its result."""
        return self.identity.key

    @property
    def work(self) -> float:
        """An estimate of the cost of the run, in SGD steps on one example; it predicts the time left."""
        stream, settings, about = self._learned(self._whole_stream()), self.identity.settings, self._benchmark
        rows, total = stream.tasks if self.full_matrix else 4, stream.total or 0
        tested = rows * stream.tasks * (self.test_examples or about.tests) + (total if self.training else 0)
        return about.step * (find_learner(self.learner).work_per_example(settings) * total + 0.2 * tested)

    @property
    def label(self) -> str:
        """The experiment in a few words."""
        held = f" {self.memory}" if _has_memory(find_learner(self.learner)) else ""
        return f"{self.learner}{held}, {self.stream}, seed {self.seed}"

    @property
    def shape(self) -> str:
        """What runs that can take their steps together share: all but seed, memory, rates and first weights."""
        options = {name: name if name in FREE and value is not None else value for name, value in self.options.items()}
        network = {name: value for name, value in self.network.items() if name != "init"}
        return repr(replace(self, seed=0, memory=0, options=options, network=network))

    @property
    def datasets(self) -> tuple[str, ...]:
        """The name of the dataset that its stream shows."""
        return (self.images or "mnist",) if self._benchmark.images else (self.stream,)

    @property
    def result(self) -> type[Record]:
        """The class of its record."""
        return Record

    def _given(self, kind: type[Learner], tasks: int) -> dict[str, Any]:
        """Return the options that the learner is given, with a new memory if it has one."""
        if self.seed >= 2**32:
            raise InputError(f"seed={self.seed}: use a whole number from 0 to 2**32 - 1")
        known = {one.name: one for one in fields(kind) if one.name not in NOT_OPTIONS}
        for name in self.options:
            if name not in known:
                raise InputError(f"{self.learner} has no option {name!r}; it takes {', '.join(sorted(known))}")
        for name, one in known.items():
            if name not in self.options and one.default is MISSING and one.default_factory is MISSING:
                raise InputError(f"{self.learner} needs its option {name!r}: give it a value")
        if self.past not in get_args(Moment):
            raise InputError(f"past={self.past!r}: use 'before' or 'after'")
        if _has_memory(kind):
            return {**self.options, "memory": self._memory(kind, tasks)}
        if self.memory_kind is not None:
            raise InputError(f"{self.learner} has no memory: leave memory_kind out")
        return dict(self.options)

    @property
    def _benchmark(self) -> Benchmark:
        return BENCHMARKS[find("stream", self.stream, STREAMS_BY_NAME)]

    def _learned(self, stream: Stream) -> Stream:
        """Return what is learned of the whole stream."""
        return part_of(stream, held_out=self.held_out, first_tasks=self.first_tasks)

    def _whole_stream(self) -> Stream:
        make, about = find("stream", self.stream, STREAMS_BY_NAME), self._benchmark
        check_options(f"the stream {self.stream}", self.stream_options, about.stream_options)
        if self.images is not None and not about.images:
            raise InputError(f"images {self.images!r}: {self.stream} has images of its own; leave images out")
        sizes = {"tasks": self.tasks, "examples": self.examples, "test_examples": self.test_examples}
        given = {name: value for name, value in sizes.items() if value is not None} | self.stream_options
        if self.images not in (None, "mnist"):
            given["images"] = find("images", self.images, IMAGES_BY_NAME)()
        stream: Stream = make(seed=self.seed, **given)
        return stream

    def _recipe(self, kind: type[Learner], stream: Stream) -> Recipe:
        """Return how to make the network that the learner trains."""
        about = self._benchmark
        check_options(f"the network of {self.stream}", self.network, tuple(about.network_options))
        options = about.network_options | self.network
        return about.network(self.learner, option_types(kind)["model"], stream, self.hidden, **options)

    def _memory(self, learner: type[Learner], tasks: int) -> Memory:
        """Make the memory that was named, or one of the learner's default kind."""
        if self.memory_kind is None:
            known: Any = learner
            kind = _usual_memory(known)
        else:
            kind = find("memory kind", self.memory_kind, MEMORIES_BY_NAME)
        check_capacity("memory", self.memory)
        needs = {"tasks": tasks} if "tasks" in _parameters(kind) else {}
        return kind(self.memory, **needs)


def part_of(stream: Stream, *, held_out: float = 0.0, first_tasks: int | None = None) -> Stream:
    """Return a stream without the examples that are held out and without the tasks that come after the first ones.

    Args:
        stream: The whole stream.
        held_out: The share of each task's training examples that is held out; 0 for none.
        first_tasks: How many tasks to show; None for all of them.
    """
    shown = stream if first_tasks is None else FirstTasks(stream, first_tasks)
    return shown if held_out == 0 else HeldOut(shown, held_out)


@cache
def _more_than_needed(tasks: int, full_matrix: bool) -> bool:
    """Return whether a run measures more accuracies than the metrics need."""
    return Accuracies(tasks, full_matrix).more_than_needed


@cache
def _usual_memory(learner: Any) -> Callable[..., Memory]:
    """Return the kind of memory that a learner has if none is named."""
    [default] = [one for one in fields(learner) if one.name == "memory"]
    return type(_default(default))


@cache
def _parameters(kind: Callable[..., Memory]) -> frozenset[str]:
    """Return the names of what a memory is made with."""
    return frozenset(signature(kind).parameters)


def _has_memory(kind: type[Learner]) -> bool:
    return "memory" in {one.name for one in fields(kind)}


def _default(option: "Field[Any]") -> Any:
    return option.default if option.default_factory is MISSING else option.default_factory()
