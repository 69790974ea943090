"""An agent plays every task and learns nothing."""

import re
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from small_games import Walk, walker

import metareplay as mr
from metareplay.environments import CatcherEnv, Schedule, ScheduledEnv
from metareplay.errors import InputError, MetareplayError
from metareplay.rl import Evaluation, evaluation


def walked(agent: mr.QLearner, seed: int, cap: int) -> float:
    """The sum of the rewards of one episode."""
    env, total = Walk(), 0.0
    x, _ = env.reset(seed=seed)
    for _ in range(cap):
        x, reward, over, _, _ = env.step(int(agent.predict(x[None])[0]))
        total += reward
        if over:
            break
    return total


def test_without_a_score_the_rewards_are_added() -> None:
    agent = walker(lr=0.1)
    mr.rl.train(agent, Walk(), 80)
    before, seen = agent.weights.theta.clone(), agent.seen
    found = Evaluation([Walk, Walk], episodes=4, cap=12, seed=5).scores(agent)
    assert found[0] == found[1] == [walked(agent, seed, 12) for seed in range(5, 9)]
    assert len(set(found[0])) > 1
    assert torch.equal(agent.weights.theta, before)
    assert agent.seen == seen
    assert len(agent.memory) == 20


def test_an_episode_is_broken_off_or_ends_early() -> None:
    agent, frames = walker(), []

    class Noting(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            frames.append(1)
            return super().step(action)

    Evaluation([lambda: Noting(Walk(limit=3))], episodes=2, cap=50).scores(agent)
    assert len(frames) == 6
    frames.clear()
    Evaluation([lambda: Noting(Walk(limit=30))], episodes=2, cap=2).scores(agent)
    assert len(frames) == 4


def catcher(agent_options: Any = None) -> mr.QLearner:
    model = mr.networks.mlp(4, (8,), 3, seed=1)
    return mr.DQN(model, memory=mr.Recent(50), lr=0.05, k=3, warmup=5, **agent_options or {})


def test_compiled_and_frame_by_frame_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = catcher()
    mr.rl.train(agent, CatcherEnv(observation="state"), 200)
    speeds = (0.03, 0.06, 0.2)
    exam = Evaluation([lambda s=s: CatcherEnv(observation="state", pellet_speed=s) for s in speeds], 3, cap=120)  # type: ignore[misc]
    compiled = exam.scores(agent)
    monkeypatch.setattr(evaluation, "_compiled", lambda *_: None)
    assert exam.scores(agent) == compiled
    assert len({tuple(one) for one in compiled}) > 1


def test_a_task_that_changes_is_not_played_compiled() -> None:
    agent, tasks = catcher(), list[Any]()

    def changing() -> Any:
        tasks.append(ScheduledEnv(CatcherEnv(observation="state"), Schedule((0.06, 0.2), frames=2), "pellet_speed"))
        return tasks[-1]

    Evaluation([changing], episodes=1, cap=6).scores(agent)
    assert (tasks[0].frame, tasks[0].unwrapped.pellet_speed) == (6, 0.2)


class Scored(Walk):
    """Has a score, and counts how often it was closed."""

    closed = 0

    def __init__(self, score: Any = 7) -> None:
        super().__init__()
        self.score = score

    def step(self, action: int) -> Any:
        *rest, _ = super().step(action)
        return *rest, {"score": self.score}

    def close(self) -> None:
        Scored.closed += 1


def test_a_score_of_the_environment_s_own_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scored, "closed", 0)
    assert Evaluation([Scored, lambda: Scored(np.float32(1.5))], episodes=2).scores(walker()) == [[7, 7], [1.5, 1.5]]
    assert Scored.closed == 4


def unmade() -> Any:
    raise RuntimeError("no more games\ntoday")


TROUBLES: dict[str, tuple[Any, str]] = {
    "step": (lambda: Walk("step", at=2), "Walk failed in an evaluation: OSError: the floor"),
    "reset": (lambda: Walk("reset", at=0), "Walk failed in an evaluation: OSError: the door"),
    "reward": (lambda: Walk("reward", at=2), "Walk in an evaluation: the score is nan; use finite numbers"),
    "score": (lambda: Scored(np.inf), "Scored in an evaluation: the score is inf; use finite numbers"),
    "a word": (lambda: Scored("much"), "Scored failed in an evaluation: ValueError: could not convert"),
    "observation": (lambda: Walk("observation", at=2), "Scored or Walk in an evaluation: x of example 1 is not finite"),
    "shape": (
        lambda: Walk("shape", at=2),
        "Scored or Walk in an evaluation: observations have different shapes: (3,), (4,)",
    ),
    "making": (unmade, "the function of task 2 failed in an evaluation: RuntimeError: no more games"),
    "nothing": (lambda: None, "the function of task 2 failed in an evaluation: AttributeError: 'NoneType'"),
}


@pytest.mark.parametrize(("make", "message"), TROUBLES.values(), ids=TROUBLES.keys())
def test_trouble_is_one_line_and_everything_is_closed(make: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scored, "closed", 0)
    with pytest.raises(MetareplayError, match=f"^{re.escape(message)}") as caught:
        Evaluation([Scored, make], episodes=1).scores(walker())
    assert "\n" not in str(caught.value)
    assert Scored.closed >= 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tasks": []}, r"tasks=\[\]: use a list with one function for each task, which makes its environment"),
        ({"tasks": [Walk()]}, "use a list with one function for each task, which makes its environment"),
        ({"episodes": 0}, "episodes=0"),
        ({"cap": 0}, "cap=0"),
        ({"every": 0.5}, "every=0.5"),
    ],
)
def test_bad_options_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Evaluation(**{"tasks": [Walk], **change})


def test_settings_are_numbers() -> None:
    exam = Evaluation([Walk, Walk], episodes=2, cap=3, every=4, seed=5)
    assert exam.settings() == {"tasks": 2, "episodes": 2, "cap": 3, "every": 4, "seed": 5}
