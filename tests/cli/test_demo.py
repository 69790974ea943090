import sys
from pathlib import Path

import pytest
from PIL import Image
from small_runs import instead_of_mnist

import metareplay as mr
from metareplay import cli
from metareplay.cli import demo
from metareplay.paper.best import best


def test_the_demo_compares_five_learners_with_the_same_seed() -> None:
    made = demo.experiments(tasks=3, examples=4, memory=50, seed=9)
    assert {one.learner for one in made.values()} == {"online", "ewc", "gem", "er", "mer"}
    for one in made.values():
        assert one.options == best(one.learner, "rotations", 50)
        learner, stream = one.build()
        assert (stream.tasks, stream.total, learner.seed) == (3, 12, 9)
        assert learner.own_memory is None or learner.own_memory.capacity == 50
    mer, _ = demo.experiments(tasks=20, examples=1000, memory=500, seed=0)["MER"].build()
    assert (mer.lr, mer.settings()["beta"]) == (0.1, 0.01)


def test_a_miniature_of_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    instead_of_mnist(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["metareplay", "demo", "--tasks", "2", "--examples", "5", "--memory", "10"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 0
    out, err = capsys.readouterr()

    with Image.open("demo/accuracy.png") as picture:
        assert (picture.format, picture.size) == ("PNG", (1200, 675))
    assert 10_000 < Path("demo/accuracy.png").stat().st_size < 500_000
    assert "picture: demo/accuracy.png\nrecords: demo/" in err

    records = {record.learner: record for record in map(mr.Record.read, Path("demo").glob("*.json"))}
    assert records.keys() == {"Online", "EWC", "GEM", "ER", "MER"}
    assert len(list(Path("demo").iterdir())) == 6
    assert "MNIST Rotations, 2 tasks of 5 examples, memory 10" in out
    for name, record in records.items():
        (row,) = [line for line in out.splitlines() if line.startswith(f"│ {name} ")]
        assert [cell.strip() for cell in row.strip("│").split("│")][1:5] == [
            f"{metric:.2f}" for metric in (record.ra, record.la, record.bti, record.fti)
        ]
