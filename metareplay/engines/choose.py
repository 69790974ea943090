"""Which engine does the arithmetic."""

from metareplay.draws import Draws
from metareplay.engines.engine import Engine
from metareplay.engines.torch_engine import Loss, MakeOptimizer, TorchEngine
from metareplay.errors import InputError
from metareplay.weights import Weights

ENGINES = ("auto", "torch")


def check_engine(name: str) -> None:
    """Refuse an engine that does not exist."""
    if name not in ENGINES:
        raise InputError(f"engine {name!r}: use one of {', '.join(ENGINES)}")


def choose_engine(
    weights: Weights,
    loss: Loss,
    draws: Draws,
    clip: float | None,
    make_optimizer: MakeOptimizer | None,
) -> Engine:
    """The fastest engine that can run this model."""
    return TorchEngine(weights, loss, draws, clip, make_optimizer)
