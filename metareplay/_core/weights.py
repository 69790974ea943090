"""A module's trainable parameters as one flat vector, so that learners do vector arithmetic."""

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from metareplay.errors import InputError

Carry = Callable[[Tensor], Tensor]


@final
class Weights:
    """View a module's trainable parameters as one flat vector, `theta`, and their gradient as another, `gradient`.

    The module keeps working as before and always holds the current weights. Parameters that do not require a gradient
    are left out and never change. Buffers (BatchNorm statistics, for instance) are not weights: the module's own
    forward pass updates them, and Reptile lines leave them alone.

    Args:
        module: The module whose parameters become views of `theta`.

    >>> net = nn.Linear(2, 1)
    >>> weights = Weights(net)
    >>> weights.theta.zero_()
    tensor([0., 0., 0.])
    >>> net.weight
    Parameter containing:
    tensor([[0., 0.]], requires_grad=True)
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._take()

    def _take(self) -> None:
        """Copy the module's parameters into one vector, and make the parameters views of it."""
        lazy = [name for name, p in self.module.named_parameters() if is_lazy(p)]
        if lazy:
            raise InputError(
                f"{lazy[0]} has no size yet (LazyLinear): call the model with a batch of inputs, then make the learner"
            )
        named = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        kinds = {(p.dtype, p.device) for p in named.values()}
        if len(kinds) != 1:
            found = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds)) or "none"
            raise InputError(f"trainable parameters must share one dtype and device; this model has: {found}")
        dtype, device = kinds.pop()
        if not dtype.is_floating_point:
            raise InputError(f"trainable parameters are {dtype}: use a floating-point model")
        self.dtype, self.device = dtype, device
        self._names, self._parameters = list(named), list(named.values())
        self.theta = torch.cat([p.detach().reshape(-1) for p in self._parameters])
        self.gradient = torch.zeros_like(self.theta)
        for parameter, piece in zip(self._parameters, self._pieces(self.theta), strict=True):
            parameter.data = piece
        self._note_places()

    def __getstate__(self) -> dict[str, nn.Module]:
        """Return the module alone: in a copy of it, the parameters are no views of one vector."""
        return {"module": self.module}

    def __setstate__(self, state: dict[str, nn.Module]) -> None:
        """Make one vector of the copied module's parameters."""
        self.module = state["module"]
        self._take()

    def _note_places(self) -> None:
        """Note where every part of the module is, so that `check` need not search for them."""
        parts = [named for part in self.module.modules() for named in (part._modules, part._parameters)]
        self._sizes = [(named, len(named)) for named in parts]
        self._places = [(named, name, held) for named in parts for name, held in named.items()]
        self._trained = [(p, p.data_ptr()) for p in self._parameters]
        self._frozen = [p for p in self.module.parameters() if not p.requires_grad]

    def _as_noted(self) -> bool:
        """Return whether every part is where it was, and parameters are trained or frozen as before."""
        for named, size in self._sizes:
            if len(named) != size:
                return False
        for named, name, held in self._places:
            if named.get(name) is not held:
                return False
        for parameter, address in self._trained:
            if parameter.data_ptr() != address or not parameter.requires_grad:
                return False
        return not any(parameter.requires_grad for parameter in self._frozen)

    def rebuild(self) -> Carry:
        """Take over the module's parameters as they are now, after layers were added, replaced or resized.

        Returns:
            A function that carries a flat vector of the old layout (an optimizer's moment, for instance) over to the
            new one. Parameters that still exist keep their values, a resized one keeps those of the corner that both
            sizes share, and everything else is 0.
        """
        shapes = {name: p.shape for name, p in zip(self._names, self._parameters, strict=True)}
        self._take()

        def carry(old: Tensor) -> Tensor:
            pieces = dict(zip(shapes, old.split([shape.numel() for shape in shapes.values()]), strict=True))
            new = torch.zeros_like(self.theta, dtype=old.dtype)
            for name, piece in zip(self._names, self._pieces(new), strict=True):
                if name in shapes and len(shapes[name]) == piece.dim():
                    corner = tuple(map(slice, map(min, shapes[name], piece.shape)))
                    piece[corner] = pieces[name].view(shapes[name])[corner]
            return new

        return carry

    def remember(self) -> Callable[[], None]:
        """Remember the module's layers, where its parameters are, and which are frozen; no values are copied.

        Returns:
            A function that puts the layers back after they were changed, or after `rebuild` has failed.
        """
        mine, places = dict(vars(self)), [(p, p.data, p.requires_grad) for p in self.module.parameters()]
        layers = [
            (vars(layer), dict(vars(layer)), [(one, dict(one.items())) for one in _contents(layer)])
            for layer in self.module.modules()
        ]

        def undo() -> None:
            for attributes, were, contents in layers:
                _put_back(attributes, were)
                for one, held in contents:
                    _put_back(one, held)
            for parameter, piece, is_trained in places:
                parameter.data, parameter.requires_grad = piece, is_trained
            _put_back(vars(self), mine)

        return undo

    def gather_gradient(self) -> None:
        """Make every backward pass add to `gradient`, which is set to zero."""
        for parameter, piece in zip(self._parameters, self._pieces(self.gradient), strict=True):
            parameter.grad = piece
        self.gradient.zero_()

    def check(self) -> None:
        """Raise InputError if the model was moved, or its parameters replaced, outside `rebuild`."""
        if self._as_noted():
            return
        at = self.theta.data_ptr()
        now = [p for p in self.module.parameters() if p.requires_grad]
        for number, parameter in enumerate(self._parameters):
            same = len(now) == len(self._parameters) and now[number] is parameter
            if not same or (parameter.data_ptr() != at and parameter.numel()):
                raise InputError(
                    "the model's parameters were moved or replaced after the learner was made; move the model first "
                    "(model.to(...)), then make the learner, or change its layers inside learner.reshaping()"
                )
            at += parameter.numel() * parameter.element_size()
        self._note_places()

    def _pieces(self, vector: Tensor) -> list[Tensor]:
        sizes = [p.numel() for p in self._parameters]
        return [piece.view_as(p) for piece, p in zip(vector.split(sizes), self._parameters, strict=True)]


def _contents(layer: nn.Module) -> tuple[dict[str, Any], ...]:
    """Return the parameters, buffers and layers of a layer by name."""
    return layer._parameters, layer._buffers, layer._modules


def _put_back(held: dict[str, Any], before: dict[str, Any]) -> None:
    """Give a dictionary the entries that it had before."""
    held.clear()
    held.update(before)


def reptile(theta: Tensor, before: Tensor, rate: float) -> None:
    """Move along Reptile's line (Nichol et al., 2018), in place: theta <- before + rate * (theta - before).

    Args:
        theta: The weights after some steps; changed in place.
        before: The weights before these steps.
        rate: How far to go from `before` to `theta`, 0 < rate <= 1.

    >>> theta = torch.tensor([3.0])
    >>> reptile(theta, before=torch.tensor([1.0]), rate=0.5)
    >>> theta
    tensor([2.])
    """
    if rate != 1.0:
        theta.sub_(before).mul_(rate).add_(before)
