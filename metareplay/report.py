"""Tables and pictures of records, for people."""

import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from metareplay.bench import Timing
from metareplay.errors import MetareplayError
from metareplay.files import write_atomically
from metareplay.paper.results import Result, metric_name, ours, published, remark
from metareplay.record import Record


def spread(values: Sequence[float]) -> str:
    """Mean and, of several, the standard deviation (of the sample, n - 1).

    >>> spread([80.0, 82.0]), spread([79.25])
    ('81.00 ± 1.41', '79.25')
    """
    mean = f"{statistics.fmean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2f}"


def table(groups: dict[str, list[Record]], title: str) -> Table:
    """A row a group of records (the seeds of one setting): RA, LA, BTI, FTI and time."""
    rows = Table(
        title=title, caption="percent; RA retained, LA learning, BTI backward, FTI forward", title_justify="left"
    )
    for name, justify in (("learner", "left"), *((c, "right") for c in ("RA", "LA", "BTI", "FTI", "seeds", "time"))):
        rows.add_column(name, justify="left" if justify == "left" else "right", no_wrap=True)
    for name, records in groups.items():
        metrics = [spread([getattr(record, metric) for record in records]) for metric in ("ra", "la", "bti", "fti")]
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
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MetareplayError("pictures need matplotlib: pip install 'metareplay[plots]'") from error
    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
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
    with write_atomically(path) as file:
        figure.savefig(file, format=path.suffix.removeprefix("."))
