"""The class-balanced memory."""

from collections import Counter
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import metareplay as mr


def test_rare_classes_get_their_share() -> None:
    """With 3 % positives, half of the memory holds them."""
    ys = (torch.rand(3000, generator=torch.Generator().manual_seed(0)) < 0.03).long()
    learner = mr.ER(mr.networks.mlp(2, (4,), 2), memory=mr.Balanced(50), k=2)
    learner.store(torch.zeros(3000, 2), ys)
    assert learner.memory.class_counts() == {0: 25, 1: 25}


@given(tasks=st.lists(st.integers(0, 3), max_size=80), capacity=st.integers(1, 12), chunk=st.integers(1, 80))
def test_classes_are_as_equal_as_the_stream_allows(tasks: list[int], capacity: int, chunk: int) -> None:
    memory, held = mr.Balanced(capacity, by="task"), dict[int, int]()
    for start in range(0, len(tasks), chunk):
        some = np.array(tasks[start : start + chunk], np.int64)
        slots = memory.place(mr.Draws(1), some)
        memory.keep(slots, some)
        held |= {int(slot): int(task) for slot, task in zip(slots, some, strict=True) if slot >= 0}
    seen, counts = Counter(tasks), Counter(held.values())
    assert len(held) == len(memory) == min(capacity, len(tasks))
    most = max(counts.values(), default=0)
    for task, count in seen.items():
        assert counts[task] == count or counts[task] >= most - 1


def test_each_class_is_a_uniform_sample() -> None:
    counts: Counter[int] = Counter()
    labels = np.array([0] * 30 + [1] * 10 + [0] * 20)
    for seed in range(400):
        memory = mr.Balanced(10, by="task")
        memory.keep(memory.place(mr.Draws(seed), labels), labels)
        counts.update(memory.numbers().tolist())
    for label in (0, 1):
        of_label = np.array([counts[int(number)] for number in np.flatnonzero(labels == label)])
        expected = 400 * 5 / len(of_label)
        assert (abs(of_label - expected) < 5 * expected**0.5).all()


def test_it_needs_labels() -> None:
    learner = mr.ER(mr.networks.mlp(2, (4,), 1), memory=mr.Balanced(5), regression=True)
    with pytest.raises(mr.InputError, match="Balanced needs class labels"):
        learner.observe_many(torch.rand(3, 2), torch.rand(3))
    with pytest.raises(mr.InputError, match="by='x'"):
        mr.Balanced(5, by="x")  # type: ignore[arg-type]


def test_a_copy_has_lists_of_its_own(tmp_path: Path) -> None:
    """Learning on with the original changes nothing in the copy, whose ranks are drawn by its own learner."""
    rng = np.random.default_rng(0)
    xs, ys = torch.from_numpy(rng.random((200, 4))).float(), torch.from_numpy(rng.choice(3, 200, p=[0.8, 0.1, 0.1]))

    def er(memory: mr.Memory, seed: int) -> mr.ER:
        return mr.ER(mr.networks.mlp(4, (4,), 3, seed=0), memory=memory, k=3, seed=seed)

    first = er(mr.Balanced(10), 0)
    first.observe_many(xs[:60], ys[:60])
    heirs = [er(first.memory.copy(), 7), er(deepcopy(first.memory.copy()), 7), er(first.memory.copy(), 7)]
    heirs[2].observe_many(xs[:1], ys[:1])
    heirs[2].save(tmp_path / "heir.ckpt")
    first.observe_many(xs[60:100], ys[60:100])
    loaded = mr.load(tmp_path / "heir.ckpt", mr.networks.mlp(4, (4,), 3), kind=mr.ER)
    for heir in heirs[:2]:
        heir.observe_many(xs[:1], ys[:1])
    for heir in (*heirs, loaded):
        heir.observe_many(xs[100:], ys[100:])
        assert np.array_equal(heir.memory.numbers(), heirs[0].memory.numbers())
        assert max(heir.memory.class_counts().values()) <= 4
