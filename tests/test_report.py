import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console
from small_runs import ALIGNED, RECORD

import metareplay as mr
from metareplay.report import duration, plot_alignment, plot_tasks, spread, table


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


@pytest.mark.parametrize("tasks", [1, 2, 100])
def test_the_picture_is_a_picture(tasks: int, tmp_path: Path) -> None:
    accuracy = np.linspace(0, 100, (tasks + 1) * tasks).reshape(tasks + 1, tasks)
    path = tmp_path / "new" / "picture.png"
    plot_tasks(
        {"one": replace(RECORD, accuracy=accuracy), "two": replace(RECORD, accuracy=accuracy / 2)}, path, "Tasks"
    )
    with Image.open(path) as picture:
        assert (picture.format, picture.size) == ("PNG", (1200, 675))
        colours = picture.convert("RGB").getcolors(maxcolors=1_000_000)
    assert colours is not None
    found = {colour for count, colour in colours if count > 20}
    assert {(31, 119, 180), (255, 127, 14)} <= found  # a line for each record, in matplotlib's C0 and C1
    assert [file.name for file in path.parent.iterdir()] == ["picture.png"]


def test_the_picture_shows_the_end_and_just_after_learning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[list[list[float]]] = []

    def note(self: Figure, *_: object, **__: object) -> None:
        drawn.extend(line.get_xydata().tolist() for line in self.axes[0].lines)  # type: ignore[union-attr]

    monkeypatch.setattr(Figure, "savefig", note)
    plot_tasks({"one": RECORD}, tmp_path / "picture.png", "Tasks")
    assert drawn[:2] == [[[1, 70], [2, 80]], [[1, 90], [2, 80]]]


@pytest.mark.parametrize(("names", "size"), [(["one"], (1275, 675)), (["one", "two"], (1725, 675))])
def test_dot_products_are_pictured_side_by_side(names: list[str], size: tuple[int, int], tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    plot_alignment(dict.fromkeys(names, ALIGNED), path, "Alignment")
    with Image.open(path) as picture:
        assert (picture.format, picture.size) == ("PNG", size)


def test_the_picture_shows_spans_task_changes_and_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[list[list[float]]] = []

    def note(self: Figure, *_: object, **__: object) -> None:
        axes = self.axes[0]
        assert axes.get_yscale() == "symlog"
        assert axes.get_title() == "one: mean -0.125"
        drawn.extend(np.nan_to_num(line.get_xydata(), nan=99.0).tolist() for line in axes.lines)

    monkeypatch.setattr(Figure, "savefig", note)
    plot_alignment({"one": ALIGNED}, tmp_path / "picture.png", "Alignment")
    assert [[4, 20], [10.5, 99], [17, 0.5]] in drawn  # medians, nothing where nothing was measured
    assert [[4, -2], [10.5, 99], [17, 0.5]] in drawn  # means
    assert [[10, 0], [10, 1]] in drawn  # the second task
    assert [[0, 0], [1, 0]] in drawn  # zero


@pytest.mark.parametrize("record", [RECORD, replace(RECORD, alignment={"samples": 5, "count": 0})])
def test_a_record_without_dot_products_is_named(record: mr.Record, tmp_path: Path) -> None:
    with pytest.raises(mr.MetareplayError, match="one has no dot products to show: run it with alignment"):
        plot_alignment({"one": record}, tmp_path / "picture.png", "Alignment")


def test_a_picture_that_cannot_be_written_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(mr.MetareplayError, match=r"cannot write .*picture.png: "):
        plot_tasks({"one": RECORD}, tmp_path / "file" / "picture.png", "Tasks")


def test_without_matplotlib_we_say_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(mr.MetareplayError, match=r"pip install 'metareplay\[plots\]'"):
        plot_tasks({"one": RECORD}, tmp_path / "picture.png", "Tasks")
