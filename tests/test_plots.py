import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from small_runs import ALIGNED, RECORD

import metareplay as mr
from metareplay.plots import plot_alignment, plot_tasks


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
