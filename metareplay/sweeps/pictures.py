"""A picture of a sweep: the effect of each field, and of pairs of fields where every combination was tried."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from metareplay._core.rows import plain_text
from metareplay.plots import new_figure, save_figure
from metareplay.sweeps.outcome import Outcome
from metareplay.sweeps.results import Sweep
from metareplay.sweeps.subject import MEASURES

MOST = 4  # fields that a map of all settings can show
LARGEST = 1000  # settings in a map: nobody reads more, and drawing them takes longer than finding them


def plot_sweep(sweep: Sweep, path: Path) -> None:
    """Draw one panel per field, with a dot for every setting, and below them a map of all settings if it fits.

    Args:
        sweep: The sweep.
        path: The picture to write; its ending says in which format.
    """
    names, outcomes = sweep.grid.fields or list(sweep.grid.values)[:1], sweep.rounds[0]
    mapped = 2 <= len(names) <= MOST and len(sweep.grid) <= LARGEST and not sweep.grid.sampled
    inside = sorted(names, key=lambda name: -len(sweep.grid.values[name]))  # the longest lists are axes of a panel
    rows, columns = _sizes(sweep, inside)
    wide = max(3.0 * len(names), 1.6 + (2.9 if columns > 1 else 4.5) * columns if mapped else 4.5)
    figure = new_figure(wide, 3.4 + (0.6 + 2.6 * rows if mapped else 0))
    parts = figure.subfigures(2 if mapped else 1, 1, height_ratios=[3.2, 0.6 + 2.6 * rows] if mapped else [1])
    above, below = parts if mapped else (parts, None)
    stopped = outcomes[0].tasks if outcomes else None
    when = "" if stopped is None else f"\nafter the first {'task' if stopped == 1 else f'{stopped} tasks'}"
    unit = MEASURES[sweep.measure] + ("" if sweep.measure == "score" else " (%)") + when
    seeds = f"{len(sweep.seeds)} seed{'s' if len(sweep.seeds) != 1 else ''}"
    figure.suptitle(f"{sweep.name}: {len(sweep.grid)} settings, {seeds}")
    _draw_marginals(above, sweep, names, unit)
    if below is not None:
        _draw_map(below, sweep, inside, unit)
    save_figure(figure, path)


def _draw_marginals(figure: Any, sweep: Sweep, names: list[str], unit: str) -> None:
    """Draw the score of each setting over the values of each field, with their mean and the best of them."""
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    known = [(one.settings, one.mean) for one in sweep.rounds[0] if one.complete and one.mean is not None]
    for axes, name in zip(panels, names, strict=True):
        values = sweep.grid.values[name]
        groups = [[mean for settings, mean in known if settings[name] == value] for value in values]
        for place, means in enumerate(groups):
            spots = place + (np.linspace(-0.18, 0.18, len(means)) if len(means) > 1 else np.zeros(len(means)))
            axes.plot(spots, means, ".", color="grey", alpha=0.45, markersize=4)
        there = [place for place, means in enumerate(groups) if means]
        axes.plot(there, [max(groups[p]) for p in there], color="C1", marker="o", linewidth=1.8, label="best")
        axes.plot(there, [np.mean(groups[p]) for p in there], color="C0", marker="o", linewidth=1.8, label="mean")
        axes.set_xticks(range(len(values)), [plain_text(value) for value in values])
        axes.set(xlabel=name, xlim=(-0.5, len(values) - 0.5))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel(unit)
    panels[0].plot([], [], ".", color="grey", label="one setting")
    panels[0].legend(fontsize=8, framealpha=0.85, edgecolor="none")


def _draw_map(figure: Any, sweep: Sweep, names: list[str], unit: str) -> None:
    """Draw the score of every setting: one panel for each value of the outer fields, the inner two as its axes."""
    inner, outer = names[:2], names[2:]
    table = {tuple(one.settings[name] for name in names): one for one in sweep.rounds[0]}
    known = sorted(one.mean for one in table.values() if one.complete and one.mean is not None)
    low, high = (known[len(known) // 4], known[-1]) if known else (0.0, 1.0)
    down, across = (sweep.grid.values[name] for name in inner)
    rows, columns = _sizes(sweep, names)
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    best = sweep.best.number
    for panel, values in enumerate(product(*(sweep.grid.values[name] for name in outer))):
        axes = panels[panel // columns, panel % columns]
        cells = [[table[y, x, *values] for x in across] for y in down]
        image = [[one.mean if one.complete and one.mean is not None else np.nan for one in row] for row in cells]
        shown = axes.imshow(np.array(image, np.float64), vmin=low, vmax=high, aspect="auto", origin="lower")
        for (y, row), x in product(enumerate(cells), range(len(across))):
            _write(axes, x, y, row[x], low, high, chosen=row[x].number == best)
        words = [f"{name} {plain_text(value)}" for name, value in zip(outer, values, strict=True)]
        axes.set_title(", ".join(words), fontsize=9)
        axes.set_xticks(range(len(across)), [plain_text(x) for x in across])
        axes.set_yticks(range(len(down)), [plain_text(y) for y in down])
        axes.set_xlabel(inner[1] if panel // columns == rows - 1 else "")
        axes.set_ylabel(inner[0] if panel % columns == 0 else "")
    figure.colorbar(shown, ax=panels, label=f"{unit}\ndarkest: the lowest quarter", shrink=0.9)


def _write(axes: Any, x: int, y: int, one: Outcome, low: float, high: float, *, chosen: bool) -> None:
    """Write the score of a setting into its cell, a dash if a seed failed, and a frame around the chosen one."""
    if not one.complete or one.mean is None:
        axes.text(x, y, "-", ha="center", va="center", size=7)
        return
    colour = "white" if one.mean < (low + high) / 2 else "black"
    axes.text(x, y, f"{one.mean:.1f}", ha="center", va="center", size=7, color=colour)
    if chosen:
        corners = (
            [x - 0.46, x + 0.46, x + 0.46, x - 0.46, x - 0.46],
            [y - 0.46, y - 0.46, y + 0.46, y + 0.46, y - 0.46],
        )
        axes.plot(*corners, color="red", linewidth=1.6)


def _sizes(sweep: Sweep, names: list[str]) -> tuple[int, int]:
    """Return the rows and columns of panels in the map: the third field goes down, the fourth across."""
    sizes = [len(sweep.grid.values[name]) for name in names[2:]]
    return (1, sizes[0]) if len(sizes) == 1 else (sizes[0], sizes[1]) if len(sizes) == 2 else (1, 1)
