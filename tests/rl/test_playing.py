"""Ways to play: which one is taken, and that both leave agent and environment in the same state."""

from typing import Any

import numpy as np
import pytest
import torch
from small_games import Walk, walker

import metareplay as mr
from metareplay.environments import CATCHER_SPEEDS, FLAPPY_BIRD_GAPS, CatcherEnv, FlappyBirdEnv, Schedule, ScheduledEnv
from metareplay.rl.playing import Compiled, FrameByFrame, playing


def agent(inputs: int = 4, outputs: int = 3, **options: Any) -> mr.QLearner:
    chosen: dict[str, Any] = {"memory": mr.Reservoir(40), "lr": 0.02, "k": 4, "warmup": 10, "epsilon_frames": 100}
    return mr.DQNMER(mr.networks.mlp(inputs, (12,), outputs, seed=1), **chosen | options)


def world(game: str) -> ScheduledEnv[Any, Any]:
    if game == "catcher":
        return ScheduledEnv(CatcherEnv(observation="state"), Schedule(CATCHER_SPEEDS, 17), "pellet_speed")
    return ScheduledEnv(FlappyBirdEnv(observation="state"), Schedule(FLAPPY_BIRD_GAPS, 17, "reversed"), "pipe_gap")


@pytest.mark.parametrize("game", ["catcher", "flappy-bird"])
def test_both_ways_leave_the_same_state(game: str) -> None:
    sizes = (4, 3) if game == "catcher" else (8, 2)
    found: list[FrameByFrame | Compiled] = []
    for way in (FrameByFrame, Compiled):
        env = world(game)
        found.append(way(agent(*sizes), env, env.reset(seed=4)[0]))
    for frames in (1, 16, 1, 40, 5, 90):
        for one in found:
            one.play(frames)
        plain, compiled = found
        assert np.array_equal(plain.seen, compiled.seen)
        assert torch.equal(plain.agent.weights.theta, compiled.agent.weights.theta)
        assert plain.agent.episodes == compiled.agent.episodes
        snapshots = [one.env.snapshot() for one in found]  # type: ignore[attr-defined]
        assert all(np.array_equal(value, snapshots[1][name]) for name, value in snapshots[0].items())
    assert found[0].agent.seen == 153


def test_the_fastest_way_is_chosen() -> None:
    state = CatcherEnv(observation="state")
    assert isinstance(playing(agent(), state, None), Compiled)
    assert isinstance(playing(agent(engine="torch"), state, None), FrameByFrame)
    assert isinstance(playing(agent(), CatcherEnv(observation="raw"), None), FrameByFrame)
    assert isinstance(playing(walker(), Walk(), None), FrameByFrame)


def test_a_frame_that_is_not_finite_leaves_agent_and_schedule_together() -> None:
    env = world("catcher")
    way = Compiled(agent(lr=3e38, warmup=0), env, env.reset(seed=0)[0])
    with pytest.raises(mr.NonFiniteError):
        way.play(50)
    assert env.frame == way.agent.seen < 50
