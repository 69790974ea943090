"""The shape of a Q-network for pictures: convolutions, then linear layers, with a ReLU after all but the last."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import nn

from metareplay.engines.chain import hooked


@final
@dataclass(frozen=True)
class Conv:
    """Describe a convolution without padding, and the ReLU after it.

    Args:
        ins: Input channels.
        height: Rows of its inputs.
        width: Columns of its inputs.
        outs: Output channels.
        kernel: Rows and columns of its filters.
        stride: How far the filters move from one output to the next, down and across.
    """

    ins: int
    height: int
    width: int
    outs: int
    kernel: tuple[int, int]
    stride: tuple[int, int]

    @property
    def inputs(self) -> int:
        """How many numbers a filter sees at a time."""
        return self.ins * self.kernel[0] * self.kernel[1]

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of its outputs."""
        sides = zip((self.height, self.width), self.kernel, self.stride, strict=True)
        rows, columns = ((long - wide) // step + 1 for long, wide, step in sides)
        return rows, columns

    @property
    def pixels(self) -> int:
        """How many output pixels one input gives."""
        return self.size[0] * self.size[1]


@final
@dataclass(frozen=True)
class Dense:
    """Describe a linear layer; all but the last are followed by a ReLU.

    Args:
        inputs: How many inputs it has.
        outs: How many outputs it has.
    """

    inputs: int
    outs: int


@final
@dataclass(frozen=True)
class Shape:
    """Describe a Q-network: convolutions, each with a ReLU, then linear layers with a ReLU between them.

    Args:
        convs: The convolutions.
        denses: The linear layers.
    """

    convs: tuple[Conv, ...]
    denses: tuple[Dense, ...]

    @staticmethod
    def of(model: nn.Module, image: Sequence[int]) -> "Shape | None":
        """Return the shape of a network; None if it is built in another way.

        Args:
            model: The network.
            image: Channels, rows and columns of its inputs.
        """
        parts = parts_of(model)
        if parts is None:
            return None
        convs, denses, (channels, height, width) = list[Conv](), list[Dense](), image
        for conv in parts[0]:
            if conv.in_channels != channels or height < conv.kernel_size[0] or width < conv.kernel_size[1]:
                return None
            kernel, stride = ((one[0], one[1]) for one in (conv.kernel_size, conv.stride))
            convs.append(Conv(channels, height, width, conv.out_channels, kernel, stride))
            channels, (height, width) = conv.out_channels, convs[-1].size
        features = channels * height * width
        for dense in parts[1]:
            if dense.in_features != features:
                return None
            denses.append(Dense(features, dense.out_features))
            features = dense.out_features
        return Shape(tuple(convs), tuple(denses))

    @property
    def layers(self) -> tuple[Conv | Dense, ...]:
        """All layers in order."""
        return (*self.convs, *self.denses)

    @property
    def actions(self) -> int:
        """How many values a network gives."""
        return self.denses[-1].outs


def parts_of(model: nn.Module) -> tuple[list[nn.Conv2d], list[nn.Linear]] | None:
    """Return the convolutions and linear layers of a Q-network for pictures; None if it is built in another way.

    Args:
        model: The network.

    >>> layers = nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3)
    >>> [len(part) for part in parts_of(nn.Sequential(*layers))]
    [1, 1]
    """
    if type(model) is not nn.Sequential or any(hooked(module) for module in model.modules()):
        return None
    layers, convs, denses = list(model), list[nn.Conv2d](), list[nn.Linear]()
    while len(layers) > 1 and type(layers[0]) is nn.Conv2d and type(layers[1]) is nn.ReLU:
        conv = layers[0]
        if (conv.padding, conv.dilation, conv.groups) != ((0, 0), (1, 1), 1) or conv.bias is None:
            return None
        convs.append(conv)
        layers = layers[2:]
    flatten = layers.pop(0) if convs and layers else None
    if type(flatten) is not nn.Flatten or (flatten.start_dim, flatten.end_dim) != (1, -1):
        return None
    while layers:
        dense = layers.pop(0)
        if type(dense) is not nn.Linear or dense.bias is None:
            return None
        if layers and (type(layers.pop(0)) is not nn.ReLU or not layers):
            return None
        denses.append(dense)
    expected = [parameter for layer in (*convs, *denses) for parameter in (layer.weight, layer.bias)]
    found = list(model.parameters())  # each once, in the order of the flat vector
    as_expected = len(expected) == len(found) and all(a is b for a, b in zip(expected, found, strict=True))
    trained = all(p.requires_grad and p.dtype == torch.float32 for p in found)
    return (convs, denses) if denses and trained and as_expected else None
