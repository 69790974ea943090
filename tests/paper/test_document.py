from dataclasses import replace

import pytest
from small_runs import RECORD

from metareplay.paper.document import document, provenance
from metareplay.paper.results import Result, as_markdown, shown_cells
from metareplay.paper.tables import TABLES

OTHER = replace(
    RECORD,
    settings=RECORD.settings | {"seed": 4},
    date="2026-02-01T00:00:00+00:00",
    versions={"python": "3.99", "torch": "9", "numpy": "8", "commit": "c0ffee", "processor": "abacus"},
)


def test_the_page_has_every_table_with_its_misses_and_the_pictures() -> None:
    table = TABLES["table-5"]()
    cells = shown_cells(table)
    means = [cell.published.mean for cell in cells if cell.published is not None]
    found = [Result(cells[0], (means[0] - 50,), (RECORD,))]
    found += [Result(cell, (mean,), (OTHER,)) for cell, mean in zip(cells[1:], means[1:], strict=True)]
    page = document({"table-5": (table, found)}, {"figure-tasks.png": "Tasks"})
    assert page.startswith("# Results")
    assert "\nTables 1 to 9 together: 5 numbers: 4 within, 0 better, 1 worse (numbers that stand" in page
    assert f"\n## Table 5: {table.title}\n" in page
    assert as_markdown(found) in page
    assert f"Not within: {cells[0].model}, MNIST Rotations, FTI: -50.00 worse.\n" in page
    assert all(f"\n- {note}\n" in page for note in table.notes)
    assert f"\n{provenance([RECORD, OTHER])}\n" in page
    assert page.endswith("## Tasks\n\n![Tasks](../results/figure-tasks.png)\n")


@pytest.mark.parametrize("name", TABLES)
def test_where_all_is_within_nothing_is_missed(name: str) -> None:
    table = TABLES[name]()
    found = [Result(cell, (cell.published.mean,)) for cell in table.cells if cell.published is not None]
    page = document({name: (table, found)}, {})
    assert "Not within" not in page
    assert "\nNo runs yet.\n" in page


def test_a_table_without_runs_has_its_place() -> None:
    page = document({"table-1": (TABLES["table-1"](), [])}, {})
    assert "0 numbers: 0 within, 0 better, 0 worse" in page
    assert "No runs yet." in page


def test_provenance_counts_each_run_once() -> None:
    text = provenance([RECORD, OTHER, RECORD])
    assert text.startswith("2 runs, 3.5 s in all, one core each; 2026-01-02 to 2026-02-01; commit ")
    assert "c0ffee" in text
    assert "abacus" in text
    assert "3.99 9 8" in text
    assert provenance([OTHER]).startswith("1 runs, 1.8 s in all, one core each; 2026-02-01; commit c0ffee; abacus; ")
    assert "commit ?; ?" in provenance([replace(OTHER, versions={})])
    flown = provenance([RECORD, replace(OTHER, engine="fleet")])
    assert flown.startswith("2 runs, 3.5 s in all, one core each, 1 of them as fleets on a GPU; ")
