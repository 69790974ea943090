"""What the charts of a report show, as plain JSON values; `report.js` draws them, and writes each as a table, too."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from metareplay._core.palette import colour_of
from metareplay.experiments.metrics import needed

Plain = int | float | None
Matrix = NDArray[np.float64]
MOST_POINTS: Final = 150  # of a curve; more make the page large, and no screen shows them


def rounded(value: float | None, digits: int) -> Plain:
    """Return a number in as few characters as its digits need; None if it is not finite.

    Args:
        value: The number.
        digits: How many decimal places to keep.

    >>> rounded(81.256, 1), rounded(80.0, 1), rounded(math.nan, 1)
    (81.3, 80, None)
    """
    if value is None or not math.isfinite(value):
        return None
    short = round(float(value), digits)
    return int(short) if short == int(short) else short


def _thinned(values: Sequence[float], step: int) -> list[float]:
    """Return one value out of every `step`, and the last one."""
    return [*values[:-1:step], *values[-1:]]


def all_rounded(values: Iterable[float], digits: int) -> list[Plain]:
    """Return numbers in as few characters as their digits need; None for what is not finite.

    Args:
        values: The numbers.
        digits: How many decimal places to keep.
    """
    return [rounded(value, digits) for value in values]


def digits_for(values: Matrix) -> int:
    """Return how many decimal places give about four digits of the largest of some numbers.

    Args:
        values: The numbers.

    >>> digits_for(np.array([81.25, 3.5])), digits_for(np.array([0.0123]))
    (2, 5)
    """
    finite = np.abs(values[np.isfinite(values)])
    largest = float(finite.max()) if finite.size else 0.0
    return max(0, min(9, 3 - math.floor(math.log10(largest)))) if largest > 0 else 2


class Chart(ABC):
    """Describe one chart."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return everything that is needed to draw the chart, as plain JSON values."""


@final
@dataclass(frozen=True, kw_only=True)
class Heat(Chart):
    """Show a matrix as a heat map.

    Args:
        title: The title.
        told: What it shows, in a sentence or two, for readers who do not see it.
        x: The title of the horizontal axis, which counts from 0.
        y: The title of the vertical axis, which counts from 1.
        values: The numbers in percent, one row per place on the horizontal axis; NaN where nothing was measured.
    """

    title: str
    told: str
    x: str
    y: str
    values: Matrix

    def to_json(self) -> dict[str, Any]:
        """Return everything that is needed to draw the chart, as plain JSON values.

        If only what the metrics need was measured, it is written as four rows: the first one, each task just before and
        just after it was learned, and the last one.
        """
        words = {"kind": "heat", "title": self.title, "told": self.told, "x": self.x, "y": self.y}
        values = self.values
        if np.isnan(values[~needed(values.shape[1])]).all():
            ends = [values[0], np.diag(values[:-1]), np.diag(values[1:]), values[-1]]
            return words | {"ends": [all_rounded(row.tolist(), 1) for row in ends]}
        return words | {"rows": [all_rounded(row, 1) for row in values.tolist()]}


@final
@dataclass(frozen=True, kw_only=True)
class OverTime(Chart):
    """Show the columns of the heat map that comes before it as lines.

    Args:
        title: The title.
        told: What it shows, in a sentence or two, for readers who do not see it.
        x: The title of the horizontal axis.
        y: The title of the vertical axis.
    """

    title: str
    told: str
    x: str
    y: str

    def to_json(self) -> dict[str, Any]:
        """Return everything that is needed to draw the chart, as plain JSON values."""
        return {"kind": "over time", "title": self.title, "told": self.told, "x": self.x, "y": self.y}


@final
@dataclass(frozen=True, kw_only=True)
class Line:
    """Hold one line of a panel.

    Args:
        name: Its name.
        values: Its heights; NaN where nothing was measured.
        spread: How far its band reaches to both sides; None for no band.
        learner: The learner whose colour it has; None for a colour by its place among the lines.
        dashed: Whether it is dashed.
        dots: Whether its points are marked.
    """

    name: str
    values: Matrix
    spread: Matrix | None = None
    learner: str | None = None
    dashed: bool = False
    dots: bool = False

    @staticmethod
    def of(name: str, seeds: Matrix, **options: Any) -> "Line":
        """Return the mean over seeds, with a band of one standard deviation if there are several.

        Args:
            name: The name of the line.
            seeds: One row per seed.
            options: Further fields of the line.
        """
        spread = seeds.std(axis=0, ddof=1) if len(seeds) > 1 else None
        return Line(name=name, values=seeds.mean(axis=0), spread=spread, **options)

    def to_json(self, step: int) -> dict[str, Any]:
        """Return the line as plain JSON values.

        Args:
            step: Of how many points one is drawn.
        """
        digits = digits_for(self.values)
        found: dict[str, Any] = {"name": self.name, "y": all_rounded(_thinned(self.values.tolist(), step), digits)}
        if self.spread is not None and np.nan_to_num(self.spread).any():
            found["spread"] = all_rounded(_thinned(self.spread.tolist(), step), digits)
        if self.learner is not None:
            found["colour"] = colour_of(self.learner)
        return found | {name: True for name in ("dashed", "dots") if getattr(self, name)}


@final
@dataclass(frozen=True, kw_only=True)
class Panel:
    """Hold some lines over the same axis.

    Args:
        x: Where the points are.
        lines: The lines.
        title: The title, if there are several panels.
        shades: From where to where the background is grey.
    """

    x: Sequence[float]
    lines: Sequence[Line]
    title: str = ""
    shades: Sequence[tuple[float, float]] = ()

    @property
    def step(self) -> int:
        """Of how many points one is drawn, so that long curves do not make the page large."""
        return max(1, -(-len(self.x) // MOST_POINTS))

    def to_json(self) -> dict[str, Any]:
        """Return the panel as plain JSON values."""
        x = all_rounded(_thinned(self.x, self.step), 6)
        found: dict[str, Any] = {"x": x, "lines": [line.to_json(self.step) for line in self.lines]}
        return found | {"title": self.title} | ({"shades": [list(one) for one in self.shades]} if self.shades else {})


@final
@dataclass(frozen=True, kw_only=True)
class Lines(Chart):
    """Show lines, in one panel or in several.

    Args:
        title: The title.
        told: What it shows, in a sentence or two, for readers who do not see it.
        x: The title of the horizontal axis.
        y: The title of the vertical axis.
        panels: The panels.
        marks: Where a vertical line goes through every panel.
        from_zero: Whether the vertical axis begins at 0.
    """

    title: str
    told: str
    x: str
    y: str
    panels: Sequence[Panel]
    marks: Sequence[float] = ()
    from_zero: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return everything that is needed to draw the chart, as plain JSON values."""
        step = max((panel.step for panel in self.panels), default=1)
        told = self.told if step == 1 else f"{self.told} One point out of {step} is shown."
        words = {"kind": "lines", "title": self.title, "told": told, "x": self.x, "y": self.y}
        more: dict[str, Any] = {"marks": list(self.marks)} if self.marks else {}
        more |= {"zero": True} if self.from_zero else {}
        return words | {"panels": [panel.to_json() for panel in self.panels]} | more


@final
@dataclass(frozen=True, kw_only=True)
class Dot:
    """Hold one row of a dot chart.

    Args:
        name: Its name.
        learner: The learner whose colour it has.
        mean: Our number.
        spread: Its standard deviation; None for a single seed.
        paper: The paper's number; None if it has none.
        paper_spread: Its standard deviation.
        group: The id of the setting that it stands for.
    """

    name: str
    learner: str
    mean: float
    spread: float | None
    paper: float | None = None
    paper_spread: float | None = None
    group: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Dots(Chart):
    """Show many settings side by side, one row each, with the paper's numbers where there are any.

    Args:
        title: The title.
        told: What it shows, in a sentence or two, for readers who do not see it.
        x: The title of the horizontal axis.
        rows: The rows, the best first.
    """

    title: str
    told: str
    x: str
    rows: Sequence[Dot] = field(default_factory=tuple)

    def to_json(self) -> dict[str, Any]:
        """Return everything that is needed to draw the chart, as plain JSON values."""
        rows = [
            [
                *(one.name, colour_of(one.learner), rounded(one.mean, 4), rounded(one.spread, 4)),
                *(rounded(one.paper, 4), rounded(one.paper_spread, 4), one.group),
            ]
            for one in self.rows
        ]
        return {"kind": "dots", "title": self.title, "told": self.told, "x": self.x, "rows": rows}


@final
@dataclass(frozen=True, kw_only=True)
class Parallel(Chart):
    """Show many settings as parallel coordinates: one line per setting, coloured by what was measured.

    Args:
        title: The title.
        told: What it shows, in a sentence or two, for readers who do not see it.
        fields: The names of the axes but the last.
        measure: The name of the last axis.
        rows: The value of each field and the measured number, for each setting.
        low_is_good: Whether a small number is better than a large one.
    """

    title: str
    told: str
    fields: Sequence[str]
    measure: str
    rows: Sequence[tuple[Sequence[Any], float | None]]
    low_is_good: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return everything that is needed to draw the chart, as plain JSON values."""
        rows = [[*values, rounded(score, 4)] for values, score in self.rows]
        words = {"kind": "parallel", "title": self.title, "told": self.told, "low": self.low_is_good}
        return words | {"fields": list(self.fields), "measure": self.measure, "rows": rows}
