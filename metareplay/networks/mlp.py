"""The network of the paper for MNIST: a multi-layer perceptron."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from metareplay._core.checks import check_room, shown, whole, whole_numbers
from metareplay.errors import InputError
from metareplay.networks.initial import glorot, linear


def mlp(inputs: int, hidden: Sequence[int], outputs: int, seed: int = 0) -> nn.Sequential:
    """Make a multi-layer perceptron: linear layers with ReLU between them, after flattening each input.

    The first weights are Glorot uniform and the biases zero, as in the paper's experiments.

    >>> mlp(784, (100, 100), 10)
    Sequential(
      (0): Flatten(start_dim=1, end_dim=-1)
      (1): Linear(in_features=784, out_features=100, bias=True)
      (2): ReLU()
      (3): Linear(in_features=100, out_features=100, bias=True)
      (4): ReLU()
      (5): Linear(in_features=100, out_features=10, bias=True)
    )

    Args:
        inputs: The number of values in one input, for example 784 for an image of 28x28 pixels.
        hidden: The width of each hidden layer; `()` makes a single linear layer.
        outputs: The number of outputs, for example the number of classes.
        seed: Decides the first weights.
    """
    widths = (whole("inputs", inputs), *whole_numbers("hidden", hidden), whole("outputs", outputs))
    if min(widths) < 1:
        raise InputError(f"an MLP of widths {shown(widths)}: every layer needs at least one unit")
    check_room("an MLP of widths", widths, 4 * sum(width * (following + 1) for width, following in pairwise(widths)))
    layers: list[nn.Module] = [nn.Flatten()]
    for width, following in pairwise(widths):
        layers += [linear(width, following), nn.ReLU()]
    return glorot(nn.Sequential(*layers[:-1]), seed)
