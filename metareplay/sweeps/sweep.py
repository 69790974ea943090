"""Sweeps: try every setting of a grid with several seeds, choose the best one honestly, and report how it does."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, final, get_args

from metareplay._core.checks import whole
from metareplay._core.rows import Rows
from metareplay.errors import InputError, MetareplayError
from metareplay.experiments.experiment import Experiment
from metareplay.experiments.own_experiment import Build
from metareplay.experiments.record import Record
from metareplay.rl.game_experiment import GameExperiment
from metareplay.runners import Failure, Runner, Threads, Watcher, forget_failures
from metareplay.runners.runner import SILENT
from metareplay.streams.held_out import check_held_out
from metareplay.sweeps.grid import Grid, Settings, told
from metareplay.sweeps.halving import kept, rounds
from metareplay.sweeps.outcome import Found, Outcome, ranked
from metareplay.sweeps.subject import MEASURES, Measure, Subject, subject_of
from metareplay.sweeps.watching import Case, SweepWatcher

Select = Literal["validation", "test"]


@final
@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Hold the results of a sweep.

    Args:
        name: What was tried, in a few words.
        grid: The settings.
        seeds: The seeds of each setting.
        measure: What settings were compared by: "va" (validation accuracy), "ra" (test accuracy) or "score".
        held_out: The share of the training examples that was held out to choose by; 0 if none was.
        rounds: The outcomes of each round, in the order of the grid; more than one round only with halving.
        result: What became of the chosen setting's runs with all training examples, one for each seed.
    """

    name: str
    grid: Grid
    seeds: tuple[int, ...]
    measure: Measure
    held_out: float
    rounds: list[list[Outcome]]
    result: list[Found] = field(default_factory=list)

    @property
    def best(self) -> Outcome:
        """The setting that was chosen: the best mean over seeds among those of which every seed finished."""
        first = self.ranking[0]
        if not first.complete:
            raise MetareplayError(
                f"no setting of {self.name} finished with every seed: {self.reasons() or 'their reasons are unknown'}"
            )
        return first

    @property
    def ranking(self) -> list[Outcome]:
        """All settings, the best first; those that halving gave up earlier come after those that went further."""
        order: dict[int, Outcome] = {}  # by the setting's place in the grid
        for outcomes in reversed(self.rounds):
            order |= {one.number: one for one in ranked(outcomes) if one.number not in order}
        return list(order.values())

    @property
    def failures(self) -> list[Failure]:
        """The failures of all runs, as far as their reasons are known."""
        tried = [one for outcomes in self.rounds for outcome in outcomes for one in outcome.failures]
        return tried + [one for one in self.result if isinstance(one, Failure)]

    @property
    def chosen_by(self) -> str:
        """How the setting was chosen, in one sentence."""
        if self.measure == "va":
            return (
                f"Chosen by validation accuracy: {100 * self.held_out:g} % of each task's training examples were held out; "
                f"the result is the test accuracy of the chosen setting, trained again with all of them."
            )
        if self.measure == "ra":
            return "Chosen by TEST accuracy, as in the paper: the result is the best of many and so too good."
        return "Chosen by the mean final score in evaluation episodes, which is also the result and so a little too good."

    def varied(self, outcome: Outcome) -> Settings:
        """Return the fields of a setting that have several values in this sweep.

        Args:
            outcome: The outcome of the setting.
        """
        return {name: outcome.settings[name] for name in self.grid.fields}

    def reasons(self) -> str:
        """Return the reasons of the failures in one line, the most frequent first; empty if there are none."""
        counts: dict[str, int] = {}
        for one in self.failures:
            counts[one.kind] = counts.get(one.kind, 0) + 1
        words = [f"{count} x {kind}" for kind, count in sorted(counts.items(), key=lambda pair: -pair[1])]
        first = f" (for instance {self.failures[0].label}: {self.failures[0].reason})" if words else ""
        return ", ".join(words) + first

    def values(self, metric: str) -> list[float]:
        """Return a metric of the chosen setting's result, one value for each seed that finished.

        Args:
            metric: "ra", "la", "bti" or "fti"; "final_mean" for games.
        """
        return [float(getattr(one, metric)) for one in self.result if one is not None and not isinstance(one, Failure)]

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics of the result."""
        return ("ra", "la", "bti") if all(isinstance(one, Record | None | Failure) for one in self.result) else (
            "final_mean",
        )

    def table(self) -> Rows:
        """Return all settings as a table, the best first: the settings, mean and deviation over seeds, failed seeds."""
        halved = len(self.rounds) > 1
        return Rows(
            one.settings
            | {self.measure: one.mean, "std": one.std, "seeds": len(one.scores), "failed": one.failed}
            | ({"tasks_learned": "all" if one.tasks is None else one.tasks} if halved else {})
            for one in self.ranking
        )

    def marginals(self) -> Rows:
        """Return the effect of each value of each field: mean and best over all settings with that value.

        Settings with a seed that failed are counted, but are not part of the means. With halving, settings are compared
        after the first round, which all of them took part in.
        """
        rows = []
        for name in self.grid.fields:
            for value in self.grid.values[name]:
                having = [one for one in self.rounds[0] if one.settings[name] == value]
                means = [one.mean for one in having if one.complete and one.mean is not None]
                known = {"mean": fmean(means), "best": max(means)} if means else {"mean": None, "best": None}
                failed = len(having) - len(means)
                rows.append({"field": name, "value": value, **known, "settings": len(having), "failed": failed})
        return Rows(rows)

    def plot(self, path: str | Path) -> None:
        """Draw the effect of each field, and of pairs of fields if the grid is complete.

        Args:
            path: The picture to write; its ending says in which format.
        """
        from metareplay.sweeps.pictures import plot_sweep  # which needs matplotlib

        plot_sweep(self, Path(path))

    def __repr__(self) -> str:
        """Say what was tried and what was chosen."""
        size = f"{len(self.grid)} settings, {len(self.seeds)} seeds"
        if not self.ranking[0].complete:
            return f"Sweep({self.name}: {size}, none finished)"
        best = f"{told(self.varied(self.best))} with {MEASURES[self.measure]} {self.best.mean:.2f}"
        return f"Sweep({self.name}: {size}, best {best})"


def sweep(
    what: "Subject | Experiment | GameExperiment | Build",
    grid: "Grid | dict[str, Sequence[Any]]",
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
    share = held_out if measure == "va" else 0.0
    if measure == "va":
        check_held_out(share)
    if halving is not None and not subject.has_streams:
        raise InputError("halving goes over the tasks of a stream, and games have none: leave halving out")
    if halving is not None and "tasks" in some.fields:
        raise InputError("halving compares settings after the same tasks: give a single number of tasks, or no halving")
    subject.check(some, numbers[0])
    work = _Work(subject, numbers, Path(folder), runner or Threads(), measure, retry_failed, watcher)
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
        cases = [
            Case(number, one, tuple(at(one, seed) for seed in self.seeds)) for number, one in settings.items()
        ]
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


def _seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """Return the seeds; raise InputError for none, or one that is there twice."""
    found = tuple(range(seeds)) if isinstance(seeds, int) else tuple(whole("seeds", one) for one in seeds)
    if not found or len(set(found)) < len(found):
        raise InputError(f"seeds={seeds!r}: use at least one seed, each of them once")
    return found


def _measure(subject: Subject, select: Select | None) -> Measure:
    """Return what settings are compared by."""
    if select not in (None, *get_args(Select)):
        raise InputError(f"select={select!r}: use 'validation' or 'test'")
    if not subject.has_streams:
        if select == "validation":
            raise InputError("select='validation': games have no examples to hold out; leave select out")
        return "score"
    return "ra" if select == "test" else "va"
