"""Learn tasks with different numbers of classes.

One network has an output layer for each task: 2 classes in the first task, 3 in the second, 5 in the third. What the
tasks share is in the layers below.

Run it with: python examples/several_heads.py
"""

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import metareplay as mr

# %%
# Every task has points around centres of its own, one centre for each class.

CLASSES = (2, 3, 5)  # of tasks 0, 1 and 2
INPUTS = 10


def examples(task: int, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw points and their classes."""
    centres = torch.randn(CLASSES[task], INPUTS, generator=torch.Generator().manual_seed(task))
    generator = torch.Generator().manual_seed(100 + seed)
    ys = torch.randint(CLASSES[task], (count,), generator=generator)
    return centres[ys] + 0.7 * torch.randn(count, INPUTS, generator=generator), ys


# %%
# `MultiHead` puts the heads on a body of your choice. `observe_many` and `predict` are told which task the examples
# belong to, and the memory keeps the task of each example.

body = mr.networks.mlp(INPUTS, (32,), 16, seed=0)
model = mr.networks.MultiHead(body, features=16, classes=CLASSES, seed=1)
learner = mr.MER(model, memory=mr.Reservoir(40), lr=0.05, beta=0.3, s=2, k=5)
for task in range(len(CLASSES)):
    learner.observe_many(*examples(task, 80, seed=0), task=task)
    print(f"learned task {task}: the memory holds {len(learner.memory)} of {learner.memory.seen} examples")

# %%
# At the end, all tasks are tested on new examples.

shares = []
for task, classes in enumerate(CLASSES):
    xs, ys = examples(task, 500, seed=1)
    shares.append(float((learner.predict(xs, task=task) == ys).float().mean()))
    print(f"task {task}, {classes} classes: {shares[task]:.1%} right, by chance {1 / classes:.1%}")

# %%
# The lines show what guessing would give.

plt.bar(range(3), [100 * share for share in shares], 0.6, color="#0072b2", label="MER")
plt.hlines([100 / count for count in CLASSES], [-0.3, 0.7, 1.7], [0.3, 1.3, 2.3], color="black", label="by chance")
plt.xticks(range(3), [f"task {task}, {count} classes" for task, count in enumerate(CLASSES)])
plt.ylabel("accuracy in the end (%)")
plt.ylim(0, 119)
plt.legend(ncols=2, loc="upper right")
plt.show()
