"""The frame of every benchmark: turns and medians, what a timing is, the JSON document and the tables for people.

A subject (`cpu`, `cuda`, `fleet`) says what is timed. Nothing here needs typer or rich, so that a benchmark also runs
where only torch is installed: `python -m metareplay.bench.cuda`.
"""

import argparse
import json
import math
import statistics
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from importlib.metadata import version
from typing import Any, Final, Protocol, TypeVar, final

import torch
from torch import Tensor

from metareplay._core.columns import Columns
from metareplay.engines.engine import Outcome
from metareplay.errors import InputError, MetareplayError
from metareplay.experiments.record import now, versions
from metareplay.learners import Learner

PAST_TASKS: Final = 19  # the tasks of stored examples; what is learned while the clock runs belongs to the next one
MOST: Final = 4000  # examples learned in one turn

Clock = Callable[[int], float]  # learns a given number of examples and returns the seconds that it took
Say = Callable[[str], object]  # takes a line that says what is being timed


@final
@dataclass(frozen=True)
class Effort:
    """Say how much time a benchmark may take.

    Args:
        rounds: How many turns each side takes; medians over them are reported.
        seconds: About how long one turn takes.
        quick: Whether to time only the first setting, to see that everything works.
    """

    rounds: int = 7
    seconds: float = 0.5
    quick: bool = False

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise InputError(f"rounds={self.rounds}: use at least 1")
        if not 0 < self.seconds < math.inf:
            raise InputError(f"seconds={self.seconds:g}: use a positive number")


QUICK: Final = Effort(rounds=2, seconds=0.1, quick=True)


class Setting(Protocol):
    """Describe what all settings have: a name, the result that we promise and the one that we aim at, if any."""

    @property
    def name(self) -> str:
        """The name of the setting."""

    @property
    def promised(self) -> float | None:
        """The result that we promise."""

    @property
    def aim(self) -> float | None:
        """The result that we aim at."""


SettingT = TypeVar("SettingT", bound=Setting)


@final
@dataclass(frozen=True)
class Timing:
    """Hold one measured result, set against another number.

    Args:
        name: The name of the setting.
        ours: What we measured, in the unit of the subject (for most, microseconds per step).
        theirs: What it is compared with, in the same unit.
        ratio: How the two compare, as the subject defines it (for most, how many times faster we are).
        promised: The result that we promise, if any.
        aim: The result that we aim at, if any.
        extra: Further numbers and names that only this subject has, by their JSON names.
    """

    name: str
    ours: float
    theirs: float
    ratio: float
    promised: float | None = None
    aim: float | None = None
    extra: Mapping[str, float | str | None] = field(default_factory=dict)

    def with_extra(self, **extra: float | str | None) -> "Timing":
        """Return the same timing with further numbers or names.

        Args:
            extra: Values by their JSON names; a value of the same name is replaced.
        """
        return replace(self, extra={**self.extra, **extra})

    def to_json(self, names: Mapping[str, str]) -> dict[str, Any]:
        """Return the timing as plain JSON values.

        Args:
            names: The JSON names of those fields that are called differently in the subject's documents.
        """
        own = [one.name for one in fields(self) if one.name != "extra"]
        return {names.get(name, name): getattr(self, name) for name in own} | dict(self.extra)


AGAINST_TORCH: Final = {"theirs": "torch", "promised": "at_least"}  # JSON names of what is timed against torch
AGAINST_ONE: Final = {"ours": "all", "theirs": "one", "promised": "at_most"}  # and of several against a single one


@final
@dataclass(frozen=True)
class Column:
    """Describe one column of a table for people.

    Args:
        head: Its heading.
        key: The JSON name of its values.
        spec: How numbers are formatted, as in `format(number, spec)`; empty for text.
    """

    head: str
    key: str
    spec: str = ""

    def cell(self, row: Mapping[str, Any]) -> str:
        """Return the text of this column's cell, which is empty where there is no value.

        Args:
            row: The values of one row, by their JSON names.
        """
        value = row[self.key]
        return "" if value is None else format(value, self.spec).replace("%", " %")


@final
@dataclass(frozen=True)
class Sheet:
    """Describe a table for people, without drawing it.

    Args:
        title: Its title.
        columns: Its columns.
        rows: The values of each row, by their JSON names.
        note: A sentence below it, if any.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    note: str = ""

    def cells(self) -> list[list[str]]:
        """Return the text of every cell, row by row."""
        return [[column.cell(row) for column in self.columns] for row in self.rows]


class Benchmark(ABC):
    """Time everything, then describe the outcome for people: the interface of all subjects."""

    @abstractmethod
    def run(self, effort: Effort, say: Say) -> dict[str, Any]:
        """Time everything and return the JSON document; raise InputError on a machine that cannot do it.

        Args:
            effort: How much time to spend.
            say: Is called with a line of text whenever the next thing is timed.
        """

    @abstractmethod
    def sheets(self, found: Mapping[str, Any]) -> list[Sheet]:
        """Return the tables that show a document to people.

        Args:
            found: What `run` returned, or an earlier document of the same subject read from its file.
        """


def document(device: str, **parts: object) -> dict[str, Any]:
    """Return the JSON document of a benchmark: the device, the results, versions and date.

    Args:
        device: What was timed on.
        parts: The results, by their JSON names.
    """
    return {"device": device, **parts, "versions": versions(), "date": now()}


def as_text(found: Mapping[str, Any]) -> str:
    """Return a document as it is printed and kept in files.

    Args:
        found: The document.
    """
    return json.dumps(found, indent=1) + "\n"


def main(benchmark: Benchmark) -> None:
    """Run one benchmark as a program that needs neither typer nor rich, and print its JSON document.

    Args:
        benchmark: What to run.
    """
    reader = argparse.ArgumentParser(description="Run one benchmark and print its JSON document.")
    reader.add_argument(
        "--quick", action="store_true", help="time only the first setting, briefly, to see that it works"
    )
    effort = QUICK if reader.parse_args().quick else Effort()
    torch.set_num_threads(1)  # as the command line does
    try:
        found = benchmark.run(effort, lambda line: sys.stderr.write(f"{line}\n"))
    except MetareplayError as error:
        reader.exit(2, f"metareplay: {error}\n")
    sys.stdout.write(as_text(found))


def announced(settings: Sequence[SettingT], say: Say) -> Iterator[SettingT]:
    """Go through settings, saying each time which one is being timed.

    Args:
        settings: What is timed, one after another.
        say: Is given the line.
    """
    for number, setting in enumerate(settings, 1):
        say(f"timing {number}/{len(settings)}: {setting.name}")
        yield setting


def describe_gpu() -> str:
    """Return the name of the GPU and the versions of what drives it."""
    return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, Triton {version('triton')}"


@final
@dataclass(frozen=True)
class Turns:
    """Hold medians over rounds in which two sides took turns.

    Args:
        first: The first side's median.
        second: The second side's median.
        ratio: The median of the second side's number over the first side's number in the same round.
    """

    first: float
    second: float
    ratio: float


def take_turns(first: Callable[[], float], second: Callable[[], float], rounds: int) -> Turns:
    """Measure two sides in turns, so that a machine that slows down slows down both; return the medians.

    Args:
        first: Measures the first side once.
        second: Measures the second side once.
        rounds: How many turns each of them takes.
    """
    pairs = [(first(), second()) for _ in range(rounds)]
    median = statistics.median
    return Turns(
        first=median(one for one, _ in pairs),
        second=median(other for _, other in pairs),
        ratio=median(other / one for one, other in pairs),
    )


def calibrate(clock: Clock, seconds: float, *, warm_up: int, most: int = MOST) -> int:
    """Return how many examples take about a given time.

    Args:
        clock: Learns a given number of examples and returns the seconds that it took.
        seconds: How long a turn should take.
        warm_up: How many examples to learn first, so that everything is compiled or captured.
        most: The largest number to return.
    """
    clock(warm_up)
    count = 1
    while (took := clock(count)) < seconds / 2 and count < most:
        count = min(most, int(count * seconds / max(took, 1e-9)))  # at least twice as many as before
    return count


def clock_in_turns(first: Clock, second: Clock, effort: Effort, *, warm_up: int, most: int = MOST) -> Turns:
    """Let two clocks take turns, each with as many examples as take about a turn; return the seconds per example.

    Args:
        first: Learns a given number of examples and returns the seconds that it took.
        second: The same for the other side.
        effort: How much time to spend.
        warm_up: How many examples each side learns before the clock runs.
        most: The largest number of examples in one turn.
    """
    counts = [calibrate(clock, effort.seconds, warm_up=warm_up, most=most) for clock in (first, second)]
    return take_turns(lambda: first(counts[0]) / counts[0], lambda: second(counts[1]) / counts[1], effort.rounds)


def compare(
    setting: Setting, ours: Clock, theirs: Callable[[float], float], effort: Effort, *, steps: int, warm_up: int
) -> Timing:
    """Let a learner and a loop of another library take turns; return the microseconds per step of each.

    Args:
        setting: What is timed.
        ours: Learns a given number of examples and returns the seconds that it took.
        theirs: Steps for about a given number of seconds and returns the seconds per step.
        effort: How much time to spend.
        steps: How many steps our learner takes for one example.
        warm_up: How many examples to learn before the clock runs.
    """
    count = calibrate(ours, effort.seconds, warm_up=warm_up)
    turns = take_turns(lambda: ours(count) / (count * steps), lambda: theirs(effort.seconds), effort.rounds)
    return Timing(setting.name, 1e6 * turns.first, 1e6 * turns.second, turns.ratio, setting.promised, setting.aim)


def clock_learner(learner: Learner, xs: Tensor, ys: Tensor, task: int | None = None) -> Clock:
    """Return a clock of `observe_many`, which is what users call.

    Args:
        learner: The learner to time.
        xs: The inputs to learn from, over and over again.
        ys: Their labels or targets.
        task: The task that all of them belong to, if any.
    """
    at = 0

    def learn(count: int) -> float:
        nonlocal at
        rows = torch.arange(at, at + count) % len(xs)
        at += count
        chunk = xs[rows], ys[rows]
        start = time.perf_counter()
        learner.observe_many(*chunk, task=task)
        wait(learner.weights.device)
        return time.perf_counter() - start

    return learn


def side_by_side(clocks: Sequence[Clock], count: int) -> float:
    """Return the seconds until all learners, each in a thread of its own, have learned `count` examples.

    Args:
        clocks: The clocks of the learners.
        count: How many examples each of them learns.
    """
    start = time.perf_counter()
    with ThreadPoolExecutor(len(clocks)) as pool:
        list(pool.map(lambda clock: clock(count), clocks))
    return time.perf_counter() - start


def wait(device: torch.device) -> None:
    """Wait until a GPU has done its work; do nothing for a CPU.

    Args:
        device: Where the work is done.
    """
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def fill(learner: Learner, xs: Tensor, ys: Tensor) -> None:
    """Store examples in a learner's memory, if it has one, without learning them.

    Args:
        learner: The learner, which has seen nothing yet.
        xs: The inputs to store.
        ys: Their labels or targets.
    """
    if learner.own_memory is None:
        return
    examples = Columns({"x": xs, "y": ys, "task": torch.arange(len(xs)) * PAST_TASKS // len(xs)})
    learner.table = learner.make_table(examples, room=max(len(xs), learner.piece_size()))
    learner.table.bring(examples)
    slots = learner.own_memory.place(learner.draws, examples.task_ids())
    learner.finish(Outcome(len(xs)), slots, examples, learner.table)
