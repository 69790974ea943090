"""The tables agree with themselves, with each other and with what learners take."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from small_runs import instead_of_mnist

import metareplay as mr
from metareplay.experiments import Experiment
from metareplay.experiments.metrics import Metrics
from metareplay.experiments.names import LEARNERS_BY_NAME
from metareplay.paper.best import SEARCHED, WITH_MEMORY, WITHOUT_MEMORY, best
from metareplay.paper.cells import MODELS, PRINTED, Cell, PaperTable, Published
from metareplay.paper.tables import OBSERVATIONS, TABLES

ROOT = Path(__file__).parents[2]
every_table = pytest.mark.parametrize("name", TABLES)
CELLS = {
    "table-1": 36,
    "table-2": 36,
    "table-3": 36,
    "table-4": 6,
    "table-5": 5,
    "table-6": 90,
    "table-7": 63,
    "table-8": 63,
    "table-9": 45,
    "variants": 8,
    "table-4-after": 6,
    "table-3-omniglot": 64,
    "table-3-printed": 72,
    "table-3-data": 20,
}
OMNIGLOT = ("table-3-omniglot", "table-3-printed", "table-3-data")
COMPARED = ("table-4", "table-4-after")  # tables of dot products
Row = tuple[str, str, int | None, str]
UNEVEN: dict[Row, float] = {("table-2", "MER", 200, "MNIST Permutations"): 1.0}  # LA + BTI - RA in print
TWICE = {  # the paper prints two numbers for one setting
    ("Online", None, "many-permutations"): {Published(32.62, 0.43), Published(31.94, 1.17)},
    ("ER with Tasks and SGD (algorithm 5)", 5120, "many-permutations"): {
        Published(60.05, 0.24),
        Published(60.30, 0.24),
    },
    ("GEM", 500, "rotations"): {Published(74.88, 0.93), Published(74.88, 1.29)},
    ("GEM", 200, "rotations"): {Published(67.38, 1.75), Published(67.38, 0.72)},
    ("MER", 200, "rotations"): {Published(77.42, 0.78), Published(77.42, 0.79)},
    ("MER", 5120, "many-permutations"): {Published(62.52, 0.32), Published(62.52, 0.33)},
}


def every_cell() -> Iterator[tuple[PaperTable, Cell]]:
    for make in TABLES.values():
        table = make()
        for cell in table.cells:
            yield table, cell


def different_experiments() -> list[Experiment]:
    return list({repr(cell.experiment): cell.experiment for _, cell in every_cell()}.values())


@every_table
def test_a_table_has_its_name_and_all_its_cells_once(name: str) -> None:
    table = TABLES[name]()
    assert table.name == name
    assert len(table.cells) == CELLS[name]
    assert len({(cell.model, cell.memory, cell.column, cell.metric) for cell in table.cells}) == CELLS[name]


@every_table
def test_notes_are_sentences_said_once(name: str) -> None:
    notes = TABLES[name]().notes
    assert len(set(notes)) == len(notes)
    assert all(note.endswith(".") and "\n" not in note for note in notes)


def test_no_two_tables_are_called_the_same() -> None:
    assert list(TABLES) == [*(f"table-{number}" for number in range(1, 10)), *OBSERVATIONS]
    assert OBSERVATIONS[:2] == ("variants", "table-4-after")
    assert OBSERVATIONS[2:] == OMNIGLOT
    assert len({make().title for make in TABLES.values()}) == 14


def test_a_few_numbers_are_where_the_paper_has_them() -> None:
    found = {(t.name, c.model, c.memory, c.column, c.metric): c.published for t, c in every_cell()}
    assert found["table-1", "EWC", None, "MNIST Permutations", "bti"] == (-13.32, 2.24)
    assert found["table-2", "GEM", 200, "MNIST Rotations", "la"] == (85.40, 0.53)
    assert found["table-3", "MER", 5120, "Many Permutations", "bti"] == (3.08, 0.31)
    assert found["table-3", "GEM", 5120, "Omniglot", "bti"] == (14.19, 0.19)
    assert found["table-3", "MER", 500, "Omniglot", "ra"] == (32.05, 0.69)
    assert found["table-4", "ER", 5120, "MNIST Rotations", "alignment"] == (-1.652, 0.082)
    assert found["table-5", "GEM", 5120, "MNIST Rotations", "fti"] == (65.96, 1.67)
    assert found["table-6", "GEM with Reservoir Sampling", 500, "MNIST Rotations", "ra"] == (77.26, 2.09)
    assert found["table-7", "Independent", None, "Different Seeds", "ra"] == (66.27, 5.22)
    assert found["table-8", "MER (algorithm 7)", 200, "Same Seeds", "ra"] == (72.33, 1.15)
    assert found["table-9", "MER (algorithm 6)", 500, "Different Seeds", "ra"] == (44.80, 0.63)


def test_only_these_cells_are_empty() -> None:
    empty = [(t.name, c.model, c.memory, c.column, c.metric) for t, c in every_cell() if c.published is None]
    ours = [(t.name, c.model, c.memory, c.column, c.metric) for t, c in every_cell() if c.ours]
    assert {row[0] for row in ours} == set(OMNIGLOT)
    empty = [row for row in empty if row not in ours]
    independent = [("table-1", "Independent", None, f"MNIST {what}", "bti") for what in ("Rotations", "Permutations")]
    rows = [cell.model for cell in TABLES["table-6"]().cells if cell.memory == 200][::3]
    no_gem = [("table-3", "GEM", 500, "Omniglot", metric) for metric in ("ra", "la", "bti")]
    assert empty == independent + no_gem + [("table-6", row, 200, "Many Permutations", "ra") for row in rows]
    assert len(rows) == 10


@pytest.mark.parametrize("name", ["table-1", "table-2", "table-3"])
def test_learned_and_backward_make_retained(name: str) -> None:
    rows: dict[tuple[str, int | None, str], dict[str, float]] = defaultdict(dict)
    for cell in TABLES[name]().cells:
        if cell.ours:
            continue
        mean = 0.0 if cell.published is None else cell.published.mean  # of Independent's BTI
        rows[cell.model, cell.memory, cell.column][cell.metric] = mean
    for key, row in rows.items():
        assert row.keys() == {"ra", "la", "bti"}
        assert row["la"] + row["bti"] - row["ra"] == pytest.approx(UNEVEN.get((name, *key), 0.0), abs=0.0201), key


def test_one_setting_has_one_number_but_where_the_paper_has_two() -> None:
    numbers = defaultdict(set)
    names: dict[tuple[str, str], tuple[str, int | None, str]] = {}
    for _, cell in every_cell():
        if cell.published is not None and cell.column not in ("Same Seeds", "Different Seeds"):
            setting = repr(cell.experiment), cell.metric
            numbers[setting].add(cell.published)
            names.setdefault(setting, (cell.model, cell.memory, cell.experiment.stream))
    assert {names[setting]: found for setting, found in numbers.items() if len(found) > 1} == TWICE


def test_one_setting_has_one_experiment() -> None:
    known: dict[tuple[str, int | None, str], Experiment] = {}
    for table, cell in every_cell():
        if table.name not in COMPARED:  # there MER is algorithm 6
            model = "MER (algorithm 1)" if cell.model == "MER" else cell.model
            setting = model, cell.memory, cell.experiment.stream
            assert known.setdefault(setting, cell.experiment) == cell.experiment
    assert len({repr(experiment) for experiment in known.values()}) == len(known)


def test_table_4_measures_algorithms_5_and_6() -> None:
    cells = TABLES["table-4"]().cells
    assert [cell.column for cell in cells[:3]] == ["MNIST Permutations", "MNIST Rotations", "Many Permutations"]
    assert [cell.experiment.learner for cell in cells] == ["er-tasks"] * 3 + ["mer-one-big-batch"] * 3
    assert {cell.experiment.alignment for cell in cells} == {5}
    plain = {repr(cell.experiment) for cell in TABLES["table-6"]().cells}
    assert {repr(replace(cell.experiment, alignment=0)) for cell in cells} <= plain
    assert all(cell.experiment.past == "before" for table, cell in every_cell() if table.name != "table-4-after")
    assert all(cell.experiment.alignment == 0 for table, cell in every_cell() if table.name not in COMPARED)


def test_beside_table_4_the_past_is_taken_after_the_update_and_nothing_else_differs() -> None:
    before, after = (TABLES[name]().cells for name in COMPARED)
    assert after == tuple(replace(cell, experiment=replace(cell.experiment, past="after")) for cell in before)
    assert not {cell.experiment.key for cell in before} & {cell.experiment.key for cell in after}


def test_columns_metrics_and_seeds() -> None:
    known = {f.name for f in fields(Metrics)}
    for table, cell in every_cell():
        assert cell.metric in ({"alignment"} if table.name in COMPARED else known | {"ta"})
        assert cell.metric != "ta" or cell.experiment.training
        if table.name in ("table-7", "table-8", "table-9"):
            assert cell.column in ("Original", "Same Seeds", "Different Seeds")
        else:
            assert cell.column == PRINTED[cell.experiment.stream]
        assert cell.seeds == (range(5, 30) if cell.column == "Different Seeds" else range(5))
        assert cell.experiment.seed == 0


def test_memory_is_what_the_row_says() -> None:
    for _, cell in every_cell():
        if cell.memory is None:
            assert cell.experiment.learner in WITHOUT_MEMORY
            assert cell.experiment.memory_kind is None
        else:
            assert cell.experiment.learner in WITH_MEMORY
            assert cell.experiment.memory == cell.memory
    rings = {name for name, model in MODELS.items() if model.memory_kind == "ring"}
    assert rings == {"GEM", "ER with Tasks and GEM Style Buffer"}


def test_no_default_decides() -> None:
    """Every option of the learner that bears on its result is written down, and so are the stream's sizes."""
    elsewhere = {"model", "memory", "engine", "seed", "loss", "regression", "classes", "head"}
    for experiment in different_experiments():
        assert experiment.options.keys() == {f.name for f in fields(LEARNERS_BY_NAME[experiment.learner])} - elsewhere
        assert experiment.tasks is not None
        if experiment.stream == "omniglot":
            own = {f.name for f in fields(mr.Omniglot)} - {"tasks", "seed", "characters", "examples", "test_examples"}
            assert experiment.stream_options.keys() == own
            assert experiment.network.keys() == {"norm", "init"}
            continue
        assert experiment.examples is not None
        assert experiment.tasks * experiment.examples == 20_000


def test_every_experiment_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    instead_of_mnist(monkeypatch)
    for experiment in different_experiments():
        small: dict[str, Any] = {} if experiment.stream == "omniglot" else {"hidden": (2, 2)}
        learner, stream = replace(experiment, examples=1, **small).build()
        assert type(learner) is LEARNERS_BY_NAME[experiment.learner]
        assert experiment.options.items() <= (learner.settings() | {"steps": getattr(learner, "steps", 1)}).items()
        assert stream.tasks == experiment.tasks
        if learner.own_memory is not None:
            assert learner.own_memory.capacity == experiment.memory
            assert type(learner.own_memory).__name__.lower() == experiment.memory_kind


def test_omniglot_has_the_command_that_the_guide_gives() -> None:
    cells = {cell.row: cell for cell in TABLES["table-3"]().cells if cell.column == "Omniglot"}
    options = best("mer", "omniglot", 5120)
    assert (
        cells["MER 5120"].experiment.key
        == Experiment(stream="omniglot", memory=5120, options=options, training=True).key
    )


def test_the_printed_network_has_no_norm_and_each_variant_changes_one_thing() -> None:
    models = {cell.model: cell.experiment for cell in TABLES["table-3-printed"]().cells if cell.memory in (None, 500)}
    printed = models["MER, as printed"]
    assert printed.network == {"norm": None, "init": "torch"}
    assert models["MER, Glorot"] == replace(printed, network={"norm": None, "init": "glorot"})
    assert models["MER, BatchNorm"] == replace(printed, network={"norm": "batch", "init": "torch"})
    assert models["MER, clip 2"] == replace(printed, options=printed.options | {"clip": 2.0})
    assert models["Online, clip 5"].options == models["Online, as printed"].options | {"clip": 5.0}


def test_settings_that_the_paper_does_not_list_are_those_that_the_search_chose() -> None:
    found = json.loads((ROOT / "results" / "search-table-6.json").read_text())
    chosen: dict[str, dict[str, dict[int, dict[str, object]]]] = {}
    for one in found["searches"]:
        chosen.setdefault(one["name"], {}).setdefault(one["stream"], {})[one["memory"]] = one["settings"]
    assert chosen == SEARCHED
    assert not chosen.keys() & LEARNERS_BY_NAME.keys()
    for cell in TABLES["table-6"]().cells:
        if cell.published and cell.model in ("ER with Tasks and Adam", "ER with Tasks and GEM Style Buffer"):
            name = "er-tasks-adam" if "Adam" in cell.model else "er-tasks-ring"
            assert cell.memory is not None
            assert cell.experiment.options.items() >= SEARCHED[name][cell.experiment.stream][cell.memory].items()
