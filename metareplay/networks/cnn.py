"""Convolutional networks: the paper's for Omniglot, and DQN's."""

from torch import nn

from metareplay.networks.initial import glorot


def omniglot_cnn(seed: int = 0) -> nn.Module:
    """Four modules of 64 3x3 filters, ReLU and pooling, and a linear layer: the paper's Omniglot network."""
    layers: list[nn.Module] = []
    for channels in (1, 64, 64, 64):
        layers += [nn.Conv2d(channels, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return glorot(nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 55)), seed)


def nature_cnn(seed: int = 0) -> nn.Module:
    """The network of Mnih et al. (2015) for four frames of 84 x 84 and three actions."""
    net = nn.Sequential(
        nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 3),
    )  # fmt: skip
    return glorot(net, seed)
