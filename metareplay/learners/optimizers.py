"""The optimizers of the paper's ablation: torch's own, on the flat weight vector."""

from typing import Literal, get_args

import torch
from torch import nn

from metareplay.engines.torch_engine import MakeOptimizer
from metareplay.errors import InputError

OptimizerName = Literal["sgd", "adam", "rmsprop"]


def optimizer_maker(name: OptimizerName, lr: float) -> MakeOptimizer | None:
    """How to make the optimizer over a flat vector; None for plain SGD, which engines do themselves."""
    if name not in get_args(OptimizerName):
        raise InputError(f"optimizer {name!r}: use one of {', '.join(get_args(OptimizerName))}")
    if name == "sgd":
        return None
    kind = torch.optim.Adam if name == "adam" else torch.optim.RMSprop

    def make(theta: list[nn.Parameter]) -> torch.optim.Optimizer:
        return kind(theta, lr=lr)

    return make
