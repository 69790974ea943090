"""Stored examples as a model takes them."""

import torch
from torch import Tensor

from metareplay._core.weights import Weights


def scale_of(xs: Tensor) -> float:
    """What inputs are divided by: 255 for images in bytes."""
    return 255.0 if xs.dtype == torch.uint8 else 1.0


def as_input(xs: Tensor, weights: Weights) -> Tensor:
    """uint8 scaled to [0, 1], reals in the model's dtype, integers as they are."""
    if xs.dtype == torch.uint8:
        return xs.to(weights.device, weights.dtype).div_(scale_of(xs))
    if xs.is_floating_point():
        return xs.to(weights.device, weights.dtype)
    return xs.to(weights.device)
