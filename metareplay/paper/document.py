"""One page with every table: our numbers beside the paper's, and where each of them comes from."""

from collections.abc import Mapping, Sequence

from metareplay._core.text import duration
from metareplay.experiments.record import Record
from metareplay.paper.cells import PaperTable
from metareplay.paper.results import VERDICTS, Result, as_markdown, metric_name, remark, summary
from metareplay.paper.tables import OBSERVATIONS
from metareplay.runners.fleet.flight import NAME as FLEET

HEAD = """# Results: the paper's tables, our numbers beside theirs

This page is made from the records in `results/` by

    metareplay paper all --only-records --records results --out results --document docs/results.md

and every record by `metareplay paper <table>`, which runs what has no record yet. Each cell has our mean ± standard
deviation over seeds, and the paper's in brackets; `[n]` gives our number of seeds if it is not the paper's. A number is
*within* if it differs by no more than 1 point or twice the paper's deviation, whichever is larger. In table 4, a number
is within if it is negative where the paper's is and within a factor of ten of it, or otherwise if it lies between -0.1
and ten times the paper's. Numbers that are not within are marked. [Findings](findings.md) says what the misses mean.
"""


def document(tables: Mapping[str, tuple[PaperTable, Sequence[Result]]], pictures: Mapping[str, str]) -> str:
    """Return the page as Markdown.

    Args:
        tables: Each table with our numbers, by name.
        pictures: The title of each picture, by file name.
    """
    numbers = [one for name, (_, found) in tables.items() if name not in OBSERVATIONS for one in found]
    parts = [HEAD, f"Tables 1 to 9 together: {summary(numbers)} (numbers that stand in two tables count twice).\n"]
    for name, (table, found) in tables.items():
        parts += [f"## {name.capitalize().replace('-', ' ')}: {table.title}\n", as_markdown(found)]
        parts += [f"{summary(found)}.{_misses(found)}\n", *(f"- {note}" for note in table.notes)]
        parts.append(f"\n{provenance([record for one in found for record in one.records])}\n")
    parts += [f"## {title}\n\n![{title}](../results/{name})\n" for name, title in pictures.items()]
    return "\n".join(parts)


def provenance(records: Sequence[Record]) -> str:
    """Say when, where and from which commit the runs behind a table come, and how long they took.

    >>> provenance([])
    'No runs yet.'
    """
    different = {record.key: record for record in records}.values()
    if not different:
        return "No runs yet."
    seconds = sum(sum(record.seconds.values()) for record in different)
    dates = sorted(record.date[:10] for record in different)
    days = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    commits, machines, versions = (
        ", ".join(sorted({_of(record, *names) for record in different}))
        for names in (("commit",), ("processor",), ("python", "torch", "numpy"))
    )
    flown = sum(record.engine == FLEET for record in different)
    by = f"one core each, {flown} of them as fleets on a GPU" if flown else "one core each"
    on_gpus = [record.versions["gpu"] for record in different if "gpu" in record.versions and record.engine != FLEET]
    if on_gpus:  # their times overlap: each run's clock goes on while it waits for the runs beside it
        there = f"on {' and '.join(sorted(set(on_gpus)))}, side by side"
        by = there if len(on_gpus) == len(different) else f"{by}, but {len(on_gpus)} {there}"
    return (
        f"{len(different)} runs, {duration(seconds)} in all, {by}; {days}; commit {commits}; {machines}; "
        f"Python, torch, numpy {versions}."
    )


def _of(record: Record, *names: str) -> str:
    return " ".join(record.versions.get(name, "?") for name in names)


def _misses(found: Sequence[Result]) -> str:
    missed = [
        f"{one.cell.row}, {one.cell.column}, {metric_name(one.cell.metric)}: {remark(one)}"
        for one in found
        if one.verdict in VERDICTS[1:]
    ]
    return f" Not within: {'; '.join(missed)}." if missed else ""
