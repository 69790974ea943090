"""An environment whose parameter changes by a schedule, in the middle of an episode, without a word."""

import re

import gymnasium
import numpy as np
import pytest

from metareplay.environments import CATCHER_SPEEDS, CatcherEnv, FlappyBirdEnv, Schedule, ScheduledEnv
from metareplay.errors import InputError


def test_the_parameter_changes_with_the_frame() -> None:
    inner = CatcherEnv(observation="state")
    env = ScheduledEnv(inner, Schedule(CATCHER_SPEEDS, frames=40, order="reversed"), "pellet_speed")
    env.reset(seed=0)
    for frame in range(300):
        assert env.frame == frame
        _, _, over, _, info = env.step(frame % 3)
        assert inner.pellet_speed == CATCHER_SPEEDS[5 - min(frame // 40, 5)]
        assert info.keys() == {"score"}
        if over:
            env.reset()


def test_an_episode_that_begins_with_a_task_has_its_value() -> None:
    env = ScheduledEnv(FlappyBirdEnv(observation="raw"), Schedule((100, 75), frames=5), "pipe_gap")
    env.reset(seed=0)
    for _ in range(5):
        env.step(1)
    seen, _ = env.reset()
    assert seen[4] - seen[3] == 75


def test_a_run_can_go_on_in_the_middle() -> None:
    inner = CatcherEnv()
    env = ScheduledEnv(inner, Schedule(CATCHER_SPEEDS), "pellet_speed", start=60_000)
    env.reset(seed=0)
    assert inner.pellet_speed == CATCHER_SPEEDS[2]


def test_any_environment_with_an_attribute_will_do() -> None:
    env = ScheduledEnv(gymnasium.make("CartPole-v1"), Schedule((9.8, 20.0), frames=3), "gravity")
    env.reset(seed=0)
    gravities = []
    for _ in range(5):
        env.step(np.int64(0))
        gravities.append(vars(env.unwrapped)["gravity"])
    assert gravities == [9.8, 9.8, 9.8, 20, 20]


def test_bad_arguments_are_refused() -> None:
    schedule = Schedule((1, 2))
    with pytest.raises(InputError, match=re.escape("parameter='speed': CatcherEnv has no such attribute")):
        ScheduledEnv(CatcherEnv(), schedule, "speed")
    with pytest.raises(InputError, match="start=-1: use a whole number of at least 0"):
        ScheduledEnv(CatcherEnv(), schedule, "pellet_speed", start=-1)
