"""A module and its loss rewritten so that a step on one example takes few kernels; all parts are shared."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from metareplay.engines.chain import hooked
from metareplay.networks import MultiHead

Loss = Callable[[Tensor, Tensor], Tensor]


def streamlined(model: nn.Module) -> nn.Module:
    """In an nn.Sequential, Linear and the ReLU after it as one block, and Conv2d as a matrix product.

    The result computes the same function with the same parameters. A module with hooks is left alone.
    """
    if find_spec("triton") is None or any(hooked(module) for module in model.modules()):
        return model
    if isinstance(model, MultiHead):
        body = streamlined(model.body)
        return model if body is model.body else model.with_body(body)
    return _sequence(model) if type(model) is nn.Sequential else model


def streamlined_loss(loss: Loss) -> Loss:
    """Cross-entropy in two kernels; any other loss as it is."""
    return _cross_entropy if loss is functional.cross_entropy and find_spec("triton") is not None else loss


def _cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    if outputs.dim() != 2 or not _single(outputs):
        return functional.cross_entropy(outputs, labels)
    from metareplay.engines.one_example import CrossEntropy  # here, because only GPU machines have triton

    apply: Any = CrossEntropy.apply
    found: Tensor = apply(outputs, labels)
    return found


def _sequence(model: nn.Sequential) -> nn.Sequential:
    parts, blocks, at = list(model), list[nn.Module](), 0
    while at < len(parts):
        part, following = parts[at], parts[at + 1 : at + 2]
        relu = len(following) > 0 and type(following[0]) is nn.ReLU
        used = 1
        if type(part) is nn.Conv2d and _fits(part):
            blocks.append(ConvBlock(part))
        elif type(part) is nn.Linear:
            used += relu
            blocks.append(LinearBlock(part, parts[at + 1 : at + used], relu))
        else:
            blocks.append(_sequence(part) if type(part) is nn.Sequential else part)
        at += used
    changed = any(new is not old for new, old in zip(blocks, parts, strict=False))
    return nn.Sequential(*blocks) if changed else model


@final
class ConvBlock(nn.Module):
    """A convolution; a batch of one by gathering patches and one matrix product, any other by torch."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, inputs: Tensor) -> Tensor:
        """What torch does without cuDNN: faster on one example, and the same numbers every time."""
        conv = self.conv
        if inputs.dim() != 4 or not _single(inputs):
            plain: Tensor = conv(inputs)
            return plain
        size, stride, padding = conv.kernel_size, conv.stride, conv.padding
        found: Tensor = torch.ops.aten.thnn_conv2d(inputs, conv.weight, size, conv.bias, stride, padding)
        return found


@final
class LinearBlock(nn.Module):
    """A linear layer and the ReLU after it; a batch of one by our kernels, any other by torch."""

    def __init__(self, linear: nn.Linear, following: list[nn.Module], relu: bool) -> None:
        super().__init__()
        self.linear, self.following, self.relu = linear, nn.Sequential(*following), relu

    def forward(self, inputs: Tensor) -> Tensor:
        """W x + b, ReLU."""
        linear = self.linear
        if inputs.dim() != 2 or not _single(inputs) or inputs.shape[1] != linear.in_features:
            plain: Tensor = self.following(linear(inputs))
            return plain
        from metareplay.engines.one_example import LinearRelu

        apply: Any = LinearRelu.apply
        found: Tensor = apply(inputs, linear.weight, linear.bias, self.relu)
        return found


def _single(inputs: Tensor) -> bool:
    return len(inputs) == 1 and inputs.dtype == torch.float32


def _fits(conv: nn.Conv2d) -> bool:
    plain = conv.groups == 1 and set(conv.dilation) == {1} and conv.padding_mode == "zeros"
    return plain and not isinstance(conv.padding, str) and conv.weight.dtype == torch.float32
