"""Sweeps: try every setting of a grid with several seeds, choose the best one honestly, and see how it does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, Final, Literal, final, get_args

from numpy.typing import NDArray

from metareplay._core.checks import choice, flag, instance, place_of, several, shown, whole
from metareplay.errors import InputError
from metareplay.experiments.experiment import Experiment
from metareplay.experiments.own_experiment import Build
from metareplay.experiments.record import Record
from metareplay.rl.game_experiment import GameExperiment
from metareplay.runners import Runner, Threads, Watcher, forget_failures
from metareplay.runners.runner import SILENT
from metareplay.streams.held_out import check_held_out
from metareplay.sweeps.grid import Grid, Settings
from metareplay.sweeps.halving import kept, rounds
from metareplay.sweeps.outcome import Found, Outcome, ranked
from metareplay.sweeps.results import Sweep
from metareplay.sweeps.subject import Measure, Subject, subject_of
from metareplay.sweeps.watching import Case, SweepWatcher

Select = Literal["validation", "test"]
MOST_SEEDS: Final = 1_000_000


def sweep(
    what: "Subject | Experiment | GameExperiment | Build",
    grid: Grid | Mapping[str, Sequence[Any] | NDArray[Any]],
    *,
    seeds: int | Sequence[int] = 3,
    folder: str | Path = "runs",
    runner: Runner | None = None,
    select: Select | None = None,
    held_out: float = 0.1,
    halving: int | None = None,
    retry_failed: bool = False,
    watcher: Watcher = SILENT,
) -> Sweep:
    """Try every setting of a grid with several seeds, and choose the best.

    Each run has a record in the folder. If this is interrupted and called again, it continues where it was; more seeds
    or values run only what is new. A run that fails is recorded with its reason and does not stop the others.

    Settings are chosen by validation accuracy: a share of each task's training examples is held out and measured at the
    end. The chosen setting then runs again with all training examples, and its test accuracy is the result.

    Args:
        what: A function that builds a run, `build(seed=..., **settings)`, and returns a learner and a stream; or an
            `Experiment` whose fields and options are varied.
        grid: A list of values for each field.
        seeds: How many seeds to run for each setting (0, 1, 2, ...), or a list of seeds.
        folder: Where records and checkpoints are.
        runner: Where the runs are done; by default in threads, one per core.
        select: "validation", or "test" to choose by test accuracy, as the paper did; None for validation where there
            are training examples. Agents that play games are always chosen by their scores.
        held_out: The share of each task's training examples that is held out to choose by.
        halving: Compare all settings after the first ninth of the tasks (for a factor of 3), the best third of them
            after a third of the tasks, and the best third of those after all tasks. None runs all of them to the end.
        retry_failed: Run again what has failed before.
        watcher: Receives news of how the work is going.
    """
    subject, some = subject_of(what), grid if isinstance(grid, Grid) else Grid(grid)
    numbers, measure = _seeds(seeds), _measure(subject, select)
    path, retry_failed = place_of("folder", folder), flag("retry_failed", retry_failed)
    chosen = Threads() if runner is None else instance("runner", runner, Runner, "a runner, such as Threads(), or None")
    instance("watcher", watcher, Watcher, "a Watcher")
    share = held_out if measure == "va" else 0.0
    if measure == "va":
        check_held_out(share)
    if halving is not None and not subject.has_streams:
        raise InputError("halving goes over the tasks of a stream, and games have none: leave halving out")
    if halving is not None and "tasks" in some.fields:
        raise InputError("halving compares settings after the same tasks: give a single number of tasks, or no halving")
    subject.check(some, numbers[0])
    work = _Work(subject, numbers, path, chosen, measure, retry_failed, watcher)
    plan = rounds(subject.tasks(next(iter(some)), numbers[0]), halving)
    settings, found = dict(enumerate(some)), list[list[Outcome]]()
    for number, tasks in enumerate(plan):
        title = "settings" if len(plan) == 1 else f"round {number + 1} of {len(plan)}"
        found.append(work.compare(title, settings, share, tasks))
        if halving is not None and tasks is not None:
            best = [one for one in ranked(found[-1]) if one.complete][: kept(len(settings), halving)]
            settings = {one.number: one.settings for one in sorted(best, key=lambda one: one.number)}
            if not settings:
                break
    share = 0.0 if _has_validation(found) else share
    made = Sweep(name=subject.name, grid=some, seeds=numbers, measure=measure, held_out=share, rounds=found)
    result = work.again(made.best) if measure == "va" else list(made.best.found)
    made.result.extend(result)
    return made


@final
@dataclass(frozen=True)
class _Work:
    """Run settings and compare them."""

    subject: Subject
    seeds: tuple[int, ...]
    folder: Path
    runner: Runner
    measure: Measure
    retry_failed: bool
    watcher: Watcher

    def compare(self, title: str, settings: dict[int, Settings], held_out: float, tasks: int | None) -> list[Outcome]:
        """Run each setting with each seed."""
        at = partial(self.subject.at, held_out=held_out, first_tasks=tasks)
        cases = [Case(number, one, tuple(at(one, seed) for seed in self.seeds)) for number, one in settings.items()]
        found = iter(self._run(title, cases, self.measure))
        return [
            Outcome(case.number, case.settings, tuple(next(found) for _ in case.experiments), self.measure, tasks)
            for case in cases
        ]

    def again(self, chosen: Outcome) -> list[Found]:
        """Run the chosen setting with all training examples."""
        experiments = tuple(self.subject.at(chosen.settings, seed) for seed in self.seeds)
        return self._run("the chosen setting with all training examples", [Case(0, chosen.settings, experiments)], "ra")

    def _run(self, title: str, cases: list[Case], measure: Measure) -> list[Found]:
        experiments = [one for case in cases for one in case.experiments]
        if self.retry_failed:
            forget_failures(experiments, self.folder)
        if isinstance(self.watcher, SweepWatcher):
            self.watcher.round(title, cases, self.folder, measure)
        return list(self.runner.run(experiments, self.folder, keep_going=True, watcher=self.watcher))


def _has_validation(found: list[list[Outcome]]) -> bool:
    """Return whether the streams had validation sets of their own, so that nothing was held out."""
    records = [record for outcome in found[0] for record in outcome.records]
    return any(isinstance(record, Record) and "held_out" not in record.stream for record in records)


def _seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """Return the seeds; raise InputError for none, or one that is there twice."""
    wanted = "a number of seeds, or a list with each seed once"
    if isinstance(seeds, Integral):
        found = tuple(range(min(int(seeds), MOST_SEEDS + 1)))
    else:
        found = tuple(whole("seeds", one) for one in several("seeds", seeds, wanted))
    if not 1 <= len(found) <= MOST_SEEDS or len(set(found)) < len(found):
        raise InputError(f"seeds={shown(seeds)}: use {wanted}, at least one and at most {MOST_SEEDS}")
    return found


def _measure(subject: Subject, select: Select | None) -> Measure:
    """Return what settings are compared by."""
    if select is not None:
        choice("select", select, get_args(Select))
    if not subject.has_streams:
        if select == "validation":
            raise InputError("select='validation': games have no examples to hold out; leave select out")
        return "score"
    return "ra" if select == "test" else "va"
