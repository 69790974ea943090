"""Agents side by side draw, see and learn what they do one by one."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_games import small_cnn

from metareplay.environments.schedule import Order
from metareplay.errors import CheckpointError, InputError
from metareplay.rl import GameExperiment
from metareplay.rl.arcade import Arcade, obstacle
from metareplay.rl.training import Training

SMALL: dict[str, Any] = {"warmup": 8, "k": 3, "target_every": 15, "epsilon_frames": 60}
ARMS: dict[str, tuple[str, str, str | None, dict[str, Any]]] = {
    "mer": ("dqn-mer", "catcher", None, {"lr": 0.01, "s": 2, "beta": 0.5}),
    "mer, adam": (
        "dqn-mer",
        "flappy-bird",
        "recent",
        {"optimizer": "adam", "target_in": "episodes", "target_every": 2},
    ),
    "dqn": ("dqn", "flappy-bird", None, {"lr": 0.02, "reward_clip": 0.5}),
    "dqn, adam": ("dqn", "catcher", "reservoir", {"optimizer": "adam"}),
}


@pytest.fixture(autouse=True)
def _small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents have a small network."""
    monkeypatch.setattr("metareplay.rl.game_experiment.nature_cnn", small_cnn)


def experiments(name: str = "mer", **changes: Any) -> list[GameExperiment]:
    """Three experiments that differ in seed, rate and order."""
    learner, game, kind, options = ARMS[name]
    small = GameExperiment(
        learner=learner, game=game, memory=20, memory_kind=kind, frames=12, every=30, episodes=2, cap=20,
        game_options={"size": 36}, engine="torch",
    )  # fmt: skip
    settings = SMALL | options
    rates = [settings.get("lr", 1e-4) * (1 + seed) for seed in range(3)]
    orders: tuple[Order, ...] = ("published", "reversed", "shuffled")
    return [
        replace(small, seed=seed, order=orders[seed], options=settings | {"lr": rates[seed]}, **changes)
        for seed in range(3)
    ]


def trained(experiment: GameExperiment) -> Training:
    work = experiment.start()
    for _ in work.steps():
        pass
    return work


def arcade_of(given: list[GameExperiment]) -> Arcade:
    return Arcade([one.start() for one in given], "cpu")


@pytest.mark.parametrize("name", ARMS)
def test_like_one_by_one(name: str) -> None:
    given = experiments(name)
    arcade = arcade_of(given)
    seen = list(arcade.steps())
    assert seen[-1] == arcade.frames == 72
    for run, one in enumerate(given):
        alone, record = trained(one), arcade.record(run)
        wanted, start = alone.agent.weights.theta, one.start().agent.weights.theta
        assert record.key == one.key == alone.record().key
        assert record.frames == alone.record().frames == [0, 30, 60, 72]
        assert record.scores == alone.record().scores
        assert record.episodes == alone.agent.episodes
        apart = (arcade.agents[run].weights.theta - wanted).norm() / (wanted - start).norm()
        assert apart < 1e-2  # a ReLU at 0 within rounding is enough to make some weights differ
        assert record.engine == "cpu, 3 side by side"
    arcade.close()


@pytest.mark.parametrize("name", ["mer", "dqn, adam"])
@pytest.mark.parametrize("stop", [0, 40, 60])
def test_continues_from_actions(name: str, stop: int, tmp_path: Path) -> None:
    given, paths = experiments(name), [tmp_path / str(run) for run in range(3)]
    whole = arcade_of(given)
    list(whole.steps())
    first = arcade_of(given)
    for seen in first.steps():
        if seen >= stop:
            break
    first.save(paths)
    second = arcade_of(given)
    second.restore(paths)
    list(second.steps())
    for run in range(3):
        assert second.record(run).weights == whole.record(run).weights
        assert second.record(run).scores == whole.record(run).scores
        assert second.record(run).episodes == whole.record(run).episodes
    with pytest.raises(CheckpointError, match="another run"):
        arcade_of(given).restore(paths[::-1])


def test_more_pictures_than_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    given = experiments("dqn")
    wanted = arcade_of(given)
    list(wanted.steps())
    monkeypatch.setattr("metareplay.rl.arcade.screens.SPARE", 0.1)
    monkeypatch.setattr("metareplay.rl.arcade.screens.MORE", 4)
    few = arcade_of(given)
    list(few.steps())
    assert [few.record(run).weights for run in range(3)] == [wanted.record(run).weights for run in range(3)]


def test_weights_that_are_not_finite_harm_no_other() -> None:
    given = experiments("mer")
    wanted = arcade_of(given)
    list(wanted.steps())
    wild = [given[0], replace(given[1], options=given[1].options | {"lr": 1e30}), given[2]]
    arcade = arcade_of(wild)
    list(arcade.steps())
    assert arcade.finite == [True, False, True]
    assert torch.equal(arcade.team.state(0)["theta"], wanted.team.state(0)["theta"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"observation": "state", "game_options": {}}, "states are faster on a CPU"),
        ({"options": SMALL | {"double": True}}, "double"),
        ({"options": SMALL | {"clip": 1.0}}, "clip"),
        ({"options": SMALL | {"optimizer": "rmsprop"}}, "use 'sgd' or 'adam'"),
        ({"options": SMALL | {"warmup": 2}}, "must already be full"),
    ],
)
def test_what_cannot_play_side_by_side(changes: dict[str, Any], message: str) -> None:
    work = replace(experiments()[0], **changes).start()
    assert message in (obstacle(work) or "")
    with pytest.raises(InputError, match=r"agents cannot play side by side: .*"):
        Arcade([work], "cpu")


def test_one_shape_only() -> None:
    one, other = experiments()[0], replace(experiments()[0], frames=13)
    with pytest.raises(InputError, match="must have the same shape"):
        arcade_of([one, other])


def test_ctrl_c_comes_between_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, paths = experiments("mer"), [tmp_path / str(run) for run in range(3)]
    wanted = arcade_of(given)
    list(wanted.steps())
    first, learned = arcade_of(given), 0
    learn = first.team.learn

    def pressed(batches: Any) -> None:
        nonlocal learned
        learn(batches)
        learned += 1
        if learned == 5:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(first.team, "learn", pressed)
    with pytest.raises(KeyboardInterrupt):
        list(first.steps())
    assert first.whole
    first.save(paths)
    second = arcade_of(given)
    second.restore(paths)
    list(second.steps())
    assert [second.record(run).weights for run in range(3)] == [wanted.record(run).weights for run in range(3)]
