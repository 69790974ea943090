"""A module's trainable parameters as one flat vector, so that learners do vector arithmetic."""

from typing import final

import torch
from torch import Tensor, nn

from metareplay.errors import InputError


@final
class Weights:
    """theta, and the gradient of the loss at theta: flat vectors whose pieces are the module's parameters.

    The module keeps working as before and always holds the current weights. Parameters that do not require a gradient
    are left out and never change. Buffers (BatchNorm statistics, for instance) are not weights: the module's own
    forward pass updates them, Reptile lines leave them alone.

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
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        kinds = {(p.dtype, p.device) for p in self._parameters}
        if len(kinds) != 1:
            found = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds)) or "none"
            raise InputError(f"trainable parameters must share one dtype and device; this model has: {found}")
        (self.dtype, self.device) = kinds.pop()
        if not self.dtype.is_floating_point:
            raise InputError(f"trainable parameters are {self.dtype}: use a floating-point model")
        self.theta = torch.cat([p.detach().reshape(-1) for p in self._parameters])
        self.gradient = torch.zeros_like(self.theta)
        for parameter, piece in zip(self._parameters, self._pieces(self.theta), strict=True):
            parameter.data = piece

    def gather_gradient(self) -> None:
        """Make every backward pass add to `gradient`; set that to zero."""
        for parameter, piece in zip(self._parameters, self._pieces(self.gradient), strict=True):
            parameter.grad = piece
        self.gradient.zero_()

    def check(self) -> None:
        """Refuse to go on if the model was moved or its parameters replaced behind our back."""
        at = self.theta.data_ptr()
        now = [p for p in self.module.parameters() if p.requires_grad]
        for number, parameter in enumerate(self._parameters):
            same = len(now) == len(self._parameters) and now[number] is parameter
            if not same or (parameter.data_ptr() != at and parameter.numel()):
                raise InputError(
                    "the model's parameters were moved or replaced after the learner was made; "
                    "move the model first (model.to(...)), then make the learner"
                )
            at += parameter.numel() * parameter.element_size()

    def _pieces(self, vector: Tensor) -> list[Tensor]:
        sizes = [p.numel() for p in self._parameters]
        return [piece.view_as(p) for piece, p in zip(vector.split(sizes), self._parameters, strict=True)]


def reptile(theta: Tensor, before: Tensor, rate: float) -> None:
    """Reptile's line (Nichol et al., 2018), in place: theta <- before + rate * (theta - before).

    >>> theta = torch.tensor([3.0])
    >>> reptile(theta, before=torch.tensor([1.0]), rate=0.5)
    >>> theta
    tensor([2.])
    """
    if rate != 1.0:
        theta.sub_(before).mul_(rate).add_(before)
