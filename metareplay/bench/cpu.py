"""How long a step takes on the CPU: our engines against a clean torch loop, same machine, same run, in turns.

`metareplay bench`; or, where only torch and numba are installed, `python -m metareplay.bench.cpu`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor, nn

from metareplay import networks
from metareplay.bench.frame import (
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
    document,
    fill,
    main,
    side_by_side,
    take_turns,
)
from metareplay.bench.torch_loop import torch_loop
from metareplay.engines.choose import EngineName, check_engine
from metareplay.experiments.record import versions
from metareplay.learners import ER, EWC, GEM, MER, Learner, MERCurrentRate, Online
from metareplay.memories import Reservoir, Ring
from metareplay.streams import ManyPermutations, Rotations, Stream

FRESH: Final = 4000  # examples to learn from while the clock runs, besides those in memory
WARM_UP: Final = 2  # examples, after which everything is compiled


@final
@dataclass(frozen=True)
class Setting:
    """Describe what to time.

    Args:
        name: What people call it.
        algorithm: Which learner: mer, mer-current-rate, er, online, ewc or gem.
        stream: Where the examples come from: rotations or many (Many Permutations).
        hidden: The widths of the hidden layers.
        memory: How many examples the memory holds.
        k: How many examples a batch has, the incoming one included.
        s: How many batches each example causes (mer), or the rate factor (mer-current-rate).
        dense: Whether to make up inputs without a single zero instead of taking the stream's.
        adam: Whether Adam takes the steps, where the learner has optimizers (er), instead of plain SGD.
        promised: How many times faster than the torch loop we promise to be, if we do.
        aim: How many times faster than the torch loop we aim to be, if we do.
    """

    name: str
    algorithm: str = "mer"
    stream: str = "rotations"
    hidden: tuple[int, ...] = (100, 100)
    memory: int = 5120
    k: int = 101
    s: int = 10
    dense: bool = False
    adam: bool = False
    promised: float | None = None
    aim: float | None = None

    def learner(self, engine: EngineName, seed: int = 0) -> Learner:
        """Return a learner of this kind that has learned nothing yet.

        Args:
            engine: The name of its engine.
            seed: The seed of its weights.
        """
        model = networks.mlp(784, self.hidden, 10, seed=seed)
        made: dict[str, Callable[[], Learner]] = {
            "mer": lambda: MER(
                model, memory=Reservoir(self.memory), lr=0.03, beta=0.03, s=self.s, k=self.k, engine=engine
            ),
            "mer-current-rate": lambda: MERCurrentRate(
                model, memory=Reservoir(self.memory), lr=0.03, gamma=0.03, s=self.s, k=self.k, engine=engine
            ),
            "er": lambda: ER(
                model,
                memory=Reservoir(self.memory),
                lr=0.001 if self.adam else 0.03,
                k=self.k,
                optimizer="adam" if self.adam else "sgd",
                engine=engine,
            ),
            "online": lambda: Online(model, lr=0.003, engine=engine),
            "ewc": lambda: EWC(model, lr=0.003, strength=10.0, engine=engine),
            "gem": lambda: GEM(model, memory=Ring(self.memory, PAST_TASKS + 1), lr=0.01, engine=engine),
        }
        return made[self.algorithm]()

    @property
    def steps(self) -> int:
        """Return how many updates of the weights, as the torch loop counts them, one incoming example causes."""
        return {"mer": self.s * self.k, "mer-current-rate": self.k}.get(self.algorithm, 1)


SETTINGS = (
    Setting("MER, Rotations, 5120 memories, k=101, s=10", promised=100, aim=200),
    Setting("MER, Many Permutations, 5120, k=6, s=10", stream="many", k=6, promised=60, aim=120),
    Setting("MER Algorithm 7, 5120, k=101", "mer-current-rate", s=5, promised=100, aim=200),
    Setting("MER, dense inputs, 5120, k=101, s=10", dense=True, promised=40, aim=80),
    Setting("MER, 784-400-400-10, 5120, k=101, s=10", hidden=(400, 400), promised=20, aim=40),
)
BASELINES = (
    Setting("Online", "online"),
    Setting("ER, 5120, a step on k=26", "er", k=26),
    Setting("ER with Adam, 5120, a step on k=1", "er", k=1, adam=True, promised=3, aim=8),
    Setting("ER with Adam, 5120, a step on k=26", "er", k=26, adam=True, promised=3, aim=8),
    Setting("EWC", "ewc"),
    Setting("GEM, 500 memories, 19 past tasks", "gem", memory=500),
)
FIRST = SETTINGS[0]
PLAIN = replace(FIRST, promised=None, aim=None)
GROWTH = (
    *(replace(PLAIN, name=f"k={k}", k=k) for k in (2, 6, 11, 26, 51)),
    *(replace(PLAIN, name=f"s={s}, k=11", s=s, k=11) for s in (1, 2, 5)),
    *(replace(PLAIN, name=f"memory {m}", memory=m) for m in (200, 500, 20000)),
    *(replace(PLAIN, name=f"width {w}", hidden=(w, w)) for w in (25, 50, 200)),
    *(replace(PLAIN, name=f"depth {d}", hidden=(100,) * d) for d in (0, 1, 3, 4)),
)
COLUMNS = (
    Column("setting", "name"),
    Column("engine", "engine"),
    Column("ours, us", "ours", ".2f"),
    Column("torch loop, us", "torch", ".0f"),
    Column("times faster", "ratio", ".0f"),
    Column("promised", "at_least", ".0f"),
    Column("aim", "aim", ".0f"),
)


@final
@dataclass(frozen=True)
class CpuBenchmark(Benchmark):
    """Time the steps of our engines on the CPU, how their cost grows, and how well two runs share two cores.

    Args:
        engine: The name of the engine to time.
    """

    engine: EngineName = "auto"

    def run(self, effort: Effort, say: Say) -> dict[str, Any]:
        """Time everything and return the JSON document: see `Benchmark.run`."""
        check_engine(self.engine)
        headline, growth = (SETTINGS[:1], ()) if effort.quick else ((*SETTINGS, *BASELINES), GROWTH)
        settings = announced((*headline, *growth), say)
        timings = [measure(setting, self.engine, effort).to_json(AGAINST_TORCH) for setting in settings]
        share = None
        if not effort.quick:
            say("timing two runs side by side")
            share = two_jobs(self.engine, effort)
        parts = {"timings": timings[: len(headline)], "growth": timings[len(headline) :]}
        return document(versions()["processor"], two_jobs=share, **parts)

    def sheets(self, found: Mapping[str, Any]) -> list[Sheet]:
        """Return the tables that show a document to people: see `Benchmark.sheets`."""
        title = f"A step against a clean torch loop, one core of {found['versions']['processor']}"
        sheets = [Sheet(title, COLUMNS, found["timings"])]
        if found["growth"]:
            note = f"Two runs on two cores take {found['two_jobs']:.2f} of the time of one after the other."
            sheets.append(Sheet(f"How the cost of a step grows from {FIRST.name}", COLUMNS, found["growth"], note))
        return sheets


def measure(setting: Setting, engine: EngineName, effort: Effort) -> Timing:
    """Time one setting against the torch loop, with a full memory from the beginning.

    Args:
        setting: What to time.
        engine: The name of the engine.
        effort: How much time to spend.
    """
    xs, ys = examples(setting, setting.memory + FRESH)
    learner, ours = _started(setting, engine, xs, ys)
    theirs = _torch_loop(setting, xs, ys)
    timing = compare(setting, ours, theirs, effort, steps=setting.steps, warm_up=WARM_UP)
    return timing.with_extra(engine=learner.chosen_engine.name)


def two_jobs(engine: EngineName, effort: Effort, setting: Setting = FIRST) -> float:
    """Return the time of two runs side by side as a share of one after the other; 0.5 on two idle cores.

    Args:
        engine: The name of the engine.
        effort: How much time to spend.
        setting: What both runs do.
    """
    xs, ys = examples(setting, setting.memory + FRESH)
    clocks = [_started(setting, engine, xs, ys, seed)[1] for seed in range(2)]
    count = calibrate(clocks[0], effort.seconds / 2, warm_up=WARM_UP)
    clocks[1](WARM_UP)
    turns = take_turns(
        lambda: sum(clock(count) for clock in clocks), lambda: side_by_side(clocks, count), effort.rounds
    )
    return turns.ratio


def examples(setting: Setting, count: int) -> tuple[Tensor, Tensor]:
    """Return examples of the setting's stream, or as many made-up dense ones.

    Args:
        setting: The setting.
        count: How many examples.
    """
    if setting.dense:
        rng = np.random.default_rng(0)
        xs = rng.integers(1, 256, (count, 784), dtype=np.uint8)
        return torch.from_numpy(xs), torch.from_numpy(rng.integers(0, 10, count))
    stream: Stream = Rotations(examples=2000) if setting.stream == "rotations" else ManyPermutations(examples=400)
    chunks, held = [], 0
    for chunk in stream.chunks():
        chunks.append(chunk)
        held += len(chunk)
        if held >= count:
            break
    return torch.cat([c.xs for c in chunks])[:count], torch.cat([c.ys for c in chunks])[:count]


def _started(setting: Setting, engine: EngineName, xs: Tensor, ys: Tensor, seed: int = 0) -> tuple[Learner, Clock]:
    """Return a learner whose memory holds the first examples, and the clock that teaches it the others."""
    learner = setting.learner(engine, seed)
    fill(learner, xs[: setting.memory], ys[: setting.memory])
    return learner, clock_learner(learner, xs[setting.memory :], ys[setting.memory :], task=PAST_TASKS)


def _torch_loop(setting: Setting, xs: Tensor, ys: Tensor) -> Callable[[float], float]:
    """Return the torch loop: one example per step; for ER a batch of k.

    For GEM a step also has a backward pass for the memory of each past task, but no projection.
    """
    batches = _batches(xs, ys, setting.k if setting.algorithm == "er" else 1, 100)
    memories = _batches(xs, ys, max(1, setting.memory // (PAST_TASKS + 1)), PAST_TASKS)
    past = memories if setting.algorithm == "gem" else []
    kind = torch.optim.Adam if setting.adam else torch.optim.SGD
    return torch_loop(networks.mlp(784, setting.hidden, 10), nn.CrossEntropyLoss(), 0.003, batches, past, kind)


def _batches(xs: Tensor, ys: Tensor, size: int, count: int) -> list[tuple[Tensor, Tensor]]:
    """Return batches of the first examples, as a network takes them."""
    inputs, labels = xs[: size * count].float().div(255), ys[: size * count]
    return list(zip(inputs.split(size), labels.split(size), strict=True))


if __name__ == "__main__":
    main(CpuBenchmark())
