"""Learn a stream in which what is right changes and comes back, with four kinds of memory.

Points belong to one of two classes. Every 500 examples the rule changes, and then changes back: in one stream a quarter
of the labels become wrong, in another all of them. Accuracy is measured by testing on examples before learning them.

Run it with: python examples/recurring_drift.py
"""

import math

import torch
from torch import Tensor, nn

import metareplay as mr

LENGTH, PERIOD, PIECE = 3000, 500, 25


def stream(turn: float) -> tuple[Tensor, Tensor]:
    """Return points, and on which side of a line each lies; the line turns to and fro."""
    xs = torch.randn(LENGTH, 4, generator=torch.Generator().manual_seed(0))
    angles = turn * ((torch.arange(LENGTH) // PERIOD) % 2)
    return xs, (xs[:, 0] * angles.cos() + xs[:, 1] * angles.sin() > 0).long()


def learners() -> dict[str, mr.Learner]:
    """Make learners that differ in their memories alone."""

    def network() -> nn.Module:
        return mr.networks.mlp(4, (32,), 2, seed=0)

    def replay(memory: mr.Memory) -> mr.Learner:
        return mr.ER(network(), memory=memory, lr=0.05, k=11)

    return {
        "no memory (Online)": mr.Online(network(), lr=0.05),
        "Reservoir": replay(mr.Reservoir(200)),
        "Recent": replay(mr.Recent(200)),
        "Mixed, half recent": replay(mr.Mixed(200)),
        "Mixed, 0.8 recent": replay(mr.Mixed(200, recent=0.8)),
    }


def accuracy(learner: mr.Learner, xs: Tensor, ys: Tensor) -> float:
    """Test and then train, a few examples at a time."""
    right = 0
    for start in range(0, LENGTH, PIECE):
        some, labels = xs[start : start + PIECE], ys[start : start + PIECE]
        right += int((learner.predict(some) == labels).sum())
        learner.observe_many(some, labels)
    return right / LENGTH


def main() -> None:
    """Print the accuracy on each stream."""
    print(f"{'':20} a quarter of the labels change   all labels change")
    for name in learners():
        found = [accuracy(learners()[name], *stream(turn)) for turn in (math.pi / 4, math.pi)]
        print(f"{name:20} {found[0]:31.1%} {found[1]:19.1%}")


if __name__ == "__main__":
    main()
