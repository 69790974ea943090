"""Write a memory of your own: a subclass of `mr.Memory` that says into which slot each example goes.

`Spaced` keeps every n-th example, so that a small memory reaches far back.

Run it with: python examples/own_memory.py
"""

import numpy as np
import torch
from numpy.typing import NDArray

import metareplay as mr

Ints = NDArray[np.int64]


class Spaced(mr.Memory):
    """Keep every n-th example, and of these the most recent ones."""

    def __init__(self, capacity: int, every: int) -> None:
        super().__init__(capacity)
        self.every = every

    def place(self, draws: object, tasks: Ints) -> Ints:
        """Return the slot of each of the next examples, or -1 for those that are not kept; change nothing."""
        del draws  # for memories that choose at random
        numbers = self.seen + np.arange(len(tasks))
        return np.where(numbers % self.every == 0, numbers // self.every % self.capacity, -1)

    def settings(self) -> dict[str, object]:
        """Return what the memory was made with, for records and checkpoints."""
        return {"kind": "Spaced", "capacity": self.capacity, "every": self.every}


def main() -> None:
    """Learn ten classes, one after another, with three memories of 40 examples."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(10, 16, generator=generator)
    ys = torch.arange(10).repeat_interleave(80)
    xs, test_xs = (centres[ys] + 0.5 * torch.randn(800, 16, generator=generator) for _ in range(2))
    for memory in (mr.Recent(40), Spaced(40, every=20), mr.Reservoir(40)):
        learner = mr.ER(mr.networks.mlp(16, (32,), 10), memory=memory, lr=0.1, k=10)
        learner.observe_many(xs, ys)
        share = (learner.predict(test_xs) == ys).float().mean()
        held = len(memory.examples().ys.unique())
        print(f"{type(memory).__name__:9} classes in memory: {held:2}, accuracy: {share:.1%}")


if __name__ == "__main__":
    main()
