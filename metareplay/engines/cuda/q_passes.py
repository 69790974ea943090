"""Passes through several Q-networks at once: forward to the values of actions, and backward with a step.

Each layer is one of torch's batched matrix products. Its matrix has the weights and, as one more column, the biases;
what it is multiplied with has a one in that place. A convolution is multiplied with patches: for every output pixel a
column with the input pixels that the filters see there.
"""

from typing import Final, final

import torch
from torch import Tensor
from torch.nn import functional

from metareplay.engines.q_shape import Conv, Shape

ALIGNED: Final = 4  # columns of a matrix come in multiples of this, which lets the GPU load four numbers at a time

Matrices = list[Tensor]  # of each layer: (networks, outputs, columns)


@final
class Pass:
    """Go forward and backward through networks of one shape; what the way back needs is kept in between.

    Args:
        shape: The networks' shape.
        runs: How many networks there are.
        batch: How many inputs each of them gets.
        device: Where everything lives.
    """

    def __init__(self, shape: Shape, runs: int, batch: int, device: torch.device) -> None:
        self.shape, self.runs, self.batch, self.device = shape, runs, batch, device
        self._patches = [self._room(conv.inputs, batch * conv.pixels) for conv in shape.convs]
        self._features = [self._room(dense.inputs, batch).mT.contiguous() for dense in shape.denses]
        self._maps = [torch.empty((runs, conv.outs, batch * conv.pixels), device=device) for conv in shape.convs]
        self._of_rows: Tensor | None = None

    def _room(self, inputs: int, columns: int) -> Tensor:
        """Make room for the inputs of a layer, with a row of ones for its biases."""
        made = torch.zeros((self.runs, padded(inputs), columns), device=self.device)
        made[:, inputs] = 1
        return made

    def take(self, pictures: Tensor) -> Tensor:
        """Return the inputs of the first layer.

        Args:
            pictures: Bytes of shape (networks, batch, channels, rows, columns).
        """
        return _write_patches(scaled(pictures).transpose(1, 2), self.shape.convs[0], self._patches[0])

    def rows(self, pictures: Tensor) -> list[Tensor]:
        """Return the inputs of the first layer for each of several pictures by itself.

        Args:
            pictures: Bytes of shape (networks, pictures, channels, rows, columns).
        """
        conv, count = self.shape.convs[0], pictures.shape[1]
        if self._of_rows is None or self._of_rows.shape[2] != count * conv.pixels:
            self._of_rows = self._room(conv.inputs, count * conv.pixels)
        return list(_write_patches(scaled(pictures).transpose(1, 2), conv, self._of_rows).split(conv.pixels, 2))

    def values(self, matrices: Matrices, first: Tensor) -> Tensor:
        """Return the values of all actions, of shape (networks, batch, actions).

        Args:
            matrices: The weights.
            first: The inputs of the first layer.
        """
        convs, denses = self.shape.convs, self.shape.denses
        for number, conv in enumerate(convs):
            if number:
                _write_patches(_as_images(self._maps[number - 1], convs[number - 1]), conv, self._patches[number])
            torch.bmm(matrices[number], self._patches[number] if number else first, out=self._maps[number]).relu_()
        images = _as_images(self._maps[-1], convs[-1]).transpose(1, 2)
        self._features[0][:, :, : denses[0].inputs].view_as(images).copy_(images)
        for number in range(len(denses) - 1):
            found = torch.bmm(self._features[number], matrices[len(convs) + number].mT)
            torch.clamp_min(found, 0, out=self._features[number + 1][:, :, : denses[number].outs])
        return torch.bmm(self._features[-1], matrices[-1].mT)

    def step(self, matrices: Matrices, into: Matrices, slope: Tensor, first: Tensor) -> None:
        """Go back through the layers; subtract the gradient from the weights, or write it.

        Args:
            matrices: The weights.
            into: Where the gradient is written; if these are the weights themselves, it is subtracted from them.
            slope: The gradients of the losses at the values, times the rate if they are to be subtracted.
            first: The inputs of the first layer.
        """
        convs, denses = self.shape.convs, self.shape.denses
        for number in reversed(range(len(denses))):  # each gives the slope below before its weights change
            at, features = len(convs) + number, self._features[number]
            below = torch.bmm(slope, matrices[at])[:, :, : denses[number].inputs]
            _descend(matrices[at], into[at], slope.mT, features)
            slope = torch.ops.aten.threshold_backward(below, features[:, :, : denses[number].inputs], 0)
        last = convs[-1]
        delta = slope.unflatten(2, (last.outs, last.pixels)).transpose(1, 2).reshape(self._maps[-1].shape)
        for number in reversed(range(1, len(convs))):
            conv, maps = convs[number], self._maps[number - 1]
            patches = torch.bmm(matrices[number][:, :, : conv.inputs].mT, delta)
            _descend(matrices[number], into[number], delta, self._patches[number].mT)
            images = _fold(patches, conv, self.batch).reshape(maps.shape)
            delta = torch.ops.aten.threshold_backward(images, maps, 0)
        _descend(matrices[0], into[0], delta, first.mT)


def _descend(matrix: Tensor, into: Tensor, slope: Tensor, inputs: Tensor) -> None:
    """Subtract a layer's gradient, which is a product, or write it."""
    if into is matrix:
        into.baddbmm_(slope, inputs, alpha=-1)
    else:
        torch.bmm(slope, inputs, out=into)


def _as_images(maps: Tensor, conv: Conv) -> Tensor:
    """View what a convolution gave as (networks, channels, batch, rows, columns)."""
    return maps.view(*maps.shape[:2], -1, *conv.size)


def _write_patches(images: Tensor, conv: Conv, patches: Tensor) -> Tensor:
    """Write the patches of images of shape (networks, channels, batch, rows, columns), and return them."""
    runs, channels, batch = images.shape[:3]
    windows = images.unfold(3, conv.kernel[0], conv.stride[0]).unfold(4, conv.kernel[1], conv.stride[1])
    room = patches[:, : conv.inputs].view(runs, channels, *conv.kernel, batch, *conv.size)
    room.copy_(windows.permute(0, 1, 5, 6, 2, 3, 4))
    return patches


def _fold(patches: Tensor, conv: Conv, batch: int) -> Tensor:
    """Add up patches where they overlap; return images of shape (networks, channels, batch, rows, columns)."""
    each = patches.view(*patches.shape[:2], batch, conv.pixels).transpose(1, 2).flatten(0, 1)
    found = functional.fold(each, (conv.height, conv.width), conv.kernel, stride=conv.stride)
    return found.view(-1, batch, *found.shape[1:]).transpose(1, 2)


def padded(inputs: int) -> int:
    """Return how many columns a layer's matrix has: one per input, one for the biases, and some zeros.

    Args:
        inputs: How many inputs the layer has.
    """
    return (inputs + 1 + ALIGNED - 1) // ALIGNED * ALIGNED


def scaled(pictures: Tensor) -> Tensor:
    """Return bytes as numbers from 0 to 1.

    Args:
        pictures: Bytes.
    """
    return pictures.to(torch.float32).div_(255)
