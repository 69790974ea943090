"""The command `report`: one HTML file on everything that was run."""

from pathlib import Path
from typing import Annotated

import typer

from metareplay.cli.console import remark
from metareplay.reports.page import found_in, write_report
from metareplay.reports.reading import names_of


def report(
    places: Annotated[list[Path], typer.Argument(help="Folders with records, such as runs, or files.")],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="The title of the page; default: it names the folders.")] = None,
) -> None:
    """Write a report on runs: one HTML file that opens offline, with tables and charts of everything that was found.

    It shows the seeds of each setting together, the paper's numbers beside ours, sweeps, games, and what failed.
    """
    found = found_in(places)
    write_report(found, out, title or f"Report on {names_of(places)}")
    for one in found.broken[:10]:
        remark(f"{one.place} is left out: {one.reason}")
    if len(found.broken) > 10:
        remark(f"{len(found.broken) - 10} more records are left out; the report names them")
    counts = f"runs: {found.runs}, sweeps: {len(found.sweeps)}, failures: {len(found.failures)}"
    remark(f"report: {out} ({counts}, {out.stat().st_size / 1e6:.1f} MB)")
