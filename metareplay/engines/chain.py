"""Chains of Linear and ReLU layers: which modules are one, and their gradients in a few matrix products."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from metareplay.engines.torch_engine import Loss


class LossKind(Enum):
    """Losses whose gradient at the outputs is known here."""

    CROSS_ENTROPY = "cross-entropy"
    SQUARED_ERROR = "squared error"
    HUBER = "Huber"

    @staticmethod
    def of(loss: Loss) -> "LossKind | None":
        """Which of them a loss is: torch's function, or its class without options; None for any other.

        >>> LossKind.of(functional.cross_entropy), LossKind.of(nn.CrossEntropyLoss(label_smoothing=0.1))
        (<LossKind.CROSS_ENTROPY: 'cross-entropy'>, None)
        """
        for kind, (function, module) in _KNOWN.items():
            if loss is function or (type(loss) is type(module) and _options(loss) == _options(module)):
                return kind
        return None


_KNOWN: dict[LossKind, tuple[Loss, nn.Module]] = {
    LossKind.CROSS_ENTROPY: (functional.cross_entropy, nn.CrossEntropyLoss()),
    LossKind.SQUARED_ERROR: (functional.mse_loss, nn.MSELoss()),
    LossKind.HUBER: (functional.huber_loss, nn.HuberLoss()),
}


def _options(loss: object) -> dict[str, object]:
    """The options of a loss class, the classes' weights among them."""
    buffers = dict(loss.named_buffers()) if isinstance(loss, nn.Module) else {}
    return {name: value for name, value in vars(loss).items() if not name.startswith("_")} | buffers


@final
@dataclass(frozen=True)
class Chain:
    """The layers of an MLP whose every parameter is trained, in order: Linear, ReLU, Linear, ..., Linear."""

    layers: tuple[nn.Linear, ...]
    flattens: bool  # inputs of any shape become vectors first

    @staticmethod
    def of(module: nn.Module) -> "Chain | None":
        """The chain that a module is, or None if it is anything else.

        >>> Chain.of(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))).widths
        (4, 3, 2)
        >>> Chain.of(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))) is None
        True
        """
        parts = _unwrap(module)
        while parts and type(parts[0]) is nn.Flatten and (parts[0].start_dim, parts[0].end_dim) == (1, -1):
            parts = parts[1:]
        kinds = [type(part) for part in parts]
        if kinds != [nn.Linear, *[nn.ReLU, nn.Linear] * (len(parts) // 2)] or any(_hooked(m) for m in module.modules()):
            return None
        layers = tuple(part for part in parts if isinstance(part, nn.Linear))
        in_order = [id(p) for layer in layers for p in (layer.weight, layer.bias)]
        trained = [id(p) for p in module.parameters() if p.requires_grad]
        flattens = type(_unwrap(module)[0]) is nn.Flatten
        return Chain(layers, flattens) if in_order == trained and len(set(in_order)) == len(in_order) else None

    def takes(self, shape: torch.Size) -> bool:
        """Whether one input of this shape is one vector to the first layer."""
        return shape.numel() == self.widths[0] and len(shape) >= 1 and (len(shape) == 1 or self.flattens)

    @property
    def widths(self) -> tuple[int, ...]:
        """Inputs, hidden widths, outputs."""
        return (self.layers[0].in_features, *(layer.out_features for layer in self.layers))

    @torch.no_grad()
    def gradients(self, inputs: Tensor, ys: Tensor, loss: LossKind, sizes: list[int]) -> Tensor:
        """For consecutive groups of inputs, of these sizes, the gradient of each group's mean loss: one a row.

        One forward and one backward pass over all of them; then, a group and layer, one product: delta' x.
        """
        *values, outputs = self._forward(inputs)
        delta = _slope(outputs, ys, loss) * torch.cat([inputs.new_full((size, 1), 1 / size) for size in sizes])
        delta[~_finite(outputs, ys, loss)] = torch.nan
        found = inputs.new_empty(len(sizes), sum(p.numel() for layer in self.layers for p in layer.parameters()))
        end = found.shape[1]
        for layer, below, deltas in self._backward(values, delta):
            middle, start = end - layer.out_features, end - layer.out_features - layer.weight.numel()
            for group, d, x in zip(found, deltas.split(sizes), below.split(sizes), strict=True):
                torch.mm(d.T, x, out=group[start:middle].view_as(layer.weight))
                torch.sum(d, 0, out=group[middle:end])
            end = start
        return found

    @torch.no_grad()
    def products(self, inputs: Tensor, ys: Tensor, loss: LossKind) -> Tensor:
        """The dot product of the gradient of the first input's loss with that of every other's.

        Of layers with inputs x and gradients d at their outputs: sum over layers of (x_i' x_j + 1) (d_i' d_j).
        """
        *values, outputs = self._forward(inputs)
        passes = self._backward(values, _slope(outputs, ys, loss))
        return sum(((x @ x[0]).add_(1).mul_(d @ d[0]) for _, x, d in passes), inputs.new_zeros(()))[1:]

    def _forward(self, inputs: Tensor) -> list[Tensor]:
        """What each layer is given, a row an input; then the outputs."""
        values = [inputs.flatten(1)]
        for number, layer in enumerate(self.layers):
            values.append(functional.linear(values[-1], layer.weight, layer.bias))
            if number + 1 < len(self.layers):
                values[-1].relu_()
        return values

    def _backward(self, values: list[Tensor], delta: Tensor) -> Iterator[tuple[nn.Linear, Tensor, Tensor]]:
        """From the last layer to the first: it, what it was given, and the gradient of the loss at its outputs."""
        for number in reversed(range(len(self.layers))):
            layer, below = self.layers[number], values[number]
            yield layer, below, delta
            if number:
                delta = (delta @ layer.weight).mul_(below > 0)


def _slope(outputs: Tensor, ys: Tensor, loss: LossKind) -> Tensor:
    """The gradient of each example's loss at its outputs."""
    if loss is LossKind.CROSS_ENTROPY:
        return outputs.softmax(1).sub_(functional.one_hot(ys, outputs.shape[1]))
    errors = outputs - ys
    return (2 * errors if loss is LossKind.SQUARED_ERROR else errors.clamp(-1, 1)) / outputs.shape[1]


def _finite(outputs: Tensor, ys: Tensor, loss: LossKind) -> Tensor:
    """Whether each example's loss is finite."""
    if loss is LossKind.CROSS_ENTROPY:
        losses = functional.cross_entropy(outputs, ys, reduction="none")
    else:
        losses = (outputs - ys).square().sum(1) if loss is LossKind.SQUARED_ERROR else (outputs - ys).abs().sum(1)
    return torch.isfinite(losses)


def _unwrap(module: nn.Module) -> list[nn.Module]:
    """The parts of nested Sequentials, in order."""
    if type(module) is not nn.Sequential:
        return [module]
    return [part for child in module for part in _unwrap(child)]


def _hooked(module: nn.Module) -> bool:
    """Whether calling the module does more than its forward pass."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )
