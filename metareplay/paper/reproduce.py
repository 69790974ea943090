"""Reproduction of the paper's tables and figures, with our numbers beside the paper's."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from metareplay._core.files import write_text
from metareplay.errors import MetareplayError, PicturesMissingError
from metareplay.experiments import Experiment, Record, Records, pack
from metareplay.paper.cells import PaperTable
from metareplay.paper.document import document
from metareplay.paper.figures import FIGURES, PICTURES
from metareplay.paper.game_results import GameResults, game_page
from metareplay.paper.games import SEARCH, game_figures
from metareplay.paper.results import Result, as_document, needed_runs, results, write_table
from metareplay.paper.tables import OBSERVATIONS, TABLES

Draw = Callable[[Sequence[Result], Path], None]


@final
@dataclass(frozen=True)
class Reproduction:
    """Hold one table or figure with our results.

    Args:
        name: Its name, as in `titles`.
        table: The table that it is made from.
        numbers: Our numbers; empty if nothing has been run yet.
    """

    name: str
    table: PaperTable
    numbers: list[Result]

    @property
    def is_table(self) -> bool:
        """Whether it is a table of numbers; otherwise only a picture."""
        return self.name in TABLES

    @property
    def draw(self) -> Draw | None:
        """How to draw its picture, if it has one."""
        return FIGURES[self.name].draw if self.name in FIGURES else PICTURES.get(self.name)


def titles() -> dict[str, str]:
    """Return the title of every table and figure, by name."""
    tables = {name: make().title for name, make in TABLES.items()}
    figures = {name: one.title for name, one in FIGURES.items()}
    return tables | figures | {name: one.title for name, one in game_figures().items()}


def chosen(names: Sequence[str]) -> list[str]:
    """Return the names of the tables and figures that were asked for, each once.

    Args:
        names: Names, or "all" for everything but the searches for settings.
    """
    everything = titles()
    for name in names:
        if name not in (*everything, "all"):
            raise MetareplayError(f"no {name!r} in the paper: use one of {', '.join(everything)}, all")
    wanted = [name for name in everything if not name.startswith(SEARCH)] if "all" in names else []
    return list(dict.fromkeys((*wanted, *(name for name in names if name != "all"))))


@final
class Wanted:
    """Find out what has to be run for some tables and figures.

    Args:
        names: The names of the tables and figures.
        seeds: Seeds per number; None for the paper's, or five if a run takes minutes.
        sizes: tasks, examples and test_examples of a miniature; a miniature is not compared with the paper.
    """

    def __init__(self, names: Sequence[str], seeds: int | None, sizes: dict[str, int | None]) -> None:
        if seeds is not None and seeds < 1:
            raise MetareplayError(f"--seeds {seeds}: run at least one")
        self._seeds = seeds
        self._changes: dict[str, Any] = {name: size for name, size in sizes.items() if size is not None}
        self._tables = {name: self._table(name) for name in chosen(names)}

    @property
    def experiments(self) -> list[Experiment]:
        """What to run, in the order of the tables; equal experiments appear as often as they are needed."""
        tables = self._tables.values()
        return [run for table in tables for run in needed_runs(table, self._seeds, **self._changes)]

    def recorded(self, folder: Path) -> list[Record | None]:
        """Return the records that are in a folder, in the order of `experiments`; None if there is no record.

        Args:
            folder: Where the records are.
        """
        kept = Records(folder, Record)
        return [kept.find(one.key) for one in self.experiments]

    def results(self, records: Sequence[Record | None]) -> list[Reproduction]:
        """Return our numbers beside the paper's.

        Args:
            records: The records of `experiments`, in that order; None for a run that has not been done.
        """
        found: Iterator[Record | None] = iter(records)
        return [
            Reproduction(name, table, results(table, self._seeds, found, comparable=not self._changes))
            for name, table in self._tables.items()
        ]

    def _table(self, name: str) -> PaperTable:
        table = TABLES[name]() if name in TABLES else FIGURES[name].table()
        if not self._changes:
            return table
        sizes = ", ".join(f"{name} {size}" for name, size in self._changes.items())
        note = f"A miniature ({sizes}): not to be compared with the paper's."
        return replace(table, notes=(note, *table.notes))


def write(found: Sequence[Reproduction], folder: Path) -> list[str]:
    """Write tables (Markdown, CSV, JSON) and pictures; return what could not be drawn, and why.

    Args:
        found: Tables and figures; those without numbers are left out.
        folder: Where to write them.
    """
    troubles = []
    for one in found:
        if one.numbers and one.is_table:
            write_table(one.table, one.numbers, folder)
        if one.numbers and one.draw is not None:
            try:
                one.draw(one.numbers, folder / f"{one.name}.png")
            except PicturesMissingError as error:
                troubles.append(f"{one.name}: no picture ({error})")
    return troubles


def as_json(found: Sequence[Reproduction]) -> dict[str, Any]:
    """Return the tables as plain JSON values."""
    return {"tables": [as_document(one.table, one.numbers) for one in found if one.is_table]}


def write_page(found: Sequence[Reproduction], games: Sequence[GameResults], path: Path) -> None:
    """Write one page with all tables and pictures.

    Args:
        found: Tables and figures.
        games: Figures of games.
        path: The Markdown file to write.
    """
    tables = {
        one.name: (one.table, one.numbers)
        for one in found
        if one.is_table and (one.numbers or one.name not in OBSERVATIONS)
    }
    pictures = {f"{one.name}.png": FIGURES[one.name].title for one in found if not one.is_table and one.numbers}
    write_text(path, "\n".join(part for part in (document(tables, pictures), game_page(games)) if part))


def pack_records(found: Sequence[Reproduction], games: Sequence[GameResults], path: Path) -> None:
    """Write all records behind some tables and figures into one file.

    Args:
        found: Tables and figures.
        games: Figures of games.
        path: The file to write, usually *.jsonl.
    """
    learned = (record for one in found for number in one.numbers for record in number.records)
    pack((*learned, *(record for one in games for record in one.records)), path)
