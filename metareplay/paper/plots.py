"""Pictures of the paper's tables."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from metareplay._core.palette import colour_of
from metareplay._core.text import deviation
from metareplay.paper.results import Result
from metareplay.plots import learner_colours, new_figure, save_figure

MARKERS: Final = "os^vDPX<>*h"


def plot_memory(found: Sequence[Result], path: Path, title: str) -> None:
    """Draw retained accuracy against memory size, one panel per stream; hollow markers are the paper's numbers.

    Args:
        found: Our numbers.
        path: The picture to write.
        title: Its title.
    """
    chosen = [one for one in found if one.cell.metric == "ra" and one.cell.memory is not None]
    columns = list(dict.fromkeys(one.cell.column for one in chosen))
    colours = learner_colours({one.cell.model: one.cell.experiment.learner for one in chosen})
    styles: dict[str, dict[str, str]] = {}
    for number, (model, colour) in enumerate(colours.items()):  # each has its own pair of colour and marker
        looks = [{"color": colour, "marker": MARKERS[(number + more) % len(MARKERS)]} for more in range(len(MARKERS))]
        styles[model] = next(one for one in looks if one not in styles.values())
    figure = new_figure(1 + 4.8 * len(columns), 6)
    panels = figure.subplots(1, len(columns), squeeze=False)[0]
    for axes, column in zip(panels, columns, strict=True):
        there = [one for one in chosen if one.cell.column == column]
        held = sorted({one.cell.memory for one in there if one.cell.memory})
        for number, (model, style) in enumerate(styles.items()):
            points = sorted((one for one in there if one.cell.model == model), key=lambda one: one.cell.memory or 0)
            aside = 0.7 * ((number + 0.5) / len(colours) - 0.5)  # draws the models side by side
            at = [held.index(one.cell.memory or 0) + aside for one in points]
            means, stds = [one.mean for one in points], [one.std or 0.0 for one in points]
            axes.errorbar(at, means, stds, linewidth=0.8, elinewidth=1.4, capsize=2.5, markersize=4.5, **style)
            paper = [np.nan if one.cell.published is None else one.cell.published.mean for one in points]
            axes.plot(at, paper, linestyle="", markersize=10, markerfacecolor="none", **style)
        axes.set(title=column, xlabel="examples in memory", xlim=(-0.5, len(held) - 0.5))
        axes.set_xticks(range(len(held)), [str(size) for size in held])
        for between in range(1, len(held)):
            axes.axvline(between - 0.5, color="black", alpha=0.25, linewidth=0.7)
        axes.grid(alpha=0.25, axis="y")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("retained accuracy (%)")
    for model, style in styles.items():
        panels[0].plot([], [], linewidth=0.8, markersize=4.5, label=model, **style)
    panels[0].plot([], [], "o", markersize=10, markerfacecolor="none", color="grey", label="hollow: the paper's")
    figure.suptitle(title)
    figure.legend(frameon=False, loc="outside lower center", ncols=min(4, len(columns) + 1))
    save_figure(figure, path)


def plot_costs(found: Sequence[Result], path: Path, title: str) -> None:
    """Draw retained training accuracy, retained test accuracy and learning time of each row, in three panels.

    Bars are means over seeds, lines deviations; a small mark is the paper's test accuracy where it prints one.

    Args:
        found: Our retained accuracies; the records behind them say the rest.
        path: The picture to write.
        title: Its title.
    """
    figure = new_figure(13, 1.8 + 0.33 * len(found))
    panels = figure.subplots(1, 3, sharey=True)
    measured = (
        ("retained training accuracy", "percent", [[record.ta for record in one.records] for one in found]),
        ("retained test accuracy", "percent", [list(one.values) for one in found]),
        ("learning time", "minutes", [[record.seconds["learn"] / 60 for record in one.records] for one in found]),
    )
    for axes, (name, unit, values) in zip(panels, measured, strict=True):
        for at, (one, seeds) in enumerate(zip(found, values, strict=True)):
            light = 0.55 if (one.cell.memory or 5120) < 5120 else 1.0
            colour = colour_of(one.cell.experiment.learner).light
            if np.isnan(seeds).any():  # it was not measured
                continue
            mean, spread = float(np.mean(seeds)), deviation(seeds)
            axes.barh(at, mean, xerr=spread, color=colour, alpha=light, height=0.75, capsize=2.5)
            text = f"{mean:.1f}" if mean >= 1 or unit == "percent" else f"{mean:.2g}"
            axes.annotate(text, (mean + (spread or 0), at), (4, 0), textcoords="offset points", va="center", size=8)
        axes.set(title=name, xlabel=unit)
        axes.grid(alpha=0.25, axis="x")
        axes.spines[["top", "right"]].set_visible(False)
    known = [(at, one.cell.published.mean) for at, one in enumerate(found) if one.cell.published is not None]
    panels[1].plot([mean for _, mean in known], [at for at, _ in known], "|", color="black", markersize=14)
    if known:
        panels[1].plot([], [], "|", color="black", markersize=10, label="the paper's")
    for axes in panels[:2]:
        axes.set_xlim(0, 109)
    panels[2].set(xscale="log", xlabel=f"minutes, logarithmic scale\n{_devices(found)}")
    panels[2].xaxis.set_major_formatter("{x:g}")
    panels[2].xaxis.set_minor_formatter("")  # numbers at every mark would cover each other
    low, high = panels[2].get_xlim()
    panels[2].set_xlim(low / 3, high * 4)  # room for the shortest bar, and for the numbers
    panels[0].set_yticks(range(len(found)), [one.cell.row for one in found])
    panels[0].invert_yaxis()
    figure.legend(frameon=False, loc="outside lower center")
    figure.suptitle(title)
    save_figure(figure, path)


def _devices(found: Sequence[Result]) -> str:
    """Say on what the runs behind some numbers learned."""
    records = [record for one in found for record in one.records]
    places = [
        record.versions.get("gpu") or f"one core of {record.versions.get('processor', '?')}" for record in records
    ]
    return "on " + " or ".join(sorted(set(places)))
