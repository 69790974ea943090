import numpy as np
import pytest
import torch

import metareplay as mr


def test_holds_the_last_examples_of_each_task() -> None:
    memory = mr.Ring(6, tasks=2)
    learner = mr.ER(mr.networks.mlp(2, (3,), 2), memory=memory, k=2)
    xs = torch.arange(10, dtype=torch.uint8)[:, None].repeat(1, 2)
    learner.observe_many(xs, torch.zeros(10, dtype=torch.int64), torch.tensor([0] * 8 + [1] * 2))
    assert sorted(memory.examples().xs[:, 0].tolist()) == [5, 6, 7, 8, 9]
    assert memory.tasks().tolist() == [0, 0, 0, 1, 1]
    assert [group.tolist() for group in memory.groups(task=1)] == [[0, 1, 2]]
    assert [group.tolist() for group in memory.groups(task=0)] == [[3, 4]]
    assert [group.tolist() for group in memory.groups(task=5)] == [[0, 1, 2], [3, 4]]


def test_tasks_it_was_not_made_for_are_refused_before_anything_is_learned() -> None:
    learner = mr.ER(mr.networks.mlp(2, (3,), 2), memory=mr.Ring(6, tasks=2), k=2)
    before = learner.weights.theta.clone()
    with pytest.raises(mr.InputError, match="task 2: the memory was made for tasks 0 to 1"):
        learner.observe_many(torch.rand(600, 2), torch.zeros(600, dtype=torch.int64), np.arange(600) // 200)
    assert torch.equal(learner.weights.theta, before)
    assert learner.seen == 0


@pytest.mark.parametrize("tasks", [0, 7])
def test_needs_a_slot_for_each_task(tasks: int) -> None:
    with pytest.raises(mr.InputError, match="at least one slot per task"):
        mr.Ring(6, tasks=tasks)
