"""Game and learner in one compiled loop leave the same bits as the loop over frames."""

import signal
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from toy_environment import Line

import metareplay as mr
from metareplay.environments import CatcherEnv, FlappyBirdEnv, Schedule, ScheduledEnv
from metareplay.environments.environment import GameEnv
from metareplay.environments.kernels import OVER
from metareplay.rl import compiled
from metareplay.rl.compiled import CompiledPlay, obstacle

Array = NDArray[Any]
GAMES: dict[str, type[CatcherEnv] | type[FlappyBirdEnv]] = {"catcher": CatcherEnv, "flappy": FlappyBirdEnv}
KINDS: dict[str, type[mr.DQN] | type[mr.DQNMER]] = {"DQN": mr.DQN, "DQNMER": mr.DQNMER}
MEMORIES: dict[str, type[mr.Recent] | type[mr.Reservoir]] = {"recent": mr.Recent, "reservoir": mr.Reservoir}


def game(name: str) -> GameEnv:
    return GAMES[name](observation="state")


def agent(name: str, kind: str = "DQNMER", memory: mr.Memory | None = None, **options: Any) -> mr.QLearner:
    """An agent that soon knows little enough to die often."""
    played = game(name).game
    model = mr.networks.mlp(played.values, (20, 16), played.actions, seed=1)
    chosen: dict[str, Any] = {"lr": 0.02, "k": 5, "warmup": 10, "target_every": 30, "epsilon_frames": 200, "seed": 4}
    return KINDS[kind](model, memory=mr.Reservoir(60) if memory is None else memory, **chosen | options)


def by_frames(learner: mr.QLearner, env: Any, frames: int, x: Array | None = None) -> Array | None:
    """Play and learn frame by frame; an episode begins with its first frame."""
    for _ in range(frames):
        x = env.reset()[0] if x is None else x
        action = learner.act(x)
        following, reward, terminated, truncated, _ = env.step(action)
        learner.observe(x, action, reward, following, terminated, truncated)
        x = None if terminated or truncated else following
    return x


def everything(learner: mr.QLearner) -> dict[str, Any]:
    """All that an agent has, as arrays and numbers."""
    table, memory = learner.table, learner.memory
    assert table is not None
    found = {f"table/{name}": v for name, v in table.gather(torch.arange(len(table))).items()}
    found |= {"theta": learner.weights.theta, **learner.objective.state(), **learner.chosen_engine.state()}
    arrays = {"writes": table.writes, "order": memory.filled, "is_filled": memory.is_filled, "rows": memory.row_of}
    numbers = {"seen": learner.seen, "episodes": learner.episodes, "held": len(memory), "offered": memory.seen}
    return {name: v.numpy().copy() for name, v in found.items()} | arrays | numbers | {"tasks": dict(memory.seen_of)}


def assert_same(one: mr.QLearner, other: mr.QLearner) -> None:
    expected, found = everything(one), everything(other)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert np.array_equal(value, found[name]), name


def joined(learner: mr.QLearner, env: GameEnv) -> CompiledPlay:
    assert obstacle(learner, env) is None
    return CompiledPlay(learner, env.game, env.game.new_state(3))


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("memory", MEMORIES)
def test_same_bits_as_frame_by_frame(name: str, kind: str, memory: str) -> None:
    one, other = (agent(name, kind, MEMORIES[memory](60)) for _ in range(2))
    env = game(name)
    by_frames(one, env, 800, env.reset(seed=3)[0])
    play = joined(other, game(name))
    for count in (1, 2, 9, 500, 288):
        play.frames(count)
    assert_same(one, other)
    assert one.episodes > 2
    assert np.array_equal(env.snapshot()["state"], play.state)


@st.composite
def options(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(list(KINDS)))
    found = {
        "kind": kind,
        "optimizer": draw(st.sampled_from(["sgd", "adam"])),
        "k": draw(st.integers(1, 9)),
        "double": draw(st.booleans()),
        "clip": draw(st.sampled_from([None, 0.1])),
        "warmup": draw(st.sampled_from([0, 20])),
        "target_every": draw(st.integers(1, 5)),
        "target_in": draw(st.sampled_from(["frames", "episodes"])),
        "reward_clip": draw(st.sampled_from([None, 1.0])),
        "epsilon_end": draw(st.sampled_from([0.0, 0.3])),
    }
    return found | ({"s": draw(st.integers(1, 3)), "beta": 0.7} if kind == "DQNMER" else {})


@settings(max_examples=20)
@given(
    name=st.sampled_from(list(GAMES)),
    chosen=options(),
    memory=st.sampled_from(list(MEMORIES)),
    capacity=st.integers(1, 40),
    cuts=st.lists(st.integers(1, 60), min_size=1, max_size=4),
)
def test_same_bits_with_any_options(
    name: str, chosen: dict[str, Any], memory: str, capacity: int, cuts: list[int]
) -> None:
    one, other = (agent(name, memory=MEMORIES[memory](capacity), **chosen) for _ in range(2))
    env = game(name)
    by_frames(one, env, sum(cuts), env.reset(seed=3)[0])
    play = joined(other, game(name))
    for count in cuts:
        play.frames(count)
    assert_same(one, other)
    assert np.array_equal(env.snapshot()["state"], play.state)


def test_same_bits_over_thousands_of_frames() -> None:
    one, other = (agent("catcher", memory=mr.Reservoir(500), optimizer="adam", lr=1e-3, k=9) for _ in range(2))
    env = game("catcher")
    by_frames(one, env, 3000, env.reset(seed=3)[0])
    joined(other, game("catcher")).frames(3000)
    assert_same(one, other)


@pytest.mark.parametrize(("name", "values"), [("catcher", (0.06, 0.2, 0.12)), ("flappy", (200, 100, 75))])
def test_tasks_switch_as_in_a_scheduled_environment(name: str, values: tuple[float, ...]) -> None:
    """Whatever the length of a task: also where the last frame of a task ends an episode."""
    for frames in range(95, 105):
        one, other = (agent(name, warmup=1000) for _ in range(2))
        env: Any = ScheduledEnv(game(name), Schedule(values, frames), game(name).game.difficulty)
        by_frames(one, env, 3 * frames, env.reset(seed=3)[0])
        first: dict[str, Any] = {game(name).game.difficulty: values[0]}
        made = GAMES[name](observation="state", **first)
        play = joined(other, made)
        assert obstacle(other, env) is None
        for value in values:
            play.frames(frames, value)
        assert_same(one, other)
        assert np.array_equal(env.unwrapped.snapshot()["state"], play.state)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_resuming_gives_the_same_bits(kind: str, optimizer: str, tmp_path: Path) -> None:
    def made() -> mr.QLearner:
        return agent("catcher", kind, optimizer=optimizer)

    whole, begun = joined(made(), game("catcher")), joined(made(), game("catcher"))
    whole.frames(400)
    begun.frames(150)
    begun.agent.save(tmp_path / "agent.ckpt")
    again = mr.load(tmp_path / "agent.ckpt", agent("catcher").model, kind=KINDS[kind])
    ended = CompiledPlay(again, begun.game, begun.state.copy())
    ended.frames(250)
    expected, found = everything(whole.agent), everything(again)
    for name in expected.keys() - {"writes"}:  # only the first run has written these rows before
        assert np.array_equal(expected[name], found[name]), name
    assert np.array_equal(whole.state, ended.state)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_ctrl_c_comes_after_the_frames_that_were_played(optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, stopped = (agent("catcher", lr=1e-3, optimizer=optimizer) for _ in range(2))
    joined(whole, game("catcher")).frames(90)
    play = joined(stopped, game("catcher"))
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "play_frames", pressing_ctrl_c(compiled.play_frames))
        with pytest.raises(KeyboardInterrupt):
            play.frames(40)
    assert stopped.seen == 40
    x = torch.rand(3, 4)
    torch.testing.assert_close(stopped.outputs(x), stopped.model(x).detach())
    play.frames(50)
    assert_same(whole, stopped)


def pressing_ctrl_c(function: Any) -> Any:
    """Return the function, during which Ctrl-C is pressed."""

    def wrapped(state: Array, frames: int, *arguments: Any) -> Any:
        found = function(state, frames, *arguments)
        if frames:  # without any it is only compiled
            signal.raise_signal(signal.SIGINT)
        return found

    return wrapped


def test_both_loops_can_take_turns() -> None:
    one, other = agent("flappy"), agent("flappy")
    env, there = game("flappy"), game("flappy")
    by_frames(one, env, 300, env.reset(seed=3)[0])
    x = by_frames(other, there, 100, there.reset(seed=3)[0])
    snapshot = there.snapshot()
    play = CompiledPlay(other, there.game, snapshot["state"])
    play.frames(100)
    there.restore(snapshot)
    x = None if play.state[OVER] == 1 else there._seen(play.state)
    by_frames(other, there, 100, x)
    assert_same(one, other)


@pytest.mark.parametrize("name", GAMES)
def test_scores_are_those_of_the_best_actions(name: str) -> None:
    play = joined(agent(name), game(name))
    play.frames(600)
    begun = np.stack([play.game.new_state(seed) for seed in range(4)])
    cap = 150
    scores, lengths = play.scores(play.agent.weights.theta, begun, cap)
    assert np.array_equal(begun[0], play.game.new_state(0))
    for seed in range(4):
        env, frames, over, info = game(name), 0, False, {"score": 0}
        x, _ = env.reset(seed=seed)
        while not over and frames < cap:
            x, _, over, _, info = env.step(int(play.agent.predict(x[None])[0]))
            frames += 1
        assert (scores[seed], lengths[seed]) == (info["score"], frames)
    assert lengths.min() < cap or scores.max() > 0


def test_a_frame_that_is_not_finite_is_undone_and_named() -> None:
    one, other = (agent("catcher", warmup=0, lr=3e38, clip=None) for _ in range(2))
    env, play = game("catcher"), joined(other, game("catcher"))
    with pytest.raises(mr.NonFiniteError) as expected:
        by_frames(one, env, 500, env.reset(seed=3)[0])
    with pytest.raises(mr.NonFiniteError) as found:
        play.frames(500)
    assert str(found.value) == str(expected.value)
    assert "example" in str(found.value)
    assert_same(one, other)
    assert np.array_equal(env.snapshot()["state"], play.state)
    assert other.seen < 500


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (CatcherEnv(), "the observations are 'pixels': use observation='state'"),
        (CatcherEnv(observation="raw"), "the observations are 'raw'"),
        (Line(), "Line is not compiled"),
        (FlappyBirdEnv(observation="state"), "the game has 8 numbers and 2 actions"),
        (gymnasium.wrappers.TimeLimit(CatcherEnv(observation="state"), 10), "the wrapper TimeLimit"),
    ],
)
def test_environments_that_cannot_be_joined(env: Any, message: str) -> None:
    assert message in str(obstacle(agent("catcher"), env))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"engine": "torch"}, "the engine is 'torch': use engine='auto'"),
        ({"optimizer": "rmsprop"}, "the compiled engine needs SGD, or Adam"),
        ({"memory": mr.Reservoir(9, rule="official")}, "use Recent, or Reservoir with rule='paper'"),
    ],
)
def test_agents_that_cannot_be_joined(change: dict[str, Any], message: str) -> None:
    env = game("catcher")
    learner = agent("catcher", **change)
    assert message in str(obstacle(learner, env))
    with pytest.raises(mr.InputError, match="cannot play in a compiled loop"):
        CompiledPlay(learner, env.game, env.game.new_state(0))


def test_bad_frames_are_refused() -> None:
    play = joined(agent("catcher"), game("catcher"))
    with pytest.raises(mr.InputError, match="count=0"):
        play.frames(0)
    with pytest.raises(mr.InputError, match="pellet_speed=-1"):
        play.frames(1, -1)
    assert play.agent.seen == 0
