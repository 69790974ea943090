"""Training on any Gymnasium environment, bad environments, and runs that are killed and go on."""

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from small_games import KINDS, Walk, result, save_always, small_game, small_pixels, walker

import metareplay as mr
from metareplay._core.archive import read_archive, write_archive
from metareplay.environments import CATCHER_SPEEDS, CatcherEnv, Schedule, ScheduledEnv
from metareplay.errors import InputError, MetareplayError
from metareplay.rl import Evaluation, GameExperiment, GameRecord, Training, evaluation, playing, training
from metareplay.rl.playing import Compiled, FrameByFrame
from metareplay.runners import Threads, threads

# Any environment


def cart_pole(kind: str) -> mr.QLearner:
    chosen: dict[str, Any] = {"lr": 3e-3, "k": 32} if kind == "DQN" else {"lr": 3e-4, "k": 17, "gamma": 1.0}
    chosen |= {"optimizer": "adam", "warmup": 50, "epsilon_frames": 400, "epsilon_end": 0.05, "target_every": 50}
    return KINDS[kind](mr.networks.mlp(4, (32,), 2, seed=1), memory=mr.Recent(2000), seed=1, **chosen)


@pytest.mark.parametrize("kind", KINDS)
def test_cart_pole_is_learned_a_little(kind: str) -> None:
    agent = cart_pole(kind)
    exam = Evaluation([lambda: gymnasium.make("CartPole-v1")], episodes=5, cap=200, every=1000, seed=9)
    record = mr.rl.train(agent, gymnasium.make("CartPole-v1"), 2000, evaluation=exam)
    assert record.frames == [0, 1000, 2000]
    assert record.game["game"] == "CartPole-v1"
    assert record.means.shape == (3, 1)
    assert record.means[1:].max() > 2 * record.means[0, 0]  # it falls at once before it has learned anything
    assert (agent.seen, record.learner) == (2000, kind)
    assert record.episodes == agent.episodes > 10


def test_without_evaluation_there_is_still_a_record(tmp_path: Path) -> None:
    record = mr.rl.train(walker(), Walk(), 60)
    assert (record.frames, record.scores, record.game["game"]) == ([], [], "Walk")
    assert GameRecord.read(record.write(tmp_path)) == record


def test_a_time_limit_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[bool, bool]] = []
    observe = mr.DQN.observe

    def note(self: mr.DQN, *given: Any) -> None:
        told.append((given[4], given[5]))
        observe(self, *given)

    monkeypatch.setattr(mr.DQN, "observe", note)
    agent = cart_pole("DQN")
    mr.rl.train(agent, gymnasium.make("CartPole-v1", max_episode_steps=5), 60)
    assert told.count((False, True)) == 12  # a pole does not fall within 5 frames
    assert agent.episodes == 12
    assert not agent.memory.held()["over"].any()  # so that each of them expects what follows


def test_everything_that_gymnasium_makes_of_our_games_is_played_in_the_same_way() -> None:
    def play(env: gymnasium.Env[Any, Any]) -> str:
        agent = mr.DQN(mr.networks.mlp(4, (8,), 3, seed=1), memory=mr.Recent(50), lr=0.01, k=3, warmup=10)
        return mr.rl.train(agent, env, 90).weights

    schedule = Schedule(CATCHER_SPEEDS, frames=15)
    plain = CatcherEnv(observation="state")
    made = gymnasium.make("metareplay/Catcher-v0", observation="state")
    found = {
        play(ScheduledEnv(plain, schedule, "pellet_speed")),
        play(ScheduledEnv(made, schedule, "pellet_speed")),
        play(gymnasium.wrappers.PassiveEnvChecker(ScheduledEnv(plain, schedule, "pellet_speed"))),
    }
    assert len(found) == 1
    assert play(CatcherEnv(observation="state", pellet_speed=CATCHER_SPEEDS[0])) not in found


# Bad environments


def other_spaces(**spaces: Any) -> Walk:
    env = Walk()
    for name, space in spaces.items():
        setattr(env, name, space)
    return env


BOX = gymnasium.spaces.Box(-1, 1, (3,))
SPACES: dict[str, tuple[Any, str]] = {
    "continuous actions": (other_spaces(action_space=BOX), "Walk has the action space Box(-1.0, 1.0, (3,), float32)"),
    "a first action of 1": (
        other_spaces(action_space=gymnasium.spaces.Discrete(3, start=1)),
        "Walk has the action space Discrete(3, start=1): use one with discrete actions 0, 1, 2, ...",
    ),
    "a dictionary": (
        other_spaces(observation_space=gymnasium.spaces.Dict({"x": BOX})),
        "Walk has the observation space Dict('x': Box(-1.0, 1.0, (3,), float32)): use one of arrays (a Box)",
    ),
    "a number": (
        other_spaces(observation_space=gymnasium.spaces.Discrete(5)),
        "Walk has the observation space Discrete(5): use one of arrays (a Box)",
    ),
    "not an environment": ("CartPole-v1", "env is a str: use a Gymnasium environment"),
    "a class": (Walk, "env is a type: use a Gymnasium environment"),
}


@pytest.mark.parametrize(("env", "message"), SPACES.values(), ids=SPACES.keys())
def test_environments_that_cannot_be_played_are_refused(env: Any, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        mr.rl.train(walker(), env, 10)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("outputs", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_the_model_must_have_one_output_per_action(kind: str, outputs: int) -> None:
    agent = walker(kind, outputs)
    message = f"Walk has 3 actions, but the model's outputs have shape ({outputs},): use a model with one output per"
    with pytest.raises(InputError, match=re.escape(message)):
        mr.rl.train(agent, Walk(), 10)
    assert agent.seen == 0


def test_the_model_must_take_the_observations() -> None:
    agent = mr.DQN(mr.networks.mlp(5, (8,), 3), memory=mr.Recent(5))
    with pytest.raises(InputError, match=r"^Walk when reset: the model cannot take inputs of shape \(1, 3\)"):
        mr.rl.train(agent, Walk(), 10)


TROUBLES = {
    "reward": (InputError, "Walk at frame 30: reward nan: use a finite number"),
    "observation": (InputError, "Walk at frame 30: x of example 0 is not finite (NaN or infinity)"),
    "shape": (InputError, "Walk at frame 30: next_x has shape (4,) and dtype torch.float32; x has (3,)"),
    "step": (MetareplayError, "Walk failed at frame 30: OSError: the floor"),
    "reset": (MetareplayError, "Walk failed when reset after frame "),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_trouble_in_the_middle_is_one_line_and_nothing_learned_is_lost(
    trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_always(monkeypatch)
    kind, message = TROUBLES[trouble]
    agent, path = walker(), tmp_path / "run.ckpt"
    with pytest.raises(kind, match=f"^{re.escape(message)}") as caught:
        mr.rl.train(agent, Walk(trouble), 100, checkpoint=path)
    assert "\n" not in str(caught.value)
    if trouble == "reset":  # the episode that was running at frame 30 has ended
        assert str(caught.value).startswith(f"{message}{agent.seen - 1}: OSError: the door")
    else:
        assert agent.seen == 30
    before = walker()
    for _ in (work := Training(before, Walk(), 100)).steps():  # the same frames without trouble
        if before.seen + work._chunk > agent.seen:
            work._playing.play(agent.seen - before.seen)  # type: ignore[union-attr]
            break
    assert torch.equal(agent.weights.theta, before.weights.theta)
    again = mr.rl.train(walker(), Walk(), 100, checkpoint=path)  # from the last save
    assert result(again) == result(mr.rl.train(walker(), Walk(), 100))


def test_a_reset_that_fails_at_once() -> None:
    with pytest.raises(MetareplayError, match=r"^Walk failed when reset: OSError: the door$"):
        mr.rl.train(walker(), Walk("reset", at=0), 10)


def test_ctrl_c_in_an_environment_stays_ctrl_c() -> None:
    agent = walker()
    with pytest.raises(KeyboardInterrupt):
        mr.rl.train(agent, Walk("interrupt"), 100)
    assert agent.seen == 30


def test_numbers_that_are_not_finite_are_named_as_such() -> None:
    with pytest.raises(mr.NonFiniteError, match="use a smaller lr or set clip"):
        mr.rl.train(walker(lr=1e38), Walk(), 100)


@pytest.mark.parametrize("frames", [0, -1, 1.5])
def test_frames_are_a_whole_number(frames: Any) -> None:
    with pytest.raises(InputError, match=f"frames={frames}"):
        mr.rl.train(walker(), Walk(), frames)


def test_an_agent_that_has_learned_is_refused() -> None:
    agent = walker()
    mr.rl.train(agent, Walk(), 12)
    with pytest.raises(InputError, match="this agent has already seen 12 frames: give train a new one"):
        mr.rl.train(agent, Walk(), 12)


# Killed and continued


def test_an_environment_without_snapshots_has_no_checkpoint(tmp_path: Path) -> None:
    for env, name in (
        (gymnasium.make("CartPole-v1"), "TimeLimit"),
        (gymnasium.make("metareplay/Catcher-v0", observation="state", max_episode_steps=9), "TimeLimit"),
    ):
        agent = mr.DQN(mr.networks.mlp(4, (8,), env.action_space.n), memory=mr.Recent(5))  # type: ignore[attr-defined]
        with pytest.raises(InputError, match=rf"{name} cannot go on where it was: give it snapshot\(\)"):
            mr.rl.train(agent, env, 10, checkpoint=tmp_path / "run.ckpt")


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    mr.rl.train(walker(), Walk(), 20, checkpoint=path)
    with pytest.raises(mr.CheckpointError, match=r"total_frames=20, not 30"):
        mr.rl.train(walker(), Walk(), 30, checkpoint=path)
    with pytest.raises(mr.CheckpointError, match=r"lr=0.01, not 0.02"):
        mr.rl.train(walker(lr=0.02), Walk(), 20, checkpoint=path)
    walker().save(path)
    with pytest.raises(mr.CheckpointError, match="holds a learner, not a run"):
        mr.rl.train(walker(), Walk(), 20, checkpoint=path)
    path.write_bytes(b"damaged")
    with pytest.raises(mr.CheckpointError, match="is damaged or not a metareplay checkpoint"):
        mr.rl.train(walker(), Walk(), 20, checkpoint=path)


def without(name: str, change: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    """Return what replaces one of the values that a run saves."""

    def spoil(extra: dict[str, Any], _measured: dict[str, Any]) -> None:
        extra["run"][name] = change

    return spoil


WRONG_STATES: dict[str, Callable[[dict[str, Any], dict[str, Any]], object]] = {
    "no run": lambda extra, _: extra.pop("run"),
    "scores in words": without("scores", "good ones"),
    "scores of other tasks": without("scores", [[[1.0], [2.0]]]),
    "a score that is none": without("scores", [[[None]], [[1.0]]]),
    "one score too few": without("scores", []),
    "frames in words": without("at", ["soon"]),
    "times in words": without("seconds", {"learn": "long", "evaluate": 0.0}),
    "nothing observed": lambda _, measured: measured.pop("run/seen"),
    "something else observed": lambda _, measured: measured.update({"run/seen": torch.zeros(9)}),
    "no world": lambda _, measured: measured.pop("run/world.state"),
    "another world": lambda _, measured: measured.update({"run/world.state": torch.zeros(3)}),
    "a world of whole numbers": lambda _, measured: measured.update(
        {"run/world.state": measured["run/world.state"].long()}
    ),
}


@pytest.mark.parametrize("spoil", WRONG_STATES.values(), ids=WRONG_STATES.keys())
def test_a_state_that_no_run_has_is_refused_and_the_agent_stays(
    spoil: Callable[[dict[str, Any], dict[str, Any]], object], tmp_path: Path
) -> None:
    path, exam = tmp_path / "run.ckpt", Evaluation([lambda: CatcherEnv(observation="state")], episodes=1, cap=3)

    def begun() -> Training:
        agent = mr.DQN(mr.networks.mlp(4, (3,), 3, seed=0), memory=mr.Recent(4), k=2, warmup=0)
        return Training(agent, CatcherEnv(observation="state"), 8, evaluation=exam, checkpoint=path)

    for _ in begun().steps():
        pass
    about, tensors = read_archive(path)
    spoil(about["extra"], tensors)
    write_archive(path, about, tensors)
    again = begun()
    before = again.agent.weights.theta.clone()
    with pytest.raises(mr.CheckpointError, match=r"start again \(--fresh\)"):
        next(again.steps())
    assert again.agent.seen == 0
    assert torch.equal(again.agent.weights.theta, before)


def killed(experiment: GameExperiment, path: Path, after: int) -> bool:
    """Start or continue a run and forget it after this many steps; return whether it had ended before."""
    return all(step != after for step, _ in enumerate(experiment.start(path).steps(), 1))


def continued(experiment: GameExperiment, path: Path) -> dict[str, Any]:
    work = experiment.start(path)
    for _ in work.steps():
        pass
    return result(work.record())


CHANGES: dict[str, dict[str, Any]] = {
    "published": {},
    "reversed": {"order": "reversed", "learner": "dqn"},
    "shuffled": {"order": "shuffled", "game": "flappy-bird", "seed": 4},
    "adam": {"learner": "dqn", "memory_kind": "reservoir", "options": {"optimizer": "adam", "double": True}},
    "torch": {"engine": "torch", "order": "reversed"},
    "alone": {"task": 3},
}


@pytest.mark.parametrize("name", CHANGES)
def test_killed_after_any_step_the_record_is_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks end between evaluations and changes of the task, which come every 35 and every 20 frames."""
    experiment = small_game(**CHANGES[name])
    expected = continued(experiment, tmp_path / "whole.ckpt")
    save_always(monkeypatch)
    ended, cut = False, 0
    while not ended:
        cut += 3 if name == "torch" else 1
        path = tmp_path / f"{cut}.ckpt"
        ended = killed(experiment, path, cut)
        assert continued(experiment, path) == expected
    assert cut > 4


def test_killed_again_and_again_the_record_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = small_game(options={"target_in": "episodes", "target_every": 1})
    expected = continued(experiment, tmp_path / "whole.ckpt")
    save_always(monkeypatch)
    while not killed(experiment, tmp_path / "run.ckpt", after=2):
        pass
    assert continued(experiment, tmp_path / "run.ckpt") == expected


@pytest.mark.parametrize("order", ["published", "reversed", "shuffled"])
def test_killed_while_learning_from_pictures(order: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = small_pixels(order=order, seed=2, learner="dqn" if order == "reversed" else "dqn-mer")
    expected = continued(experiment, tmp_path / "whole.ckpt")
    assert expected["engine"] == "torch"
    save_always(monkeypatch)
    for cut in (2, 5):
        path = tmp_path / f"{cut}.ckpt"
        assert not killed(experiment, path, cut)
        assert continued(experiment, path) == expected


def test_between_saves_a_run_goes_on_from_the_last(tmp_path: Path) -> None:
    """Only the beginning has been saved when it is killed."""
    experiment, path = small_game(), tmp_path / "run.ckpt"
    killed(experiment, path, 5)
    work = experiment.start(path)
    next(steps := work.steps())
    assert work.agent.seen == 0
    for _ in steps:
        pass
    assert result(work.record()) == continued(experiment, tmp_path / "whole.ckpt")


def test_interrupted_in_the_runner_and_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()

    def ctrl_c(works: list[object]) -> None:
        del works
        asked.wait(20)
        raise KeyboardInterrupt

    steps = Training.steps

    def slow_steps(self: Training) -> Iterator[Any]:
        for step in steps(self):
            if step.seen > 30:
                asked.set()
                threading.Event().wait(0.05)
            yield step

    given = [small_game(seed=seed, order="shuffled") for seed in range(2)]
    with monkeypatch.context() as patched:
        patched.setattr(threads, "_next", ctrl_c)
        patched.setattr(Training, "steps", slow_steps)
        with pytest.raises(KeyboardInterrupt):
            Threads(2).run(given, tmp_path)
    assert list(tmp_path.glob(".*.ckpt"))
    found = Threads(2).run(given, tmp_path)
    expected = Threads(1).run(given, tmp_path / "again")
    assert [result(one) for one in found if isinstance(one, GameRecord)] == [
        result(one) for one in expected if isinstance(one, GameRecord)
    ]
    assert len(list(tmp_path.glob("*.agent"))) == 2
    assert not list(tmp_path.glob(".*"))


# Compiled and frame by frame


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "torch"])
def test_the_compiled_way_and_frame_by_frame_give_the_same_record(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    experiment = small_game(**CHANGES[name], engine="cpu")
    work = experiment.start()
    assert isinstance(playing.playing(work.agent, work.env, None), Compiled)
    compiled = continued(experiment, tmp_path / "one.ckpt")
    assert compiled["engine"] == "cpu"
    monkeypatch.setattr(training, "playing", FrameByFrame)
    monkeypatch.setattr(evaluation, "_compiled", lambda *_: None)
    assert continued(experiment, tmp_path / "other.ckpt") == compiled


def test_a_run_can_be_killed_in_one_way_and_continued_in_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = small_game(game="flappy-bird")
    expected = continued(experiment, tmp_path / "whole.ckpt")
    save_always(monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(training, "playing", FrameByFrame)
        killed(experiment, tmp_path / "run.ckpt", 6)
    assert continued(experiment, tmp_path / "run.ckpt") == expected


def test_progress_is_shown_with_the_latest_scores() -> None:
    work = small_game().start()
    seen = list(work.steps())
    assert [one.seen for one in seen] == sorted(one.seen for one in seen)
    assert {one.total for one in seen} == {120}
    assert (seen[0].doing, seen[0].remark) == ("evaluating", "")
    assert seen[-1].remark.startswith("scores ")
    assert len(seen[-1].remark.split()) == 7
    assert (work.tasks, work.trained) == (6, work.agent)
    assert work.record().frames == [0, 35, 70, 105, 120]
    assert np.isfinite(work.record().means).all()
