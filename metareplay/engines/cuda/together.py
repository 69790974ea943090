"""Gradients of many groups of rows in one pass over a convolutional network.

All groups are evaluated at the same weights. So the forward pass, and the backward pass to the inputs of each layer,
treat the rows of all groups as one batch; only the gradients of the weights are summed group by group.
"""

from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from metareplay._core.columns import Columns
from metareplay._core.table import Column, Table, TensorColumn
from metareplay._core.weights import Weights
from metareplay.engines.cuda.convnet import Block, blocks_and_heads, places
from metareplay.engines.objective import Objective, Supervised

ROWS: Final = 1024  # the most rows at a time: more of them would hardly fill a GPU better
PATCHES: Final = 2**27  # the most values in the patches of a layer: half a gigabyte in float32
SHAPES: Final = 10  # the most different numbers of groups of one size
aten = torch.ops.aten


@final
class Together:
    """Compute the gradients of several groups of rows, all of one size, at the current weights.

    The rows are in the order "the first row of each group, then the second row of each group, and so on". n * G rows of
    C channels are then, without a copy, n rows of G * C channels, and what torch's backward pass sums over a batch is
    summed over each group.

    Args:
        weights: The network's weights.
        blocks: The network's convolutions with what follows them.
        heads: The output layers: one that all tasks share, or one for each task.
        image: The channels, rows and columns of an input.
    """

    def __init__(self, weights: Weights, blocks: list[Block], heads: list[nn.Linear], image: torch.Size) -> None:
        self._theta = weights.theta
        self._rows = min(ROWS, PATCHES // _most_patches(blocks, image))
        self._several = len(heads) > 1
        where = places(weights.module)
        self._layers = [_Layer(block, where) for block in blocks]
        sizes = [(where[id(head.weight)], where[id(head.bias)], head.out_features) for head in heads]
        weight, bias, counts = torch.tensor(sizes, device="cpu").T[:, :, None]
        classes = torch.arange(int(counts.max()), device="cpu")
        features = torch.arange(heads[0].in_features, device="cpu")
        # Where each head's weights are in theta. A head with fewer classes than others is continued with whatever
        # follows in theta: these classes get a probability of zero, and so add nothing to any gradient.
        weight_at = (weight + classes * len(features))[:, :, None] + features
        tables = (weight_at % len(self._theta), (bias + classes) % len(self._theta), classes >= counts, classes)
        self._weight_at, self._bias_at, self._missing, self._classes = (one.to(weights.device) for one in tables)

    @staticmethod
    def of(weights: Weights, objective: Objective, table: Table) -> "Together | None":
        """Return what computes a network's gradients; None if it is not supported.

        Supported are the networks that `blocks_and_heads` knows, in float32 or float64, whose convolutions have no
        dilation, with cross-entropy as the loss, without a penalty, on tables that are kept as tensors.

        Args:
            weights: The network's weights.
            objective: What the loss is.
            table: The examples by row.
        """
        blocks, heads = blocks_and_heads(weights, objective)
        if not blocks or any(block.conv.dilation != (1, 1) for block in blocks):
            return None
        if weights.dtype not in (torch.float32, torch.float64) or len({head.in_features for head in heads}) > 1:
            return None
        if not isinstance(objective, Supervised) or objective.penalty is not None or table.shape("y"):
            return None
        if not all(_is_at(table.column(name), weights.device) for name in ("x", "y")) or len(table.shape("x")) != 3:
            return None
        return Together(weights, blocks, heads, table.shape("x")) if table.shape("y") == () else None

    def most(self, size: int) -> int:
        """Return how many groups to compute at a time, at most.

        Args:
            size: The size of a group.
        """
        return max(1, self._rows // max(1, size))

    def room(self, count: int, size: int) -> int:
        """Round a number of groups up, so that there are few different ones.

        Args:
            count: The number of groups.
            size: The size of a group.
        """
        step = -(-self.most(size) // SHAPES)
        return -(-count // step) * step

    def takes(self, tasks: Tensor) -> bool:
        """Return whether the rows of each group go through one output layer.

        Args:
            tasks: The tasks of the rows, on the CPU: (size of a group, number of groups).
        """
        return not self._several or bool((tasks == tasks[0]).all())

    @torch.no_grad()
    def gradients(self, examples: Columns, groups: int) -> Tensor:
        """Return the gradient of each group's mean loss as a row; NaN if that loss is not finite.

        Args:
            examples: The gathered rows, in the order that the class describes.
            groups: How many groups there are.
        """
        values = examples["x"].contiguous()
        size = len(values) // groups
        passes = []
        for layer in self._layers:
            passes.append(layer.forward(values, groups))
            values = passes[-1].outputs
        found = self._theta.new_zeros((groups, len(self._theta)))
        heads = examples["task"][:groups] if self._several else torch.zeros_like(examples["task"][:groups])
        slope, fine = self._head(values.reshape(size, groups, -1).transpose(0, 1), examples["y"], heads, found)
        slope = slope.transpose(0, 1).reshape(values.shape)
        for number in reversed(range(len(passes))):
            below = self._layers[number].backward(slope, passes.pop(), found, to_inputs=number > 0)
            slope = slope if below is None else below
        return found.masked_fill_(~fine[:, None], torch.nan)

    def _head(self, features: Tensor, ys: Tensor, heads: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
        """Add the gradients of the output layers to `found`.

        Args:
            features: The inputs of the output layers: (groups, size of a group, features).
            ys: The labels, in the order of the rows.
            heads: The output layer of each group.
            found: The gradient of each group, all zero.

        Returns:
            The gradients of the groups' losses at the features, and which of the losses are finite.
        """
        groups, size, _ = features.shape
        at, bias_at = self._weight_at[heads], self._bias_at[heads]
        weight = self._theta[at]
        outputs = torch.baddbmm(self._theta[bias_at][:, None], features, weight.mT)
        logs = outputs.masked_fill_(self._missing[heads][:, None], -torch.inf).log_softmax(2)
        labels = ys.view(size, groups).T[:, :, None]
        fine = torch.isfinite(logs.gather(2, labels).mean((1, 2)))
        slope = logs.exp_().sub_((labels == self._classes).to(logs.dtype)).div_(size)
        found.scatter_add_(1, at.flatten(1), (slope.mT @ features).flatten(1))
        found.scatter_add_(1, bias_at, slope.sum(1))
        return slope @ weight, fine


def _is_at(column: Column, device: torch.device) -> bool:
    """Return whether a column is a tensor on this device."""
    return isinstance(column, TensorColumn) and column.values.device == device


def _most_patches(blocks: list[Block], image: torch.Size) -> int:
    """Return how many values the patches of one input have, in the layer where there are most."""
    most, (_, height, width) = 1, image
    for block in blocks:
        (down, across), conv = block.padding, block.conv
        height = (height + 2 * down - conv.kernel_size[0]) // conv.stride[0] + 1
        width = (width + 2 * across - conv.kernel_size[1]) // conv.stride[1] + 1
        most = max(most, conv.weight[0].numel() * height * width)
        height, width = height // block.pool, width // block.pool
    return most


@final
@dataclass(frozen=True, eq=False)
class _Pass:
    """Keep what the backward pass through a layer needs from the forward pass."""

    inputs: Tensor
    convolved: Tensor
    mean: Tensor | None  # of each row's GroupNorm
    scale: Tensor | None  # one over the standard deviation, likewise
    largest: Tensor | None  # where in each pooling window
    outputs: Tensor


@final
class _Layer:
    """Pass through a convolution, GroupNorm or not, ReLU or not, and max-pooling or not, forward and backward.

    ReLU comes after the pooling here, where there are fewer values. That gives the same outputs and gradients: both
    let the largest value of a window pass if it is positive.
    """

    def __init__(self, block: Block, where: dict[int, int]) -> None:
        self._block, conv, norm = block, block.conv, block.norm
        assert conv.bias is not None, "blocks have biases"
        self._weight, self._bias = _span(conv.weight, where), _span(conv.bias, where)
        if norm is not None:
            self._gain, self._shift = _span(norm.weight, where), _span(norm.bias, where)

    def forward(self, inputs: Tensor, groups: int) -> _Pass:
        """Return the outputs, and what else the backward pass needs."""
        conv, norm, pool = self._block.conv, self._block.norm, [self._block.pool] * 2
        convolved = functional.conv2d(inputs, conv.weight, conv.bias, conv.stride, conv.padding).contiguous()
        values, mean, scale, largest = convolved, None, None, None
        if norm is not None:
            flat = _channels_of_all(convolved, groups)
            gain, shift = norm.weight.repeat(groups), norm.bias.repeat(groups)
            numbers = (*flat.shape, groups * norm.num_groups)
            values, mean, scale = aten.native_group_norm(flat, gain, shift, *numbers, norm.eps)
            values = values.view_as(convolved)
        if self._block.pool > 1:
            values, largest = aten.max_pool2d_with_indices(values, pool, pool)
        outputs = values.relu() if self._block.relu else values
        return _Pass(inputs, convolved, mean, scale, largest, outputs)

    def backward(self, slope: Tensor, kept: _Pass, found: Tensor, *, to_inputs: bool) -> Tensor | None:
        """Write the gradients of the layer's weights into `found`; return that of its inputs if it is needed.

        Args:
            slope: The gradients at the layer's outputs.
            kept: What the forward pass returned.
            found: The gradient of each group.
            to_inputs: Whether the gradients at the inputs are needed.
        """
        conv, norm, pool, groups = self._block.conv, self._block.norm, [self._block.pool] * 2, len(found)
        if self._block.relu:
            slope = aten.threshold_backward(slope, kept.outputs, 0)
        if kept.largest is not None:
            slope = aten.max_pool2d_with_indices_backward(
                slope, kept.convolved, pool, pool, [0, 0], [1, 1], False, kept.largest
            )
        if norm is not None:
            flat, of_outputs = (_channels_of_all(values, groups) for values in (kept.convolved, slope))
            gain, numbers = norm.weight.repeat(groups), (*flat.shape, groups * norm.num_groups)
            slope, of_gain, of_shift = aten.native_group_norm_backward(
                of_outputs, flat, kept.mean, kept.scale, gain, *numbers, [True, True, True]
            )
            slope = slope.view_as(kept.convolved)
            found[:, self._gain] = of_gain.view(groups, -1)
            found[:, self._shift] = of_shift.view(groups, -1)
        channels = conv.out_channels
        found[:, self._bias] = slope.reshape(-1, groups, channels, slope[0, 0].numel()).sum((0, 3))
        of_rows = torch.bmm(slope.reshape(len(slope), channels, -1), self._patches(kept.inputs).mT)
        found[:, self._weight] = of_rows.view(-1, groups, conv.weight.numel()).sum(0)
        if not to_inputs:
            return None
        of_inputs: Tensor = aten.convolution_backward(
            slope, kept.inputs, conv.weight, None, conv.stride, conv.padding, conv.dilation, False, [0, 0], 1,
            [True, False, False],
        )[0]  # fmt: skip
        return of_inputs.contiguous()

    def _patches(self, inputs: Tensor) -> Tensor:
        """Return what the filters see at each output pixel: (rows, input channels * taps, output pixels)."""
        (down, across), conv = self._block.padding, self._block.conv
        padded = functional.pad(inputs, (across, across, down, down))
        (high, wide), (step_down, step_across) = conv.kernel_size, conv.stride
        windows = padded.unfold(2, high, step_down).unfold(3, wide, step_across)
        return windows.permute(0, 1, 4, 5, 2, 3).reshape(len(inputs), conv.weight[0].numel(), -1)


def _channels_of_all(values: Tensor, groups: int) -> Tensor:
    """View the n * G rows of C channels as n rows of G * C channels."""
    return values.reshape(len(values) // groups, groups * values.shape[1], -1)


def _span(parameter: Tensor, where: dict[int, int]) -> slice:
    """Return the part of theta that a parameter is."""
    return slice(where[id(parameter)], where[id(parameter)] + parameter.numel())
