"""Convolutional networks: the one of the paper for Omniglot, and the one of DQN for Atari games."""

import torch
from torch import nn

from metareplay._core.checks import check_count
from metareplay.networks.initial import glorot


def omniglot_cnn(seed: int = 0, *, classes: int = 55) -> nn.Sequential:
    """Make the paper's network for Omniglot: four times 64 filters of 3x3, ReLU and pooling, then a linear layer.

    Inputs are grey images of 28x28 pixels, of shape (1, 28, 28).

    >>> omniglot_cnn(classes=20)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 20])

    Args:
        seed: Decides the first weights, Glorot uniform with zero biases.
        classes: The number of outputs; the largest alphabet of Omniglot has 55 characters.
    """
    check_count("classes", classes, "a network needs at least one output")
    with torch.random.fork_rng(devices=[]):  # the weights drawn here are replaced, so the global generator stays
        layers: list[nn.Module] = []
        for channels in (1, 64, 64, 64):
            layers += [nn.Conv2d(channels, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, classes))
    return glorot(net, seed)


def nature_cnn(seed: int = 0, *, actions: int = 3, frames: int = 4) -> nn.Sequential:
    """Make the network of Mnih et al. (2015) for Atari games: three convolutions and a layer of 512 units.

    Inputs are the last frames of a game, of shape (frames, 84, 84).

    >>> nature_cnn(actions=6)(torch.zeros(2, 4, 84, 84)).shape
    torch.Size([2, 6])

    Args:
        seed: Decides the first weights, Glorot uniform with zero biases.
        actions: The number of outputs, one value per action.
        frames: How many frames of 84x84 pixels one input has.
    """
    check_count("actions", actions, "a network needs at least one output")
    check_count("frames", frames, "an input has at least one frame")
    with torch.random.fork_rng(devices=[]):  # the weights drawn here are replaced, so the global generator stays
        net = nn.Sequential(
            nn.Conv2d(frames, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1),
            nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, actions),
        )  # fmt: skip
    return glorot(net, seed)
