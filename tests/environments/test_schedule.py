"""Schedules: which value holds at which frame."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metareplay.environments import CATCHER_SPEEDS, CATCHER_SPEEDS_640, FLAPPY_BIRD_GAPS, Schedule
from metareplay.errors import InputError


def test_the_papers_tasks() -> None:
    assert pytest.approx([0.0608 + 0.03 * task for task in range(6)]) == CATCHER_SPEEDS
    assert pytest.approx([0.608 + 0.03 * task for task in range(6)]) == CATCHER_SPEEDS_640
    assert tuple(range(100, 74, -5)) == FLAPPY_BIRD_GAPS
    schedule = Schedule(CATCHER_SPEEDS)
    assert schedule.total == 150_000
    assert schedule.switches == (25_000, 50_000, 75_000, 100_000, 125_000)


@given(tasks=st.integers(1, 8), frames=st.integers(1, 50), seed=st.integers(0, 1000))
def test_every_value_holds_for_the_same_time(tasks: int, frames: int, seed: int) -> None:
    values = [f"value {task}" for task in range(tasks)]
    for order in ("published", "reversed", "shuffled"):
        schedule = Schedule(values, frames, order, seed)
        shown = [schedule.value(frame) for frame in range(schedule.total)]
        assert all(shown.count(value) == frames for value in values)
        assert [frame for frame in range(1, len(shown)) if shown[frame] != shown[frame - 1]] == list(schedule.switches)
        assert [values.index(shown[frame]) for frame in (0, *schedule.switches)] == list(schedule.tasks)
        assert schedule.value(schedule.total + 5) == shown[-1]


def test_orders() -> None:
    assert Schedule(["a", "b", "c"], order="reversed").tasks == (2, 1, 0)
    found = {Schedule(CATCHER_SPEEDS, order="shuffled", seed=seed).tasks for seed in range(20)}
    assert len(found) > 15
    assert Schedule(CATCHER_SPEEDS, order="shuffled", seed=7).tasks in found


def test_values_cannot_be_changed_afterwards() -> None:
    values = [1, 2]
    schedule = Schedule(values)
    values[0] = 3
    assert schedule.value(0) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"values": ()}, "values=(): use a list with the value of each task"),
        ({"values": 3}, "values=3: use a list with the value of each task"),
        ({"frames": 0}, "frames=0: every value holds for at least one frame; use frames >= 1"),
        ({"order": "random"}, "order='random': use one of 'published', 'reversed', or 'shuffled'"),
        ({"seed": -1}, "seed=-1: use a whole number of at least 0"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        Schedule(**({"values": (1, 2)} | options))


def test_a_frame_must_be_a_number() -> None:
    with pytest.raises(InputError, match="frame=-1: the first frame has the number 0"):
        Schedule((1, 2)).value(-1)
