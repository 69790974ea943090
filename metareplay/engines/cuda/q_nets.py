"""Q-networks of one shape side by side on one device: every operation works on all of them at once.

A step on a single transition keeps a GPU busy for a moment only, and most of that moment passes between two kernels.
Kernels that work on twenty networks take hardly longer than kernels that work on one. Only matrix products and
element-wise operations of torch are used here, so the same code runs on a CPU, where the tests compare it with torch's
own layers.

Each layer is one matrix product. Its matrix has the weights and, as one more column, the biases; what it is multiplied
with has a row of ones in that place. A convolution is multiplied with patches: for every output pixel a column with the
input pixels that the filters see there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from metareplay.engines.chain import hooked

ALIGNED: Final = 4  # columns of a matrix come in multiples of this, which lets the GPU load four numbers at a time
BETAS: Final = (0.9, 0.999)  # of Adam: torch's defaults
EPSILON: Final = 1e-8


@final
@dataclass(frozen=True)
class Conv:
    """Describe a convolution without padding, and the ReLU after it.

    Args:
        ins: Input channels.
        height: Rows of its inputs.
        width: Columns of its inputs.
        outs: Output channels.
        kernel: Rows and columns of its filters.
        stride: How far apart the places are that it looks at, down and across.
    """

    ins: int
    height: int
    width: int
    outs: int
    kernel: tuple[int, int]
    stride: tuple[int, int]

    @property
    def inputs(self) -> int:
        """How many numbers a filter sees at a time."""
        return self.ins * self.kernel[0] * self.kernel[1]

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of its outputs."""
        sides = zip((self.height, self.width), self.kernel, self.stride, strict=True)
        rows, columns = ((long - wide) // step + 1 for long, wide, step in sides)
        return rows, columns

    @property
    def pixels(self) -> int:
        """How many output pixels one input gives."""
        return self.size[0] * self.size[1]


@final
@dataclass(frozen=True)
class Dense:
    """Describe a linear layer; all but the last are followed by a ReLU.

    Args:
        inputs: How many inputs it has.
        outs: How many outputs it has.
    """

    inputs: int
    outs: int


@final
@dataclass(frozen=True)
class Shape:
    """Describe a Q-network: convolutions, each with a ReLU, then linear layers with a ReLU between them.

    Args:
        convs: The convolutions.
        denses: The linear layers.
    """

    convs: tuple[Conv, ...]
    denses: tuple[Dense, ...]

    @staticmethod
    def of(model: nn.Module, image: Sequence[int]) -> "Shape | None":
        """Return the shape of a network; None if it is built in another way.

        Args:
            model: The network.
            image: Channels, rows and columns of its inputs.
        """
        if type(model) is not nn.Sequential or any(hooked(module) for module in model.modules()):
            return None
        convs, denses, (channels, height, width), layers = list[Conv](), list[Dense](), image, list(model)
        while len(layers) > 1 and type(layers[0]) is nn.Conv2d and type(layers[1]) is nn.ReLU:
            conv = layers[0]
            plain = (conv.padding, conv.dilation, conv.groups) == ((0, 0), (1, 1), 1) and conv.bias is not None
            if not plain or conv.in_channels != channels or min(height, width) < max(conv.kernel_size):
                return None
            kernel, stride = ((one[0], one[1]) for one in (conv.kernel_size, conv.stride))
            convs.append(Conv(channels, height, width, conv.out_channels, kernel, stride))
            channels, (height, width), layers = conv.out_channels, convs[-1].size, layers[2:]
        if not convs or not layers or type(layers.pop(0)) is not nn.Flatten:
            return None
        features = channels * height * width
        while layers:
            dense, last = layers.pop(0), len(layers) == 0
            if type(dense) is not nn.Linear or dense.bias is None or dense.in_features != features:
                return None
            if not last and (type(layers.pop(0)) is not nn.ReLU or not layers):
                return None
            denses.append(Dense(features, dense.out_features))
            features = dense.out_features
        trained = all(p.requires_grad and p.dtype == torch.float32 for p in model.parameters())
        return Shape(tuple(convs), tuple(denses)) if denses and trained else None

    @property
    def layers(self) -> tuple[Conv | Dense, ...]:
        """All layers in order."""
        return (*self.convs, *self.denses)

    @property
    def actions(self) -> int:
        """How many values a network gives."""
        return self.denses[-1].outs


@final
class Room:
    """Hold what one forward pass, and the backward pass after it, write on the way.

    Args:
        shape: The networks' shape.
        runs: How many networks there are.
        batch: How many inputs each of them gets.
        device: Where everything lives.
    """

    def __init__(self, shape: Shape, runs: int, batch: int, device: torch.device) -> None:
        self.batch = batch
        self.patches = [_with_ones(runs, conv.inputs, batch * conv.pixels, device) for conv in shape.convs]
        self.features = [_with_ones(runs, dense.inputs, batch, device).mT.contiguous() for dense in shape.denses]
        self.maps = [torch.empty((runs, conv.outs, batch * conv.pixels), device=device) for conv in shape.convs]
        self.values = torch.empty((runs, batch, shape.actions), device=device)
        self.slopes = [torch.empty((runs, batch, dense.inputs), device=device) for dense in shape.denses]


def _with_ones(runs: int, inputs: int, columns: int, device: torch.device) -> Tensor:
    """Make room for the inputs of a layer, with a row of ones for its biases and rows of zeros for the alignment."""
    made = torch.zeros((runs, _padded(inputs), columns), device=device)
    made[:, inputs] = 1
    return made


def _padded(inputs: int) -> int:
    """Return how many columns a layer's matrix has: one per input, one for the biases, and some zeros."""
    return (inputs + 1 + ALIGNED - 1) // ALIGNED * ALIGNED


@final
class QNets:
    """Hold the weights of several Q-networks, compute their values and take steps.

    Args:
        shape: The networks' shape.
        runs: How many networks there are.
        device: Where they live.
        rates: alpha, the rate of each network's steps.
        adam: Whether Adam takes the steps; otherwise they are plain SGD.

    Attributes:
        theta: All weights, one network per row, in an order of our own: see `load` and `weights_of`.
    """

    def __init__(self, shape: Shape, device: torch.device, rates: Sequence[float], *, adam: bool) -> None:
        self.shape, self.runs, self.device = shape, len(rates), device
        self.rates = torch.tensor(rates, device=device)[:, None]
        self._rates = tuple(rates)
        sizes = [layer.outs * _padded(layer.inputs) for layer in shape.layers]
        self.theta = torch.zeros((self.runs, sum(sizes)), device=device)
        self.adam = adam
        few = sum(sizes) if adam else 0
        self.gradient, self.first, self.second = (torch.zeros((self.runs, few), device=device) for _ in range(3))
        self.taken = torch.zeros((), device=device)  # Adam's steps so far
        self._sizes = sizes
        self._kernels = _kernels() if device.type == "cuda" else None

    def matrices(self, theta: Tensor) -> list[Tensor]:
        """Return weights as one matrix per layer and network, as views.

        Args:
            theta: Weights in the order of `self.theta`.
        """
        pieces = theta.split(self._sizes, dim=1)
        return [piece.unflatten(1, (layer.outs, -1)) for piece, layer in zip(pieces, self.shape.layers, strict=True)]

    def load(self, theta: Tensor, run: int, flat: Tensor) -> None:
        """Copy one network's weights in.

        Args:
            theta: Where to: `self.theta`, or a tensor like it.
            run: The number of the network.
            flat: Its weights in the order of a module's parameters.
        """
        at, flat = 0, flat.to(self.device)
        for matrix, layer in zip(self.matrices(theta), self.shape.layers, strict=True):
            count = layer.outs * layer.inputs
            matrix[run, :, : layer.inputs] = flat[at : at + count].view(layer.outs, -1)
            matrix[run, :, layer.inputs] = flat[at + count : at + count + layer.outs]
            at += count + layer.outs

    def weights_of(self, theta: Tensor, run: int) -> Tensor:
        """Return one network's weights in the order of a module's parameters.

        Args:
            theta: Where from: `self.theta`, or a tensor like it.
            run: The number of the network.
        """
        found = []
        for matrix, layer in zip(self.matrices(theta), self.shape.layers, strict=True):
            found += [matrix[run, :, : layer.inputs].reshape(-1), matrix[run, :, layer.inputs]]
        return torch.cat(found)

    def room(self, batch: int) -> Room:
        """Make room for passes with so many inputs per network.

        Args:
            batch: How many inputs each network gets.
        """
        return Room(self.shape, self.runs, batch, self.device)

    def take(self, pictures: Tensor, room: Room) -> None:
        """Write the inputs of the first layer.

        Args:
            pictures: Bytes of shape (networks, batch, channels, rows, columns).
            room: Where to write them.
        """
        _write_patches(pictures.transpose(1, 2).to(torch.float32).div_(255), self.shape.convs[0], room.patches[0])

    def values(self, theta: Tensor, room: Room, first: Tensor | None = None) -> Tensor:
        """Return the values of all actions, of shape (networks, batch, actions).

        Args:
            theta: The weights, in the order of `self.theta`.
            room: Where intermediate results go; the inputs are there already.
            first: The inputs of the first layer, if they are elsewhere.
        """
        matrices, convs = self.matrices(theta), self.shape.convs
        for number, conv in enumerate(convs):
            if number:
                _write_patches(_as_images(room.maps[number - 1], convs[number - 1]), conv, room.patches[number])
            patches = room.patches[number] if number or first is None else first
            torch.bmm(matrices[number], patches, out=room.maps[number]).relu_()
        images = _as_images(room.maps[-1], convs[-1]).transpose(1, 2)
        room.features[0][:, :, : self.shape.denses[0].inputs].view_as(images).copy_(images)
        denses = matrices[len(convs) :]
        following = [room.features[n][:, :, : dense.inputs] for n, dense in enumerate(self.shape.denses)][1:]
        for number, outputs in enumerate((*following, room.values)):
            relu = number + 1 < len(denses)
            if self._kernels is not None and room.batch == 1:
                given = room.features[number][:, 0], outputs[:, 0]
                self._kernels.forward(denses[number], *given, relu=relu)
            else:
                found = torch.bmm(room.features[number], denses[number].mT)
                outputs.copy_(found.relu_() if relu else found)
        return room.values

    def step(self, slope: Tensor, room: Room, first: Tensor | None = None) -> None:
        """Go back through the layers and take one step with every network.

        Args:
            slope: The gradients of the losses at the values, of shape (networks, batch, actions).
            room: What the forward pass has left.
            first: The inputs of the first layer, if they are elsewhere.
        """
        matrices, shape = self.matrices(self.theta), self.shape
        found = self.matrices(self.gradient) if self.adam else matrices
        if not self.adam:
            slope = slope * self.rates[:, :, None]
        for number in reversed(range(len(shape.denses))):
            at, features = len(shape.convs) + number, room.features[number]
            if self._kernels is not None and room.batch == 1 and not self.adam:
                self._kernels.backward(matrices[at], features[:, 0], slope[:, 0], room.slopes[number][:, 0])
                slope = room.slopes[number]
                continue
            before = torch.bmm(slope, matrices[at])[:, :, : shape.denses[number].inputs]
            self._descend(found[at], slope.mT, features)
            mask = features[:, :, : shape.denses[number].inputs]
            slope = torch.ops.aten.threshold_backward(before, mask, 0)
        last = shape.convs[-1]
        delta = slope.unflatten(2, (last.outs, last.pixels)).transpose(1, 2).reshape(room.maps[-1].shape)
        for number in reversed(range(len(shape.convs))):
            conv, patches = shape.convs[number], room.patches[number] if number or first is None else first
            below = torch.bmm(matrices[number][:, :, : conv.inputs].mT, delta) if number else None
            self._descend(found[number], delta, patches.mT)
            if below is not None:
                images = _fold(below, conv, room.batch).reshape(room.maps[number - 1].shape)
                delta = torch.ops.aten.threshold_backward(images, room.maps[number - 1], 0)
        if self.adam:
            self._adam_step()

    def _descend(self, matrix: Tensor, slope: Tensor, inputs: Tensor) -> None:
        """Change weights by a layer's gradient, which is a product; for Adam, write the gradient."""
        if self.adam:
            torch.bmm(slope, inputs, out=matrix)
        else:
            matrix.baddbmm_(slope, inputs, alpha=-1)

    def _adam_step(self) -> None:
        """Take a step by torch's own kernel, once per rate; the padding has no gradient and stays 0."""
        self.taken += 1
        for rate in dict.fromkeys(self._rates):
            runs = [run for run, one in enumerate(self._rates) if one == rate]
            theta, gradient, first, second = (
                [values[run] for run in runs] for values in (self.theta, self.gradient, self.first, self.second)
            )
            torch._fused_adam_(
                theta, gradient, first, second, [], [self.taken] * len(runs), lr=rate, beta1=BETAS[0], beta2=BETAS[1],
                weight_decay=0.0, eps=EPSILON, amsgrad=False, maximize=False,
            )  # fmt: skip


def _kernels() -> Any:
    """Return the module with our own kernels; None where Triton is missing."""
    if find_spec("triton") is None:
        return None
    from metareplay.engines.cuda import dense_kernels  # here, because only machines with a GPU need it

    return dense_kernels


def huber_slope(values: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient of the mean Huber loss at the values.

    Args:
        values: The values of all actions, of shape (networks, batch, actions).
        targets: What the value of the action that was taken should be, of shape (networks, batch, 1).
        weight: One divided by the batch size for the action that was taken, 0 for the others; of the values' shape.
    """
    return (values - targets).clamp_(-1, 1).mul_(weight)


def _as_images(maps: Tensor, conv: Conv) -> Tensor:
    """View what a convolution gave as (networks, channels, batch, rows, columns)."""
    return maps.view(*maps.shape[:2], -1, *conv.size)


def _write_patches(images: Tensor, conv: Conv, patches: Tensor) -> None:
    """Write the patches of images of shape (networks, channels, batch, rows, columns)."""
    runs, channels, batch = images.shape[:3]
    windows = images.unfold(3, conv.kernel[0], conv.stride[0]).unfold(4, conv.kernel[1], conv.stride[1])
    room = patches[:, : conv.inputs].view(runs, channels, *conv.kernel, batch, *conv.size)
    room.copy_(windows.permute(0, 1, 5, 6, 2, 3, 4))


def _fold(patches: Tensor, conv: Conv, batch: int) -> Tensor:
    """Add up patches where they overlap; return images of shape (networks, channels, batch, rows, columns)."""
    each = patches.view(*patches.shape[:2], batch, conv.pixels).transpose(1, 2).flatten(0, 1)
    found = functional.fold(each, (conv.height, conv.width), conv.kernel, stride=conv.stride)
    return found.view(-1, batch, *found.shape[1:]).transpose(1, 2)
