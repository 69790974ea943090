"""Modes of a module: training and evaluation."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode; afterwards restore the mode of each of its parts."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def training(model: nn.Module) -> Iterator[None]:
    """Put a model into training mode, unless it is; afterwards restore the mode of each of its parts.

    Parts that are in evaluation mode while the model is in training mode stay so: frozen statistics, for instance.
    """
    parts = [] if model.training else [module for module in model.modules() if not module.training]
    if parts:
        model.train()
    try:
        yield
    finally:
        for module in parts:
            module.training = False
