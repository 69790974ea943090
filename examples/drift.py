"""Follow a stream that drifts, and measure accuracy by testing on every example before learning it.

The boundary between two classes of points turns slowly, so the labels of old examples become wrong. A memory of recent
examples helps to follow the drift; a reservoir, which keeps examples of all times, is a hindrance here.

Run it with: python examples/drift.py
"""

import math

import torch
from torch import Tensor, nn

import metareplay as mr

LENGTH = 600  # examples


def stream() -> tuple[Tensor, Tensor]:
    """Return points of the plane and on which side of the turning boundary each lies."""
    xs = torch.randn(LENGTH, 2, generator=torch.Generator().manual_seed(0))
    angles = torch.linspace(0, math.pi, LENGTH)  # half a turn in all
    return xs, (xs[:, 0] * angles.cos() + xs[:, 1] * angles.sin() > 0).long()


def network() -> nn.Module:
    """Make a small network, always with the same first weights."""
    return mr.networks.mlp(2, (16,), 2, seed=0)


def main() -> None:
    """Test and then train on every example; print the accuracy over each quarter of the stream."""
    learners = {
        "Online": mr.Online(network(), lr=0.02),
        "MER, reservoir": mr.MER(network(), memory=mr.Reservoir(50), lr=0.02, beta=0.5, s=2, k=10),
        "MER, recent": mr.MER(network(), memory=mr.Recent(50), lr=0.02, beta=0.5, s=2, k=10),
    }
    xs, ys = stream()
    print(f"{'':15} accuracy over the four quarters of the stream")
    for name, learner in learners.items():
        right = torch.zeros(LENGTH)
        for i in range(LENGTH):
            right[i] = learner.predict(xs[i : i + 1])[0] == ys[i]  # test first
            learner.observe(xs[i], ys[i])  # then train
        print(f"{name:15} {'  '.join(f'{quarter.mean():.1%}' for quarter in right.chunk(4))}")


if __name__ == "__main__":
    main()
