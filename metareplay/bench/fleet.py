"""How fast a fleet is: steps of all runs a second, how far from the floor, and how exact."""

import statistics
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any, Final, final

import torch

from metareplay import networks
from metareplay.bench.cpu import fill
from metareplay.experiments.loop import Run
from metareplay.experiments.record import now, versions
from metareplay.learners import MER
from metareplay.memories import Reservoir
from metareplay.runners.fleet.fleet import Fleet, check_device
from metareplay.streams import Rotations

HIDDEN: Final = (100, 100)
STREAMS: Final = 4  # different ones, taken in turn
MEMORY: Final = 5120
FILLED: Final = 5120  # examples in every memory when timing begins
WARM: Final = 100  # examples learned before the comparison with float64
COMPARED: Final = 3  # examples, of 10 batches each
CLOCK: Final = (
    1.755e9  # an H200's; fused multiply-adds a cycle and multiprocessor: 128 float32, 2048 float16 on tensor cores
)


@final
@dataclass(frozen=True)
class Setting:
    """What to time."""

    runs: int
    k: int
    at_least: float | None = None  # million steps a second that we promise
    aim: float | None = None


SETTINGS = (
    Setting(132, 101, 25, 60),
    Setting(132, 11, 10, 30),
    Setting(132, 6, 10, 30),
    Setting(264, 101),
    Setting(528, 11),
    Setting(5, 101),
    Setting(1, 101),
)


@final
@dataclass(frozen=True)
class Timing:
    """What was measured."""

    name: str
    runs: int
    k: int
    step: float  # microseconds for one step of every run
    rate: float  # million steps of all runs a second
    floor: float  # million steps a second if arithmetic were all
    share: float  # of that floor
    at_least: float | None
    aim: float | None


def measure(setting: Setting, rounds: int = 5, seconds: float = 0.5) -> Timing:
    """The median of some rounds of about so many seconds."""
    fleet = _fleet(setting.runs, setting.k, tasks=8)
    fleet.start_with(FILLED)
    fleet.learn(1)  # compiles
    each = 10 * setting.k
    count = 1
    while (took := _clock(fleet, count)) < seconds / 2:
        if count == fleet.ends[-1] - FILLED:
            break
        count = min(max(count + 1, min(4 * count, int(count * seconds / took))), fleet.ends[-1] - FILLED)
    step = statistics.median(_clock(fleet, count) for _ in range(rounds)) / (count * each)
    floor = floor_rate(torch.cuda.get_device_properties("cuda").multi_processor_count)
    name = f"{setting.runs} runs of MER, 784-100-100-10, k={setting.k}, s=10"
    rate = setting.runs / step / 1e6
    return Timing(name, setting.runs, setting.k, 1e6 * step, rate, floor, rate / floor, setting.at_least, setting.aim)


def floor_rate(multiprocessors: int) -> float:
    """Million steps a second by arithmetic alone, as the kernel pads it: both kinds of units busy all the time.

    Upper layers: two products and two updates of 128 x 128, three of 128 x 16, in float32. First layer: W X' and D X
    with two halves each, and X X', 128 x 784 each, in float16.
    """
    plain, tensor = 4 * 128 * 128 + 3 * 128 * 16 + 2 * 128 * 16, 5 * 128 * 784
    return multiprocessors * CLOCK / max(plain / 128, tensor / 2048) / 1e6


def error(seed: int = 0, device: str = "cuda") -> float:
    """How far weights are from float64 after 30 batches of k=101, relative to their norm: |ours - exact| / |exact|."""
    fleet = _fleet(1, 101, tasks=1, seed=seed, device=device)
    fleet.learn(WARM)
    model = networks.mlp(784, HIDDEN, 10).double()
    torch.nn.utils.vector_to_parameters(fleet.theta(0).double(), model.parameters())
    exact = MER(model, memory=Reservoir(MEMORY), lr=0.03, beta=0.03, s=10, k=101, seed=seed, engine="torch")
    chunk = next(iter(fleet.runs[0].stream.chunks()))
    fill(exact, chunk.xs[:WARM], chunk.ys[:WARM])
    fleet.learn(COMPARED)
    exact.observe_many(chunk.xs[WARM : WARM + COMPARED], chunk.ys[WARM : WARM + COMPARED])
    theta = exact.weights.theta
    return float((fleet.theta(0).double() - theta).norm() / theta.norm())


def document(rounds: int, seconds: float, quick: bool) -> dict[str, Any]:
    """Everything as plain JSON values."""
    check_device(torch.device("cuda"))
    settings, rounds, seconds = (SETTINGS[:1], 2, 0.1) if quick else (SETTINGS, rounds, seconds)
    return {
        "device": f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, Triton {version('triton')}",
        "error": error(),
        "timings": [asdict(measure(one, rounds, seconds)) for one in settings],
        "versions": versions(),
        "date": now(),
    }


def _fleet(runs: int, k: int, *, tasks: int, seed: int = 0, device: str = "cuda") -> Fleet:
    streams = [Rotations(tasks, 1000, seed=seed + number) for number in range(min(STREAMS, runs))]
    made = []
    for number in range(seed, seed + runs):
        model, memory = networks.mlp(784, HIDDEN, 10, seed=number), Reservoir(MEMORY)
        learner = MER(model, memory=memory, lr=0.03, beta=0.03, s=10, k=k, seed=number, engine="torch")
        made.append(Run(learner, streams[(number - seed) % len(streams)]))
    return Fleet(made, device)


def _clock(fleet: Fleet, count: int) -> float:
    """Seconds for so many examples; those of the end of the streams again and again."""
    if fleet.seen + count > fleet.ends[-1]:
        fleet.start_with(FILLED)
    start = time.perf_counter()
    fleet.learn(count)
    return time.perf_counter() - start
