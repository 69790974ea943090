"""Train a PyTorch model of your own on a stream of your own, one example at a time.

The stream shows one class after another, so plain online learning forgets all classes but the last one.

Run it with: python examples/own_model.py
"""

import torch
from torch import Tensor, nn

import metareplay as mr

CLASSES = ("horizontal", "vertical", "falling", "rising")


def images(labels: Tensor) -> Tensor:
    """Draw one noisy image of 8x8 pixels per label, as uint8: a bar in one of four directions."""
    bars = torch.zeros(4, 1, 8, 8)
    bars[0, 0, 3:5, :] = 1
    bars[1, 0, :, 3:5] = 1
    bars[2, 0] = torch.eye(8)
    bars[3, 0] = torch.eye(8).flip(0)
    return (127 * bars[labels] + 128 * torch.rand(len(labels), 1, 8, 8)).to(torch.uint8)


def network() -> nn.Module:
    """Make a small convolutional network."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 4))


def main() -> None:
    """Learn the stream with and without replay, then test all four classes."""
    learners = {
        "Online": mr.Online(network(), lr=0.1),
        "MER": mr.MER(network(), memory=mr.Reservoir(40), lr=0.1, beta=0.3, s=2, k=5, seed=0),
    }
    labels, test_labels = torch.arange(4).repeat_interleave(60), torch.arange(4).repeat_interleave(50)
    stream, test_images = images(labels), images(test_labels)
    for name, learner in learners.items():
        for x, y in zip(stream, labels, strict=True):
            learner.observe(x, y)
        right = learner.predict(test_images) == test_labels
        shares = ", ".join(f"{CLASSES[c]} {right[test_labels == c].float().mean():.0%}" for c in range(4))
        print(f"{name:6} {shares}")


if __name__ == "__main__":
    main()
