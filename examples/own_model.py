"""Train a model of your own on a stream of your own.

The stream shows one class after another, as real streams often do. Plain online learning forgets all classes but the
last one; MER, with 40 examples in memory, keeps all four.

Run it with: python examples/own_model.py
"""

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import metareplay as mr

# %%
# The stream consists of noisy images of 8x8 pixels with a bar in one of four directions. They are `uint8`, as images in
# files are; the learner scales them to [0, 1].

CLASSES = ("horizontal", "vertical", "falling", "rising")


def images(labels: Tensor) -> Tensor:
    """Draw one noisy image per label."""
    bars = torch.zeros(4, 1, 8, 8)
    bars[0, 0, 3:5, :] = 1
    bars[1, 0, :, 3:5] = 1
    bars[2, 0] = torch.eye(8)
    bars[3, 0] = torch.eye(8).flip(0)
    return (127 * bars[labels] + 128 * torch.rand(len(labels), 1, 8, 8)).to(torch.uint8)


torch.manual_seed(0)
labels, test_labels = torch.arange(4).repeat_interleave(60), torch.arange(4).repeat_interleave(50)
stream, test_images = images(labels), images(test_labels)

# %%
# Any `nn.Module` will do. This one is a small convolutional network.


def network() -> nn.Module:
    """Make the network, always with the same first weights."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 4))


learners = {
    "Online": mr.Online(network(), lr=0.1),
    "MER": mr.MER(network(), memory=mr.Reservoir(40), lr=0.1, beta=0.3, s=2, k=5, seed=0),
}

# %%
# Learning is a loop over the stream. The learners are told neither how many classes there are nor when one ends.

found: dict[str, list[float]] = {}
for name, learner in learners.items():
    for x, y in zip(stream, labels, strict=True):
        learner.observe(x, y)
    right = (learner.predict(test_images) == test_labels).float()
    found[name] = [float(right[test_labels == c].mean()) for c in range(4)]
    print(f"{name:6} {', '.join(f'{CLASSES[c]} {found[name][c]:.0%}' for c in range(4))}")

# %%
# The picture shows the accuracy on new images of each class at the end of the stream.

places = torch.arange(4)
plt.bar(places - 0.2, [100 * share for share in found["Online"]], 0.38, label="Online", color="#6b6b6b")
plt.bar(places + 0.2, [100 * share for share in found["MER"]], 0.38, label="MER", color="#0072b2")
plt.xticks(range(4), CLASSES)
plt.ylabel("accuracy in the end (%)")
plt.ylim(0, 119)
plt.legend(ncols=2, loc="upper left")
plt.show()
