"""Learn tasks with different numbers of classes by one network that has an output layer for each task.

Run it with: python examples/several_heads.py
"""

import torch
from torch import Tensor

import metareplay as mr

CLASSES = (2, 3, 5)  # of tasks 0, 1 and 2
INPUTS = 10


def examples(task: int, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw points around one centre per class; every task has centres of its own."""
    centres = torch.randn(CLASSES[task], INPUTS, generator=torch.Generator().manual_seed(task))
    generator = torch.Generator().manual_seed(100 + seed)
    ys = torch.randint(CLASSES[task], (count,), generator=generator)
    return centres[ys] + 0.7 * torch.randn(count, INPUTS, generator=generator), ys


def main() -> None:
    """Learn the tasks one after another, then test all of them."""
    body = mr.networks.mlp(INPUTS, (32,), 16, seed=0)
    model = mr.networks.MultiHead(body, features=16, classes=CLASSES, seed=1)
    learner = mr.MER(model, memory=mr.Reservoir(40), lr=0.05, beta=0.3, s=2, k=5)
    for task in range(len(CLASSES)):
        learner.observe_many(*examples(task, 80, seed=0), task=task)
        print(f"learned task {task}: the memory holds {len(learner.memory)} of {learner.memory.seen} examples")
    for task, classes in enumerate(CLASSES):
        xs, ys = examples(task, 500, seed=1)
        share = (learner.predict(xs, task=task) == ys).float().mean()
        print(f"task {task}, {classes} classes: {share:.1%} right, by chance {1 / classes:.1%}")


if __name__ == "__main__":
    main()
