"""Which engine does the arithmetic."""

import torch

from metareplay._core.draws import Draws
from metareplay._core.weights import Weights
from metareplay.engines.chain import Chain, LossKind
from metareplay.engines.cpu.engine import CpuEngine
from metareplay.engines.cuda.engine import CudaEngine, CudaGraphs
from metareplay.engines.engine import Engine
from metareplay.engines.torch_engine import Loss, MakeOptimizer, TorchEngine
from metareplay.errors import InputError

ENGINES = ("auto", "torch", "cpu", "cuda")


def check_engine(name: str) -> None:
    """Refuse an engine that does not exist."""
    if name not in ENGINES:
        raise InputError(f"engine {name!r}: use one of {', '.join(ENGINES)}")


def check_gpu() -> None:
    """Refuse to go on without a GPU."""
    if not torch.cuda.is_available():
        raise InputError("engine 'cuda' needs a CUDA GPU, and torch finds none here: use engine='auto'")


def choose_engine(
    name: str,
    weights: Weights,
    loss: Loss,
    draws: Draws,
    clip: float | None,
    make_optimizer: MakeOptimizer | None,
    together: bool,
    regression: bool,
) -> Engine:
    """The engine of that name; "auto": graphs on a GPU; the compiled one where it can run this model; else torch."""
    on_gpu = weights.device.type == "cuda"
    if name == "cuda":
        check_gpu()
    if name == "cuda" and not on_gpu:
        raise InputError("engine 'cuda' needs the model on the GPU: call model.cuda() before making the learner")
    plain = TorchEngine(weights, loss, draws, clip, make_optimizer)
    if name == "torch":
        return plain
    if on_gpu and name != "cpu":
        return CudaEngine(plain, CudaGraphs(weights.device))
    chains, kind = Chain.by_task(weights.module), LossKind.of(loss)
    missing = (
        "a chain of Linear and ReLU layers, all trained" if chains is None
        else "float32 or float64 weights on the CPU" if weights.device.type != "cpu" or weights.dtype not in _DTYPES
        else "cross-entropy for labels, squared or Huber error for real targets"
        if kind is None or (kind is LossKind.CROSS_ENTROPY) == regression
        else None
    )  # fmt: skip
    if missing is None and chains is not None and kind is not None:
        by_batch = make_optimizer is not None or (together and clip is not None)
        return CpuEngine(weights, chains, kind, plain, clip, by_batch)
    if name == "cpu":
        raise InputError(f"engine 'cpu' needs {missing}: use engine='auto'")
    return plain


_DTYPES = (torch.float32, torch.float64)
