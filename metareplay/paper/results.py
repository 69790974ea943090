"""Our numbers beside the paper's: the results of a table's runs, the differences, and a verdict on each."""

import csv
import io
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from metareplay._core.files import write_text
from metareplay._core.text import deviation
from metareplay.experiments.experiment import Experiment
from metareplay.experiments.record import Record
from metareplay.paper.cells import Cell, PaperTable

A_MINUTE = 9e6  # SGD steps that a run takes in about a minute
NEAR_ZERO = 0.1  # dot products of table 4 above minus this count as no interference
VERDICTS = ("within", "better", "worse", "missed")


@final
@dataclass(frozen=True)
class Result:
    """Hold our results for one number of a table, seed by seed.

    Args:
        cell: The number of the paper's table.
        values: Our value for each seed.
        records: The runs behind the values.
        comparable: Whether they can be compared with the paper's; not so in a miniature.
    """

    cell: Cell
    values: tuple[float, ...]
    records: tuple[Record, ...] = ()
    comparable: bool = True

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.values)

    @property
    def std(self) -> float | None:
        """The standard deviation over seeds (n - 1); None for a single seed."""
        return deviation(self.values)

    @property
    def difference(self) -> float | None:
        """Our mean minus the paper's."""
        return None if self.cell.published is None else self.mean - self.cell.published.mean

    @property
    def verdict(self) -> str | None:
        """The verdict: "within", "better" or "worse"; for a dot product "within" or "missed"; None in a miniature.

        A number is within if it differs by no more than 1 point or twice the published deviation, whichever is larger.
        Where the paper's dot product (table 4) is negative, ours is within if it lies between a tenth of the paper's
        and ten times the paper's; where it is positive, if it lies between -0.1 and ten times the paper's.
        """
        if self.cell.published is None or self.difference is None or math.isnan(self.difference):
            return None
        if not self.comparable:
            return None
        published, ours = self.cell.published, self.mean
        if self.cell.metric == "alignment":
            low, high = (10, 0.1) if published.mean < 0 else (-NEAR_ZERO / published.mean, 10)
            return "within" if low * published.mean <= ours <= high * published.mean else "missed"
        fine = abs(self.difference) <= max(1.0, 2 * published.std)
        return "within" if fine else "better" if self.difference > 0 else "worse"


def seeds_of(cell: Cell, count: int | None) -> list[int]:
    """Return the seeds to run for a number.

    Args:
        cell: The number.
        count: How many of the paper's seeds; None for all of them, or five if a run takes minutes.

    >>> from metareplay.paper.tables import table_7
    >>> cells = {(cell.model, cell.column): cell for cell in table_7().cells}
    >>> seeds_of(cells["Online", "Different Seeds"], None) == list(range(5, 30))
    True
    >>> seeds_of(cells["Online", "Different Seeds"], 2)
    [5, 6]
    """
    if count is None:
        count = len(cell.seeds) if cell.experiment.work < A_MINUTE else 5
    return list(cell.seeds)[: count if cell.most is None else min(count, cell.most)]


def needed_runs(table: PaperTable, seeds: int | None, **changes: Any) -> list[Experiment]:
    """Return what to run for a table: one experiment for each number and seed.

    Args:
        table: The table.
        seeds: Seeds per number; None for the paper's, or five if a run takes minutes.
        changes: Fields of the experiments to replace, which makes a miniature of the table.
    """
    return [
        replace(cell.experiment, seed=seed, **changes) for cell in shown_cells(table) for seed in seeds_of(cell, seeds)
    ]


def results(
    table: PaperTable, seeds: int | None, records: Iterator[Record | None], comparable: bool = True
) -> list[Result]:
    """Return a table's numbers; those without a record are left out.

    Args:
        table: The table.
        seeds: Seeds per number; None for the paper's, or five if a run takes minutes.
        records: The records of `needed_runs`, in that order; None for a run that has not been done.
        comparable: Whether the numbers can be compared with the paper's.
    """
    found = []
    for cell in shown_cells(table):
        ran = tuple(record for _ in seeds_of(cell, seeds) if (record := next(records)) is not None)
        if ran:
            values = tuple(_metric(record, cell.metric) for record in ran)
            found.append(Result(cell, values, ran, comparable))
    return found


def _metric(record: Record, metric: str) -> float:
    return record.dot if metric == "alignment" else float(getattr(record, metric))


def shown_cells(table: PaperTable) -> list[Cell]:
    """Return the numbers to show; a setting for which the paper prints nothing is left out, unless we want it."""
    wanted = [cell.experiment for cell in table.cells if cell.published is not None or cell.ours]
    return [cell for cell in table.cells if cell.experiment in wanted]


def as_document(table: PaperTable, found: Sequence[Result]) -> dict[str, Any]:
    """Return a table as plain JSON values, with a list of its numbers; None where nothing was measured."""
    return {
        "table": table.name,
        "title": table.title,
        "numbers": [
            {
                "model": one.cell.model,
                "memory": one.cell.memory,
                "column": one.cell.column,
                "metric": one.cell.metric,
                "mean": _plain(one.mean),
                "std": _plain(one.std),
                "seeds": len(one.values),
                "values": [_plain(value) for value in one.values],
                "published": None if one.cell.published is None else one.cell.published._asdict(),
                "difference": _plain(one.difference),
                "verdict": one.verdict,
            }
            for one in found
        ],
        "notes": table.notes,
    }


def write_table(table: PaperTable, found: Sequence[Result], folder: Path) -> None:
    """Write a table as Markdown, CSV and JSON."""
    notes = "".join(f"- {note}\n" for note in table.notes)
    page = f"# {table.name}: {table.title}\n\n{as_markdown(found)}\n{summary(found)}\n\n{notes}"
    texts = {"md": page, "csv": as_csv(table, found), "json": json.dumps(as_document(table, found), indent=1) + "\n"}
    for ending, text in texts.items():
        write_text(folder / f"{table.name}.{ending}", text)


def as_csv(table: PaperTable, found: Sequence[Result]) -> str:
    """Return a table as CSV, one number per line."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    names = ("model", "memory", "column", "metric", "mean", "std", "seeds", "difference", "verdict")
    rows.writerow((*names[:7], "published mean", "published std", *names[7:]))
    for number in as_document(table, found)["numbers"]:
        published = number["published"] or {"mean": None, "std": None}
        numbers = (*(number[name] for name in names[:7]), published["mean"], published["std"])
        rows.writerow((*numbers, *(number[name] for name in names[7:])))
    return text.getvalue()


def as_markdown(found: Sequence[Result]) -> str:
    """Return a table as Markdown: our numbers, the paper's in brackets, and the difference if it is not within."""
    columns = list(dict.fromkeys((one.cell.column, one.cell.metric) for one in found))
    cells = {(one.cell.model, one.cell.memory, one.cell.column, one.cell.metric): one for one in found}
    lines = [
        f"| model | memory | {' | '.join(f'{column}, {metric_name(metric)}' for column, metric in columns)} |",
        f"|---|---:|{'---:|' * len(columns)}",
    ]
    for model, memory in dict.fromkeys((one.cell.model, one.cell.memory) for one in found):
        row = [_markdown(cells.get((model, memory, *column))) for column in columns]
        lines.append(f"| {model} | {'' if memory is None else memory} | {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def summary(found: Sequence[Result]) -> str:
    """Count the numbers that are within, better and worse, and the dot products that were missed.

    >>> from metareplay.paper.tables import table_1
    >>> summary([Result(cell, (cell.published.mean,)) for cell in table_1().cells if cell.published])
    '34 numbers: 34 within, 0 better, 0 worse'
    """
    verdicts = [one.verdict for one in found if one.verdict is not None]
    counts = ", ".join(f"{verdicts.count(name)} {name}" for name in VERDICTS if name in (*verdicts, *VERDICTS[:3]))
    return f"{len(verdicts)} numbers: {counts}"


def metric_name(metric: str) -> str:
    """Return a metric's name as the paper prints it."""
    return "dot product" if metric == "alignment" else metric.upper()


def ours(result: Result) -> str:
    """Return our mean and deviation, and the number of seeds if it is not the paper's."""
    return f"{_number(result, result.mean)}{_spread(result, result.std)}{_seeds(result)}"


def published(result: Result) -> str:
    """Return the paper's mean and deviation."""
    paper = result.cell.published
    return "-" if paper is None else f"{_number(result, paper.mean)}{_spread(result, paper.std)}"


def remark(result: Result) -> str:
    """Return the difference and the verdict."""
    if result.verdict is None:
        return ""
    digits = 3 if result.cell.metric == "alignment" else 2
    return f"{result.difference:+.{digits}f} {result.verdict}"


def _markdown(result: Result | None) -> str:
    if result is None:
        return "-"
    mark = "" if result.verdict in ("within", None) else f" **{remark(result)}**"
    return f"{ours(result)} ({published(result)}){mark}"


def _number(result: Result, value: float) -> str:
    if result.cell.metric == "alignment":
        return f"{value:+.3f}"
    return f"{value:+.2f}" if result.cell.metric == "bti" else f"{value:.2f}"


def _plain(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value


def _spread(result: Result, value: float | None) -> str:
    digits = 3 if result.cell.metric == "alignment" else 2
    return "" if value is None else f" ± {value:.{digits}f}"


def _seeds(result: Result) -> str:
    return "" if len(result.values) == len(result.cell.seeds) else f" [{len(result.values)}]"
