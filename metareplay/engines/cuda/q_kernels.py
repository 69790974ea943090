"""Passes through several Q-networks by our own kernels, with one input per network."""

from typing import final

import torch
from torch import Tensor

from metareplay.engines.cuda.q_passes import Matrices, Pass, padded, scaled
from metareplay.engines.cuda.q_shape import Shape


@final
class Kernels(Pass):
    """Pass through the networks by our own kernels, with one input per network: about half as many launches."""

    def __init__(self, shape: Shape, runs: int, batch: int, device: torch.device) -> None:
        assert batch == 1, "the kernels are for one input"
        super().__init__(shape, runs, batch, device)
        from metareplay.engines.cuda import conv_kernels, dense_kernels  # here, because they need Triton

        self._conv, self._dense = conv_kernels, dense_kernels
        tables = [conv.tables() for conv in shape.convs]
        self._seen, self._sees = ([one[place].to(device) for one in tables] for place in (0, 1))
        self._maps = [self._empty(conv.outs, conv.pixels) for conv in shape.convs[:-1]]
        self._features = [self._empty(padded(dense.inputs)).zero_() for dense in shape.denses]
        for features, dense in zip(self._features, shape.denses, strict=True):
            features[:, dense.inputs] = 1
        last = shape.convs[-1]
        self._maps.append(self._features[0][:, : shape.denses[0].inputs].unflatten(1, (last.outs, last.pixels)))
        self._deltas = [torch.empty_like(maps, memory_format=torch.contiguous_format) for maps in self._maps[:-1]]
        self._slopes = [self._empty(dense.inputs) for dense in shape.denses]
        self._values = self._empty(1, shape.actions)

    def _empty(self, *sizes: int) -> Tensor:
        return torch.empty((self.runs, *sizes), device=self.device)

    def take(self, pictures: Tensor) -> Tensor:
        """Return the picture of each network as numbers."""
        return self.rows(pictures)[0]

    def rows(self, pictures: Tensor) -> list[Tensor]:
        """Return each picture as numbers, of shape (networks, channels, pixels)."""
        return list(scaled(pictures).flatten(3).unbind(1))

    def values(self, matrices: Matrices, first: Tensor) -> Tensor:
        """Launch one kernel per layer; the last convolution writes where the first linear layer reads."""
        count = len(self._maps)
        for number, (images, maps) in enumerate(zip((first, *self._maps[:-1]), self._maps, strict=True)):
            self._conv.forward(matrices[number], images, self._seen[number], maps)
        for number, dense in enumerate(self.shape.denses[:-1]):
            outputs = self._features[number + 1][:, : dense.outs]
            self._dense.forward(matrices[count + number], self._features[number], outputs, relu=True)
        self._dense.forward(matrices[-1], self._features[-1], self._values[:, 0], relu=False)
        return self._values

    def step(self, matrices: Matrices, into: Matrices, slope: Tensor, first: Tensor) -> None:
        """Launch one kernel per linear layer and two per convolution, one of which gives the slope below."""
        count, slope, subtract = len(self._maps), slope[:, 0], into is matrices
        for number in reversed(range(len(self.shape.denses))):
            at = count + number
            self._dense.backward(matrices[at], into[at], self._features[number], slope, self._slopes[number])
            slope = self._slopes[number]
        delta = slope.view(self._maps[-1].shape)
        for number in reversed(range(1, count)):
            images, below = self._maps[number - 1], self._deltas[number - 1]
            self._conv.backward(matrices[number], delta, self._sees[number], images, below)
            self._conv.descend(into[number], delta, images, self._seen[number], subtract=subtract)
            delta = below
        self._conv.descend(into[0], delta, first, self._seen[0], subtract=subtract)
