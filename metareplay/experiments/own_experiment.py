"""Experiments of your own: a function that builds a learner and a stream, and the settings that it is given."""

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, final

from metareplay._core.checks import function, shown
from metareplay._core.fields import check_fields
from metareplay.engines.choose import EngineName
from metareplay.errors import InputError, MetareplayError
from metareplay.experiments.base import BaseExperiment
from metareplay.experiments.experiment import part_of
from metareplay.experiments.loop import Run
from metareplay.experiments.record import Record
from metareplay.learners import Learner
from metareplay.streams import Stream

Build = Callable[..., tuple[Learner, Stream]]


@final
@dataclass(frozen=True, kw_only=True)
class OwnExperiment(BaseExperiment[Record]):
    """Describe one run that a function of your own builds.

    The function is called as `build(seed=..., **settings)` and returns a learner and a stream.

    The key of its record depends on the function's name, the settings, the seed, and what the learner and the stream
    say of themselves, but not on the code of the function. If you change what the function does, give it another name
    or use another folder. To run in other processes, the function must be defined at the top level of a module.

    Args:
        build: The function.
        settings: What it is given besides the seed; plain JSON values.
        seed: Decides everything that is drawn; the function must pass it on.
        engine: "cuda" if the function builds learners on a GPU, so that some of them run at a time.
        held_out: The share of each task's training examples that is not learned but measured at the end, to choose
            settings by; 0 to learn all of them. A stream with validation sets of its own keeps those.
        first_tasks: Stop after this many tasks of the stream; None to learn all of them.
    """

    build: Build
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    engine: EngineName = "auto"
    held_out: float = 0.0
    first_tasks: int | None = None

    def __post_init__(self) -> None:
        """Refuse what is no function, and values of wrong types."""
        function("build", self.build)
        check_fields(self)

    def start(self, checkpoint: Path | None = None) -> Run:
        """Build the run, without computing anything yet.

        Args:
            checkpoint: Save the run at this path from time to time, and continue from there if the file exists.
        """
        self.check_names()
        try:
            built = self.build(seed=self.seed, **self.settings)
        except MetareplayError:
            raise
        except (TypeError, ValueError) as error:
            said = next(iter(str(error).strip().splitlines()), "")
            raise InputError(f"{self.learner} failed ({type(error).__name__}: {said[:200]})") from error
        if not isinstance(built, tuple) or len(built) != 2:
            raise InputError(f"{self.learner} returned a {type(built).__name__}: return a learner and a stream")
        learner, stream = built
        if not isinstance(learner, Learner) or not isinstance(stream, Stream):
            kinds = f"{type(learner).__name__} and {type(stream).__name__}"
            raise InputError(f"{self.learner} returned {kinds}: return a metareplay.Learner and a metareplay.Stream")
        share = 0.0 if stream.has_validation else self.held_out
        part = part_of(stream, held_out=share, first_tasks=self.first_tasks)
        told = {"function": self.learner, "settings": self.settings, "seed": self.seed}
        return Run(learner, part, checkpoint=checkpoint, built_by=told)

    def check_names(self) -> None:
        """Refuse settings that the function does not take."""
        try:
            takes = inspect.signature(self.build)
        except (TypeError, ValueError) as error:  # some of Python's own functions do not say what they take
            raise InputError(f"build={shown(self.build)}: use a function build(seed, ...)") from error
        try:
            takes.bind(seed=self.seed, **self.settings)
        except TypeError as error:
            raise InputError(f"{self.learner}: {error}; it takes {', '.join(takes.parameters)}") from error
        for name, value in self.settings.items():
            try:
                json.dumps(value)
            except TypeError as error:
                raise InputError(
                    f"{name}={value!r}: settings go into the record, so use numbers, words, or lists of them"
                ) from error

    @property
    def learner(self) -> str:  # type: ignore[override]  # it is derived here
        """The name of the function."""
        return getattr(self.build, "__qualname__", type(self.build).__name__)

    @property
    def key(self) -> str:
        """The key of the run's record: a hash of everything that decides its result."""
        return self._facts[0]

    @property
    def work(self) -> float:
        """An estimate of the cost of the run, in SGD steps on one example; it predicts the time left."""
        return self._facts[1]

    @property
    def label(self) -> str:
        """The experiment in a few words."""
        words = [f"{name}={value}" for name, value in self.settings.items()]
        return ", ".join([self.learner, *words, f"seed {self.seed}"])

    @property
    def shape(self) -> str:
        """What runs that can take their steps together on a GPU share."""
        return f"{self.learner} {self.settings}"

    @property
    def result(self) -> type[Record]:
        """The class of its record."""
        return Record

    @cached_property
    def _facts(self) -> tuple[str, float]:
        """The key and the cost of the run, for which it is built once and thrown away."""
        run = self.start()
        steps = run.learner.work_per_example(run.learner.settings())
        return run.key, steps * (run.stream.total or 0)
