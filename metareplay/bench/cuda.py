"""How long a step takes on a GPU: captured graphs against plain torch stepping, same GPU, same run, in turns.

`metareplay bench --engine cuda`; or, where only torch is installed, `python -m metareplay.bench.cuda`.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from metareplay import networks
from metareplay.bench.frame import (
    AGAINST_ONE,
    AGAINST_TORCH,
    PAST_TASKS,
    Benchmark,
    Clock,
    Column,
    Effort,
    Say,
    Sheet,
    Timing,
    announced,
    calibrate,
    clock_learner,
    compare,
    describe_gpu,
    document,
    fill,
    main,
    side_by_side,
    take_turns,
)
from metareplay.bench.torch_loop import torch_loop
from metareplay.engines.choose import check_gpu
from metareplay.engines.cuda.engine import CudaEngine
from metareplay.engines.cuda.formation import Formation
from metareplay.learners import MER
from metareplay.memories import Reservoir
from metareplay.networks import TaskModule, nature_cnn
from metareplay.networks.cnn import Norm
from metareplay.streams.omniglot import SIZES

EXAMPLES: Final = 100  # that are learned over and over again while the clock runs
CLASSES: Final = 14  # of the smallest alphabet: labels that every head has
WARM_UP: Final = 6  # examples, after which every graph is captured
REPLICAS: Final = 5
GPU: Final = torch.device("cuda")


def small_mlp(seed: int = 0) -> nn.Module:
    """Return the paper's MNIST network.

    Args:
        seed: The seed of its weights.
    """
    return networks.mlp(784, (100, 100), 10, seed=seed)


@final
@dataclass(frozen=True)
class Setting:
    """Describe what to time: MER with one network.

    Args:
        name: What people call it.
        model: Makes the network from a seed.
        shape: The shape of one input, which consists of bytes.
        outputs: How many classes there are, or how many targets for regression.
        k: How many examples a batch has, the incoming one included.
        s: How many batches each example causes.
        regression: Whether targets are real numbers, with the Huber loss.
        memory: How many examples are held.
        lr: The rate of the steps.
        beta: The Reptile rate within a batch.
        clip: The largest norm of a gradient, if gradients are clipped.
        most: How many microseconds per step we promise to take at most, on an H200, if we do.
        wanted: How many we aim at.
        promised: How many times faster than torch stepping we promise to be, if we do.
        aim: How many times faster than torch stepping we aim to be, if we do.
    """

    name: str
    model: Callable[[int], nn.Module]
    shape: tuple[int, ...]
    outputs: int
    k: int
    s: int
    regression: bool = False
    memory: int = 500
    lr: float = 0.001
    beta: float = 0.1
    clip: float | None = None
    most: float | None = None
    wanted: float | None = None
    promised: float | None = None
    aim: float | None = None

    @property
    def steps(self) -> int:
        """Return how many updates of the weights one incoming example causes."""
        return self.s * self.k

    def learner(self, device: torch.device, seed: int = 0) -> MER:
        """Return a learner whose memory is full.

        Args:
            device: Where it learns.
            seed: The seed of its weights and draws.
        """
        learner = MER(
            self.model(seed).to(device),
            memory=Reservoir(self.memory),
            lr=self.lr,
            beta=self.beta,
            clip=self.clip,
            s=self.s,
            k=self.k,
            seed=seed,
            regression=self.regression,
            loss=functional.huber_loss if self.regression else None,
            engine="cuda" if device.type == "cuda" else "torch",
        )
        fill(learner, *self.examples(self.memory))
        return learner

    def examples(self, count: int) -> tuple[Tensor, Tensor]:
        """Return made-up examples.

        Args:
            count: How many.
        """
        generator = torch.Generator().manual_seed(0)
        xs = torch.randint(256, (count, *self.shape), generator=generator, dtype=torch.uint8)
        if self.regression:
            return xs, torch.randn(count, self.outputs, generator=generator)
        return xs, torch.randint(self.outputs, (count,), generator=generator)

    def clock(self, learner: MER) -> Clock:
        """Return the clock that teaches a learner made-up examples.

        Args:
            learner: The learner to time.
        """
        return clock_learner(learner, *self.examples(EXAMPLES), task=PAST_TASKS)

    def torch_loop(self, device: torch.device) -> Callable[[float], float]:
        """Return the torch loop: one example per step, inputs ready on the device, one head, no clipping.

        Args:
            device: Where it runs.
        """
        xs, ys = self.examples(EXAMPLES)
        batches = list(zip(xs.to(device).float().div(255).split(1), ys.to(device).split(1), strict=True))
        loss = nn.HuberLoss() if self.regression else nn.CrossEntropyLoss()
        model = self.model(0).to(device)
        path = model.paths()[PAST_TASKS] if isinstance(model, TaskModule) else model  # of the task that is learned
        return torch_loop(path, loss, self.lr, batches)


def omniglot_net(seed: int = 0, norm: Norm | None = "group") -> nn.Module:
    """Return the network of the Omniglot runs, which has one head for each of 50 alphabets.

    Args:
        seed: The seed of its weights.
        norm: Its normalisation.
    """
    return networks.omniglot_cnn(seed, classes=SIZES, norm=norm, init="torch")


def printed_net(seed: int = 0) -> nn.Module:
    """Return the network for Omniglot as the paper prints it, with one head for each of 50 alphabets.

    Args:
        seed: The seed of its weights.
    """
    return omniglot_net(seed, norm=None)


OMNIGLOT = Setting(
    "MER 5120, Omniglot, 50 heads, GroupNorm, k=26, s=5", omniglot_net, (1, 28, 28), CLASSES, 26, 5, memory=5120,
    lr=0.01, beta=1.0, most=80, wanted=50, promised=8, aim=20,
)  # fmt: skip
CLIPPED = replace(
    OMNIGLOT, name="MER 5120, Omniglot, 50 heads, no norm, clip 2, k=26, s=5", model=printed_net, clip=2.0
)
SHORT = replace(OMNIGLOT, name="MER 500, Omniglot, 50 heads, GroupNorm, k=6, s=2", k=6, s=2, memory=500, lr=0.1)
SETTINGS = (
    Setting("MER, MLP 784-100-100-10, k=101, s=10", small_mlp, (784,), 10, 101, 10),
    OMNIGLOT,
    CLIPPED,
    SHORT,
    Setting(
        "Nature DQN CNN, 17 steps per frame", nature_cnn, (4, 84, 84), 3, 17, 1, regression=True, promised=8, aim=20
    ),
)
SIDE_BY_SIDE = ((OMNIGLOT, 2.0, 1.3), (SHORT, 3.0, 1.5))  # settings; how many times one run's time at most, and the aim
COLUMNS = (
    Column("setting", "name"),
    Column("ours, us", "ours", ".1f"),
    Column("at most", "most", "g"),
    Column("aim", "wanted", "g"),
    Column("torch, us", "torch", ".0f"),
    Column("times faster", "ratio", ".1f"),
    Column("promised", "at_least", ".0f"),
    Column("aim", "aim", ".0f"),
    Column("kernels", "kernels", ".0f"),
    Column("floor, us", "floor", ".0f"),
)
REPLICA_COLUMNS = (
    Column("setting", "name"),
    Column("one, us", "one", ".1f"),
    Column("all, us", "all", ".1f"),
    Column("times one", "ratio", ".2f"),
    Column("promised at most", "at_most", "g"),
    Column("aim", "aim", "g"),
)


@final
class CudaBenchmark(Benchmark):
    """Time the steps of captured graphs, what they spend it on, and how well several runs share one GPU."""

    def run(self, effort: Effort, say: Say) -> dict[str, Any]:
        """Time everything and return the JSON document: see `Benchmark.run`."""
        check_gpu()
        settings = SETTINGS[:1] if effort.quick else SETTINGS
        say("timing empty kernels")
        node = node_latency()
        timings = [measure(setting, effort) for setting in announced(settings, say)]
        say(f"timing {REPLICAS} runs side by side")
        beside = [replicas(effort, *one) for one in (SIDE_BY_SIDE[:1] if effort.quick else SIDE_BY_SIDE)]
        say("counting kernels")  # last of all: once the profiler has run, runs side by side are slower
        counted = [with_kernels(timing, setting, node) for timing, setting in zip(timings, settings, strict=True)]
        return document(
            describe_gpu(),
            empty_kernel=node,
            timings=[timing.to_json(AGAINST_TORCH) for timing in counted],
            replicas=[one.to_json(AGAINST_ONE) for one in beside],
        )

    def sheets(self, found: Mapping[str, Any]) -> list[Sheet]:
        """Return the tables that show a document to people: see `Benchmark.sheets`."""
        timings = [{"most": None, "wanted": None} | timing for timing in found["timings"]]  # not in earlier documents
        beside = found["replicas"] if isinstance(found["replicas"], list) else [found["replicas"]]  # likewise only one
        return [
            Sheet(f"A step against torch stepping, {found['device']}", COLUMNS, timings),
            Sheet("A step of several runs side by side against a step of one", REPLICA_COLUMNS, beside),
        ]


def measure(setting: Setting, effort: Effort, device: torch.device = GPU) -> Timing:
    """Time one setting against the torch loop; its kernels are not counted yet.

    Args:
        setting: What to time.
        effort: How much time to spend.
        device: Where both sides run.
    """
    learner, theirs = setting.learner(device), setting.torch_loop(device)
    timing = compare(setting, setting.clock(learner), theirs, effort, steps=setting.steps, warm_up=WARM_UP)
    return timing.with_extra(
        engine=learner.chosen_engine.name,
        steps_per_second=1e6 / timing.ours,
        most=setting.most,
        wanted=setting.wanted,
        kernels=None,
        floor=None,
        # weights are read forward and backward; the gradient is written and read; the weights are read and written
        bytes=6 * learner.weights.theta.nbytes,
    )


def replicas(
    effort: Effort, setting: Setting, promised: float, aim: float, count: int = REPLICAS, device: torch.device = GPU
) -> Timing:
    """Time a step of several learners in a formation, each in a thread of its own, against a step of one alone.

    Args:
        effort: How much time to spend.
        setting: What every learner does.
        promised: How many times as long as one step theirs may take.
        aim: How many times as long we aim at.
        count: How many learners there are.
        device: Where they run.
    """
    alone = setting.clock(setting.learner(device))
    size = calibrate(alone, effort.seconds, warm_up=WARM_UP)
    learners = [setting.learner(device, seed) for seed in range(count)]
    formation = Formation(count)
    with ExitStack() as stack:
        for learner in learners:
            if isinstance(learner.chosen_engine, CudaEngine):
                learner.chosen_engine.place = stack.enter_context(formation.place())
        clocks = [setting.clock(learner) for learner in learners]
        side_by_side(clocks, WARM_UP)
        turns = take_turns(lambda: alone(size), lambda: side_by_side(clocks, size), effort.rounds)
    per_step = 1e6 / (size * setting.steps)
    name = f"{count} runs side by side, {setting.name}"
    timing = Timing(name, per_step * turns.second, per_step * turns.first, turns.ratio, promised=promised, aim=aim)
    return timing.with_extra(engine=" | ".join(sorted({learner.chosen_engine.name for learner in learners})))


def node_latency(nodes: int = 2000) -> float:
    """Return the microseconds of a kernel that does next to nothing, in a graph where each waits for the one before.

    Args:
        nodes: How many kernels the graph has.
    """
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
    """Return a timing with the kernels of one step counted, and the time of as many kernels that do nothing.

    Args:
        timing: What was measured.
        setting: What was timed.
        node: The microseconds of a kernel that does nothing.
    """
    learner = setting.learner(GPU)
    setting.clock(learner)(WARM_UP)
    kernels = count_kernels(setting, learner)
    return timing.with_extra(kernels=kernels, floor=None if kernels is None else kernels * node)


def count_kernels(setting: Setting, learner: MER) -> float | None:
    """Return how many kernels one step has, as the profiler sees them while one example is learned.

    Args:
        setting: What is timed.
        learner: A learner that has captured its graphs.

    Returns:
        The number of kernels per step; None if the profiler sees none.
    """
    from torch.profiler import ProfilerActivity, profile  # here, because it takes long to import

    try:
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            setting.clock(learner)(1)
        found = sum(str(one.device_type).endswith("CUDA") for one in seen.events() or [])
    except RuntimeError:
        return None
    return found / setting.steps or None


if __name__ == "__main__":
    main(CudaBenchmark())
