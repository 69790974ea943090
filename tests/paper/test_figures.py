from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from small_runs import ALIGNED, RECORD

import metareplay as mr
from metareplay.paper import figures
from metareplay.paper.cells import PaperTable
from metareplay.paper.figures import FIGURES, PICTURES
from metareplay.paper.plots import _devices
from metareplay.paper.results import Result, results, shown_cells
from metareplay.paper.tables import TABLES


def found(table: PaperTable, record: mr.Record = ALIGNED) -> list[Result]:
    """As if every run had given this record."""
    return results(table, 1, iter([record] * len(shown_cells(table))))


def size(path: Path) -> tuple[int, int]:
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        return picture.size


def test_the_tasks_of_four_learners_are_measured_after_every_task() -> None:
    cells = figures.full_runs().cells
    assert [cell.experiment.learner for cell in cells] == ["online", "gem", "er", "mer"]
    assert [cell.memory for cell in cells] == [None, 500, 500, 500]
    for cell in cells:
        assert cell.experiment.full_matrix
        assert (cell.experiment.stream, cell.metric, list(cell.seeds)) == ("rotations", "ra", [0])
    known = {repr(cell.experiment) for make in TABLES.values() for cell in make().cells}
    assert {repr(replace(cell.experiment, full_matrix=False)) for cell in cells} <= known  # no run of its own kind


def test_every_figure_is_drawn_from_what_its_table_asks_for(tmp_path: Path) -> None:
    assert not FIGURES.keys() & TABLES.keys()
    for name, figure in FIGURES.items():
        figure.draw(found(figure.table()), tmp_path / f"{name}.png")
        assert min(size(tmp_path / f"{name}.png")) > 500


def test_every_picture_belongs_to_a_table(tmp_path: Path) -> None:
    assert PICTURES.keys() <= TABLES.keys()
    for name, draw in PICTURES.items():
        draw(found(TABLES[name]()), tmp_path / f"{name}.png")
        assert min(size(tmp_path / f"{name}.png")) > 500


def test_panels_of_tasks_are_called_by_the_learner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(figures, "plot_matrices", lambda records, *_: drawn.extend(records))
    figures.draw_tasks(found(figures.full_runs(), RECORD), tmp_path / "picture.png")
    assert drawn == ["Online", "GEM", "ER", "MER"]


def test_every_method_on_omniglot_is_drawn_with_its_accuracies_and_its_time(tmp_path: Path) -> None:
    table = figures.omniglot_runs()
    assert {cell.metric for cell in table.cells} == {"ra"}
    assert all(cell.experiment.training for cell in table.cells)
    assert {"MER (algorithm 1) 500", "GEM 5120", "Online", "EWC"} <= {cell.row for cell in table.cells}
    seeds = [
        replace(RECORD, training=[80.0 + seed, 60.0], seconds={"learn": 100.0 + seed}, versions={"gpu": "a GPU"})
        for seed in range(3)
    ]
    ours = results(table, 3, iter(seeds * len(table.cells)))
    figures.draw_omniglot(ours, tmp_path / "picture.png")
    assert min(size(tmp_path / "picture.png")) > 500
    assert _devices(ours) == "on a GPU"
    plain = results(table, 1, iter([RECORD] * len(table.cells)))
    assert _devices(plain) == f"on one core of {RECORD.versions['processor']}"


def test_dot_products_are_those_of_rotations_if_there_are_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(figures, "plot_alignment", lambda records, *_: drawn.append(" ".join(records)))
    every = found(TABLES["table-4"]())

    def draw(some: Sequence[Result]) -> None:
        figures.draw_alignment(some, tmp_path / "picture.png")

    draw(every)
    draw([one for one in every if one.cell.model == "MER"])
    draw([one for one in every if one.cell.column != "MNIST Rotations"])
    assert drawn == ["ER MER", "MER"]
