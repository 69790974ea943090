"""Q-networks of one shape side by side on one device: every operation works on all of them at once.

A step on a single transition keeps a GPU busy for a moment only, and most of that moment passes between two kernels.
Kernels that work on twenty networks take hardly longer than kernels that work on one.
"""

from collections.abc import Sequence
from typing import Final, final

import torch
from torch import Tensor

from metareplay.engines.cuda.q_passes import Matrices, Pass, padded
from metareplay.engines.q_shape import Shape

BETAS: Final = (0.9, 0.999)  # of Adam: torch's defaults
EPSILON: Final = 1e-8


@final
class QNets:
    """Hold the weights of several Q-networks, and take steps.

    Args:
        shape: The networks' shape.
        device: Where they live.
        rates: alpha, the rate of each network's steps.
        adam: Whether Adam takes the steps; otherwise they are plain SGD.

    Attributes:
        theta: All weights, one network per row, in an order of our own: see `load` and `weights_of`.
    """

    def __init__(self, shape: Shape, device: torch.device, rates: Sequence[float], *, adam: bool) -> None:
        self.shape, self.runs, self.device, self.adam = shape, len(rates), device, adam
        self._rates, self._column = tuple(rates), torch.tensor(rates, device=device)[:, None, None]
        self._sizes = [layer.outs * padded(layer.inputs) for layer in shape.layers]
        self.theta = torch.zeros((self.runs, sum(self._sizes)), device=device)
        few = sum(self._sizes) if adam else 0
        self.gradient, self.first, self.second = (torch.zeros((self.runs, few), device=device) for _ in range(3))
        self.taken = torch.zeros((), device=device)  # Adam's steps so far

    def matrices(self, theta: Tensor) -> Matrices:
        """Return weights as one matrix per layer and network, as views.

        Args:
            theta: Weights in the order of `self.theta`.
        """
        pieces = theta.split(self._sizes, dim=1)
        return [piece.unflatten(1, (layer.outs, -1)) for piece, layer in zip(pieces, self.shape.layers, strict=True)]

    def load(self, theta: Tensor, run: int, flat: Tensor) -> None:
        """Copy one network's weights in.

        Args:
            theta: Where to: `self.theta`, or a tensor like it.
            run: The number of the network.
            flat: Its weights in the order of a module's parameters.
        """
        at, flat = 0, flat.to(self.device)
        for matrix, layer in zip(self.matrices(theta), self.shape.layers, strict=True):
            count = layer.outs * layer.inputs
            matrix[run, :, : layer.inputs] = flat[at : at + count].view(layer.outs, -1)
            matrix[run, :, layer.inputs] = flat[at + count : at + count + layer.outs]
            at += count + layer.outs

    def weights_of(self, theta: Tensor, run: int) -> Tensor:
        """Return one network's weights in the order of a module's parameters.

        Args:
            theta: Where from: `self.theta`, or a tensor like it.
            run: The number of the network.
        """
        found = []
        for matrix, layer in zip(self.matrices(theta), self.shape.layers, strict=True):
            found += [matrix[run, :, : layer.inputs].reshape(-1), matrix[run, :, layer.inputs]]
        return torch.cat(found)

    def passes(self, batch: int) -> Pass:
        """Make room for passes with this many inputs per network.

        Args:
            batch: How many inputs each network gets.
        """
        return Pass(self.shape, self.runs, batch, self.device)

    def step(self, by: Pass, slope: Tensor, first: Tensor) -> None:
        """Take one step with every network.

        Args:
            by: The pass that has computed the values.
            slope: The gradients of the losses at the values, of shape (networks, batch, actions).
            first: The inputs of the first layer.
        """
        matrices = self.matrices(self.theta)
        if self.adam:
            by.step(matrices, self.matrices(self.gradient), slope, first)
            self._adam_step()
        else:
            by.step(matrices, matrices, slope * self._column, first)

    def _adam_step(self) -> None:
        """Take a step by torch's own kernel, once per rate; the padding has no gradient and stays 0."""
        self.taken += 1
        for rate in dict.fromkeys(self._rates):
            runs = [run for run, one in enumerate(self._rates) if one == rate]
            theta, gradient, first, second = (
                [values[run] for run in runs] for values in (self.theta, self.gradient, self.first, self.second)
            )
            torch._fused_adam_(
                theta, gradient, first, second, [], [self.taken] * len(runs), lr=rate, beta1=BETAS[0], beta2=BETAS[1],
                weight_decay=0.0, eps=EPSILON, amsgrad=False, maximize=False,
            )  # fmt: skip


def huber_slope(values: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient of the mean Huber loss at the values.

    Args:
        values: The values of all actions, of shape (networks, batch, actions).
        targets: What the value of the action that was taken should be, of shape (networks, batch, 1).
        weight: One divided by the batch size for the action that was taken, 0 for the others; of the values' shape.
    """
    return (values - targets).clamp_(-1, 1).mul_(weight)
