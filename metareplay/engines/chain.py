"""Chains of Linear and ReLU layers: which modules are one, and their gradients in a few matrix products."""

from dataclasses import dataclass
from enum import Enum
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from metareplay.engines.objective import Loss
from metareplay.networks import TaskModule


class LossKind(Enum):
    """Name the losses whose gradient at the outputs is known here."""

    CROSS_ENTROPY = "cross-entropy"
    SQUARED_ERROR = "squared error"
    HUBER = "Huber"

    @staticmethod
    def of(loss: Loss) -> "LossKind | None":
        """Return which of them a loss is (torch's function, or its class without options); None for any other loss.

        Args:
            loss: The loss of (outputs, targets).

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
    """Return the options of a loss class, including the weights of the classes."""
    buffers = dict(loss.named_buffers()) if isinstance(loss, nn.Module) else {}
    return {name: value for name, value in vars(loss).items() if not name.startswith("_")} | buffers


@final
@dataclass(frozen=True)
class Chain:
    """Hold the layers of an MLP whose every parameter is trained, in order: Linear, ReLU, Linear, ..., Linear.

    Args:
        layers: The linear layers.
        flattens: Whether inputs of any shape are first made vectors.
    """

    layers: tuple[nn.Linear, ...]
    flattens: bool

    @staticmethod
    def of(module: nn.Module) -> "Chain | None":
        """Return a module as a chain, or None if it is anything else.

        Args:
            module: Any module.

        >>> Chain.of(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))).widths
        (4, 3, 2)
        >>> Chain.of(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))) is None
        True
        """
        parts = [part for part in _unwrap(module) if not _flattens(part)]
        kinds = [type(part) for part in parts]
        if kinds != [nn.Linear, *[nn.ReLU, nn.Linear] * (len(parts) // 2)] or any(hooked(m) for m in module.modules()):
            return None
        layers = tuple(part for part in parts if isinstance(part, nn.Linear))
        in_order = [id(p) for layer in layers for p in (layer.weight, layer.bias)]
        trained = [id(p) for p in module.parameters() if p.requires_grad]
        flattens = _flattens(_unwrap(module)[0])
        return Chain(layers, flattens) if in_order == trained and len(set(in_order)) == len(in_order) else None

    @staticmethod
    def by_task(module: nn.Module) -> "list[Chain] | None":
        """Return the chain that each task's examples go through, or None if a part of the module is not a chain.

        Args:
            module: Any module; unless it is a TaskModule, one chain serves all tasks.
        """
        apart = isinstance(module, TaskModule)
        chains = [Chain.of(path) for path in (module.paths() if isinstance(module, TaskModule) else [module])]
        found = [chain for chain in chains if chain is not None]
        if len(found) < len(chains) or not found or (apart and hooked(module)):
            return None
        return found

    def split(self, vector: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the (W, b) of each layer as views of a flat vector."""
        parts = iter(vector.split([p.numel() for layer in self.layers for p in (layer.weight, layer.bias)]))
        return [(next(parts).view_as(layer.weight), next(parts)) for layer in self.layers]

    def takes(self, shape: torch.Size) -> bool:
        """Return whether the first layer sees one input of this shape as one vector."""
        return shape.numel() == self.widths[0] and len(shape) >= 1 and (len(shape) == 1 or self.flattens)

    @property
    def widths(self) -> tuple[int, ...]:
        """The number of inputs, the width of each hidden layer, and the number of outputs."""
        return (self.layers[0].in_features, *(layer.out_features for layer in self.layers))

    @torch.no_grad()
    def factors(self, inputs: Tensor, ys: Tensor, loss: LossKind) -> "list[tuple[Tensor, Tensor]]":
        """Return the factors of the gradient of each input's own loss, layer by layer, starting with the last layer.

        The gradient of example i at a layer with input x_i and gradient d_i at its output is d_i x_i' for the weights
        and d_i for the bias.

        Args:
            inputs: A batch of inputs.
            ys: Their targets.
            loss: The loss.

        Returns:
            For each layer its inputs x and the gradients d at its outputs, one example per row.
        """
        values = [inputs.flatten(1)]
        for number, layer in enumerate(self.layers):
            values.append(functional.linear(values[-1], layer.weight, layer.bias))
            if number + 1 < len(self.layers):
                values[-1].relu_()
        delta = _slope(values.pop(), ys, loss)
        found = []
        for layer, below in zip(reversed(self.layers), reversed(values), strict=True):
            found.append((below, delta))
            delta = (delta @ layer.weight).mul_(below > 0)
        return found


def dot_products(one: list[tuple[Tensor, Tensor]], others: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the dot product of one example's gradient with that of each of several others.

    It is the sum over layers of (x_i' x_j + 1) (d_i' d_j), so no gradient has to be written down.

    Args:
        one: The `Chain.factors` of a single example.
        others: The `Chain.factors` of the others.
    """
    found = torch.zeros_like(others[0][0][:, 0])
    for (x, d), (xs, ds) in zip(one, others, strict=True):
        found += (xs @ x[0]).add_(1).mul_(ds @ d[0])
    return found


def _slope(outputs: Tensor, ys: Tensor, loss: LossKind) -> Tensor:
    """Return the gradient of each example's loss at its outputs."""
    if loss is LossKind.CROSS_ENTROPY:
        return outputs.softmax(1).sub_(functional.one_hot(ys, outputs.shape[1]))
    errors = outputs - ys
    return (2 * errors if loss is LossKind.SQUARED_ERROR else errors.clamp(-1, 1)) / outputs.shape[1]


def _flattens(part: nn.Module) -> bool:
    """Return whether a layer makes a vector of each input, which changes nothing if inputs are vectors already."""
    return type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1)


def _unwrap(module: nn.Module) -> list[nn.Module]:
    """Return the parts of nested Sequentials, in order."""
    if type(module) is not nn.Sequential:
        return [module]
    return [part for child in module for part in _unwrap(child)]


def hooked(module: nn.Module) -> bool:
    """Return whether hooks make calls of the module do more than its forward pass, or change its gradients."""
    of_gradients = any(p._backward_hooks or p._post_accumulate_grad_hooks for p in module.parameters())
    return of_gradients or bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )
