"""Tables of records and timings, for people."""

import statistics
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from metareplay._core.text import duration, spread
from metareplay.bench.cpu import Timing
from metareplay.experiments.record import Record
from metareplay.paper.results import Result, metric_name, ours, published, remark


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


def paper_table(title: str, found: Sequence[Result]) -> Table:
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
        texts = ["-" if one is None else _paper_cell(one) for one in there]
        rows.add_row(model, "" if memory is None else str(memory), *texts)
    return rows


def _paper_cell(one: Result) -> str:
    lines = [f"[bold]{ours(one)}[/bold]", f"[dim]paper {published(one)}[/dim]"]
    if one.verdict is not None:
        colour = {"within": "green", "better": "cyan", "worse": "red", "missed": "red"}[one.verdict]
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


def cuda_bench_table(found: dict[str, Any]) -> Table:
    """A row a setting of `bench_cuda.document`, then the replicas."""
    rows = Table(title=f"A step against torch stepping, {found['device']}", title_justify="left")
    rows.add_column("setting", no_wrap=True)
    for name in ("ours, us", "torch, us", "times faster", "promised", "aim", "kernels", "floor, us"):
        rows.add_column(name, justify="right", no_wrap=True)
    for one in found["timings"]:
        numbers = [f"{one['ours']:.1f}", f"{one['torch']:.0f}", f"{one['ratio']:.1f}"]
        goals = ["" if one[name] is None else f"{one[name]:.0f}" for name in ("at_least", "aim")]
        bounds = ["" if one[name] is None else f"{one[name]:.0f}" for name in ("kernels", "floor")]
        rows.add_row(one["name"], *numbers, *goals, *bounds)
    beside = found["replicas"]
    costs = f"costs {beside['ratio']:.2f} x one", f"<= {beside['at_most']:g}", f"{beside['aim']:g}"
    rows.add_row(beside["name"], f"{beside['all']:.1f}", "", *costs, "", "")
    return rows


def fleet_bench_table(found: dict[str, Any]) -> Table:
    """A row a setting of `bench_fleet.document`."""
    title = f"A fleet on one {found['device']}; weights within {found['error']:.0e} of float64 after 30 batches"
    rows = Table(title=title, title_justify="left")
    rows.add_column("setting", no_wrap=True)
    for name in ("a step, us", "million steps/s", "promised", "aim", "of the floor"):
        rows.add_column(name, justify="right", no_wrap=True)
    for one in found["timings"]:
        goals = ["" if one[name] is None else f"{one[name]:.0f}" for name in ("at_least", "aim")]
        rows.add_row(one["name"], f"{one['step']:.2f}", f"{one['rate']:.1f}", *goals, f"{100 * one['share']:.0f} %")
    return rows
