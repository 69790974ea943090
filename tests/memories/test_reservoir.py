from typing import Literal

import numpy as np
import pytest
from scipy import stats

import metareplay as mr
from metareplay._core.draws import Draws

Rule = Literal["paper", "official"]


def held_after(count: int, capacity: int, seed: int, rule: Rule = "paper") -> list[int]:
    slots = mr.Reservoir(capacity, rule).place(Draws(seed), np.zeros(count, np.int64))
    held = [-1] * capacity
    for number, slot in enumerate(slots.tolist()):
        if slot >= 0:
            held[slot] = number
    return held


@pytest.mark.parametrize("count", [11, 20, 57, 300])
def test_every_example_is_held_equally_often(count: int) -> None:
    """Each of N examples with probability M / N, over many seeds."""
    capacity, seeds = 10, 3000
    times = np.zeros(count)
    for seed in range(seeds):
        times[held_after(count, capacity, seed)] += 1
    assert times.sum() == capacity * seeds
    assert stats.chisquare(times).pvalue > 1e-4


def test_every_slot_gets_every_example_equally_often() -> None:
    """Draws from the memory are by slot: the newest example is as likely in one slot as in another."""
    times = np.zeros(10)
    for seed in range(6000):
        held = held_after(40, 10, seed)
        if 39 in held:
            times[held.index(39)] += 1
    assert stats.chisquare(times).pvalue > 1e-4


@pytest.mark.parametrize(("rule", "probability"), [("paper", 10 / 12), ("official", 10 / 13)])
def test_the_two_rules_keep_the_twelfth_example_as_often_as_they_say(rule: Rule, probability: float) -> None:
    kept = sum(mr.Reservoir(10, rule).place(Draws(seed), np.zeros(12, np.int64))[-1] >= 0 for seed in range(4000))
    assert stats.binomtest(int(kept), 4000, probability).pvalue > 1e-4


def test_deterministic_given_the_seed() -> None:
    assert held_after(500, 10, seed=3) == held_after(500, 10, seed=3) != held_after(500, 10, seed=4)


def test_unknown_rule() -> None:
    with pytest.raises(mr.InputError, match="'paper' or 'official'"):
        mr.Reservoir(5, rule="other")  # type: ignore[arg-type]
