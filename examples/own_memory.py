"""Write a memory of your own.

A memory is a subclass of `mr.Memory` that says into which slot each example goes. `Spaced` keeps every n-th example, so
that a small memory reaches far back.

Run it with: python examples/own_memory.py
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from numpy.typing import NDArray

import metareplay as mr

# %%
# `place` is asked about the next examples before any of them is stored, so it must not change anything. `settings` is
# for records and checkpoints.

Ints = NDArray[np.int64]


class Spaced(mr.Memory):
    """Keep every n-th example, and of these the most recent ones."""

    def __init__(self, capacity: int, every: int) -> None:
        super().__init__(capacity)
        self.every = every

    def place(self, draws: object, tasks: Ints) -> Ints:
        """Return the slot of each of the next examples, or -1 for those that are not kept."""
        del draws  # for memories that choose at random
        numbers = self.seen + np.arange(len(tasks))
        return np.where(numbers % self.every == 0, numbers // self.every % self.capacity, -1)

    def settings(self) -> dict[str, object]:
        """Return what the memory was made with."""
        return {"kind": "Spaced", "capacity": self.capacity, "every": self.every}


# %%
# The stream shows ten classes, one after another. Three memories hold 40 examples each.

generator = torch.Generator().manual_seed(0)
centres = torch.randn(10, 16, generator=generator)
ys = torch.arange(10).repeat_interleave(80)
xs, test_xs = (centres[ys] + 0.5 * torch.randn(800, 16, generator=generator) for _ in range(2))
memories: list[mr.Memory] = [mr.Recent(40), Spaced(40, every=20), mr.Reservoir(40)]
for memory in memories:
    learner = mr.ER(mr.networks.mlp(16, (32,), 10), memory=memory, lr=0.1, k=10)
    learner.observe_many(xs, ys)
    share = (learner.predict(test_xs) == ys).float().mean()
    held = len(memory.examples().ys.unique())
    print(f"{type(memory).__name__:9} classes in memory: {held:2}, accuracy: {share:.1%}")

# %%
# The picture shows which examples of the stream each memory holds at the end: one mark for each of them.

plt.figure(figsize=(7, 2.2))
for row, memory in enumerate(memories):
    plt.scatter(memory.numbers(), [row] * len(memory), marker="|", s=250, color="#0072b2")
plt.yticks(range(3), [type(memory).__name__ for memory in memories])
plt.ylim(-0.6, 2.6)
plt.xlim(0, 800)
plt.xlabel("number of the example in the stream")
plt.show()
