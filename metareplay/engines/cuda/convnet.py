"""What the kernels for convolutional networks need to know about a network: its layers, sizes and places in theta."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from metareplay._core.table import Table, TensorColumn
from metareplay._core.weights import Weights
from metareplay.engines.chain import hooked
from metareplay.engines.objective import Objective, Supervised
from metareplay.networks import MultiHead

POOLS = (1, 2, 4)  # sizes of pooling windows that the kernels support: Triton's blocks are powers of two
CHANNELS = 64  # the most channels of a layer: one tile of the matrix products
FEATURES = 256  # the most inputs of the last layer, which one program computes
CLASSES = 64  # the most classes of one task, likewise
PIXELS = 2**10  # the most pixels of an image


@final
@dataclass(frozen=True, eq=False)
class Block:
    """Hold a convolution and what follows it.

    Args:
        conv: The convolution: with biases, zeros as padding, and one group of channels.
        padding: Its padding in pixels, down and across.
        norm: The GroupNorm after it, if there is one.
        relu: Whether a ReLU comes next.
        pool: Rows and columns of the windows of the max-pooling at the end; 1 if there is none.
    """

    conv: nn.Conv2d
    padding: tuple[int, ...]
    norm: nn.GroupNorm | None
    relu: bool
    pool: int


@final
@dataclass(frozen=True)
class Sizes:
    """Hold the numbers that describe a convolution with the GroupNorm, ReLU and max-pooling after it.

    Args:
        ins: Input channels.
        outs: Output channels.
        taps: Places of a filter, for instance nine.
        pixels: Input pixels.
        count: Output pixels before pooling.
        window: Pixels of a pooling window; 1 if there is no pooling.
        windows: Pixels after pooling.
        relu: Whether there is a ReLU.
        groups: Groups of the GroupNorm; 0 if there is none.
        eps: What the GroupNorm adds to the variance.
        weight: Where the filters begin in theta.
        bias: Where the biases begin in theta.
        scale: Where the gains of the GroupNorm begin in theta.
        shift: Where the biases of the GroupNorm begin in theta.
    """

    ins: int
    outs: int
    taps: int
    pixels: int
    count: int
    window: int
    windows: int
    relu: bool
    groups: int
    eps: float
    weight: int
    bias: int
    scale: int
    shift: int

    @property
    def blocks(self) -> int:
        """The number of windows that a program's block has, room for the pixels that pooling drops included."""
        return power_of_2(-(-self.count // self.window))


@final
@dataclass(frozen=True)
class Layer:
    """Describe a convolution with what follows it, and which of its pixels meet.

    Output pixels are those before pooling. They are numbered window by window: pixel n is at place n % window of window
    n // window; those that pooling drops at the edges come last. Input pixels are numbered row by row. The kernels look
    pixels up in tables and need no arithmetic on rows and columns, which Triton 3.6 compiled wrongly for some shapes.

    Args:
        sizes: Its numbers.
        seen: (taps, count): the input pixel that an output pixel sees through a tap, or -1 for padding.
        sees: (taps, pixels): the output pixel that sees an input pixel through a tap, or -1 for none.
    """

    sizes: Sizes
    seen: Tensor
    sees: Tensor


@final
@dataclass(frozen=True)
class Head:
    """Say where a task's output layer is in theta.

    Args:
        weight: Where its weights begin.
        bias: Where its biases begin.
        classes: How many classes it has.
    """

    weight: int
    bias: int
    classes: int


@final
@dataclass(frozen=True, eq=False)
class ConvNet:
    """Describe a network of convolutions and one linear layer, or one for each task.

    Args:
        layers: The convolutions.
        heads: The output layers; one that all tasks share, or one for each task.
        size: The number of weights.
    """

    layers: tuple[Layer, ...]
    heads: tuple[Head, ...]
    size: int

    @property
    def shape(self) -> tuple[object, ...]:
        """What networks have in common that can learn side by side."""
        return (*(layer.sizes for layer in self.layers), self.heads, self.size)

    @staticmethod
    def of(weights: Weights, objective: Objective, table: Table) -> "ConvNet | None":
        """Describe a learner's network; return None if the kernels do not support it.

        They support one-channel images; at least two convolutions of at most 64 channels, each followed by GroupNorm or
        not, ReLU and max-pooling or not; then a linear layer, or a `MultiHead`; and cross-entropy.

        Args:
            weights: The network's weights.
            objective: What steps minimise.
            table: The examples by row.
        """
        if find_spec("triton") is None or weights.dtype != torch.float32 or not _suits(table, weights.device):
            return None
        blocks, heads = blocks_and_heads(weights, objective)
        return _described(blocks, heads, tuple(table.shape("x")), weights)


def blocks_and_heads(weights: Weights, objective: Objective) -> tuple[list[Block], list[nn.Linear]]:
    """Take a network apart, if it consists of convolutions and a linear layer, or a `MultiHead`, and nothing else.

    Every parameter has to be trained, no module may have hooks or buffers, and the loss has to be cross-entropy.

    Args:
        weights: The network's weights.
        objective: What steps minimise.

    Returns:
        The convolutions with what follows them, and the output layers: one that all tasks share, or one for each task.
        Both are empty for any other network or objective.
    """
    module, nothing = weights.module, (list[Block](), list[nn.Linear]())
    plain = isinstance(objective, Supervised) and not objective.by_task and not objective.regression
    if not plain or getattr(objective, "criterion", None) is not functional.cross_entropy:
        return nothing
    if any(hooked(one) for one in module.modules()) or next(module.buffers(), None) is not None:
        return nothing
    parts, heads = _parts(module)
    blocks = _blocks(parts)
    own = sum(p.numel() for one in (*parts, *heads) for p in one.parameters())  # more than there are if layers share
    trained = own == weights.theta.numel() and all(one.requires_grad for one in module.parameters())
    return (blocks, heads) if blocks and trained and all(head.bias is not None for head in heads) else nothing


def _blocks(parts: list[nn.Module]) -> list[Block]:
    """Return the convolutions with what follows them; nothing if there is anything else, or no Flatten at the end."""
    if not parts or type(parts[-1]) is not nn.Flatten or (parts[-1].start_dim, parts[-1].end_dim) != (1, -1):
        return []
    starts = [at for at, part in enumerate(parts[:-1]) if type(part) is nn.Conv2d]
    if not starts or starts[0] != 0:
        return []
    found = [_block(parts[start], parts[start + 1 : end]) for start, end in pairwise([*starts, len(parts) - 1])]
    blocks = [block for block in found if block is not None]
    return blocks if len(blocks) == len(found) else []


def _block(conv: nn.Module, after: Sequence[nn.Module]) -> Block | None:
    """Return a convolution with what follows it; None at the first thing that is not supported."""
    if not isinstance(conv, nn.Conv2d) or conv.groups != 1 or conv.padding_mode != "zeros" or conv.bias is None:
        return None
    norm = after[0] if after and type(after[0]) is nn.GroupNorm else None
    left = list(after[norm is not None :])
    relu = bool(left) and type(left[0]) is nn.ReLU
    left = left[relu:]
    pool = _pool(left.pop(0)) if left else 1
    if left or pool == 0 or isinstance(conv.padding, str) or (norm is not None and not norm.affine):
        return None
    return Block(conv, conv.padding, norm, relu, pool)


def _suits(table: Table, device: torch.device) -> bool:
    """Return whether the table has one-channel images, as bytes or float32, and class labels, all on the device."""
    images, labels, shape = table.column("x"), table.column("y"), tuple(table.shape("x"))
    if not isinstance(images, TensorColumn) or not isinstance(labels, TensorColumn):
        return False
    if (images.values.device, labels.values.device) != (device, device) or not images.values.is_contiguous():
        return False  # the kernels read images by their address
    if images.values.dtype not in (torch.uint8, torch.float32) or labels.values.is_floating_point():
        return False
    return len(shape) == 3 and shape[0] == 1 and shape[1] * shape[2] <= PIXELS


def _parts(module: nn.Module) -> tuple[list[nn.Module], list[nn.Linear]]:
    """Return the layers before the last one, and the last one of each task; both empty for other modules."""
    if isinstance(module, MultiHead):
        heads = [head for head in module.heads if isinstance(head, nn.Linear) and type(head) is nn.Linear]
        return _flat(module.body), heads if len(heads) == len(module.heads) else []
    layers = _flat(module)
    last = layers[-1] if layers else None
    return (layers[:-1], [last]) if type(last) is nn.Linear else ([], [])


def _flat(module: nn.Module) -> list[nn.Module]:
    """Return the layers of a sequence and of sequences inside it; any other module is one layer."""
    return [one for part in module for one in _flat(part)] if type(module) is nn.Sequential else [module]


def places(module: nn.Module) -> dict[int, int]:
    """Return where each parameter begins in theta, by the parameter's identity.

    Args:
        module: A module whose every parameter is trained.
    """
    at, found = 0, {}
    for parameter in module.parameters():
        found[id(parameter)] = at
        at += parameter.numel()
    return found


def _described(blocks: list[Block], heads: list[nn.Linear], image: tuple[int, ...], weights: Weights) -> ConvNet | None:
    """Describe the network; return None at the first thing that is not supported."""
    size, layers, where = image, list[Layer](), places(weights.module)
    for block in blocks:
        found = _layer(block, size, where, weights.device)
        if found is None:
            return None
        layer, size = found
        layers.append(layer)
    if len(layers) < 2:
        return None
    last = layers[-1].sizes
    features = last.outs * last.windows
    outputs = [
        Head(where[id(head.weight)], where[id(head.bias)], head.out_features)
        for head in heads
        if head.in_features == features and head.out_features <= CLASSES
    ]
    if len(outputs) < len(heads) or last.outs * last.blocks > FEATURES:
        return None
    return ConvNet(tuple(layers), tuple(outputs), weights.theta.numel())


def power_of_2(number: int) -> int:
    """Return the smallest power of two that is at least this number."""
    return 1 << max(0, number - 1).bit_length()


def _layer(
    block: Block, size: tuple[int, ...], where: dict[int, int], device: torch.device
) -> tuple[Layer, tuple[int, ...]] | None:
    """Describe a convolution and what follows it, for inputs of this size; return also the size of its outputs."""
    conv, norm, relu, pool = block.conv, block.norm, block.relu, block.pool
    if pool not in POOLS or conv.in_channels != size[0] or (norm is not None and not _fits(norm, conv.out_channels)):
        return None
    _, height, width = size
    rows, columns = (
        (along + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        for along, padding, dilation, kernel, stride in zip(
            (height, width), block.padding, conv.dilation, conv.kernel_size, conv.stride, strict=True
        )
    )
    down, across = rows // pool, columns // pool
    small = max(height * width, rows * columns) <= PIXELS and max(conv.in_channels, conv.out_channels) <= CHANNELS
    if min(down, across) < 1 or not small or conv.out_channels != power_of_2(conv.out_channels):
        return None
    pixels = torch.arange(1, height * width + 1, dtype=torch.float64).view(1, 1, height, width)
    seen = functional.unfold(pixels, conv.kernel_size, conv.dilation, block.padding, conv.stride)[0].long() - 1
    seen = seen[:, _numbering(rows, columns, pool)]
    sees = torch.full((len(seen), height * width + 1), -1)  # the last column takes what falls on the padding
    sees.scatter_(1, seen.where(seen >= 0, height * width), torch.arange(seen.shape[1]).expand_as(seen))
    sizes = Sizes(
        ins=conv.in_channels, outs=conv.out_channels, taps=len(seen), pixels=height * width, count=rows * columns,
        window=pool * pool, windows=down * across, relu=relu, groups=norm.num_groups if norm is not None else 0,
        eps=norm.eps if norm is not None else 0.0, weight=where[id(conv.weight)], bias=where[id(conv.bias)],
        scale=where[id(norm.weight)] if norm is not None else 0,
        shift=where[id(norm.bias)] if norm is not None else 0,
    )  # fmt: skip
    layer = Layer(sizes, seen.int().contiguous().to(device), sees[:, :-1].int().contiguous().to(device))
    return layer, (conv.out_channels, down, across)


def _numbering(rows: int, columns: int, pool: int) -> Tensor:
    """Return the output pixels in the order of their numbers: window by window, then those that pooling drops."""
    pixels = torch.arange(rows * columns).view(rows, columns)
    kept = pixels[: rows // pool * pool, : columns // pool * pool]
    windows = kept.reshape(rows // pool, pool, columns // pool, pool).transpose(1, 2).reshape(-1)
    dropped = torch.ones(rows * columns, dtype=torch.bool)
    dropped[windows] = False
    return torch.cat([windows, pixels.view(-1)[dropped]])


def _fits(norm: nn.GroupNorm, channels: int) -> bool:
    """Return whether the kernels support this GroupNorm."""
    return norm.num_channels == channels and norm.num_groups == power_of_2(norm.num_groups)


def _pool(module: nn.Module) -> int:
    """Return the rows of a pooling window; 0 for anything but max-pooling of squares that lie side by side."""
    if type(module) is not nn.MaxPool2d or module.return_indices or module.ceil_mode:
        return 0
    size, step = _pair(module.kernel_size), _pair(module.stride)
    plain = size == step and size[0] == size[1] and _pair(module.padding) == (0, 0) and _pair(module.dilation) == (1, 1)
    return size[0] if plain else 0


def _pair(value: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return rows and columns from an option that is one number for both, or two numbers."""
    return (value, value) if isinstance(value, int) else tuple(value)
