"""The choice of an engine."""

from typing import Literal, get_args

import torch

from metareplay._core.checks import shown
from metareplay._core.draws import Draws
from metareplay._core.weights import Weights
from metareplay.engines.chain import Chain
from metareplay.engines.cpu.engine import CpuEngine
from metareplay.engines.cpu.losses import loss_obstacle
from metareplay.engines.cpu.q_engine import CpuQEngine
from metareplay.engines.cpu.traced_engine import TracedEngine
from metareplay.engines.cuda.engine import CudaEngine
from metareplay.engines.cuda.graphs import CudaGraphs
from metareplay.engines.engine import Engine
from metareplay.engines.layers import NotAChainError
from metareplay.engines.objective import Objective
from metareplay.engines.temporal_difference import TemporalDifference
from metareplay.engines.torch_engine import Notice, TorchEngine
from metareplay.errors import InputError

EngineName = Literal["auto", "torch", "cpu", "cuda"]


def check_engine(name: str) -> EngineName:
    """Return the name of an engine; raise InputError if there is no such engine."""
    if not isinstance(name, str):
        raise InputError(f"engine {shown(name)}: use one of {', '.join(get_args(EngineName))}")
    if name == "fleet":
        raise InputError("engine 'fleet': a fleet is a place to run, not an engine; use --on fleet")
    for known in get_args(EngineName):
        if name == known:
            found: EngineName = known
            return found
    raise InputError(f"engine {shown(name)}: use one of {', '.join(get_args(EngineName))}")


def check_gpu() -> None:
    """Raise InputError if torch finds no GPU."""
    if not torch.cuda.is_available():
        raise InputError("engine 'cuda' needs a CUDA GPU, and torch finds none here: use engine='auto'")


def choose_engine(
    name: EngineName,
    weights: Weights,
    objective: Objective,
    draws: Draws,
    optimizer: torch.optim.Optimizer | None = None,
    notice: Notice | None = None,
) -> Engine:
    """Return the engine of that name.

    "auto" takes "cuda" for a model on a GPU, "cpu" if the compiled engine supports this model and objective, and
    "torch" otherwise.

    Args:
        name: The engine asked for.
        weights: The model's weights.
        objective: What steps will minimise.
        draws: The learner's random draws.
        optimizer: An optimizer over `weights.theta` that takes the steps; None for plain SGD.
        notice: Says why torch learns, once for all engines that are made with it; None for one of this engine's own.
    """
    on_gpu = weights.device.type == "cuda"
    if name == "cuda":
        check_gpu()
    if name == "cuda" and not on_gpu:
        raise InputError("engine 'cuda' needs the model on the GPU: call model.cuda() before making the learner")
    plain = TorchEngine(weights, draws, optimizer, notice=notice)
    if name == "torch":
        return plain
    if on_gpu and name != "cpu":
        return CudaEngine(plain, CudaGraphs(weights.device))
    found, missing = _compiled(weights, objective, plain)
    if found is None and name == "cpu":
        raise InputError(f"engine 'cpu' needs {missing}: use engine='auto'")
    if found is None:
        plain.reason = f"the compiled engine needs {missing}"
    return found or plain


def _compiled(weights: Weights, objective: Objective, plain: TorchEngine) -> tuple[Engine | None, str | None]:
    """Return the compiled engine for this model and objective, or None and what it would need."""
    if isinstance(objective, TemporalDifference):
        missing = CpuQEngine.obstacle(weights, objective, plain.optimizer)
        return (CpuQEngine(weights, plain) if missing is None else None), missing
    if weights.device.type != "cpu" or weights.dtype not in (torch.float32, torch.float64):
        return None, "float32 or float64 weights on the CPU"
    if (missing := loss_obstacle(objective)) is not None:
        return None, missing
    if (chains := Chain.by_task(weights.module)) is not None:
        return CpuEngine(weights, chains, plain), None
    try:
        return TracedEngine(weights, plain), None
    except NotAChainError as error:
        return None, str(error)
