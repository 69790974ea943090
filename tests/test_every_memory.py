"""Checks that every memory must pass."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import metareplay as mr
from metareplay._core.draws import Draws

MEMORIES: dict[str, Callable[[], mr.Memory]] = {
    "reservoir": lambda: mr.Reservoir(8),
    "reservoir-official": lambda: mr.Reservoir(8, rule="official"),
    "recent": lambda: mr.Recent(8),
    "mixed": lambda: mr.Mixed(8, recent=0.4),
    "balanced-by-task": lambda: mr.Balanced(8, by="task"),
    "ring": lambda: mr.Ring(8, tasks=3),
}
every = pytest.mark.parametrize("make", MEMORIES.values(), ids=MEMORIES.keys())
TASKS = np.arange(60) // 20


def fill(memory: mr.Memory, count: int, chunk: int) -> list[int]:
    slots = []
    for start in range(0, count, chunk):
        tasks = TASKS[start : min(start + chunk, count)]
        placed = memory.place(Draws(4), tasks)
        memory.keep(placed, tasks)
        slots += placed.tolist()
    return slots


@every
def test_placing_is_pure_and_does_not_depend_on_chunks(make: Callable[[], mr.Memory]) -> None:
    memory = make()
    assert np.array_equal(memory.place(Draws(4), TASKS), memory.place(Draws(4), TASKS))
    assert memory.seen == 0
    assert fill(make(), 60, 1) == fill(make(), 60, 7) == fill(make(), 60, 60)


@every
def test_counts_and_bounds(make: Callable[[], mr.Memory]) -> None:
    memory = make()
    slots = fill(memory, 60, 7)
    assert memory.seen == 60
    assert memory.seen_of == {0: 20, 1: 20, 2: 20}
    assert len(memory) == len({slot for slot in slots if slot >= 0}) <= memory.capacity
    assert all(-1 <= slot < memory.capacity for slot in slots)


@every
def test_what_a_learner_stores_can_be_inspected_and_exported(make: Callable[[], mr.Memory], tmp_path: Path) -> None:
    memory = make()
    with pytest.raises(mr.InputError, match="empty"):
        memory.examples()
    xs = torch.arange(60, dtype=torch.uint8)[:, None].repeat(1, 3)
    ys = torch.arange(60) % 4
    learner = mr.ER(mr.networks.mlp(3, (4,), 4), memory=memory, lr=0.01, k=3)
    learner.observe_many(xs, ys, TASKS)
    held = memory.examples()
    assert held.xs.dtype == torch.uint8
    numbers = held.xs[:, 0].long()
    assert torch.equal(held.ys, ys[numbers])
    assert np.array_equal(memory.tasks(), TASKS[numbers.numpy()])
    expected = dict(enumerate([-1] * memory.capacity))
    expected |= {slot: number for number, slot in enumerate(make().place(learner.draws, TASKS).tolist()) if slot >= 0}
    assert numbers.tolist() == [number for _, number in sorted(expected.items()) if number >= 0]
    memory.export(tmp_path / "held.npz")
    with np.load(tmp_path / "held.npz", allow_pickle=False) as archive:
        assert np.array_equal(archive["xs"], held.xs.numpy())
        assert int(archive["seen"]) == 60


@every
def test_one_memory_for_two_learners_is_refused(make: Callable[[], mr.Memory]) -> None:
    memory = make()
    mr.ER(mr.networks.mlp(3, (4,), 4), memory=memory)
    with pytest.raises(mr.InputError, match="another learner"):
        mr.ER(mr.networks.mlp(3, (4,), 4), memory=memory)


@pytest.mark.parametrize("capacity", [0, -3])
@pytest.mark.parametrize("kind", [mr.Reservoir, mr.Recent])
def test_a_memory_holds_at_least_one_example(kind: Callable[[int], mr.Memory], capacity: int) -> None:
    with pytest.raises(mr.InputError, match="at least one example"):
        kind(capacity)
