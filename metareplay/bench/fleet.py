"""How fast a fleet is: how many steps all its runs take per second, how far that is from the floor, and how exact.

`metareplay bench --on fleet`; or, where only torch is installed, `python -m metareplay.bench.fleet`.
"""

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, final

import torch

from metareplay import networks
from metareplay.bench.frame import (
    Benchmark,
    Clock,
    Column,
    Effort,
    Say,
    Sheet,
    Timing,
    announced,
    calibrate,
    describe_gpu,
    document,
    fill,
    main,
)
from metareplay.experiments.loop import Run
from metareplay.learners import MER
from metareplay.memories import Reservoir
from metareplay.runners.fleet.fleet import Fleet, check_device
from metareplay.streams import Rotations

HIDDEN: Final = (100, 100)
S: Final = 10  # batches per example
STREAMS: Final = 4  # different ones, taken in turn
MEMORY: Final = 5120
FILLED: Final = 5120  # examples in every memory when timing begins
WARM: Final = 100  # examples learned before the comparison with float64
COMPARED: Final = 3  # examples, of S batches each
CLOCK: Final = 1.755e9  # cycles per second of an H200
PLAIN_RATE: Final = 128  # fused multiply-adds per cycle and multiprocessor in float32
TENSOR_RATE: Final = 2048  # the same in float16 on tensor cores


@final
@dataclass(frozen=True)
class Setting:
    """Describe what to time: a fleet of MER learners.

    Args:
        runs: How many runs the fleet has.
        k: How many examples a batch has, the incoming one included.
        promised: How many million steps per second we promise, if we do.
        aim: How many million steps per second we aim at, if we do.
    """

    runs: int
    k: int
    promised: float | None = None
    aim: float | None = None

    @property
    def name(self) -> str:
        """Return what people call it."""
        return f"{self.runs} runs of MER, 784-100-100-10, k={self.k}, s={S}"


SETTINGS = (
    Setting(132, 101, 25, 60),
    Setting(132, 11, 10, 30),
    Setting(132, 6, 10, 30),
    Setting(264, 101),
    Setting(528, 11),
    Setting(5, 101),
    Setting(1, 101),
)
COLUMNS = (
    Column("setting", "name"),
    Column("a step, us", "step", ".2f"),
    Column("million steps/s", "rate", ".1f"),
    Column("promised", "at_least", ".0f"),
    Column("aim", "aim", ".0f"),
    Column("of the floor", "share", ".0%"),
)
AGAINST_FLOOR: Final = {"ours": "rate", "theirs": "floor", "ratio": "share", "promised": "at_least"}  # JSON names


@final
class FleetBenchmark(Benchmark):
    """Time the steps of fleets of several sizes, and measure how far their weights are from float64."""

    def run(self, effort: Effort, say: Say) -> dict[str, Any]:
        """Time everything and return the JSON document: see `Benchmark.run`."""
        check_device(torch.device("cuda"))
        say("comparing weights with float64")
        apart = error()
        settings = SETTINGS[:1] if effort.quick else SETTINGS
        timings = [measure(setting, effort).to_json(AGAINST_FLOOR) for setting in announced(settings, say)]
        return document(describe_gpu(), error=apart, timings=timings)

    def sheets(self, found: Mapping[str, Any]) -> list[Sheet]:
        """Return the tables that show a document to people: see `Benchmark.sheets`."""
        title = f"A fleet on one {found['device']}; weights within {found['error']:.0e} of float64 after 30 batches"
        return [Sheet(title, COLUMNS, found["timings"])]


def measure(setting: Setting, effort: Effort, device: str = "cuda") -> Timing:
    """Time the steps of one fleet, whose memories are full, and compare them with the floor.

    Args:
        setting: What to time.
        effort: How much time to spend.
        device: Where the fleet runs.

    Returns:
        Million steps of all runs per second, against as many as arithmetic alone would allow; `step` is how many
        microseconds one step of every run takes.
    """
    fleet = _fleet(setting.runs, setting.k, tasks=8, device=device)
    fleet.start_with(FILLED)
    clock = clock_fleet(fleet)
    count = calibrate(clock, effort.seconds, warm_up=1, most=fleet.ends[-1] - FILLED)
    step = statistics.median(clock(count) for _ in range(effort.rounds)) / (count * S * setting.k)
    floor = floor_rate(torch.cuda.get_device_properties(device).multi_processor_count)
    rate = setting.runs / step / 1e6
    timing = Timing(setting.name, rate, floor, rate / floor, setting.promised, setting.aim)
    return timing.with_extra(runs=setting.runs, k=setting.k, step=1e6 * step)


def floor_rate(multiprocessors: int) -> float:
    """Return the million steps per second by arithmetic alone, as the kernel pads it, if no unit ever waits.

    Upper layers: two products and two updates of 128 x 128, three of 128 x 16, in float32. First layer: W X' and D X
    with two halves each, and X X', 128 x 784 each, in float16.

    Args:
        multiprocessors: How many multiprocessors the GPU has.
    """
    plain, tensor = 4 * 128 * 128 + 3 * 128 * 16 + 2 * 128 * 16, 5 * 128 * 784
    return multiprocessors * CLOCK / max(plain / PLAIN_RATE, tensor / TENSOR_RATE) / 1e6


def error(seed: int = 0, device: str = "cuda") -> float:
    """Return how far weights are from float64 after 30 batches of k=101, relative to their norm.

    Args:
        seed: The seed of the run.
        device: Where the fleet runs.

    Returns:
        |ours - exact| / |exact|.
    """
    fleet = _fleet(1, 101, tasks=1, seed=seed, device=device)
    fleet.learn(WARM)
    model = networks.mlp(784, HIDDEN, 10).double()
    torch.nn.utils.vector_to_parameters(fleet.theta(0).double(), model.parameters())
    exact = MER(model, memory=Reservoir(MEMORY), lr=0.03, beta=0.03, s=S, k=101, seed=seed, engine="torch")
    chunk = next(iter(fleet.runs[0].stream.chunks()))
    fill(exact, chunk.xs[:WARM], chunk.ys[:WARM])
    fleet.learn(COMPARED)
    exact.observe_many(chunk.xs[WARM : WARM + COMPARED], chunk.ys[WARM : WARM + COMPARED])
    theta = exact.weights.theta
    return float((fleet.theta(0).double() - theta).norm() / theta.norm())


def clock_fleet(fleet: Fleet) -> Clock:
    """Return the clock of a fleet, which goes back to full memories whenever its streams would end.

    Args:
        fleet: The fleet to time.
    """

    def learn(count: int) -> float:
        if fleet.seen + count > fleet.ends[-1]:
            fleet.start_with(FILLED)
        start = time.perf_counter()
        fleet.learn(count)
        return time.perf_counter() - start

    return learn


def _fleet(runs: int, k: int, *, tasks: int, seed: int = 0, device: str = "cuda") -> Fleet:
    """Return a fleet of MER learners with seeds of their own, on a few different streams."""
    streams = [Rotations(tasks, 1000, seed=seed + number) for number in range(min(STREAMS, runs))]
    made = []
    for number in range(seed, seed + runs):
        model, memory = networks.mlp(784, HIDDEN, 10, seed=number), Reservoir(MEMORY)
        learner = MER(model, memory=memory, lr=0.03, beta=0.03, s=S, k=k, seed=number, engine="torch")
        made.append(Run(learner, streams[(number - seed) % len(streams)]))
    return Fleet(made, device)


if __name__ == "__main__":
    main(FleetBenchmark())
