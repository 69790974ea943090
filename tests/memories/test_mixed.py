"""The memory that is part recent and part reservoir."""

from collections import Counter

import numpy as np
import pytest

import metareplay as mr


def test_one_part_is_recent_and_the_other_is_a_uniform_sample() -> None:
    counts: Counter[int] = Counter()
    for seed in range(300):
        memory, tasks = mr.Mixed(20, recent=0.5), np.zeros(100, np.int64)
        memory.keep(memory.place(mr.Draws(seed), tasks), tasks)
        numbers = memory.numbers()
        assert (numbers[:10] >= 50).all()  # a slot is passed over when its example goes to the other part
        counts.update(numbers[10:].tolist())
    shares = np.array([counts[number] for number in range(100)])
    assert (abs(shares - 30) < 5 * 30**0.5).all()


@pytest.mark.parametrize("recent", [0, 1, -0.5, 2, 0.01, "half"])
def test_both_parts_need_a_slot(recent: float) -> None:
    with pytest.raises(mr.InputError, match="recent="):
        mr.Mixed(10, recent=recent)
