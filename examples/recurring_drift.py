"""Choose a memory for a stream in which old truths come back.

Points belong to one of two classes. Every 500 examples the rule changes, and then changes back: in one stream a quarter
of the labels become wrong, in another all of them.

Run it with: python examples/recurring_drift.py
"""

import math

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import metareplay as mr

# %%
# The classes are divided by a line that turns to and fro.

LENGTH, PERIOD, PIECE = 3000, 500, 25


def stream(turn: float) -> tuple[Tensor, Tensor]:
    """Return points, and on which side of the line each lies."""
    xs = torch.randn(LENGTH, 4, generator=torch.Generator().manual_seed(0))
    angles = turn * ((torch.arange(LENGTH) // PERIOD) % 2)
    return xs, (xs[:, 0] * angles.cos() + xs[:, 1] * angles.sin() > 0).long()


# %%
# The learners differ in their memories alone.


def network() -> nn.Module:
    """Make a small network, always with the same first weights."""
    return mr.networks.mlp(4, (32,), 2, seed=0)


def learners() -> dict[str, mr.Learner]:
    """Make all learners anew."""
    memories = {
        "Reservoir": mr.Reservoir(200),
        "Recent": mr.Recent(200),
        "Mixed, half recent": mr.Mixed(200),
        "Mixed, 0.8 recent": mr.Mixed(200, recent=0.8),
    }
    replay = {name: mr.ER(network(), memory=memory, lr=0.05, k=11) for name, memory in memories.items()}
    return {"no memory (Online)": mr.Online(network(), lr=0.05), **replay}


# %%
# They are tested and then trained, 25 examples at a time.


def accuracy(learner: mr.Learner, xs: Tensor, ys: Tensor) -> list[float]:
    """Return the share of right predictions in each piece."""
    shares = []
    for start in range(0, LENGTH, PIECE):
        some, labels = xs[start : start + PIECE], ys[start : start + PIECE]
        shares.append(float((learner.predict(some) == labels).float().mean()))
        learner.observe_many(some, labels)
    return shares


found: dict[str, list[list[float]]] = {}
print(f"{'':20} a quarter of the labels change   all labels change")
for name in learners():
    found[name] = [accuracy(learners()[name], *stream(turn)) for turn in (math.pi / 4, math.pi)]
    means = [sum(shares) / len(shares) for shares in found[name]]
    print(f"{name:20} {means[0]:31.1%} {means[1]:19.1%}")

# %%
# The picture follows the stream in which all labels change. After each change the reservoir drags old truths along,
# while the learner without a memory adapts at once.

colours = {"no memory (Online)": "#6b6b6b", "Reservoir": "#c44f00", "Mixed, half recent": "#007f5c"}
for name, colour in colours.items():
    smooth = torch.tensor(found[name][1]).unfold(0, 4, 1).mean(1)
    plt.plot(torch.arange(4, LENGTH // PIECE + 1) * PIECE, 100 * smooth, label=name, color=colour)
for change in range(PERIOD, LENGTH, PERIOD):
    plt.axvline(change, color="black", linewidth=0.6, alpha=0.5)
plt.xlabel("examples seen")
plt.ylabel("accuracy over the latest 100 (%)")
plt.ylim(0, 100)
plt.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
plt.show()
