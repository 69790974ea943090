"""Passes through several Q-networks at once: forward to the values of actions, and backward with a step.

Each layer is one matrix product. Its matrix has the weights and, as one more column, the biases; what it is multiplied
with has a one in that place. A convolution is multiplied with patches: for every output pixel a column with the input
pixels that the filters see there.
"""

from abc import ABC, abstractmethod
from typing import Final

import torch
from torch import Tensor

from metareplay.engines.cuda.q_shape import Shape

ALIGNED: Final = 4  # columns of a matrix come in multiples of this, which lets the GPU load four numbers at a time

Matrices = list[Tensor]  # of each layer: (networks, outputs, columns)


class Pass(ABC):
    """Go forward and backward through networks of one shape; what the way back needs is kept in between.

    Args:
        shape: The networks' shape.
        runs: How many networks there are.
        batch: How many inputs each of them gets.
        device: Where everything lives.
    """

    def __init__(self, shape: Shape, runs: int, batch: int, device: torch.device) -> None:
        self.shape, self.runs, self.batch, self.device = shape, runs, batch, device

    @abstractmethod
    def take(self, pictures: Tensor) -> Tensor:
        """Return the inputs of the first layer.

        Args:
            pictures: Bytes of shape (networks, batch, channels, rows, columns).
        """

    @abstractmethod
    def rows(self, pictures: Tensor) -> list[Tensor]:
        """Return the inputs of the first layer for each of several pictures by itself.

        Args:
            pictures: Bytes of shape (networks, pictures, channels, rows, columns).
        """

    @abstractmethod
    def values(self, matrices: Matrices, first: Tensor) -> Tensor:
        """Return the values of all actions, of shape (networks, batch, actions).

        Args:
            matrices: The weights.
            first: The inputs of the first layer.
        """

    @abstractmethod
    def step(self, matrices: Matrices, into: Matrices, slope: Tensor, first: Tensor) -> None:
        """Go back through the layers; subtract the gradient from the weights, or write it.

        Args:
            matrices: The weights.
            into: Where the gradient is written; if these are the weights themselves, it is subtracted from them.
            slope: The gradients of the losses at the values, times the rate if they are to be subtracted.
            first: The inputs of the first layer.
        """


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
