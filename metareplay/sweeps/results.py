"""The results of a sweep: the chosen setting, all settings as a table, and the effect of each field."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import final

from metareplay._core.checks import place_of, shown
from metareplay._core.rows import Rows
from metareplay.errors import InputError, MetareplayError
from metareplay.experiments.base import BaseRecord
from metareplay.runners import Failure
from metareplay.sweeps.grid import Grid, Settings, told
from metareplay.sweeps.outcome import Found, Outcome, ranked
from metareplay.sweeps.subject import MEASURES, Measure


@final
@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Hold the results of a sweep.

    Args:
        name: What was tried, in a few words.
        grid: The settings.
        seeds: The seeds of each setting.
        measure: What settings were compared by: "va" (validation accuracy), "ra" (test accuracy) or "score".
        held_out: The share of the training examples that was held out to choose by; 0 if none was, because settings
            are not chosen by validation accuracy, or because the stream has validation sets of its own.
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

    @cached_property
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
    def records(self) -> list[BaseRecord]:
        """The records of all runs, those of the result last."""
        tried = [one for outcomes in self.rounds for outcome in outcomes for one in outcome.records]
        return tried + [one for one in self.result if isinstance(one, BaseRecord)]

    @property
    def chosen_by(self) -> str:
        """How the setting was chosen, in one sentence."""
        if self.measure == "va" and not self.held_out:
            return "Chosen by accuracy on the stream's own validation sets; the result is the test accuracy."
        if self.measure == "va":
            return (
                f"Chosen by validation accuracy: {100 * self.held_out:g} % of each task's training examples were held "
                f"out; the result is the test accuracy of the chosen setting, trained again with all of them."
            )
        if self.measure == "ra":
            return "Chosen by TEST accuracy, as in the paper: the result is the best of many and so too good."
        return (
            "Chosen by the mean final score in evaluation episodes, which is also the result and so a little too good."
        )

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
        known = ("final_mean",) if self.measure == "score" else ("ra", "la", "bti", "fti")
        if not isinstance(metric, str) or metric not in known:
            raise InputError(f"metric={shown(metric)}: use {' or '.join(map(repr, known))}")
        return [float(getattr(one, metric)) for one in self.result if isinstance(one, BaseRecord)]

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics of the result."""
        return ("final_mean",) if self.measure == "score" else ("ra", "la", "bti")

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
        """Draw the effect of each field, and of pairs of fields if the grid is complete and has at most 1,000 settings.

        Args:
            path: The picture to write; its ending says in which format.
        """
        from metareplay.sweeps.pictures import plot_sweep  # which needs matplotlib

        plot_sweep(self, place_of("path", path))

    def __repr__(self) -> str:
        """Say what was tried and what was chosen."""
        size = f"{len(self.grid)} settings, {len(self.seeds)} seeds"
        if not self.ranking[0].complete:
            return f"Sweep({self.name}: {size}, none finished)"
        best = f"{told(self.varied(self.best))} with {MEASURES[self.measure]} {self.best.mean:.2f}"
        return f"Sweep({self.name}: {size}, best {best})"
