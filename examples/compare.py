"""Compare learners on a stream of tasks.

Three numbers describe what happened. RA is the accuracy over all tasks at the end, LA the accuracy on each task just
after it was learned, and BTI the difference: how much was lost (below 0) or gained afterwards.

Run it with: python examples/compare.py
"""

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import metareplay as mr

# %%
# Each of five tasks has the same four classes, but shuffles the 20 inputs in a way of its own, like the paper's
# MNIST Permutations.

TASKS, INPUTS, CLASSES = 5, 20, 4


def examples(task: int, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw points around four centres, and shuffle their inputs as the task does."""
    centres = torch.randn(CLASSES, INPUTS, generator=torch.Generator().manual_seed(0))
    order = torch.randperm(INPUTS, generator=torch.Generator().manual_seed(task))
    generator = torch.Generator().manual_seed(1000 * seed + task)
    ys = torch.randint(CLASSES, (count,), generator=generator)
    return (centres[ys] + 0.8 * torch.randn(count, INPUTS, generator=generator))[:, order], ys


# %%
# `OwnStream` puts the examples of all tasks one after another, and has a test set for each task.

parts = [examples(task, 200, seed=1) for task in range(TASKS)]
stream = mr.OwnStream.from_tensors(
    torch.cat([xs for xs, _ in parts]),
    torch.cat([ys for _, ys in parts]),
    tasks=torch.arange(TASKS).repeat_interleave(200),
    test=[examples(task, 500, seed=2) for task in range(TASKS)],
)

# %%
# `mr.run` feeds the stream to a learner and tests it on all tasks at the end.

learners = {
    "Online": mr.Online(mr.networks.mlp(INPUTS, (32,), CLASSES), lr=0.05),
    "ER": mr.ER(mr.networks.mlp(INPUTS, (32,), CLASSES), memory=mr.Reservoir(50), lr=0.05, k=10),
    "MER": mr.MER(mr.networks.mlp(INPUTS, (32,), CLASSES), memory=mr.Reservoir(50), lr=0.05, beta=0.03, s=5, k=10),
}
records = {name: mr.run(learner, stream) for name, learner in learners.items()}

print(f"{'':8}{'RA':>6} {'LA':>6} {'BTI':>6}")
for name, record in records.items():
    print(f"{name:8}{record.ra:6.1f} {record.la:6.1f} {record.bti:6.1f}")

# %%
# The last row of `record.accuracy` has the accuracy on each task at the end. Early tasks are where learners differ.

colours = {"Online": "#6b6b6b", "ER": "#c44f00", "MER": "#0072b2"}
for name, record in records.items():
    plt.plot(range(1, TASKS + 1), record.accuracy[-1], marker="o", label=name, color=colours[name])
plt.xticks(range(1, TASKS + 1))
plt.xlabel("task")
plt.ylabel("accuracy in the end (%)")
plt.ylim(0, 100)
plt.legend(loc="lower right")
plt.show()
