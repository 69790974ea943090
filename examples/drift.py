"""Follow a stream that drifts.

The boundary between two classes of points turns slowly, so the labels of old examples become wrong. A memory of recent
examples helps to follow the drift; a reservoir, which keeps examples of all times, is a hindrance here.

Run it with: python examples/drift.py
"""

import math

import matplotlib.pyplot as plt
import torch

import metareplay as mr

# %%
# Points of the plane belong to one of two classes, depending on which side of a line they lie. The line makes half a
# turn, so that in the end every label is the opposite of what it was in the beginning.

LENGTH = 600  # examples
xs = torch.randn(LENGTH, 2, generator=torch.Generator().manual_seed(0))
angles = torch.linspace(0, math.pi, LENGTH)
ys = (xs[:, 0] * angles.cos() + xs[:, 1] * angles.sin() > 0).long()

# %%
# Three learners start from the same weights. They differ in what they remember.

networks = [mr.networks.mlp(2, (16,), 2, seed=0) for _ in range(3)]
learners = {
    "Online": mr.Online(networks[0], lr=0.02),
    "MER, reservoir": mr.MER(networks[1], memory=mr.Reservoir(50), lr=0.02, beta=0.5, s=2, k=10),
    "MER, recent": mr.MER(networks[2], memory=mr.Recent(50), lr=0.02, beta=0.5, s=2, k=10),
}

# %%
# Every example is predicted before it is learned, so no test set is needed: `observe(..., predict=True)` returns what
# the learner would have said.

right = {name: torch.zeros(LENGTH) for name in learners}
print(f"{'':15} accuracy over the four quarters of the stream")
for name, learner in learners.items():
    for i in range(LENGTH):
        right[name][i] = learner.observe(xs[i], ys[i], predict=True) == ys[i]
    print(f"{name:15} {'  '.join(f'{quarter.mean():.1%}' for quarter in right[name].chunk(4))}")

# %%
# The picture shows the accuracy over the latest 100 examples. The reservoir loses touch when most of what it holds has
# become wrong.

colours = {"Online": "#6b6b6b", "MER, reservoir": "#0072b2", "MER, recent": "#332288"}
for name in learners:
    recent = right[name].unfold(0, 100, 1).mean(1)
    plt.plot(range(100, LENGTH + 1), 100 * recent, label=name, color=colours[name])
plt.xlabel("examples seen")
plt.ylabel("accuracy over the latest 100 (%)")
plt.ylim(0, 100)
plt.legend(loc="lower left")
plt.show()
