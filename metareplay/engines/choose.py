"""Which engine does the arithmetic."""

from metareplay.draws import Draws
from metareplay.engines.engine import Engine
from metareplay.engines.torch_engine import Loss, MakeOptimizer, TorchEngine
from metareplay.errors import InputError
from metareplay.weights import Weights


def choose_engine(
    name: str,
    weights: Weights,
    loss: Loss,
    draws: Draws,
    clip: float | None,
    make_optimizer: MakeOptimizer | None,
) -> Engine:
    """The engine a learner asked for by name; "auto" takes the fastest that can run this model."""
    if name not in ("auto", "torch"):
        raise InputError(f"engine {name!r}: use 'auto' or 'torch'")
    return TorchEngine(weights, loss, draws, clip, make_optimizer)
