"""Tables and pictures of records, for people."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.table import Table

from metareplay.bench import Timing
from metareplay.errors import MetareplayError
from metareplay.files import write_atomically
from metareplay.paper.results import Result, metric_name, ours, published, remark
from metareplay.record import Record

RARE: Final = 1e-4  # shares of dot products too small to show
LINEAR: Final = 0.001  # dot products as small as this are shown on a linear scale, larger ones on a logarithmic


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Mean and, of several, the standard deviation (of the sample, n - 1).

    >>> spread([80.0, 82.0]), spread([79.25])
    ('81.00 ± 1.41', '79.25')
    """
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def table(groups: dict[str, list[Record]], title: str) -> Table:
    """A row a group of records (the seeds of one setting): RA, LA, BTI, FTI, mean dot product if measured, and time."""
    aligned = any(record.alignment for records in groups.values() for record in records)
    caption = "percent; RA retained, LA learning, BTI backward, FTI forward"
    caption += "\ndot: mean dot product of an example's gradient with past ones" if aligned else ""
    rows = Table(title=title, caption=caption, title_justify="left")
    rows.add_column("learner", no_wrap=True)
    for name in ("RA", "LA", "BTI", "FTI", *(["dot"] if aligned else []), "seeds", "time"):
        rows.add_column(name, justify="right", no_wrap=True)
    for name, records in groups.items():
        metrics = [spread([getattr(record, metric) for record in records]) for metric in ("ra", "la", "bti", "fti")]
        if aligned:
            metrics.append(spread([record.dot for record in records], digits=3))
        seconds = statistics.fmean(record.seconds["learn"] for record in records)
        rows.add_row(name, *metrics, str(len(records)), duration(seconds))
    return rows


def paper_table(title: str, found: Sequence[Result], verdicts: bool = True) -> Table:
    """A table of the paper: in each cell our number, the paper's below it, the difference and the verdict."""
    rows = Table(title=title, title_justify="left", show_lines=True)
    rows.add_column("model", no_wrap=True)
    rows.add_column("memory", justify="right")
    columns = list(dict.fromkeys((one.cell.column, one.cell.metric) for one in found))
    for column, metric in columns:
        rows.add_column(f"{column}\n{metric_name(metric)}", justify="right", no_wrap=True)
    cells = {(one.cell.model, one.cell.memory, one.cell.column, one.cell.metric): one for one in found}
    for model, memory in dict.fromkeys((one.cell.model, one.cell.memory) for one in found):
        there = [cells.get((model, memory, *column)) for column in columns]
        texts = ["-" if one is None else _paper_cell(one, verdicts) for one in there]
        rows.add_row(model, "" if memory is None else str(memory), *texts)
    return rows


def _paper_cell(one: Result, verdicts: bool) -> str:
    lines = [f"[bold]{ours(one)}[/bold]", f"[dim]paper {published(one)}[/dim]"]
    if verdicts and one.verdict is not None:
        colour = {"within": "green", "better": "cyan", "worse": "red"}[one.verdict]
        lines.append(f"[{colour}]{remark(one)}[/{colour}]")
    return "\n".join(lines)


def bench_table(timings: list[Timing], title: str) -> Table:
    """A row a setting: microseconds a step, and how many times faster than the torch loop."""
    rows = Table(title=title, title_justify="left")
    for name in ("setting", "engine"):
        rows.add_column(name, no_wrap=True)
    for name in ("ours, us", "torch loop, us", "times faster", "promised", "aim"):
        rows.add_column(name, justify="right", no_wrap=True)
    for one in timings:
        goals = ["" if goal is None else f"{goal:.0f}" for goal in (one.at_least, one.aim)]
        rows.add_row(one.name, one.engine, f"{one.ours:.2f}", f"{one.torch:.0f}", f"{one.ratio:.0f}", *goals)
    return rows


def duration(seconds: float) -> str:
    """A length of time that people read.

    >>> duration(0.31), duration(75), duration(7380)
    ('0.3 s', '1 min 15 s', '2 h 3 min')
    """
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


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
