import math
from dataclasses import replace

import numpy as np
from rich.console import Console
from small_runs import ALIGNED, RECORD

import metareplay as mr
from metareplay._core.text import duration, spread
from metareplay.cli.display import paper_table, table
from metareplay.experiments.experiment import Experiment
from metareplay.paper.cells import Cell, Published
from metareplay.paper.results import Result


def shown(groups: dict[str, list[mr.Record]]) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(table(groups, "A title"))
    return capture.get()


def cells(text: str, name: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if name in line]
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_spread_is_mean_and_sample_deviation() -> None:
    assert spread([1.0, 2.0, 4.0]) == "2.33 ± 1.53"  # sqrt((1.78 + 0.11 + 2.78) / 2)
    assert spread([5.0, 5.0]) == "5.00 ± 0.00"
    assert spread([-12.345]) == "-12.35"
    assert spread([math.nan]) == "nan"


def test_duration_never_says_sixty() -> None:
    assert [duration(seconds) for seconds in (0, 59.94, 59.96, 119.7, 3599.4, 3599.6, 86399)] == [
        "0.0 s",
        "59.9 s",
        "1 min 0 s",
        "2 min 0 s",
        "59 min 59 s",
        "1 h 0 min",
        "23 h 59 min",
    ]


def test_the_table_has_a_row_for_each_group() -> None:
    other = replace(RECORD, accuracy=RECORD.accuracy + 2, seconds={"learn": 3.25, "evaluate": 100.0})
    text = shown({"alone": [RECORD], "together": [RECORD, other]})
    assert cells(text, "alone") == ["alone", "75.00", "85.00", "-10.00", "10.00", "1", "1.2 s"]
    spreads = ["76.00 ± 1.41", "86.00 ± 1.41", "-10.00 ± 0.00", "10.00 ± 0.00"]
    assert cells(text, "together") == ["together", *spreads, "2", "2.2 s"]
    assert "A title" in text
    assert "RA retained, LA learning, BTI backward, FTI forward" in text


def test_a_table_without_measurements_says_nan() -> None:
    assert cells(shown({"none": [replace(RECORD, accuracy=np.zeros((1, 0)))]}), "none")[1:5] == ["nan"] * 4


def test_the_table_has_the_mean_dot_product_if_it_was_measured() -> None:
    assert ALIGNED.alignment is not None
    other = replace(ALIGNED, alignment=ALIGNED.alignment | {"mean": 0.5})
    text = shown({"alone": [ALIGNED], "together": [ALIGNED, other], "without": [RECORD]})
    assert [word for word in text.splitlines()[2].split() if word != "┃"][4:7] == ["FTI", "dot", "seeds"]
    assert [cells(text, name)[5] for name in ("alone", "together", "without")] == ["-0.125", "0.188 ± 0.442", "nan"]
    assert "mean dot product" in text
    assert "dot" not in shown({"without": [RECORD]})


def paper_cell(model: str, metric: str, mean: float | None, memory: int | None = 500) -> Cell:
    published = None if mean is None else Published(mean, 0.1)
    return Cell(model, memory, "MNIST Rotations", metric, range(2), published, Experiment())


def paper_shown(found: list[Result]) -> list[list[str]]:
    """The lines of a table below its head, cell by cell."""
    console = Console(width=120)
    with console.capture() as capture:
        console.print(paper_table("A title", found))
    lines = capture.get().splitlines()
    assert lines[0].strip() == "A title"
    return [
        [cell.strip() for cell in line.strip("┃│").replace("┃", "│").split("│")] for line in lines if line[0] in "┃│"
    ]


FOUND = [
    Result(paper_cell("Online", "ra", 70.0, None), (71.0, 73.0)),
    Result(paper_cell("Online", "bti", -3.0, None), (-5.0, -5.0)),
    Result(paper_cell("MER", "ra", 80.0), (80.5,)),
    Result(paper_cell("MER", "alignment", None), (0.25, 0.25)),
]


def test_a_table_of_the_paper_has_ours_the_papers_and_the_verdict() -> None:
    assert paper_shown(FOUND) == [
        ["", "", "MNIST Rotations", "MNIST Rotations", "MNIST Rotations"],
        ["model", "memory", "RA", "BTI", "dot product"],
        ["Online", "", "72.00 ± 1.41", "-5.00 ± 0.00", "-"],
        ["", "", "paper 70.00 ± 0.10", "paper -3.00 ± 0.10", ""],
        ["", "", "+2.00 better", "-2.00 worse", ""],
        ["MER", "500", "80.50 [1]", "-", "+0.250 ± 0.000"],
        ["", "", "paper 80.00 ± 0.10", "", "paper -"],
        ["", "", "+0.50 within", "", ""],
    ]


def test_a_miniature_of_a_table_has_no_verdicts() -> None:
    words = " ".join(word for row in paper_shown([replace(one, comparable=False) for one in FOUND]) for word in row)
    assert "paper 80.00 ± 0.10" in words
    assert not any(verdict in words for verdict in ("better", "worse", "within"))
