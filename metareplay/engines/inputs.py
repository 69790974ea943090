"""Stored examples as a model takes them."""

import torch
from torch import Tensor

from metareplay.weights import Weights


def as_input(xs: Tensor, weights: Weights) -> Tensor:
    """uint8 scaled to [0, 1], reals in the model's dtype, integers as they are."""
    if xs.dtype == torch.uint8:
        return xs.to(weights.device, weights.dtype).div_(255)
    if xs.is_floating_point():
        return xs.to(weights.device, weights.dtype)
    return xs.to(weights.device)
