"""The shape of a Q-network for pictures: convolutions, then linear layers, with a ReLU after all but the last."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

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
        stride: How far apart the places are that it looks at, down and across.
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

    def tables(self) -> tuple[Tensor, Tensor]:
        """Return which pixels meet, so that kernels need no arithmetic on rows and columns.

        Returns:
            (taps, output pixels): the input pixel that an output pixel sees through a tap; and (taps, input pixels):
            the output pixel that sees an input pixel through a tap, or -1 for none.

        >>> Conv(1, 1, 3, 1, (1, 2), (1, 1)).tables()[1].tolist()
        [[0, 1, -1], [-1, 0, 1]]
        """
        numbers = torch.arange(self.height * self.width, dtype=torch.float64).view(1, 1, self.height, self.width)
        seen = functional.unfold(numbers, self.kernel, stride=self.stride)[0].long()
        sees = torch.full((len(seen), self.height * self.width), -1)
        sees.scatter_(1, seen, torch.arange(self.pixels).expand_as(seen))
        return seen.int(), sees.int()


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
        if type(model) is not nn.Sequential or any(hooked(module) for module in model.modules()):
            return None
        convs, denses, (channels, height, width), layers = list[Conv](), list[Dense](), image, list(model)
        while len(layers) > 1 and type(layers[0]) is nn.Conv2d and type(layers[1]) is nn.ReLU:
            conv = layers[0]
            plain = (conv.padding, conv.dilation, conv.groups) == ((0, 0), (1, 1), 1) and conv.bias is not None
            if not plain or conv.in_channels != channels or min(height, width) < max(conv.kernel_size):
                return None
            kernel, stride = ((one[0], one[1]) for one in (conv.kernel_size, conv.stride))
            convs.append(Conv(channels, height, width, conv.out_channels, kernel, stride))
            channels, (height, width), layers = conv.out_channels, convs[-1].size, layers[2:]
        if not convs or not layers or type(layers.pop(0)) is not nn.Flatten:
            return None
        features = channels * height * width
        while layers:
            dense, last = layers.pop(0), len(layers) == 0
            if type(dense) is not nn.Linear or dense.bias is None or dense.in_features != features:
                return None
            if not last and (type(layers.pop(0)) is not nn.ReLU or not layers):
                return None
            denses.append(Dense(features, dense.out_features))
            features = dense.out_features
        trained = all(p.requires_grad and p.dtype == torch.float32 for p in model.parameters())
        return Shape(tuple(convs), tuple(denses)) if denses and trained else None

    @property
    def layers(self) -> tuple[Conv | Dense, ...]:
        """All layers in order."""
        return (*self.convs, *self.denses)

    @property
    def actions(self) -> int:
        """How many values a network gives."""
        return self.denses[-1].outs
