"""The optimizers of the paper's ablation: torch's own, on the flat weight vector."""

from typing import Literal

import torch
from torch import nn

OptimizerName = Literal["sgd", "adam", "rmsprop"]
BY_OPTIMIZER = 25.0  # what an optimizer's pass over all weights costs, in compiled SGD steps on one example


def make_optimizer(name: OptimizerName, theta: nn.Parameter, lr: float) -> torch.optim.Optimizer | None:
    """Make the optimizer of that name; None for plain SGD, which engines do themselves.

    Args:
        name: "sgd", "adam" or "rmsprop".
        theta: All trainable weights as one flat vector.
        lr: The rate.
    """
    if name == "sgd":
        return None
    kind = torch.optim.Adam if name == "adam" else torch.optim.RMSprop
    return kind([theta], lr=lr, capturable=theta.is_cuda)  # so that graphs can hold its steps


def work(name: OptimizerName, k: int) -> float:
    """Estimate the cost of a step on a batch of k, in SGD steps on one example."""
    return float(k) if name == "sgd" else k + BY_OPTIMIZER
