"""From the names of tables and figures to runs, and from records to files; nothing is run here."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from small_runs import ALIGNED, RECORD

import metareplay as mr
from metareplay.experiments import unpack
from metareplay.paper.cells import PaperTable
from metareplay.paper.figures import FIGURES, PICTURES
from metareplay.paper.games import game_figures
from metareplay.paper.reproduce import Reproduction, Wanted, as_json, chosen, pack_records, titles, write, write_page
from metareplay.paper.results import Result, as_document, needed_runs, results, shown_cells
from metareplay.paper.tables import TABLES

NO_SIZES: dict[str, int | None] = {"tasks": None, "examples": None, "test_examples": None}
MINIATURE: dict[str, int | None] = {"tasks": 2, "examples": 20, "test_examples": None}


def reproduced(name: str, record: mr.Record = ALIGNED) -> Reproduction:
    """As if every run had given this record."""
    table: PaperTable = TABLES[name]() if name in TABLES else FIGURES[name].table()
    return Reproduction(name, table, results(table, 1, iter([record] * len(shown_cells(table)))))


def empty(name: str) -> Reproduction:
    return replace(reproduced(name), numbers=[])


# Names


def test_everything_has_a_title() -> None:
    assert list(titles()) == [*TABLES, *FIGURES, *game_figures()]
    assert titles()["table-2"] == TABLES["table-2"]().title
    assert titles()["figure-tasks"] == FIGURES["figure-tasks"].title
    assert all(titles().values())


def test_names_are_taken_in_order_and_once() -> None:
    assert chosen(["table-5", "figure-tasks", "table-5", "table-1"]) == ["table-5", "figure-tasks", "table-1"]
    everything = [name for name in titles() if not name.startswith("search-")]
    assert chosen(["all"]) == chosen(["table-3", "all"]) == everything
    assert chosen(["all", "search-catcher-states"]) == [*everything, "search-catcher-states"]
    assert chosen([]) == []


@pytest.mark.parametrize("names", [["table-10"], ["table-1", "table-10"], ["all", "table-10"]])
def test_an_unknown_name_is_refused_in_one_line(names: list[str]) -> None:
    with pytest.raises(mr.MetareplayError, match=r"no 'table-10' in the paper: use one of table-1, .*all") as caught:
        chosen(names)
    assert "\n" not in str(caught.value)
    with pytest.raises(mr.MetareplayError, match="no 'table-10' in the paper"):
        Wanted(names, None, NO_SIZES)


def test_what_is_a_table_and_what_is_drawn() -> None:
    names = [*TABLES, *FIGURES]
    assert {name for name in names if reproduced(name).is_table} == set(TABLES)
    assert {name for name in names if reproduced(name).draw is not None} == {*FIGURES, *PICTURES}
    assert reproduced("figure-tasks").draw is FIGURES["figure-tasks"].draw


# Runs


def test_runs_are_those_of_the_tables_one_after_the_other() -> None:
    wanted = Wanted(["table-5", "figure-tasks"], 2, NO_SIZES)
    figure = FIGURES["figure-tasks"].table()
    assert wanted.experiments == [*needed_runs(TABLES["table-5"](), 2), *needed_runs(figure, 2)]
    small = Wanted(["table-5"], 1, MINIATURE)
    assert small.experiments == needed_runs(TABLES["table-5"](), 1, tasks=2, examples=20)


@pytest.mark.parametrize("seeds", [0, -1])
def test_no_seeds_are_refused(seeds: int) -> None:
    with pytest.raises(mr.MetareplayError, match=f"--seeds {seeds}: run at least one"):
        Wanted(["table-5"], seeds, NO_SIZES)


def test_records_are_found_in_a_folder_in_the_order_of_the_runs(tmp_path: Path) -> None:
    wanted = Wanted(["table-5"], 1, NO_SIZES)
    assert wanted.recorded(tmp_path) == [None] * 5
    there = wanted.experiments[3]
    what = there.identity
    record = replace(RECORD, learner=what.learner, settings=what.settings, model=what.model, stream=what.stream)
    assert record.key == there.key
    record.write(tmp_path)
    assert wanted.recorded(tmp_path) == [None, None, None, record, None]


# Results


def test_results_are_shared_out_to_the_tables() -> None:
    wanted = Wanted(["table-5", "table-2"], 1, NO_SIZES)
    records = [replace(ALIGNED, examples=number) for number in range(len(wanted.experiments))]
    five, two = wanted.results(records)
    assert (five.name, two.name) == ("table-5", "table-2")
    assert [record for one in (five, two) for number in one.numbers for record in number.records] == records
    assert five.numbers == results(five.table, 1, iter(records[:5]))
    assert all(number.comparable for number in five.numbers)
    gaps: list[mr.Record | None] = [None] * 5
    assert [len(one.numbers) for one in wanted.results([*gaps, *records[5:]])] == [0, len(two.numbers)]


def test_a_miniature_says_so_and_is_not_compared() -> None:
    wanted = Wanted(["table-5"], 1, MINIATURE)
    (found,) = wanted.results([RECORD] * 5)
    note = "A miniature (tasks 2, examples 20): not to be compared with the paper's."
    assert found.table.notes == (note, *TABLES["table-5"]().notes)
    assert not any(number.comparable for number in found.numbers)
    (whole,) = Wanted(["table-5"], 1, NO_SIZES).results([RECORD] * 5)
    assert whole.table == TABLES["table-5"]()


# Files


def test_tables_and_pictures_are_written(tmp_path: Path) -> None:
    found = [reproduced("table-2"), reproduced("table-5"), reproduced("figure-tasks"), empty("table-4")]
    assert write(found, tmp_path) == []
    names = {path.name for path in tmp_path.iterdir()}
    tables = {f"{name}.{ending}" for name in ("table-2", "table-5") for ending in ("md", "csv", "json")}
    assert names == tables | {"table-2.png", "figure-tasks.png"}  # nothing of what has no numbers
    for path in tmp_path.glob("*.png"):
        with Image.open(path) as picture:
            assert picture.format == "PNG"
    document = json.loads((tmp_path / "table-2.json").read_text())
    assert document == json.loads(json.dumps(as_document(found[0].table, found[0].numbers)))


def test_without_matplotlib_everything_else_is_written_and_the_pictures_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    why = "(pictures need matplotlib: pip install 'metareplay[plots]')"
    troubles = write([reproduced("table-2"), reproduced("figure-tasks"), reproduced("table-5")], tmp_path)
    assert troubles == [f"table-2: no picture {why}", f"figure-tasks: no picture {why}"]
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}.{ending}" for name in ("table-2", "table-5") for ending in ("md", "csv", "json")
    }


def test_other_trouble_with_a_picture_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(found: list[Result], path: Path) -> None:
        raise mr.MetareplayError(f"cannot write {path} about {len(found)}")

    monkeypatch.setitem(PICTURES, "table-2", broken)
    with pytest.raises(mr.MetareplayError, match=r"cannot write .*table-2.png"):
        write([reproduced("table-2")], tmp_path)


def test_the_document_has_the_tables_and_not_the_figures() -> None:
    found = [reproduced("table-5", RECORD), reproduced("figure-tasks"), empty("table-4")]
    document = json.loads(json.dumps(as_json(found), allow_nan=False))
    assert [(one["table"], len(one["numbers"])) for one in document["tables"]] == [("table-5", 5), ("table-4", 0)]


def test_the_page_has_every_table_and_the_figures_that_were_drawn(tmp_path: Path) -> None:
    found = [reproduced("table-5"), reproduced("figure-tasks"), empty("figure-memory"), empty("table-4")]
    write_page(found, [], tmp_path / "new" / "page.md")
    page = (tmp_path / "new" / "page.md").read_text()
    assert page.index("## Table 5: ") < page.index("## Table 4: ")
    assert "(../results/figure-tasks.png)" in page
    assert "figure-memory.png" not in page


def test_the_records_behind_everything_are_packed_once(tmp_path: Path) -> None:
    found = [reproduced("table-5", RECORD), reproduced("table-4", ALIGNED), reproduced("figure-tasks", RECORD)]
    pack_records(found, [], tmp_path / "all.jsonl")
    assert sorted(record.key for record in unpack(tmp_path / "all.jsonl", mr.Record)) == sorted(
        [RECORD.key, ALIGNED.key]
    )
