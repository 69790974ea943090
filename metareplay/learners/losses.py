"""Losses by name: torch's functions, and the ones that a learner has if it is given none."""

from collections.abc import Callable

from torch.nn import functional

from metareplay.engines.objective import Loss


def default_loss(regression: bool) -> Loss:
    """Return cross-entropy for classes, squared error for real targets."""
    return functional.mse_loss if regression else functional.cross_entropy


def loss_name(loss: Callable[..., object]) -> str:
    """Return a name from which `named_loss` finds the loss again, if it is one of torch's functions."""
    name = getattr(loss, "__name__", type(loss).__name__)
    return name if getattr(functional, name, None) is loss else f"own:{name}"


def named_loss(name: str) -> Loss | None:
    """Return torch's loss function of that name; None for a user's own."""
    found = getattr(functional, name, None)
    return found if callable(found) and loss_name(found) == name else None
