"""The page of a report: one HTML file that opens offline, with its data, its script and the plotting library inside."""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from metareplay._core.checks import place_of, several, text
from metareplay._core.files import write_text
from metareplay._version import __version__
from metareplay.errors import MetareplayError, PicturesMissingError
from metareplay.experiments.record import Record, now
from metareplay.reports.family import Family, Group, Tried
from metareplay.reports.published import bare_setting, published_numbers
from metareplay.reports.reading import FAMILIES, Found, names_of, read
from metareplay.reports.sweep_files import SweepFile, compared
from metareplay.reports.tables import Cell, Column, Table
from metareplay.reports.words import moment, shown_name, told

MOST_CELLS: Final = 600_000  # of heat maps in one page, which take about 3 MB
SCRIPTS: Final = ("tables.js", "charts.js", "report.js")  # which become one script
MISSING: Final = "a report needs plotly and Jinja2: pip install 'metareplay[report]'"


def report(places: str | Path | Sequence[str | Path], out: str | Path, *, title: str | None = None) -> Path:
    """Write a report on runs: one HTML file that opens offline, with tables and charts of everything that was found.

    Records of every kind are read: of runs on streams and prequential runs, of agents and of language models, and what
    sweeps found. What cannot be read is named in the report, and so are runs that failed.

    Args:
        places: A folder such as "runs", a file with records, or a list of these; folders within folders are read, too.
        out: The HTML file to write.
        title: The title of the page; by default it names the places.

    Returns:
        The path of the page.
    """
    some = (
        [places] if isinstance(places, str | Path) else several("places", places, "a folder, a file, or a list of them")
    )
    wanted, path = [place_of("places", one) for one in some], place_of("out", out)
    if title is not None:
        text("title", title)
    write_report(found_in(wanted), path, title or f"Report on {names_of(wanted)}")
    return path


def found_in(places: Sequence[str | Path]) -> Found:
    """Read everything in some files and folders; raise MetareplayError if there is nothing to show.

    Args:
        places: The files and folders.
    """
    found = read(places)
    if found.is_empty:
        raise MetareplayError(
            f"no records in {names_of(places)}: give a folder in which `metareplay run` has kept some, such as runs"
        )
    return found


def write_report(found: Found, path: Path, title: str) -> None:
    """Write the page.

    Args:
        found: What it shows.
        path: The HTML file.
        title: Its title.
    """
    library = _library()  # first, so that a missing one is noticed before any work
    with np.errstate(all="ignore"):  # a loss may be infinite; what is not finite is not drawn
        content = _Content(found)
    write_text(path, _rendered(content, title, library))


@final
class _Content:
    """Collect what a page shows: tables as they are written, and everything that is drawn later as plain JSON values.

    Args:
        found: What was read.
    """

    def __init__(self, found: Found) -> None:
        self.found = found
        self.charts: dict[str, Any] = {}
        self.details: dict[str, Any] = {}
        tried: list[tuple[str, Tried]] = []
        self.sections = [self._section(family, tried) for family in FAMILIES if found.records[family.name]]
        self.sweeps = [self._sweep(one, f"sweep-{i}") for i, one in enumerate([*found.sweeps, *compared(tried)], 1)]

    @property
    def data(self) -> dict[str, Any]:
        """Everything that is drawn when it is looked at."""
        return {"charts": self.charts, "details": self.details}

    @property
    def failures(self) -> Table:
        """The runs that failed."""
        columns = [Column("run"), Column("kind"), Column("reason"), Column("seed", True), Column("date"), Column("key")]
        rows = [
            [
                Cell(str(one.label), note=_options(one.settings)),
                *(Cell(one.kind), Cell(str(one.reason)), Cell(str(one.seed))),
                *(Cell(moment(one.date)), Cell(str(one.key))),
            ]
            for one in self.found.failures
        ]
        return Table(columns, rows)

    @property
    def broken(self) -> Table:
        """The records that could not be read."""
        rows = [[Cell(one.place), Cell(one.reason)] for one in self.found.broken]
        return Table([Column("record"), Column("why it could not be read")], rows)

    def _section(self, family: Family[Any], tried: list[tuple[str, Tried]]) -> dict[str, Any]:
        """Return what one kind of result shows."""
        groups = _groups(family, self.found.records[family.name])
        for group in groups:
            compared_by = family.tried(group)
            if compared_by is not None:
                tried.append((group.name, compared_by))
            self.details[group.name] = {
                "facts": [[name, text] for name, text in family.facts(group).items() if text],
                "command": family.command(group),
                "seeds": as_json(family.seeds(group)),
                "charts": [chart.to_json() for chart in family.charts(group)],
            }
        _make_room([chart for one in self.details.values() for chart in one["charts"]])
        return {
            "name": family.name,
            "title": family.title,
            "about": family.about,
            "table": family.table(groups),
            "groups": [(group.name, family.label(group), len(group.records)) for group in groups],
            "charts": [self._chart(chart.to_json()) for chart in family.overview(groups)],
        }

    def _sweep(self, sweep: SweepFile, name: str) -> dict[str, Any]:
        """Return what one sweep shows."""
        best = sweep.settings[0]
        self.details[name] = {
            "facts": [["About", note] for note in sweep.notes if note],
            "command": sweep.command,
            "charts": [sweep.chart().to_json()],
            "table": as_json(sweep.table()) | {"links": [one.group for one in sweep.settings]},
        }
        score = Cell.of(best.scores).text if best.scores else ""
        return {"name": name, "title": sweep.title, "count": len(sweep.settings), "best": f"{sweep.measure} {score}"}

    def _chart(self, chart: dict[str, Any]) -> str:
        """Keep a chart and return its id."""
        name = f"chart-{len(self.charts) + 1}"
        self.charts[name] = chart
        return name


def _groups(family: Family[Any], records: dict[str, Any]) -> list[Group[Any]]:
    """Return the records of a family by their settings, in the order of their labels."""
    settings: dict[str, list[Any]] = {}
    for record in records.values():
        settings.setdefault(family.setting(record), []).append(record)
    groups = [Group("", sorted(some, key=family.seed)) for some in settings.values()]
    groups.sort(key=lambda group: _in_order(family.label(group)))
    runs = [group.first for group in groups if isinstance(group.first, Record)]
    printed = published_numbers({(shown_name(str(run.stream.get("stream"))), run.stream.get("tasks")) for run in runs})
    return [
        replace(
            group,
            name=f"{family.name}-{number}",
            published=printed.get(bare_setting(group.first.identity), {}) if isinstance(group.first, Record) else {},
        )
        for number, group in enumerate(groups, 1)
    ]


def _in_order(label: str) -> list[tuple[int, str]]:
    """Return what labels are sorted by, so that 500 comes before 5120."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", label)]


def as_json(table: Table) -> dict[str, Any]:
    """Return a table as plain JSON values.

    Args:
        table: The table.
    """
    columns = [[one.head, one.is_number, one.about] for one in table.columns]
    rows = [[_short(cell) for cell in row] for row in table.rows]
    return {"columns": columns, "rows": rows}


def _make_room(charts: Sequence[dict[str, Any]]) -> None:
    """Leave rows of heat maps out if there are too many of them for one page."""
    heats = [chart for chart in charts if "rows" in chart and chart["kind"] == "heat" and "at" not in chart]
    every = -(-sum(len(chart["rows"]) * len(chart["rows"][0]) for chart in heats) // MOST_CELLS)
    for chart in heats if every > 1 else ():
        last = len(chart["rows"]) - 1
        chart["at"] = sorted({*range(0, last, every), last})
        chart["rows"] = [chart["rows"][row] for row in chart["at"]]
        chart["told"] += f" One row out of {every} is shown, to keep the page small."


def _short(cell: Cell) -> Any:
    """Return a cell in as few values as it needs."""
    value = None if cell.value is None else float(f"{cell.value:.8g}")
    if cell.note:
        return [cell.text, value, cell.note]
    return cell.text if value is None else [cell.text, value]


def _options(settings: dict[str, Any]) -> str:
    given = settings.get("options")
    return told(given) if isinstance(given, dict) else ""


def _library() -> str:
    """Return the plotting library's script."""
    try:
        import jinja2  # noqa: F401
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise PicturesMissingError(MISSING) from error
    return str(get_plotlyjs())


def _rendered(content: _Content, title: str, library: str) -> str:
    """Return the page as text."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    own = {name: (files("metareplay.reports") / name).read_text() for name in ("page.html", "report.css", *SCRIPTS)}
    script = "".join(['"use strict";\n{\n', *(own[name] for name in SCRIPTS), "}\n"])
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(own["page.html"]).render(
        title=title,
        found=content.found,
        content=content,
        settings=sum(len(section["groups"]) for section in content.sections),
        version=__version__,
        date=moment(now()),
        style=Markup(own["report.css"]),
        data=Markup(in_script(content.data)),
        script=Markup(script),
        library=Markup(library),
        hashes=[_hash(text) for text in (script, library)],
    )


def in_script(values: Any) -> str:
    """Return plain JSON values so that they can stand in a script element, whatever texts they have.

    Args:
        values: The values.

    >>> in_script(["</script>"])
    '["\\\\u003c/script\\\\u003e"]'
    """
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(script: str) -> str:
    """Return the hash by which the page's own rules know a script."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
