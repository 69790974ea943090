import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_runs import ALIGNED, RECORD

from metareplay.experiments.experiment import Experiment
from metareplay.paper import results
from metareplay.paper.cells import Cell, PaperTable, Published
from metareplay.paper.results import Result, needed_runs, seeds_of, shown_cells
from metareplay.paper.tables import TABLES

every_table = pytest.mark.parametrize("name", TABLES)


def cell(mean: float | None = 80.0, std: float = 0.4, metric: str = "ra", seeds: range = range(5)) -> Cell:
    published = None if mean is None else Published(mean, std)
    return Cell("MER", 500, "MNIST Rotations", metric, seeds, published, Experiment())


def perfect(table: PaperTable) -> list[Result]:
    return [Result(one, (one.published.mean,)) for one in table.cells if one.published is not None]


# One number


def test_mean_deviation_and_difference() -> None:
    result = Result(cell(80.0), (79.0, 80.0, 84.0))
    assert result.mean == 81.0
    assert result.std == pytest.approx(math.sqrt((4 + 1 + 9) / 2))
    assert result.difference == 1.0
    alone = Result(cell(80.0), (79.0,))
    assert (alone.mean, alone.std, alone.difference) == (79.0, None, -1.0)


def test_without_a_published_number_there_is_no_verdict() -> None:
    result = Result(cell(None), (79.0,))
    assert (result.difference, result.verdict) == (None, None)
    assert results.remark(result) == ""
    assert results.published(result) == "-"


VERDICTS = [
    # published mean and deviation, ours, verdict
    (80.0, 0.1, 80.0, "within"),
    (80.0, 0.1, 81.0, "within"),  # one point
    (80.0, 0.1, 79.0, "within"),
    (80.0, 0.1, 81.25, "better"),
    (80.0, 0.1, 78.75, "worse"),
    (80.0, 2.0, 84.0, "within"),  # twice the deviation
    (80.0, 2.0, 76.0, "within"),
    (80.0, 2.0, 84.25, "better"),
    (80.0, 2.0, 75.75, "worse"),
    (-10.0, 0.1, -8.5, "better"),  # less forgetting
    (-10.0, 0.1, -11.5, "worse"),
]


@pytest.mark.parametrize(("mean", "std", "ours", "verdict"), VERDICTS)
@pytest.mark.parametrize("metric", ["ra", "la", "bti", "fti"])
def test_the_verdict_on_a_metric(mean: float, std: float, ours: float, verdict: str, metric: str) -> None:
    assert Result(cell(mean, std, metric), (ours,)).verdict == verdict


DOT_VERDICTS = [
    (-1.5, -1.5, "within"),
    (-1.5, -15.0, "within"),  # ten times as large
    (-1.5, -0.151, "within"),  # ten times as small
    (-1.5, -15.1, "missed"),
    (-1.5, -0.14, "missed"),
    (-1.5, 0.0, "missed"),
    (-1.5, 3.0, "missed"),
    (0.04, 0.04, "within"),
    (0.04, 0.39, "within"),  # ten times as large
    (0.04, 0.41, "missed"),
    (0.04, 0.0, "within"),
    (0.04, -0.09, "within"),  # near zero
    (0.04, -0.11, "missed"),
    (0.04, -2.0, "missed"),
]


@pytest.mark.parametrize(("mean", "ours", "verdict"), DOT_VERDICTS)
@pytest.mark.parametrize("std", [0.001, 50.0])
def test_the_verdict_on_a_dot_product_does_not_look_at_the_deviation(
    mean: float, ours: float, verdict: str, std: float
) -> None:
    assert Result(cell(mean, std, "alignment"), (ours,)).verdict == verdict


def test_what_was_not_measured_is_no_verdict_and_null() -> None:
    table = PaperTable("table-4", "Dot products", (cell(-1.5, metric="alignment"),))
    (found,) = results.results(table, 1, iter([RECORD]))
    assert math.isnan(found.mean)
    assert found.verdict is None
    (number,) = json.loads(json.dumps(results.as_document(table, [found]), allow_nan=False))["numbers"]
    assert (number["mean"], number["values"], number["difference"], number["verdict"]) == (None, [None], None, None)
    assert "nan" in results.as_markdown([found])


# Which runs


@every_table
def test_seeds_are_the_papers_but_five_where_a_run_takes_long(name: str) -> None:
    for one in TABLES[name]().cells:
        seeds, most = seeds_of(one, None), one.most or len(one.seeds)
        assert seeds == list(one.seeds)[: len(seeds)]
        assert len(seeds) == min(most, len(one.seeds) if one.experiment.work < results.A_MINUTE else 5)
        assert seeds_of(one, 2) == list(one.seeds)[: min(2, most)]
        assert seeds_of(one, 1000) == list(one.seeds)[:most]


def test_some_runs_on_omniglot_take_so_long_that_one_seed_must_do() -> None:
    limited = {(one.row, one.most) for one in TABLES["table-3-omniglot"]().cells if one.most is not None}
    assert limited == {("GEM 5120", 1), ("MER (algorithm 7) 5120", 1)}


def test_a_setting_of_which_the_paper_prints_nothing_is_not_run() -> None:
    table = TABLES["table-6"]()
    left_out = {(one.memory, one.column) for one in table.cells if one not in shown_cells(table)}
    assert left_out == {(200, "Many Permutations")}
    assert len(shown_cells(table)) == 80


def test_a_setting_of_which_the_paper_prints_something_is_shown_whole() -> None:
    table = TABLES["table-1"]()
    assert shown_cells(table) == list(table.cells)  # with Independent's BTI, which the paper leaves out


@every_table
def test_runs_are_those_of_the_cells(name: str) -> None:
    table = TABLES[name]()
    cells = [(one, seed) for one in shown_cells(table) for seed in seeds_of(one, 2)]
    assert needed_runs(table, 2) == [replace(one.experiment, seed=seed) for one, seed in cells]


@every_table
def test_keys_tell_the_runs_apart(name: str) -> None:
    keys: dict[str, str] = {}
    for run in needed_runs(TABLES[name](), 2):
        assert keys.setdefault(run.key, repr(run)) == repr(run)
    assert len(set(keys.values())) == len(keys)


def test_changes_make_a_miniature() -> None:
    for run in needed_runs(TABLES["table-3"](), 1, tasks=2, examples=5, test_examples=7):
        assert (run.tasks, run.examples, run.test_examples) == (2, 5, 7)


# From records to results


def test_records_come_in_the_order_of_the_runs_and_gaps_are_left_out() -> None:
    table = TABLES["table-5"]()
    runs = needed_runs(table, 2)
    records = [replace(RECORD, accuracy=RECORD.accuracy + number, seed=run.seed) for number, run in enumerate(runs)]
    found = results.results(table, 2, iter(records))
    assert [one.cell for one in found] == list(table.cells)
    assert [record for one in found for record in one.records] == records
    assert found[0].values == (RECORD.fti, RECORD.fti)
    gaps = [None, None, None, *records[3:]]  # all of the first number's, half of the second's
    some = results.results(table, 2, iter(gaps))
    assert [one.cell for one in some] == list(table.cells)[1:]
    assert [len(one.values) for one in some][:2] == [1, 2]
    assert results.results(table, 2, iter([None] * len(runs))) == []


@pytest.mark.parametrize(
    ("metric", "value"), [("ra", 75), ("la", 85), ("bti", -10), ("fti", 10), ("alignment", -0.125)]
)
def test_each_metric_is_that_of_the_record(metric: str, value: float) -> None:
    (found,) = results.results(PaperTable("table", "", (cell(metric=metric),)), 1, iter([ALIGNED]))
    assert found.values == (value,)


# On paper

FOUND = [
    Result(replace(cell(80.0), model="Online", memory=None), (70.0, 71.0)),
    Result(replace(cell(-5.0, 0.5, "bti"), model="Online", memory=None), (-5.5, -5.0, -4.5, -5.0, -5.0)),
    Result(cell(80.0), (80.25,)),
    Result(cell(None, metric="bti"), (2.0, 2.0, 2.0, 2.0, 2.0)),
    Result(cell(-1.652, 0.082, "alignment"), (-1.5, -1.0)),
]
TABLE = PaperTable("table-0", "A title", tuple(one.cell for one in FOUND), ("A note.",))


def test_markdown_shows_ours_the_papers_and_what_is_off() -> None:
    assert results.as_markdown(FOUND) == (
        "| model | memory | MNIST Rotations, RA | MNIST Rotations, BTI | MNIST Rotations, dot product |\n"
        "|---|---:|---:|---:|---:|\n"
        "| Online |  | 70.50 ± 0.71 [2] (80.00 ± 0.40) **-9.50 worse** | -5.00 ± 0.35 (-5.00 ± 0.50) | - |\n"
        "| MER | 500 | 80.25 [1] (80.00 ± 0.40) | +2.00 ± 0.00 (-) | -1.250 ± 0.354 [2] (-1.652 ± 0.082) |\n"
    )


def test_csv_has_a_line_for_each_number() -> None:
    rows = list(csv.DictReader(results.as_csv(TABLE, FOUND).splitlines()))
    assert len(rows) == 5
    assert list(rows[0].values()) == [
        *("Online", "", "MNIST Rotations", "ra", "70.5", str(FOUND[0].std), "2", "80.0", "0.4", "-9.5", "worse")
    ]
    assert (rows[2]["std"], rows[2]["memory"], rows[2]["verdict"]) == ("", "500", "within")
    names = ("published mean", "published std", "difference", "verdict")
    assert [rows[3][name] for name in names] == [""] * 4


def test_the_document_is_plain_json() -> None:
    document = json.loads(json.dumps(results.as_document(TABLE, FOUND), allow_nan=False))
    assert (document["table"], document["title"], document["notes"]) == ("table-0", "A title", ["A note."])
    assert document["numbers"][0] == {
        "model": "Online",
        "memory": None,
        "column": "MNIST Rotations",
        "metric": "ra",
        "mean": 70.5,
        "std": FOUND[0].std,
        "seeds": 2,
        "values": [70.0, 71.0],
        "published": {"mean": 80.0, "std": 0.4},
        "difference": -9.5,
        "verdict": "worse",
    }
    assert document["numbers"][3]["published"] is None


def test_written_it_is_three_files(tmp_path: Path) -> None:
    results.write_table(TABLE, FOUND, tmp_path / "new")
    texts = {path.name: path.read_text() for path in (tmp_path / "new").iterdir()}
    assert texts.keys() == {"table-0.md", "table-0.csv", "table-0.json"}
    assert json.loads(texts["table-0.json"]) == json.loads(json.dumps(results.as_document(TABLE, FOUND)))
    assert texts["table-0.csv"] == results.as_csv(TABLE, FOUND)
    assert texts["table-0.md"].startswith("# table-0: A title\n\n| model |")
    assert texts["table-0.md"].endswith("|\n\n4 numbers: 3 within, 0 better, 1 worse\n\n- A note.\n")
    assert results.as_markdown(FOUND) in texts["table-0.md"]


def test_the_summary_counts_what_can_be_compared() -> None:
    assert results.summary(FOUND) == "4 numbers: 3 within, 0 better, 1 worse"
    assert results.summary([]) == "0 numbers: 0 within, 0 better, 0 worse"
    assert results.summary([Result(cell(), (99.0,))]) == "1 numbers: 0 within, 1 better, 0 worse"
    off = Result(cell(-1.5, metric="alignment"), (2.0,))
    assert results.summary([off]) == "1 numbers: 0 within, 0 better, 0 worse, 1 missed"


@every_table
def test_the_papers_own_numbers_are_within(name: str) -> None:
    found = perfect(TABLES[name]())
    assert results.summary(found) == f"{len(found)} numbers: {len(found)} within, 0 better, 0 worse"
    page = results.as_markdown(found)
    assert "**" not in page
    rows = [line.split(" | ") for line in page.splitlines()]
    assert len({len(row) for row in rows[:1] + rows[2:]}) == 1


def test_numbers_come_back_bit_for_bit_from_the_csv() -> None:
    values = tuple(np.random.default_rng(0).normal(80, 1, 5).tolist())
    found = [Result(cell(), values)]
    (row,) = csv.DictReader(results.as_csv(TABLE, found).splitlines())
    assert (float(row["mean"]), float(row["std"])) == (found[0].mean, found[0].std)
