"""Rewrite a module and its loss so that a step on one example takes few kernels. Both versions share all parameters."""

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from metareplay._core.columns import Columns
from metareplay.engines.chain import hooked
from metareplay.engines.objective import Objective, Supervised, forward
from metareplay.networks import MultiHead, TaskModule

POOLS = (2, 4)  # sizes of pooling windows that our kernels support: Triton's blocks are powers of two
SMALL = 2**25  # multiplications in a convolution: larger ones fill the GPU, and torch's own kernels suit them
Loss = Callable[[Tensor, Tensor], Tensor]


def streamlined(model: nn.Module) -> nn.Module:
    """Replace layers that follow each other in an nn.Sequential by one block: Conv2d, ReLU, MaxPool2d; Linear, ReLU.

    Args:
        model: The module, which is not changed.

    Returns:
        A module that computes the same function with the same parameters; `model` itself if there is nothing to
        replace, if it has hooks, or if Triton is missing.
    """
    if find_spec("triton") is None or any(hooked(module) for module in model.modules()):
        return model
    if isinstance(model, MultiHead):
        return FlatHeads(model, streamlined(model.body)) if _in_one_vector(model.heads) else model
    return _sequence(model) if type(model) is nn.Sequential else model


def streamlined_loss(loss: Loss) -> Loss:
    """Return a loss that computes the same with fewer kernels, for cross-entropy; any other loss is returned as it is.

    Args:
        loss: The loss, a function of outputs and labels.
    """
    return _cross_entropy if loss is functional.cross_entropy and find_spec("triton") is not None else loss


def streamlined_objective(objective: Objective) -> Objective:
    """Return an objective that computes the same with fewer kernels; one that is not known is returned as it is.

    Args:
        objective: What steps minimise.
    """
    if not isinstance(objective, Supervised):
        return objective
    if objective.by_task:
        plain = objective.criterion is functional.cross_entropy and objective.penalty is None
        return BalancedCrossEntropy(objective.clip) if plain else objective
    criterion = streamlined_loss(objective.criterion)
    return objective if criterion is objective.criterion else replace(objective, criterion=criterion)


@final
class BalancedCrossEntropy(Objective):
    """Minimise the sum over the tasks in a batch of each task's mean cross-entropy, without asking which tasks occur.

    Args:
        clip: Scale any gradient with a larger norm down to this norm; None for no limit.
    """

    def __init__(self, clip: float | None) -> None:
        self.clip = clip

    def loss(self, model: nn.Module, examples: Columns) -> Tensor:
        """Return the losses of all examples, each divided by the number of examples of its task."""
        tasks = examples["task"]
        each = functional.cross_entropy(forward(model, examples["x"], tasks), examples["y"], reduction="none")
        each = each.flatten(1).mean(1) if each.dim() > 1 else each  # an example may have many labels
        return (each / (tasks[:, None] == tasks).sum(1)).sum()


def _cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Compute the cross-entropy, of a single example with our kernels, otherwise with torch."""
    if outputs.dim() != 2 or labels.dim() != 1 or not _single(outputs):
        return functional.cross_entropy(outputs, labels)
    from metareplay.engines.cuda.linear import CrossEntropy  # here, because only machines with a GPU have triton

    apply: Any = CrossEntropy.apply
    found: Tensor = apply(outputs, labels)
    return found


def _sequence(model: nn.Sequential) -> nn.Sequential:
    """Replace what can be replaced in a sequence and in those inside it; return the same one if nothing can."""
    parts, blocks, at = list(model), list[nn.Module](), 0
    while at < len(parts):
        part, following = parts[at], parts[at + 1 : at + 3]
        relu = len(following) > 0 and type(following[0]) is nn.ReLU
        used = 1
        if type(part) is nn.Conv2d and _fits(part):
            pool = _window(following[relu]) if len(following) > relu else 1
            used += relu + (pool > 1)
            blocks.append(ConvBlock(part, parts[at + 1 : at + used], pool, relu))
        elif type(part) is nn.Linear:
            used += relu
            blocks.append(LinearBlock(part, parts[at + 1 : at + used], relu))
        else:
            blocks.append(_sequence(part) if type(part) is nn.Sequential else part)
        at += used
    changed = any(new is not old for new, old in zip(blocks, parts, strict=False))
    return nn.Sequential(*blocks) if changed else model


def _in_one_vector(heads: nn.ModuleList) -> bool:
    """Return whether the parameters of linear layers lie side by side in memory, as `Weights` puts them."""
    end = None
    for head in heads:
        for parameter in (head.weight, head.bias) if isinstance(head, nn.Linear) else (None,):
            if parameter is None or not parameter.requires_grad or end not in (None, parameter.data_ptr()):
                return False
            end = parameter.data_ptr() + parameter.nbytes
    return end is not None


@final
class FlatHeads(TaskModule):
    """Compute a `MultiHead` whose output layers are one vector, so that a step does not touch each by itself.

    Args:
        given: The module, whose trainable parameters lie in one vector (see `Weights`).
        body: Its body, rewritten.
    """

    def __init__(self, given: MultiHead, body: nn.Module) -> None:
        super().__init__()
        heads = [head for head in given.heads if isinstance(head, nn.Linear)]
        parameters = [p.detach() for head in heads for p in (head.weight, head.bias)]
        self.body, self._given, self._features = body, [given], heads[0].in_features
        self.flat = nn.Parameter(torch.as_strided(parameters[0], (sum(p.numel() for p in parameters),), (1,)))
        at, weights, biases = 0, list[Tensor](), list[Tensor]()
        for head in heads:
            weights.append(torch.arange(at, at + head.weight.numel()))
            biases.append(torch.arange(at + head.weight.numel(), at + head.weight.numel() + head.out_features))
            at += head.weight.numel() + head.out_features
        order = torch.cat([*weights, *biases])
        self._order, self._back = order.to(self.flat.device), order.argsort().to(self.flat.device)
        self._count = sum(len(one) for one in biases)

    def forward(self, inputs: Tensor, tasks: Tensor) -> Tensor:
        """Return the logits of each input's own head, -inf for classes that its task does not have."""
        apply: Any = Arranged.apply
        weight, bias = apply(self.flat, self._order, self._back).split([self._count * self._features, self._count])
        return self._given[0].pick(self.body(inputs), weight.view(self._count, -1), bias, tasks)

    def classes(self, task: int) -> int:
        """Return the number of classes of a task."""
        return self._given[0].classes(task)


class Arranged(torch.autograd.Function):
    """Put the numbers of a vector into another order."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, order: Tensor, back: Tensor) -> Tensor:
        """Return values[order]."""
        ctx.save_for_backward(back)
        return values[order]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Put the gradient back into the old order."""
        [back] = ctx.saved_tensors
        return gradients[0][back], None, None


@final
class ConvBlock(nn.Module):
    """Compute a convolution and what follows it: a batch of one by our kernels, any other by torch.

    Args:
        conv: The convolution.
        following: The ReLU and the pooling after it, as far as there are any.
        pool: Rows and columns of a pooling window; 1 if there is no pooling.
        relu: Whether there is a ReLU.
    """

    def __init__(self, conv: nn.Conv2d, following: list[nn.Module], pool: int, relu: bool) -> None:
        super().__init__()
        self.conv, self.following = conv, nn.Sequential(*following)
        self.pool, self.relu = pool, relu
        self._geometries: dict[tuple[int, int], Any] = {}  # one per size of image

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply convolution, ReLU and pooling."""
        conv = self.conv
        if inputs.dim() != 4 or not _single(inputs) or not _suits(inputs, self):
            plain: Tensor = self.following(conv(inputs))
            return plain
        from metareplay.engines.cuda.convolution import ConvReluPool, Geometry

        size = inputs.shape[2], inputs.shape[3]
        if size not in self._geometries:
            self._geometries[size] = Geometry.of(conv, self.pool, *size)
        apply: Any = ConvReluPool.apply
        found: Tensor = apply(inputs, conv.weight, conv.bias, self._geometries[size], self.pool, self.relu)
        return found


@final
class LinearBlock(nn.Module):
    """Compute a linear layer and the ReLU after it: a batch of one by our kernels, any other by torch.

    Args:
        linear: The linear layer.
        following: The ReLU after it, if there is one.
        relu: Whether there is a ReLU.
    """

    def __init__(self, linear: nn.Linear, following: list[nn.Module], relu: bool) -> None:
        super().__init__()
        self.linear, self.following, self.relu = linear, nn.Sequential(*following), relu

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply W x + b and ReLU."""
        linear = self.linear
        if inputs.dim() != 2 or not _single(inputs) or inputs.shape[1] != linear.in_features:
            plain: Tensor = self.following(linear(inputs))
            return plain
        from metareplay.engines.cuda.linear import LinearRelu

        apply: Any = LinearRelu.apply
        found: Tensor = apply(inputs, linear.weight, linear.bias, self.relu)
        return found


def _single(inputs: Tensor) -> bool:
    """Return True for a batch of one float32 example."""
    return len(inputs) == 1 and inputs.dtype == torch.float32


def _fits(conv: nn.Conv2d) -> bool:
    """Return True if our kernels support this kind of convolution."""
    plain = conv.groups == 1 and conv.padding_mode == "zeros" and not isinstance(conv.padding, str)
    return plain and conv.weight.dtype == torch.float32


def _window(module: nn.Module) -> int:
    """Return the size of the pooling windows if our kernels support them, otherwise 1.

    They have to be squares of a size in POOLS that lie side by side.
    """
    if type(module) is not nn.MaxPool2d or module.return_indices or module.ceil_mode:
        return 1
    size, step = _pair(module.kernel_size), _pair(module.stride)
    plain = size == step and size[0] == size[1] and _pair(module.padding) == (0, 0) and _pair(module.dilation) == (1, 1)
    return size[0] if plain and size[0] in POOLS else 1


def _pair(value: Any) -> tuple[int, int]:
    """Return rows and columns from an option that is one number for both, or two numbers."""
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _suits(inputs: Tensor, block: ConvBlock) -> bool:
    """Return True if our kernels support inputs of this size; otherwise torch handles them, or says what is wrong."""
    from metareplay.engines.cuda.convolution import output_size

    conv = block.conv
    down, across = output_size(conv, inputs.shape[2], inputs.shape[3])
    small = conv.weight.numel() * down * across <= SMALL
    return inputs.shape[1] == conv.in_channels and min(down, across) >= block.pool and small
