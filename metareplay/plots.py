"""Pictures of records and of the paper's tables."""

from collections.abc import Sequence
from itertools import cycle, product
from pathlib import Path
from typing import Any, Final

import numpy as np

from metareplay.errors import MetareplayError
from metareplay.files import write_atomically
from metareplay.paper.results import Result
from metareplay.record import Record

RARE: Final = 1e-4  # shares of dot products too small to show
MARKERS: Final = "os^vDPX<>*h"  # one more than there are colours: colour and marker together are a model's own
LINEAR: Final = 0.001  # dot products as small as this are shown on a linear scale, larger ones on a logarithmic


def plot_tasks(records: dict[str, Record], path: Path, title: str) -> None:
    """Each task's accuracy just after it was learned (dotted) and at the end of the stream, learner by learner."""
    figure = _figure(8, 4.5)
    axes = figure.add_subplot()
    for number, (name, record) in enumerate(records.items()):
        tasks = np.arange(1, record.accuracy.shape[1] + 1)
        colour = f"C{number}"
        axes.plot(tasks, record.accuracy[-1], color=colour, linewidth=2.2, marker="o", markersize=4, label=name)
        axes.plot(tasks, np.diag(record.accuracy[1:]), color=colour, linewidth=1, linestyle=":")
    axes.plot([], [], color="grey", linewidth=2.2, label="at the end of the stream")
    axes.plot([], [], color="grey", linewidth=1, linestyle=":", label="just after learning the task")
    axes.set(title=title, xlabel="task", ylabel="test accuracy (%)", ylim=(0, 100))
    axes.set_xticks(tasks if len(tasks) <= 20 else tasks[:: len(tasks) // 10])
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, loc="outside lower center", ncols=(len(records) + 3) // 2)
    _save(figure, path)


def plot_alignment(records: dict[str, Record], path: Path, title: str) -> None:
    """Dot products of gradients along the stream, a panel a record, and their histograms over the whole of it."""
    found = {name: _measured(name, record) for name, record in records.items()}
    figure = _figure(2.5 + (6 if len(records) == 1 else 4.5) * len(records), 4.5)
    *panels, last = figure.subplots(1, len(records) + 1, sharey=True, width_ratios=[5] * len(records) + [1.2])
    for number, (name, axes) in enumerate(zip(records, panels, strict=True)):
        colour = f"C{number}"
        _along(axes, found[name], colour)
        axes.set_title(f"{name}: mean {records[name].dot:+.3f}", color=colour)
        shares = np.array(found[name]["counts"][1:-1]) / found[name]["count"]
        last.stairs(shares, found[name]["edges"], orientation="horizontal", color=colour, linewidth=1.5)
    for axes in (*panels, last):
        axes.axhline(0, color="black", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    reach = 2 * max(map(_reach, found.values()))
    last.set_yscale("symlog", linthresh=LINEAR, linscale=0.7)
    last.set(title="overall", xlabel="share", xscale="log", xlim=(RARE, 1), ylim=(-reach, reach))
    panels[0].set_ylabel("dot product of gradients\n← interference      transfer →")
    figure.suptitle(title)
    panels[0].plot([], [], color="grey", linewidth=2, label="median")
    panels[0].plot([], [], ".", color="black", markersize=3.5, label="mean")
    panels[0].fill_between([], [], [], color="grey", alpha=0.55, linewidth=0, label="middle half")
    panels[0].fill_between([], [], [], color="grey", alpha=0.25, linewidth=0, label="5 to 95 %")
    figure.legend(frameon=False, loc="outside lower center", ncols=4)
    _save(figure, path)


def plot_matrices(records: dict[str, Record], path: Path, title: str) -> None:
    """The accuracy of every task after every task, a panel a record: forgetting is a row that fades.

    A task has been learned to the right of the white steps; grey: not measured.
    """
    figure = _figure(1.5 + 3.2 * len(records), 4)
    panels = figure.subplots(1, len(records), sharey=True, squeeze=False)[0]
    for axes, (name, record) in zip(panels, records.items(), strict=True):
        tasks = record.accuracy.shape[1]
        extent = (-0.5, tasks + 0.5, tasks + 0.5, 0.5)
        shown = axes.imshow(record.accuracy.T, vmin=0, vmax=100, cmap="viridis", extent=extent, aspect="auto")
        corners = np.repeat(np.arange(tasks + 1) + 0.5, 2)
        axes.plot(corners[:-1], corners[1:], color="white", linewidth=1.5)
        axes.set(title=f"{name}: RA {record.ra:.1f}", xlabel="tasks learned", facecolor="lightgrey")
        axes.set_xticks([0, *_ticks(tasks)])
        axes.set_yticks(_ticks(tasks))
    panels[0].set_ylabel("accuracy on task")
    figure.colorbar(shown, ax=panels.tolist(), label="test accuracy (%)", pad=0.01)
    figure.suptitle(title)
    _save(figure, path)


def plot_memory(found: Sequence[Result], path: Path, title: str) -> None:
    """Retained accuracy against memory size, a panel a stream; the paper's numbers hollow, around ours if near."""
    chosen = [one for one in found if one.cell.metric == "ra" and one.cell.memory is not None]
    columns = list(dict.fromkeys(one.cell.column for one in chosen))
    models = list(dict.fromkeys(one.cell.model for one in chosen))
    styles = {
        model: {"color": f"C{number % 10}", "marker": marker}
        for number, (model, marker) in enumerate(zip(models, cycle(MARKERS), strict=False))
    }
    figure = _figure(1 + 4.8 * len(columns), 6)
    panels = figure.subplots(1, len(columns), squeeze=False)[0]
    for axes, column in zip(panels, columns, strict=True):
        there = [one for one in chosen if one.cell.column == column]
        held = sorted({one.cell.memory for one in there if one.cell.memory})
        for number, (model, style) in enumerate(styles.items()):
            points = sorted((one for one in there if one.cell.model == model), key=lambda one: one.cell.memory or 0)
            aside = 0.7 * ((number + 0.5) / len(models) - 0.5)  # so that models stand side by side
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
    _save(figure, path)


def plot_grid(found: dict[str, Any], path: Path) -> None:
    """Retained accuracy over a grid of settings (`paper.grid.document`): a panel for each lr and s, beta against k."""
    ra = {(row["lr"], row["s"], row["beta"], row["k"]): row["ra"] for row in found["settings"]}
    rates, batches, betas, sizes = (sorted({key[place] for key in ra}) for place in range(4))
    known = sorted(value for value in ra.values() if value is not None)
    low, high = (known[len(known) // 4], known[-1]) if known else (0, 100)
    figure = _figure(2.9 * len(batches) + 1.2, 2.6 * len(rates) + 0.8)
    panels = figure.subplots(len(rates), len(batches), squeeze=False, sharex=True, sharey=True)
    best = found["settings"][0]
    for (row, lr), (column, s) in product(enumerate(rates), enumerate(batches)):
        axes = panels[row, column]
        values = np.array([[ra[lr, s, beta, k] for k in sizes] for beta in betas], np.float64)
        shown = axes.imshow(values, vmin=low, vmax=high, cmap="viridis", aspect="auto", origin="lower")
        for (y, beta), (x, k) in product(enumerate(betas), enumerate(sizes)):
            value, first = ra[lr, s, beta, k], (lr, s, beta, k) == tuple(best[n] for n in ("lr", "s", "beta", "k"))
            text = "-" if value is None else f"{value:.1f}"
            light = value is not None and value < (low + high) / 2
            weight = "bold" if first else "normal"
            axes.text(x, y, text, ha="center", va="center", size=7, color="white" if light else "black", weight=weight)
        axes.set_title(f"lr {lr:g}, s {s:g}", size=9)
        axes.set_xticks(range(len(sizes)), [f"{k:g}" for k in sizes])
        axes.set_yticks(range(len(betas)), [f"{beta:g}" for beta in betas])
        axes.set(xlabel="k" if row == len(rates) - 1 else "", ylabel="beta" if column == 0 else "")
    figure.colorbar(shown, ax=panels, label="retained accuracy (%); darkest: a quarter of all, or less", shrink=0.8)
    seeds = len(best["seeds"])
    figure.suptitle(f"MER on {found['stream']}, {found['memory']} memories: the paper's grid, mean of {seeds} seeds")
    _save(figure, path)


def _ticks(tasks: int) -> list[int]:
    """Which tasks to number along an axis: the first and at most ten others."""
    step = 1 if tasks <= 10 else 5 * -(-tasks // 50)
    return sorted({1, *range(step, tasks + 1, step)})


def _measured(name: str, record: Record) -> dict[str, Any]:
    if record.alignment is None or not record.alignment["count"]:
        raise MetareplayError(f"{name} has no dot products to show: run it with alignment on two examples or more")
    return record.alignment


def _reach(found: dict[str, Any]) -> float:
    """The size of the largest dot products that are not rare."""
    edges, common = np.abs(found["edges"]), np.array(found["counts"][1:-1]) > RARE * found["count"]
    ends = [abs(value) for q in ("5", "95") for value in found["quantiles"][q] if value is not None]
    return float(max(LINEAR, *ends, *edges[1:][common].tolist(), *edges[:-1][common].tolist()))


def _along(axes: Any, found: dict[str, Any], colour: str) -> None:
    """Median, mean and two bands, a point a span of the stream; faint lines where the task changes."""
    for change in found["changes"]:
        axes.axvline(change, color="black", alpha=0.13, linewidth=0.7)
    bounds = np.array(found["bounds"])
    middles = (bounds[1:] + bounds[:-1]) / 2
    quantiles = {q: np.array(values, np.float64) for q, values in found["quantiles"].items()}
    axes.plot(middles, quantiles["50"], color=colour, linewidth=2)
    axes.fill_between(middles, quantiles["25"], quantiles["75"], color=colour, alpha=0.33, linewidth=0)
    axes.fill_between(middles, quantiles["5"], quantiles["95"], color=colour, alpha=0.17, linewidth=0)
    axes.plot(middles, np.array(found["means"], np.float64), ".", color="black", markersize=3.5)
    axes.set(xlabel="examples seen", xlim=(0, bounds[-1]))


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MetareplayError("pictures need matplotlib: pip install 'metareplay[plots]'") from error
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def _save(figure: Any, path: Path) -> None:
    with write_atomically(path) as file:
        figure.savefig(file, format=path.suffix.removeprefix("."))
