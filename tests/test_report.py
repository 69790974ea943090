import math
from dataclasses import replace

import numpy as np
from rich.console import Console
from small_runs import ALIGNED, RECORD

import metareplay as mr
from metareplay.report import duration, spread, table


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
