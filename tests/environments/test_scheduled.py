"""An environment whose parameter changes by a schedule, in the middle of an episode, without a word."""

import re
from typing import Any

import gymnasium
import numpy as np
import pytest

from metareplay.environments import CATCHER_SPEEDS, CatcherEnv, FlappyBirdEnv, Schedule, ScheduledEnv
from metareplay.environments.scheduled import schedules
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


# Snapshots


def played(env: ScheduledEnv[Any, Any], frames: int) -> list[Any]:
    """What is seen, with the speed, in this many frames."""
    found = []
    for frame in range(frames):
        x, reward, over, *_ = env.step(frame % 3)
        found.append((x.tolist(), reward, over, env.unwrapped.pellet_speed))  # type: ignore[attr-defined]
        if over:
            env.reset()
    return found


def catcher(**options: Any) -> ScheduledEnv[Any, Any]:
    schedule = Schedule(CATCHER_SPEEDS, frames=20, order="reversed")
    return ScheduledEnv(gymnasium.make("metareplay/Catcher-v0", **options), schedule, "pellet_speed")


@pytest.mark.parametrize("observation", ["state", "pixels"])
@pytest.mark.parametrize("before", [5, 19, 20, 45])
def test_from_a_snapshot_everything_goes_on_as_before(observation: str, before: int) -> None:
    env, other = catcher(observation=observation), catcher(observation=observation)
    env.reset(seed=3)
    played(env, before)
    snapshot = env.snapshot()
    expected = played(env, 90)
    other.reset(seed=8)
    played(other, 7)
    other.restore(snapshot)
    inside = other.unwrapped
    assert isinstance(inside, CatcherEnv)
    assert np.array_equal(inside.look(), inside.look())
    assert played(other, 90) == expected
    assert other.frame == env.frame == before + 90
    assert played(other, 1) != expected[:1]


def test_what_is_observed_now_can_be_asked_for_again() -> None:
    for observation in ("state", "raw", "pixels"):
        env = CatcherEnv(observation=observation)
        with pytest.raises(InputError, match=re.escape("no episode has begun; call reset() first")):
            env.look()
        assert np.array_equal(env.reset(seed=1)[0], env.look())
        assert np.array_equal(env.step(1)[0], env.look())


def test_the_change_can_be_made_before_the_frame_is_played() -> None:
    env = catcher(observation="state")
    env.reset(seed=0)
    env.frame = 20
    env.change()
    assert env.unwrapped.pellet_speed == CATCHER_SPEEDS[4]  # type: ignore[attr-defined]
    assert env.frame == 20


def test_snapshots_that_cannot_be_used() -> None:
    env = catcher(observation="state")
    env.reset(seed=0)
    with pytest.raises(InputError, match="the snapshot is of another environment"):
        env.restore(env.unwrapped.snapshot())  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="the snapshot is of another environment"):
        env.restore({"state": np.zeros(3), "pictures": np.zeros(3), "frame": np.array(1)})
    cart = ScheduledEnv(gymnasium.make("CartPole-v1"), Schedule((9.8, 20.0)), "gravity")
    with pytest.raises(InputError, match=re.escape("TimeLimit cannot go on where it was: give it snapshot()")):
        cart.snapshot()


def test_schedules_are_found_inside_other_wrappers() -> None:
    env = catcher(observation="state")
    outside = gymnasium.wrappers.TimeLimit(env, 5)
    assert schedules(outside) == schedules(env) == [env]
    assert schedules(CatcherEnv()) == []
    twice = ScheduledEnv(env, Schedule((0.1,)), "pellet_speed")
    assert schedules(twice) == [twice, env]
