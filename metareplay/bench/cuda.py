"""How fast a step is on a GPU: captured graphs against plain torch stepping, same GPU, same run, in turns.

`metareplay bench --engine cuda`; or, where only torch is installed, `python -m metareplay.bench.cuda`.
"""

import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from metareplay import networks
from metareplay.bench.cpu import fill
from metareplay.engines.choose import check_gpu
from metareplay.engines.precision import full_precision
from metareplay.experiments.record import now, versions
from metareplay.learners import MER
from metareplay.memories import Reservoir
from metareplay.networks import nature_cnn, omniglot_cnn

MEMORY = 500
REPLICAS = 5
GPU = torch.device("cuda")


def small_mlp(seed: int = 0) -> nn.Module:
    """The paper's MNIST network."""
    return networks.mlp(784, (100, 100), 10, seed=seed)


@final
@dataclass(frozen=True)
class Setting:
    """What to time: MER with this network."""

    name: str
    model: Callable[[int], nn.Module]
    shape: tuple[int, ...]  # of one input, in bytes
    outputs: int
    k: int
    s: int
    regression: bool = False
    at_least: float | None = None  # the ratio to torch stepping that we promise
    aim: float | None = None

    def learner(self, device: torch.device, seed: int = 0) -> MER:
        """A learner with a full memory."""
        learner = MER(
            self.model(seed).to(device),
            memory=Reservoir(MEMORY),
            lr=0.001,
            beta=0.1,
            s=self.s,
            k=self.k,
            seed=seed,
            regression=self.regression,
            loss=functional.huber_loss if self.regression else None,
            engine="cuda" if device.type == "cuda" else "torch",
        )
        fill(learner, *self.examples(MEMORY))
        return learner

    def examples(self, count: int) -> tuple[Tensor, Tensor]:
        """Made-up ones."""
        generator = torch.Generator().manual_seed(0)
        xs = torch.randint(256, (count, *self.shape), generator=generator, dtype=torch.uint8)
        if self.regression:
            return xs, torch.randn(count, self.outputs, generator=generator)
        return xs, torch.randint(self.outputs, (count,), generator=generator)

    def torch_loop(self, device: torch.device) -> Callable[[float], float]:
        """A clean loop, written fairly: zero_grad, forward, backward, step; inputs are ready on the device."""
        model, (xs, ys) = self.model(0).to(device), self.examples(100)
        inputs, targets = xs.to(device).float().div(255).split(1), ys.to(device).split(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        loss = nn.HuberLoss() if self.regression else nn.CrossEntropyLoss()

        def loop(seconds: float) -> float:
            with full_precision(device):
                start, steps = time.perf_counter(), 0
                while steps == 0 or time.perf_counter() - start < seconds:
                    for x, y in zip(inputs, targets, strict=True):
                        optimizer.zero_grad()
                        loss(model(x), y).backward()
                        optimizer.step()
                    steps += len(inputs)
                _wait(device)
                return (time.perf_counter() - start) / steps

        loop(0.05)
        return loop


OMNIGLOT = Setting("MER, Omniglot CNN, k=11, s=10", omniglot_cnn, (1, 28, 28), 55, 11, 10, at_least=8, aim=20)
SETTINGS = (
    Setting("MER, MLP 784-100-100-10, k=101, s=10", small_mlp, (784,), 10, 101, 10),
    OMNIGLOT,
    Setting("Nature DQN CNN, 17 steps a frame", nature_cnn, (4, 84, 84), 3, 17, 1, regression=True, at_least=8, aim=20),
)


@final
@dataclass(frozen=True)
class Timing:
    """Microseconds for one update of the weights, and where they go."""

    name: str
    engine: str
    ours: float
    torch: float
    ratio: float
    at_least: float | None
    aim: float | None
    steps_per_second: float
    kernels: float | None  # launched in one step
    floor: float | None  # microseconds: as many kernels that do nothing, in a graph
    bytes: int  # weights read forward and backward; the gradient written and read; the weights likewise


@final
@dataclass(frozen=True)
class Replicas:
    """How long a step of several runs side by side takes, against a step of one."""

    name: str
    one: float  # microseconds
    all: float
    ratio: float
    at_most: float
    aim: float


def measure(setting: Setting, rounds: int, seconds: float, device: torch.device = GPU) -> Timing:
    """Medians over rounds; in each, graphs and the torch loop take turns."""
    learner, loop = setting.learner(device), setting.torch_loop(device)
    count = _warm(setting, learner, seconds)
    pairs = [(1e6 * _step(setting, learner, count), 1e6 * loop(seconds)) for _ in range(rounds)]
    ratio = statistics.median(their / our for our, their in pairs)
    our, their = (statistics.median(times) for times in zip(*pairs, strict=True))
    return Timing(
        name=setting.name,
        engine=learner.chosen_engine.name,
        ours=our,
        torch=their,
        ratio=ratio,
        at_least=setting.at_least,
        aim=setting.aim,
        steps_per_second=1e6 / our,
        kernels=None,
        floor=None,
        bytes=6 * learner.weights.theta.nbytes,
    )


def replicas(
    rounds: int, seconds: float, setting: Setting = OMNIGLOT, count: int = REPLICAS, device: torch.device = GPU
) -> Replicas:
    """So many learners in threads of their own against one."""
    learners = [setting.learner(device, seed) for seed in range(count)]
    size = _warm(setting, learners[0], seconds)
    for learner in learners[1:]:
        _step(setting, learner, 4)

    def side_by_side(some: list[MER]) -> float:
        start = time.perf_counter()
        threads = [threading.Thread(target=_step, args=(setting, learner, size)) for learner in some]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return 1e6 * (time.perf_counter() - start) / size / setting.s / setting.k

    pairs = [(side_by_side(learners[:1]), side_by_side(learners)) for _ in range(rounds)]
    ratio = statistics.median(several / one for one, several in pairs)
    one, several = (statistics.median(times) for times in zip(*pairs, strict=True))
    return Replicas(f"{count} runs side by side, {setting.name}", one, several, ratio, at_most=2.0, aim=1.3)


def node_latency(nodes: int = 2000) -> float:
    """Microseconds of a kernel that does next to nothing, in a graph where each waits for the one before."""
    number, stream = torch.zeros(1, device=GPU), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(nodes):
            number.add_(1)
    times = []
    for _ in range(7):
        torch.cuda.synchronize()
        start = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        times.append(1e6 * (time.perf_counter() - start) / nodes)
    return statistics.median(times)


def with_kernels(timing: Timing, setting: Setting, node: float) -> Timing:
    """The same with the kernels of a step counted: last of all, as what runs side by side is slower ever after."""
    learner = setting.learner(GPU)
    _step(setting, learner, 4)
    kernels = count_kernels(setting, learner)
    return replace(timing, kernels=kernels, floor=None if kernels is None else kernels * node)


def count_kernels(setting: Setting, learner: MER) -> float | None:
    """Kernels in one step, as the profiler sees them while one example is learned; None if it sees none."""
    from torch.profiler import ProfilerActivity, profile  # here, because it takes long to import

    try:
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            _step(setting, learner, 1)
        found = sum(str(one.device_type).endswith("CUDA") for one in seen.events() or [])
    except RuntimeError:
        return None
    return found / setting.s / setting.k or None


def document(rounds: int = 5, seconds: float = 0.4, quick: bool = False) -> dict[str, Any]:
    """Everything as plain JSON values."""
    check_gpu()
    settings, rounds, seconds = (SETTINGS[:1], 2, 0.1) if quick else (SETTINGS, rounds, seconds)
    node = node_latency()
    timings = [measure(setting, rounds, seconds) for setting in settings]
    together = replicas(rounds, seconds)
    counted = [with_kernels(timing, setting, node) for timing, setting in zip(timings, settings, strict=True)]
    about = torch.cuda.get_device_properties(GPU)
    return {
        "device": f"{about.name}, CUDA {torch.version.cuda}, Triton {version('triton')}",
        "empty_kernel": node,
        "timings": [asdict(one) for one in counted],
        "replicas": asdict(together),
        "versions": versions(),
        "date": now(),
    }


def _warm(setting: Setting, learner: MER, seconds: float) -> int:
    """Capture, and find out how many examples take about so many seconds."""
    _step(setting, learner, 4)
    count = 1
    while (took := _step(setting, learner, count) * count * setting.s * setting.k) < seconds / 2 and count < 4000:
        count = min(4000, max(2 * count, int(count * seconds / max(took, 1e-9))))
    return count


def _step(setting: Setting, learner: MER, examples: int) -> float:
    """Seconds for one step, while so many examples are learned."""
    xs, ys = setting.examples(100)
    rows = torch.arange(examples) % 100
    start = time.perf_counter()
    learner.observe_many(xs[rows], ys[rows])
    _wait(learner.weights.device)
    return (time.perf_counter() - start) / examples / setting.s / setting.k


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(document(quick="--quick" in sys.argv), indent=1) + "\n")
