"""First weights, drawn from a seed of their own."""

from typing import TypeVar

import torch
from torch import nn

Net = TypeVar("Net", bound=nn.Module)


def glorot(net: Net, seed: int) -> Net:
    """Draw every weight matrix (and filter) anew: Glorot uniform; biases zero. Gains of normalisation layers stay.

    U(-a, a), a = sqrt(6 / (fan_in + fan_out)): Glorot and Bengio (2010).
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in net.named_parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter, generator=generator)
        elif name.rpartition(".")[2] == "bias":
            nn.init.zeros_(parameter)
    return net


def linear(inputs: int, outputs: int) -> nn.Module:
    """A layer whose first weights, which are replaced, leave torch's global generator as it was."""
    state = torch.get_rng_state()
    layer = nn.Linear(inputs, outputs)
    torch.set_rng_state(state)
    return layer
