import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from small_games import small_game
from small_runs import ALIGNED, RECORD

import metareplay as mr
from metareplay import plots
from metareplay.errors import PicturesMissingError
from metareplay.experiments.experiment import Experiment
from metareplay.paper.cells import Cell, Published
from metareplay.paper.plots import plot_memory
from metareplay.paper.results import Result
from metareplay.paper.tables import TABLES
from metareplay.plots import learner_colours, plot_alignment, plot_matrices, plot_scores, plot_tasks
from metareplay.rl import GameRecord


def test_a_learner_has_its_own_colour_in_any_company() -> None:
    alone = learner_colours({"mine": "DQNMER"})["mine"]
    names = {"DQN": "DQN", "DQN, reservoir": "DQN", "DQN-MER": "DQNMER", "DQN-MER, Adam": "DQNMER"}
    together = learner_colours(names)
    assert together["DQN-MER"] == alone == learner_colours({"MER": "mer"})["MER"]
    assert len(set(together.values())) == len(names)
    many = learner_colours({f"one {number}": "MER" for number in range(30)})
    assert many["one 0"] == alone
    assert len(set(many.values())) > 8


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
    assert {(0, 114, 178), (17, 119, 51)} <= found  # MER's own colour, and another for the second one
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
    with pytest.raises(PicturesMissingError, match=r"pip install 'metareplay\[plots\]'"):
        plot_tasks({"one": RECORD}, tmp_path / "picture.png", "Tasks")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that would have been saved."""
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: figures.append(self))
    return figures


# Every task after every task


@pytest.mark.parametrize("tasks", [1, 2, 20, 100])
@pytest.mark.parametrize("count", [1, 4])
def test_matrices_are_pictured_side_by_side(tasks: int, count: int, tmp_path: Path) -> None:
    accuracy = np.linspace(0, 100, (tasks + 1) * tasks).reshape(tasks + 1, tasks)
    accuracy[0, -1] = np.nan
    records = {f"learner {number}": replace(RECORD, accuracy=accuracy) for number in range(count)}
    plot_matrices(records, tmp_path / "picture.png", "Tasks")
    with Image.open(tmp_path / "picture.png") as picture:
        assert (picture.format, picture.height) == ("PNG", 600)


def test_a_row_is_a_task_and_a_column_is_how_many_were_learned(tmp_path: Path, drawn: list[Figure]) -> None:
    plot_matrices({"one": RECORD, "two": RECORD}, tmp_path / "picture.png", "Tasks")
    (figure,) = drawn
    one, two, colours = figure.axes
    assert (one.get_title(), two.get_title()) == ("one: RA 75.0", "two: RA 75.0")
    assert colours.get_ylabel() == "test accuracy (%)"
    (image,) = one.images
    np.testing.assert_array_equal(image.get_array(), [[10, 90, 70], [10, 30, 80]])
    assert tuple(image.get_extent()) == (-0.5, 2.5, 2.5, 0.5)
    assert image.get_clim() == (0, 100)
    assert ([*one.get_xticks()], [*one.get_yticks()]) == ([0, 1, 2], [1, 2])
    (steps,) = one.lines  # down and then right: at its right the task has been learned
    corners: Any = steps.get_xydata()
    assert corners.tolist() == [[0.5, 0.5], [0.5, 1.5], [1.5, 1.5], [1.5, 2.5], [2.5, 2.5]]


@pytest.mark.parametrize(
    ("tasks", "ticks"),
    [(1, [1]), (10, [*range(1, 11)]), (20, [1, 5, 10, 15, 20]), (100, [1, *range(10, 101, 10)])],
)
def test_not_too_many_tasks_are_numbered(tasks: int, ticks: list[int], tmp_path: Path, drawn: list[Figure]) -> None:
    plot_matrices({"one": replace(RECORD, accuracy=np.zeros((tasks + 1, tasks)))}, tmp_path / "picture.png", "Tasks")
    assert drawn[0].axes[0].get_yticks().tolist() == ticks
    assert drawn[0].axes[0].get_xticks().tolist() == [0, *ticks]


# Memory


def in_memory(model: str, memory: int, ours: tuple[float, ...], paper: float | None, column: str = "Here") -> Result:
    published = None if paper is None else Published(paper, 0.1)
    return Result(Cell(model, memory, column, "ra", range(5), published, Experiment()), ours)


def points(figure: Figure, panel: int = 0) -> list[list[list[float]]]:
    """The lines of a panel that are not marks between memory sizes or the legend's."""
    lines: list[Any] = [line for line in figure.axes[panel].lines if line.get_marker() not in ("None", "_")]
    return [np.nan_to_num(line.get_xydata(), nan=-1).round(3).tolist() for line in lines if len(line.get_xdata())]


def test_ours_are_lines_over_memory_and_the_papers_are_around_them(tmp_path: Path, drawn: list[Figure]) -> None:
    found = [
        in_memory("MER", 5120, (90.0, 92.0), 90.5),
        in_memory("MER", 200, (70.0,), None),
        in_memory("GEM", 200, (60.0,), 61.0),
        replace(in_memory("GEM", 200, (1.0,), 1.0), cell=replace(in_memory("GEM", 1, (), 1.0).cell, metric="la")),
    ]
    plot_memory(found, tmp_path / "picture.png", "Memory")
    axes = drawn[0].axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["200", "5120"]
    assert points(drawn[0]) == [
        [[-0.175, 70], [0.825, 91]],
        [[-0.175, -1], [0.825, 90.5]],
        [[0.175, 60]],
        [[0.175, 61]],
    ]
    bars: Any = axes.containers[0]
    assert bars.lines[2][0].get_segments()[1][:, 1].round(3).tolist() == [89.586, 92.414]  # a deviation either way


def test_a_model_without_numbers_in_a_panel_is_left_out_of_it(tmp_path: Path, drawn: list[Figure]) -> None:
    found = [in_memory("MER", 200, (70.0,), 71.0), in_memory("GEM", 500, (60.0,), 61.0, "There")]
    plot_memory(found, tmp_path / "picture.png", "Memory")
    assert [[line for line in points(drawn[0], panel) if line] for panel in (0, 1)] == [
        [[[-0.175, 70]], [[-0.175, 71]]],
        [[[0.175, 60]], [[0.175, 61]]],
    ]
    assert [axes.get_title() for axes in drawn[0].axes] == ["Here", "There"]
    assert [label.get_text() for label in drawn[0].axes[1].get_xticklabels()] == ["500"]


def test_every_model_of_the_paper_has_its_own_look(tmp_path: Path, drawn: list[Figure]) -> None:
    found = [Result(cell, (80.0,)) for cell in TABLES["table-6"]().cells]
    found += [in_memory(f"another {number}", 200, (70.0,), None) for number in range(9)]
    models = {one.cell.model for one in found}
    plot_memory(found, tmp_path / "picture.png", "Memory")
    (legend,) = drawn[0].legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names[-1] == "hollow: the paper's"
    assert set(names[:-1]) == models
    looks = {(line.get_color(), line.get_marker()) for line in legend.get_lines()[:-1]}
    assert len(looks) == len(models)


def test_the_picture_of_table_6_is_a_picture(tmp_path: Path) -> None:
    found = [Result(cell, (80.0, 81.0)) for cell in TABLES["table-6"]().cells]
    plot_memory(found, tmp_path / "picture.png", "Memory")
    with Image.open(tmp_path / "picture.png") as picture:
        assert (picture.format, picture.size) == ("PNG", (2310, 900))


# Scores in games


def scored(order: str = "published", seed: int = 0, shift: float = 0) -> GameRecord:
    """Two tasks of 50 frames, evaluated at three times."""
    record = small_game(order=order, seed=seed, frames=50).start().record()
    scores: Any = [[[0.0], [1.0]], [[4.0 + shift], [2.0]], [[3.0], [6.0 + shift]]]
    return replace(
        record, frames=[0, 50, 100], scores=scores, game=record.game | {"values": [1, 2], "total_frames": 100}
    )


def drawn_scores(monkeypatch: pytest.MonkeyPatch, *given: Any) -> Figure:
    figures: list[Figure] = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, _: figures.append(figure))
    plot_scores(*given)
    return figures[0]


def test_scores_are_drawn_over_frames_with_changes_and_spread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    records = {"one": [scored(), scored(seed=1, shift=2)], "two": [scored()]}
    figure = drawn_scores(monkeypatch, records, tmp_path / "a.png", "Games")
    first, second = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["task 1", "task 2"]
    assert first.lines[0].get_xydata().tolist() == [[0, 0], [0.05, 5], [0.1, 3]]  # type: ignore[union-attr]
    assert second.lines[1].get_xydata().tolist() == [[0, 1], [0.05, 2], [0.1, 6]]  # type: ignore[union-attr]
    band = first.collections[0].get_paths()[0].vertices  # one standard deviation of 4 and 6 to both sides
    assert np.asarray(band)[:, 1].max() == pytest.approx(5 + 2**0.5)
    assert first.lines[2].get_xdata() == [0.05, 0.05]
    for axes, start in ((first, 0), (second, 0.05)):
        (grey,) = axes.patches
        assert (grey.get_x(), grey.get_width()) == (start, 0.05)  # type: ignore[attr-defined]
    [legend] = figure.legends
    assert [one.get_text() for one in legend.get_texts()] == ["one (2 seeds)", "two (one seed)"]


def test_agents_have_the_colours_that_were_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    records, path = {"one": [scored()]}, tmp_path / "a.png"
    figure = drawn_scores(monkeypatch, records, path, "Games", (), {"one": "#123456", "two": "#654321"})
    assert figure.axes[0].lines[0].get_color() == "#123456"
    assert [one.get_text() for one in figure.legends[0].get_texts()] == ["one"]
    with pytest.raises(mr.InputError, match="colours has none for 'one': give every agent a colour"):
        plot_scores(records, path, "Games", colours={"two": "#654321"})
    with pytest.raises(mr.InputError, match="colours has 'bleu' for 'one': use a colour such as '#0072b2'"):
        plot_scores(records, path, "Games", colours={"one": "bleu"})


def test_tasks_can_be_chosen_and_orders_may_differ(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    figure = drawn_scores(monkeypatch, {"one": [scored("reversed")]}, tmp_path / "a.png", "Games", (2,))
    (axes,) = figure.axes
    assert axes.get_title() == "task 2"
    assert axes.patches[0].get_x() == 0  # type: ignore[attr-defined]
    mixed = {"one": [scored("published"), scored("reversed")]}
    figure = drawn_scores(monkeypatch, mixed, tmp_path / "a.png", "Games")
    assert not any(axes.patches for axes in figure.axes)  # no one time is that of a task


def test_a_picture_of_scores_is_a_picture(tmp_path: Path) -> None:
    plot_scores({"one": [scored()]}, tmp_path / "a.png", "Games")
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.format == "PNG"
    never = replace(scored(), frames=[], scores=[])
    with pytest.raises(mr.MetareplayError, match="one has no scores to show: train it with an evaluation"):
        plot_scores({"one": [never]}, tmp_path / "a.png", "Games")
    with pytest.raises(mr.InputError, match="records is empty: use a dictionary"):
        plot_scores({}, tmp_path / "a.png", "Games")
