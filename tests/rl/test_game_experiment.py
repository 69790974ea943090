"""Experiments with agents: their keys, what they build, and bad settings."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_games import OPTIONS, SMALL, result, small_game

import metareplay as mr
from metareplay.environments import CATCHER_SPEEDS_640, FLAPPY_BIRD_GAPS
from metareplay.errors import InputError
from metareplay.experiments import Experiment
from metareplay.rl import GameExperiment, GameRecord
from metareplay.rl.game_experiment import Observed
from metareplay.rl.settings import TUNED, published
from metareplay.rl.settings import settings as settings_of


@st.composite
def experiments(draw: st.DrawFn) -> GameExperiment:
    learner, game = draw(st.sampled_from(["dqn", "dqn-mer"])), draw(st.sampled_from(["catcher", "flappy-bird"]))
    options: dict[str, Any] = {
        "lr": draw(st.sampled_from([0.1, 1e-4, 1])),
        "optimizer": draw(st.sampled_from(["sgd", "adam"])),
        "double": draw(st.booleans()),
        "clip": draw(st.sampled_from([None, 2, 0.5])),
        "reward_clip": draw(st.sampled_from([None, 1])),
        "target_in": draw(st.sampled_from(["frames", "episodes"])),
    }
    own: dict[str, Any] = {"s": draw(st.integers(1, 3)), "beta": 1} if learner == "dqn-mer" else {}
    pixels = draw(st.booleans())
    rewards: dict[str, Any] = draw(st.sampled_from([{}, {"rewards": {"positive": 2.0}}]))
    screen: dict[str, Any] = (
        draw(st.sampled_from([{}, {"screen": 640}, {"rounding": "round"}])) if game == "catcher" else {}
    )
    return GameExperiment(
        learner=learner,
        game=game,
        observation="pixels" if pixels else "state",
        memory=draw(st.integers(1, 60)),
        memory_kind=draw(st.sampled_from([None, "recent", "reservoir"])),
        hidden=draw(st.sampled_from([(), (8,), (6, 5)])),
        options=draw(st.sampled_from([{}, options | own])),
        order=draw(st.sampled_from(["published", "reversed", "shuffled"])),
        task=draw(st.sampled_from([None, 1, 6])),
        frames=draw(st.integers(1, 50)),
        game_options=rewards | screen | ({"size": 36, "frames": 2} if pixels else {}),
        every=draw(st.integers(1, 90)),
        seed=draw(st.integers(0, 5)),
        engine=draw(st.sampled_from(["auto", "torch"])),
    )


@given(experiments())
def test_the_key_is_that_of_the_run_and_its_record(experiment: GameExperiment) -> None:
    work = experiment.start()
    assert work.key == experiment.key
    assert experiment.total_frames == work.frames
    assert replace(experiment, engine="auto").key == replace(experiment, engine="torch").key == experiment.key
    record = work.record()
    assert record.key == experiment.key
    again = GameRecord.from_json(json.loads(json.dumps(record.to_json())))
    assert (again, again.key) == (record, experiment.key)


CHANGES: list[dict[str, Any]] = [
    {"learner": "dqn"},
    {"game": "flappy-bird"},
    {"observation": "pixels"},
    {"memory": 31},
    {"memory_kind": "recent"},
    {"hidden": (64,)},
    {"options": {"lr": 0.02}},
    {"options": {"k": 4}},
    {"options": {"double": True}},
    {"options": {"epsilon_end": 0.2}},
    {"options": {"discount": 0.9}},
    {"order": "reversed"},
    {"order": "shuffled"},
    {"task": 1},
    {"task": 2},
    {"frames": 21},
    {"every": 36},
    {"episodes": 3},
    {"cap": 41},
    {"seed": 1},
    {"game_options": {"screen": 640}},
    {"game_options": {"rounding": "round"}},
    {"game_options": {"rewards": {"tick": 0.1}}},
]


def test_the_key_differs_when_anything_differs() -> None:
    keys = [small_game(**change).key for change in ({}, *CHANGES)]
    assert len(set(keys)) == len(keys)


def test_the_key_does_not_depend_on_how_options_are_written() -> None:
    one = small_game()
    assert small_game(memory_kind="reservoir").key == one.key  # which is the default of DQN-MER
    assert small_game(options={"beta": 1.0, "gamma": 0.3, "s": 1}).key == one.key
    assert small_game(game_options={"frames": 4}).key != one.key


@settings(max_examples=5)
@given(st.sampled_from([("dqn", "catcher"), ("dqn-mer", "flappy-bird"), ("dqn-mer", "catcher")]))
def test_the_record_says_what_was_asked_for(names: tuple[str, str]) -> None:
    learner, game = names
    work = small_game(learner=learner, game=game, order="reversed", seed=2).start()
    for _ in work.steps():
        pass
    record = work.record()
    assert (record.learner, record.game["game"]) == ({"dqn": "DQN", "dqn-mer": "DQNMER"}[learner], game)
    assert record.stretches()[0] == (0, 20, 5)
    assert (record.seed, record.game["game_seed"], record.settings["seed"]) == (2, 2, 2)
    assert record.means.shape == (5, 6)
    assert record.game["values"] == list(work.env.schedule.values)  # type: ignore[attr-defined]


def test_what_is_built_is_what_was_asked_for() -> None:
    agent = small_game(hidden=(7,), memory=11, memory_kind="recent", seed=4).start().agent
    assert isinstance(agent, mr.DQNMER)
    assert isinstance(agent.memory, mr.Recent)
    assert (agent.memory.capacity, agent.k, agent.lr, agent.seed) == (11, 3, 0.01, 4)
    assert all(map(torch.equal, agent.model.parameters(), mr.networks.mlp(4, (7,), 3, seed=4).parameters()))
    large = small_game(game_options={"screen": 640})
    assert large.values == CATCHER_SPEEDS_640
    assert large.start().env.unwrapped.pellet_speed == CATCHER_SPEEDS_640[0]  # type: ignore[attr-defined]
    alone = small_game(game="flappy-bird", task=3)
    assert (alone.total_frames, alone.schedule.value(99)) == (20, FLAPPY_BIRD_GAPS[2])
    assert alone.label == "dqn-mer, flappy-bird task 3, published, seed 0"
    pixels = GameExperiment(game="flappy-bird")
    assert pixels.make_model()(torch.zeros(1, 4, 84, 84)).shape == (1, 2)
    assert GameExperiment().make_model()(torch.zeros(1, 4, 64, 64)).shape == (1, 3)


def test_tasks_are_evaluated_on_games_that_are_not_learned_from() -> None:
    assert small_game(seed=2)._evaluation().seed == 1_002_000
    assert [make().pellet_speed for make in small_game()._evaluation().tasks] == list(small_game().values)  # type: ignore[attr-defined]


def test_work_and_shape() -> None:
    assert small_game().work == 3 * 120
    assert small_game(options={"s": 4}).work == 4 * small_game().work
    assert replace(small_game(), observation="pixels").work == 400 * small_game().work
    assert small_game(seed=3).shape == small_game().shape != small_game(learner="dqn").shape
    assert small_game().result is GameRecord


ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"learner": "mer"}, "learner 'mer': use one of dqn, dqn-mer"),
    ({"game": "pong"}, "game 'pong': use one of catcher, flappy-bird"),
    ({"observation": "raw"}, "observation='raw': use 'pixels' or 'state'"),
    ({"memory": 0}, "memory=0"),
    ({"memory_kind": "ring"}, "memory kind 'ring': use one of recent, reservoir"),
    ({"options": {"strength": 1}}, "dqn-mer has no option 'strength'; it takes beta, clip, discount"),
    ({"options": {"loss": torch.nn.functional.mse_loss}}, "dqn-mer has no option 'loss'"),
    ({"options": {"seed": 1}}, "dqn-mer has no option 'seed'"),
    ({"options": {"k": 0}}, "k=0"),
    ({"options": {"lr": "fast"}}, "lr='fast'"),
    ({"order": "upside-down"}, "order='upside-down': use one of 'published', 'reversed', or 'shuffled'"),
    ({"order": "upside-down", "task": 2}, "order='upside-down': use one of 'published', 'reversed', or 'shuffled'"),
    ({"task": 0}, "task 0: catcher has tasks 1 to 6"),
    ({"task": 7}, "task 7: catcher has tasks 1 to 6"),
    ({"frames": 0}, "frames=0: every value holds for at least one frame"),
    ({"every": 0}, "every=0"),
    ({"episodes": 0}, "episodes=0"),
    ({"cap": 0}, "cap=0"),
    ({"seed": 2**32}, "seed=4294967296: use a whole number from 0 to 2**32 - 1"),
    ({"seed": -1}, "seed=-1"),
    ({"game_options": {"gravity": 1}}, "catcher has no option 'gravity'; it takes size, frames, rewards, screen"),
    ({"game": "flappy-bird", "game_options": {"screen": 640}}, "flappy-bird has no option 'screen'"),
    ({"game_options": {"observation": "raw"}}, "catcher has no option 'observation'"),
    ({"observation": "pixels", "game_options": {"size": 20}}, "size=20: three convolutions need frames of at least"),
    ({"observation": "pixels", "game_options": {"size": (64, 64)}}, "size=(64, 64): use a whole number"),
    ({"game_options": {"screen": 1}}, "screen=1"),
    ({"game_options": {"rewards": {"money": 1}}}, "money"),
    ({"engine": "abacus"}, "abacus"),
]


@pytest.mark.parametrize(("change", "message"), ERRORS, ids=[message[:30] for _, message in ERRORS])
def test_bad_settings_are_one_line_before_anything_is_run(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        small_game(**change).start()
    assert "\n" not in str(caught.value)


def test_settings_of_the_paper_and_ours() -> None:
    assert published("dqn", "catcher")["lr"] == 1e-4
    assert "reward_clip" in published("dqn", "flappy-bird")
    for (name, game, seen), found in TUNED.items():
        learner, _, kind = name.partition("-reservoir")[0], "", "reservoir" if "reservoir" in name else None
        assert found.items() <= settings_of(learner, game, seen, kind).items()
        observed: Observed = "state" if seen == "state" else "pixels"
        GameExperiment(learner=learner, game=game, observation=observed, options=settings_of(learner, game, seen)).key  # noqa: B018
    assert settings_of("dqn", "catcher", "state", "recent") == settings_of("dqn", "catcher", "state")


def test_games_and_runs_are_told_apart(tmp_path: Path) -> None:
    assert {Experiment().result, GameExperiment().result} == {mr.Record, GameRecord}
    record = small_game(frames=5).start(tmp_path / "run.ckpt").record()
    assert result(record)["kind"] == "game"
    assert OPTIONS["k"] == record.settings["k"]
    assert SMALL["episodes"] == record.game["evaluation"]["episodes"]


@pytest.mark.parametrize("options", [{}, {"screen": 640}])
def test_the_network_sees_the_paddle(options: dict[str, Any]) -> None:
    """At 64x64 it would not on a screen of 640 pixels, whose paddle is in the last rows."""
    run = GameExperiment(learner="dqn", game="catcher", game_options=options).start()
    picture, _ = run.env.reset(seed=0)
    without = picture.copy()
    without[:, picture.shape[1] // 2 :] = 0  # the pellet begins at the top
    assert (without != picture).any()
    values = run.agent.model(torch.from_numpy(np.stack([picture, without])).float() / 255)
    assert not torch.equal(values[0], values[1])
