"""The runner of agents that play side by side: records, checkpoints, failures, and what it leaves to others."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_games import small_cnn

from metareplay.bench.arcade import ArcadeBenchmark
from metareplay.bench.frame import QUICK
from metareplay.errors import InputError, NonFiniteError
from metareplay.experiments import Experiment
from metareplay.rl import GameExperiment, GameRecord
from metareplay.rl.arcade import Arcade
from metareplay.runners import ArcadeRunner, Failure, Threads, Watcher

SMALL = GameExperiment(
    learner="dqn", memory=20, frames=6, every=18, episodes=1, cap=10, game_options={"size": 36},
    options={"warmup": 4, "k": 3, "lr": 0.01},
)  # fmt: skip
GIVEN = [replace(SMALL, seed=seed) for seed in range(3)]


@pytest.fixture(autouse=True)
def _small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents have a small network."""
    monkeypatch.setattr("metareplay.rl.game_experiment.nature_cnn", small_cnn)


class News(Watcher):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.remarks: list[str] = []

    def together(self, count: int, seen: int, total: int) -> None:
        del seen, total
        self.counts.append(count)

    def remark(self, text: str) -> None:
        self.remarks.append(text)


def test_records_and_agents(tmp_path: Path) -> None:
    news = News()
    found = ArcadeRunner("cpu").run([*GIVEN, GIVEN[0]], tmp_path, watcher=news)
    assert [one.key for one in found if isinstance(one, GameRecord)] == [one.key for one in (*GIVEN, GIVEN[0])]
    assert set(news.counts) == {3}
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".agent"] * 3 + [".json"] * 3
    again = ArcadeRunner("cpu").run(GIVEN, tmp_path, watcher=news)
    assert again == found[:3]
    assert news.remarks == [f"3 of 3 runs are in {tmp_path} already"]


def test_it_says_that_agents_are_not_tracked(tmp_path: Path) -> None:
    news = News()
    news.followers = [lambda: pytest.fail("nobody follows them")]
    ArcadeRunner("cpu").run(GIVEN[:2], tmp_path, watcher=news)
    assert news.remarks == ["2 runs advance together and are not tracked: use --on threads for tracked runs"]


def test_shapes_and_groups(tmp_path: Path) -> None:
    news = News()
    other = [replace(one, options={**SMALL.options, "k": 2}) for one in GIVEN]
    ArcadeRunner("cpu", most=2).run([*GIVEN, *other], tmp_path, watcher=news)
    assert sorted(set(news.counts)) == [1, 2]
    assert len(list(tmp_path.glob("*.json"))) == 6


def test_interrupted_and_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ArcadeRunner("cpu").run(GIVEN, tmp_path / "whole")
    play = Arcade.play

    def interrupted(self: Arcade, frames: int) -> None:
        play(self, frames)
        raise KeyboardInterrupt

    folder = tmp_path / "parts"
    monkeypatch.setattr("metareplay.rl.arcade.arcade.AHEAD", 5)
    monkeypatch.setattr(Arcade, "play", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ArcadeRunner("cpu").run(GIVEN, folder)
    assert len(list(folder.glob(".*.ckpt"))) == 3
    monkeypatch.setattr(Arcade, "play", play)
    found = ArcadeRunner("cpu").run(GIVEN, folder)
    for one, other in zip(found, wanted, strict=True):
        assert isinstance(one, GameRecord)
        assert isinstance(other, GameRecord)
        assert (one.weights, one.scores) == (other.weights, other.scores)
    assert not list(folder.glob(".*"))


def test_not_finite(tmp_path: Path) -> None:
    wild = replace(SMALL, seed=7, options={**SMALL.options, "lr": 1e30})
    with pytest.raises(NonFiniteError, match=r"seed 7: the weights are no longer finite: use a smaller lr"):
        ArcadeRunner("cpu").run([*GIVEN, wild], tmp_path)
    assert len(list(tmp_path.glob("*.json"))) == 3
    found = ArcadeRunner("cpu").run([*GIVEN, wild], tmp_path, keep_going=True)
    assert isinstance(found[3], Failure)
    assert found[3].kind == "not finite"


def test_what_it_cannot_take(tmp_path: Path) -> None:
    states: Any = replace(SMALL, observation="state", game_options={})
    with pytest.raises(InputError, match="states are faster on a CPU; or use --on threads"):
        ArcadeRunner("cpu").run([states], tmp_path)
    [record] = ArcadeRunner("cpu", rest=Threads(1)).run([states], tmp_path)
    assert isinstance(record, GameRecord)
    with pytest.raises(InputError, match="only games"):
        ArcadeRunner("cpu").run([Experiment()], tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--on fleet needs a CUDA GPU, and torch finds none: use --on threads"):
        ArcadeRunner().run(GIVEN, tmp_path)
    with pytest.raises(InputError, match="--on arcade needs a CUDA GPU"):
        ArcadeBenchmark().run(QUICK, print)
