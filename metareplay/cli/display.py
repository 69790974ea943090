"""Tables of records and timings, for people."""

import statistics
from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from metareplay._core.text import duration, spread
from metareplay.bench.frame import Sheet
from metareplay.experiments.record import Record
from metareplay.paper.game_results import GameResults, caption_of, heads_of, rows_of
from metareplay.paper.results import Result, metric_name, ours, published, remark


def table(groups: dict[str, list[Record]], title: str) -> Table:
    """Make a table with one row per group of records: RA, LA, BTI, FTI, what else was measured, and time.

    Args:
        groups: The records of the seeds of each setting, by name.
        title: The title of the table.
    """
    aligned = any(record.alignment for records in groups.values() for record in records)
    trained = any(record.training is not None for records in groups.values() for record in records)
    names = ["ra", "la", "bti", "fti", *(["ta"] if trained else [])]
    caption = "percent; RA retained, LA learning, BTI backward, FTI forward"
    caption += "\nTA: retained accuracy on training examples" if trained else ""
    caption += "\ndot: mean dot product of an example's gradient with past ones" if aligned else ""
    rows = Table(title=escape(title), caption=caption, title_justify="left")
    rows.add_column("learner", no_wrap=True)
    for name in (*map(str.upper, names), *(["dot"] if aligned else []), "seeds", "time"):
        rows.add_column(name, justify="right", no_wrap=True)
    for name, records in groups.items():
        metrics = [spread([getattr(record, metric) for record in records]) for metric in names]
        if aligned:
            metrics.append(spread([record.dot for record in records], digits=3))
        seconds = statistics.fmean(record.seconds["learn"] for record in records)
        rows.add_row(escape(name), *metrics, str(len(records)), duration(seconds))
    return rows


def paper_table(title: str, found: Sequence[Result]) -> Table:
    """Make a table of the paper: each cell has our number, below it the paper's, the difference and the verdict.

    Args:
        title: The title of the table.
        found: Our numbers.
    """
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


def game_table(found: GameResults) -> Table:
    """Make a table of agents that play a game: the scores on each task at the end.

    Args:
        found: A figure with its records.
    """
    rows = Table(title=f"{found.figure.name}: {found.figure.title}", caption=caption_of(found), title_justify="left")
    for number, head in enumerate(heads_of(found)):
        rows.add_column(head, justify="right" if number else "left", no_wrap=True)
    for name, cells in rows_of(found):
        rows.add_row(name, *cells)
    return rows


def bench_table(sheet: Sheet) -> Table:
    """Draw a table of a benchmark: text on the left, numbers on the right.

    Args:
        sheet: The content of the table.
    """
    rows = Table(title=sheet.title, caption=sheet.note or None, title_justify="left", caption_justify="left")
    for column in sheet.columns:
        rows.add_column(column.head, justify="right" if column.spec else "left", no_wrap=True)
    for cells in sheet.cells():
        rows.add_row(*cells)
    return rows


def text_rows(title: str, heads: Sequence[str], cells: Sequence[Sequence[str]]) -> Table:
    """Draw a table of texts, the first column on the left and the others on the right.

    Args:
        title: The title of the table.
        heads: The heads of the columns.
        cells: The rows.
    """
    rows = Table(title=title, title_justify="left")
    for number, head in enumerate(heads):
        rows.add_column(head, justify="right" if number else "left", no_wrap=True)
    for row in cells:
        rows.add_row(*row)
    return rows
