"""Passes through several Q-networks by torch's batched matrix products."""

from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from metareplay.engines.cuda.q_passes import Matrices, Pass, padded, scaled
from metareplay.engines.cuda.q_shape import Conv, Shape


@final
class Products(Pass):
    """Pass through the networks by torch's batched matrix products, on any device and with any number of inputs."""

    def __init__(self, shape: Shape, runs: int, batch: int, device: torch.device) -> None:
        super().__init__(shape, runs, batch, device)
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
        """Write the patches of all pictures."""
        return _write_patches(scaled(pictures).transpose(1, 2), self.shape.convs[0], self._patches[0])

    def rows(self, pictures: Tensor) -> list[Tensor]:
        """Write the patches of all pictures, and return those of each."""
        conv, count = self.shape.convs[0], pictures.shape[1]
        if self._of_rows is None or self._of_rows.shape[2] != count * conv.pixels:
            self._of_rows = self._room(conv.inputs, count * conv.pixels)
        return list(_write_patches(scaled(pictures).transpose(1, 2), conv, self._of_rows).split(conv.pixels, 2))

    def values(self, matrices: Matrices, first: Tensor) -> Tensor:
        """Multiply through all layers."""
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
        """Multiply back through all layers; each gives the slope below before its weights change."""
        convs, denses = self.shape.convs, self.shape.denses
        for number in reversed(range(len(denses))):
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
