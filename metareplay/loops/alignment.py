"""Transfer and interference between the new and the replayed rows of a batch: the dot product of their gradients."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from metareplay._core.checks import answer, function, instance
from metareplay.engines.modes import evaluating
from metareplay.engines.torch_engine import own_randomness
from metareplay.errors import InputError


@final
@dataclass(frozen=True)
class GradientAlignment:
    """Compare two gradients. Above 0 means transfer, below 0 means interference.

    Args:
        dot: Their dot product.
        cosine: The cosine of the angle between them; 0 if one of them is zero.
    """

    dot: float
    cosine: float


def gradient_alignment(
    model: nn.Module, loss_of: Callable[[Any], Tensor], new: Any, replayed: Any
) -> GradientAlignment:
    """Compare the gradients of the mean loss on new rows and of the mean loss on replayed rows.

    With g = d loss_of(new) / d theta and h = d loss_of(replayed) / d theta at the present weights, over all parameters
    that are trained, `dot` is g . h and `cosine` is g . h / (|g| |h|). A product above 0 means transfer (a small step
    on the new rows also lowers the loss on the replayed ones), one below 0 means interference. Riemer et al. (2019)
    compare examples in this way. Sums are taken in float64.

    The gradients are taken in evaluation mode. Weights, their `grad`, the model's buffers and torch's random numbers
    stay as they are, so that training goes on as if nothing had been measured. Both gradients are held at once.

    Args:
        model: The model, not sharded.
        loss_of: Takes rows and returns their mean loss. If the model is wrapped by DDP, let it call `model.module`.
        new: The new rows.
        replayed: The replayed rows.
    """
    instance("model", model, nn.Module, "a torch module")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise InputError("the model has no parameters that are trained: there are no gradients to compare")
    if any(hasattr(parameter, "to_local") for parameter in trained):
        raise InputError("the weights are sharded, and gradients of shards cannot be compared: use DDP, or one process")
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(evaluating(model))
        for device in {torch.device("cpu"), *(parameter.device for parameter in trained)}:
            stack.enter_context(own_randomness(device))
        if isinstance(model, DistributedDataParallel):
            stack.callback(model.register_forward_pre_hook(_refuse).remove)
        one, other = _gradients(loss_of, new, trained), _gradients(loss_of, replayed, trained)
    dot, length, other_length = _product(one, other), _product(one, one) ** 0.5, _product(other, other) ** 0.5
    lengths = length * other_length
    return GradientAlignment(dot, dot / lengths if lengths else 0.0)


def _gradients(loss_of: Callable[[Any], Tensor], rows: Any, trained: list[nn.Parameter]) -> tuple[Tensor, ...]:
    loss: object = answer("loss_of", function("loss_of", loss_of), rows)
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise InputError("loss_of must return the mean loss of its rows: one number, as a tensor, made by the model")
    return torch.autograd.grad(loss, trained, materialize_grads=True)


def _product(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> float:
    parts = [torch.dot(a.flatten().double(), b.flatten().double()) for a, b in zip(one, other, strict=True)]
    return sum(part.item() for part in parts)


def _refuse(*_: object) -> None:
    """Say what DDP, which counts backward passes, would only complain about at the next one."""
    raise InputError("loss_of calls the model that DDP has wrapped: let it call model.module")
