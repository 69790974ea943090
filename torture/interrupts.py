"""Ctrl-C, or memory that runs out: afterwards the learner is before or after an example, and `seen` says which."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, final

from torture.disturbance import AtLine, Disturbance, OutOfMemory, OutOfMemoryOnce
from torture.loops import works
from torture.trial import Torture, Try
from torture.works import Work, of_agents, of_changes, of_learners


class Disturbed(Torture):
    """Disturb `observe_many`, `observe`, `save`, `load` and `run`, with every learner, and others.

    Attributes:
        disturbances: What comes, in turns.
    """

    disturbances: ClassVar[tuple[type[Disturbance], ...]]

    @final
    def tries(self, count: int, rng: random.Random, folder: Path) -> Iterator[Try]:
        """Find the moments at which every learner and method can be disturbed, and take as many as are wanted."""
        pairs = of_learners()[self.part :: self.parts]
        share = max(1, count // max(1, len(pairs)))
        rng.shuffle(pairs)
        for name, make, method in pairs[:count]:
            work = method(make, folder / f"{name}.{method.__name__}")
            yield from self._disturbed(f"{name}: {method.__name__.replace('_', ' ')}", work, share, rng)
        share, most = max(1, count // 50), max(1, count // 20)
        others = [*of_changes(folder), *of_agents(folder), *works(folder)][self.part :: self.parts]
        rng.shuffle(others)
        for name, begin in others[:most]:
            yield from self._disturbed(name, begin(), share, rng)

    def _disturbed(self, name: str, work: Work, count: int, rng: random.Random) -> Iterator[Try]:
        """Do some work undisturbed, and then again and again, disturbed at one of its moments."""
        kinds = rng.sample(self.disturbances, min(count, len(self.disturbances)))
        for kind in kinds:
            whole = kind()
            wrong = work(whole)
            if wrong is not None:
                yield Try(f"{name}, undisturbed", wrong)
            for number in whole.drawn(count // len(kinds), rng):
                at = kind(number)
                try:
                    wrong = work(at)
                except Exception as error:  # it cannot go on
                    wrong = f"{type(error).__name__}: {error}"
                yield Try(f"{name} at {at.where}", wrong)


@final
class Interrupts(Disturbed):
    """Send Ctrl-C."""

    name: ClassVar[str] = "Ctrl-C at a line"
    few: ClassVar[int] = 20
    some: ClassVar[int] = 2_000
    many: ClassVar[int] = 1_000_000  # every line of the source that anything executes
    disturbances: ClassVar[tuple[type[Disturbance], ...]] = (AtLine,)


@final
class Shortages(Disturbed):
    """Let memory run out at an operation of torch, for that one or from there on."""

    name: ClassVar[str] = "a lack of memory"
    few: ClassVar[int] = 20
    some: ClassVar[int] = 2_000
    many: ClassVar[int] = 1_000_000  # every line of the source with an operation that anything executes
    disturbances: ClassVar[tuple[type[Disturbance], ...]] = (OutOfMemoryOnce, OutOfMemory)
