"""The paper's grid in miniature, interpreted on the CPU."""

from pathlib import Path

import pytest
from small_runs import instead_of_mnist, small_images

from metareplay.paper import grid
from metareplay.paper.best import best
from metareplay.paper.plots import plot_grid
from metareplay.runners.fleet import fleet as fleet_engine


def test_the_grid_is_the_paper_s() -> None:
    every = grid.experiments("rotations", 500, seeds=5)
    assert len(every) == 1500
    assert {one.seed for one in every} == set(range(5))
    assert best("mer", "rotations", 500) in [one.options for one in every]
    steps = sum(one.options["k"] * one.options["s"] for one in every) / len(every)
    assert steps == pytest.approx(39 * 4.5)


def test_a_small_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    instead_of_mnist(monkeypatch)
    monkeypatch.setattr(fleet_engine, "mnist", small_images)
    monkeypatch.setattr(grid, "GRID", {"lr": (0.1, 1e30), "beta": (1.0,), "k": (2,), "s": (1, 2)})
    sizes = {"tasks": 1, "examples": 3, "test_examples": 8, "hidden": (10, 6)}
    with pytest.warns(RuntimeWarning):  # NumPy's, at a rate of 1e30
        found = grid.document("rotations", 4, 2, tmp_path, "cpu", **sizes)
    assert found["runs"] == 8
    assert found["steps"] == 3 * 2 * 2 * (2 + 4)
    assert [row["lr"] for row in found["settings"]] == [0.1, 0.1, 1e30, 1e30]
    assert all(len(row["seeds"]) == 2 for row in found["settings"])
    first, last = found["settings"][0], found["settings"][-1]
    assert first["ra"] == pytest.approx(sum(first["seeds"]) / 2)
    assert last["ra"] is None
    plot_grid(found, tmp_path / "grid.png")
    assert (tmp_path / "grid.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "says"),
    [(["--seeds", "0"], "run at least one"), (["--stream", "tides"], "stream 'tides'"), ([], "needs a CUDA GPU")],
)
def test_bad_words_get_one_line(
    words: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    instead_of_mnist(monkeypatch)
    if words:  # they are looked at where there is a GPU
        monkeypatch.setattr("metareplay.runners.fleet.runner.check_device", lambda _: None)
    monkeypatch.setattr(grid, "GRID", {"lr": (0.1,), "beta": (1.0,), "k": (2,), "s": (1,)})
    monkeypatch.setattr("sys.argv", ["grid", *words, "--records", str(tmp_path)])
    with pytest.raises(SystemExit) as stopped:
        grid.main()
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert says in message
    assert message.count("\n") == 1
