"""How fast a step is: our engines against a clean torch loop, same machine, same run, interleaved."""

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from metareplay import networks
from metareplay._core.columns import Columns
from metareplay.engines.choose import EngineName
from metareplay.engines.engine import Outcome
from metareplay.experiments.record import now, versions
from metareplay.learners import ER, EWC, GEM, MER, Learner, MERCurrentRate, Online
from metareplay.memories import Reservoir, Ring
from metareplay.streams import ManyPermutations, Rotations, Stream


@final
@dataclass(frozen=True)
class Setting:
    """What to time."""

    name: str
    algorithm: str = "mer"
    stream: str = "rotations"
    hidden: tuple[int, ...] = (100, 100)
    memory: int = 5120
    k: int = 101
    s: int = 10
    dense: bool = False
    at_least: float | None = None  # the ratio to the torch loop that we promise
    aim: float | None = None

    def learner(self, engine: EngineName, seed: int = 0) -> Learner:
        """A learner of this kind, nothing learned yet."""
        model = networks.mlp(784, self.hidden, 10, seed=seed)
        made: dict[str, Callable[[], Learner]] = {
            "mer": lambda: MER(
                model, memory=Reservoir(self.memory), lr=0.03, beta=0.03, s=self.s, k=self.k, engine=engine
            ),
            "mer-current-rate": lambda: MERCurrentRate(
                model, memory=Reservoir(self.memory), lr=0.03, gamma=0.03, s=self.s, k=self.k, engine=engine
            ),
            "er": lambda: ER(model, memory=Reservoir(self.memory), lr=0.03, k=self.k, engine=engine),
            "online": lambda: Online(model, lr=0.003, engine=engine),
            "ewc": lambda: EWC(model, lr=0.003, strength=10.0, engine=engine),
            "gem": lambda: GEM(model, memory=Ring(self.memory, TASKS), lr=0.01, engine=engine),
        }
        return made[self.algorithm]()

    @property
    def steps(self) -> int:
        """Weight updates that one incoming example costs, as the torch loop counts them."""
        return {"mer": self.s * self.k, "mer-current-rate": self.k}.get(self.algorithm, 1)


SETTINGS = (
    Setting("MER, Rotations, 5120 memories, k=101, s=10", at_least=100, aim=200),
    Setting("MER, Many Permutations, 5120, k=6, s=10", stream="many", k=6, at_least=60, aim=120),
    Setting("MER Algorithm 7, 5120, k=101", "mer-current-rate", s=5, at_least=100, aim=200),
    Setting("MER, dense inputs, 5120, k=101, s=10", dense=True, at_least=40, aim=80),
    Setting("MER, 784-400-400-10, 5120, k=101, s=10", hidden=(400, 400), at_least=20, aim=40),
)
BASELINES = (
    Setting("Online", "online"),
    Setting("ER, 5120, a step on k=26", "er", k=26),
    Setting("EWC", "ewc"),
    Setting("GEM, 500 memories, 19 past tasks", "gem", memory=500),
)
FIRST = SETTINGS[0]
TASKS = 20
LAST = TASKS - 1
PLAIN = replace(FIRST, at_least=None, aim=None)
GROWTH = (
    *(replace(PLAIN, name=f"k={k}", k=k) for k in (2, 6, 11, 26, 51)),
    *(replace(PLAIN, name=f"s={s}, k=11", s=s, k=11) for s in (1, 2, 5)),
    *(replace(PLAIN, name=f"memory {m}", memory=m) for m in (200, 500, 20000)),
    *(replace(PLAIN, name=f"width {w}", hidden=(w, w)) for w in (25, 50, 200)),
    *(replace(PLAIN, name=f"depth {d}", hidden=(100,) * d) for d in (0, 1, 3, 4)),
)


@final
@dataclass(frozen=True)
class Timing:
    """What was measured: microseconds for one update of the weights."""

    name: str
    ours: float
    torch: float
    ratio: float
    at_least: float | None
    aim: float | None
    engine: str


def measure(setting: Setting, engine: EngineName = "auto", rounds: int = 7, seconds: float = 0.3) -> Timing:
    """Medians over rounds; in each, our engine and the torch loop take turns for about so many seconds."""
    xs, ys = _examples(setting, setting.memory + 4000)
    learner = setting.learner(engine)
    fill(learner, xs[: setting.memory], ys[: setting.memory])
    loop = _torch_loop(setting, xs, ys)
    fresh, at = len(xs) - setting.memory, 0

    def ours(count: int) -> float:
        """Seconds for one incoming example, in one chunk of so many."""
        nonlocal at
        rows = setting.memory + torch.arange(at, at + count) % fresh
        at += count
        chunk = xs[rows], ys[rows]
        return _clock(lambda: learner.observe_many(*chunk, task=LAST)) / count

    ours(2)  # compiles
    count = 2
    while (took := ours(count)) * count < seconds / 2 and count < 4000:
        count = min(4000, max(2 * count, int(seconds / took)))
    pairs = [(1e6 * ours(count) / setting.steps, 1e6 * loop(seconds)) for _ in range(rounds)]
    ratio = statistics.median(their / our for our, their in pairs)
    our, their = (statistics.median(times) for times in zip(*pairs, strict=True))
    return Timing(setting.name, our, their, ratio, setting.at_least, setting.aim, learner.chosen_engine.name)


def two_jobs(engine: EngineName = "auto", rounds: int = 7, seconds: float = 0.5) -> float:
    """The time of two runs side by side, as a share of one after the other; 0.5 on two idle cores."""
    xs, ys = _examples(FIRST, FIRST.memory + 4000)
    learners = [FIRST.learner(engine, seed) for seed in range(2)]
    for learner in learners:
        fill(learner, xs[: FIRST.memory], ys[: FIRST.memory])
        learner.observe_many(xs[-2:], ys[-2:])
    count = max(2, int(seconds / 2 / _clock(lambda: learners[0].observe_many(xs[-4:], ys[-4:])) * 4))

    def work(learner: Learner) -> None:
        learner.observe_many(xs[-count:], ys[-count:])

    def after_another() -> None:
        for learner in learners:
            work(learner)

    def side_by_side() -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(work, learners))

    return statistics.median(_clock(side_by_side) / _clock(after_another) for _ in range(rounds))


def document(timings: list[Timing], growth: list[Timing], jobs: float | None) -> dict[str, Any]:
    """Everything as plain JSON values."""
    return {
        "two_jobs": jobs,
        "timings": [asdict(timing) for timing in timings],
        "growth": [asdict(timing) for timing in growth],
        "versions": versions(),
        "date": now(),
    }


def _clock(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _torch_loop(setting: Setting, xs: Tensor, ys: Tensor) -> Callable[[float], float]:
    """A clean training loop, written fairly: zero_grad, forward, backward, step; gives seconds for one step.

    One example a step; for ER a batch of k; for GEM also a backward pass for each past task's memory, no projection.
    """
    model = networks.mlp(784, setting.hidden, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.003)
    loss = nn.CrossEntropyLoss()
    size = setting.k if setting.algorithm == "er" else 1
    inputs, labels = xs[: 100 * size].float().div(255).split(size), ys[: 100 * size].split(size)
    held = max(1, setting.memory // TASKS)
    past = range(LAST if setting.algorithm == "gem" else 0)
    stored = [(xs[t * held : (t + 1) * held].float().div(255), ys[t * held : (t + 1) * held]) for t in past]

    def loop(seconds: float) -> float:
        start, steps = time.perf_counter(), 0
        while (took := time.perf_counter() - start) < seconds:
            for x, y in zip(inputs, labels, strict=True):
                for some, of in stored:
                    optimizer.zero_grad()
                    loss(model(some), of).backward()
                optimizer.zero_grad()
                loss(model(x), y).backward()
                optimizer.step()
            steps += len(inputs)
        return took / steps

    loop(0.05)
    return loop


def _examples(setting: Setting, count: int) -> tuple[Tensor, Tensor]:
    """Examples of the setting's stream, or as many made-up dense ones."""
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


def fill(learner: Learner, xs: Tensor, ys: Tensor) -> None:
    """Store examples without learning them."""
    if learner.own_memory is None:
        return
    examples = Columns({"x": xs, "y": ys, "task": torch.arange(len(xs)) * LAST // len(xs)})
    learner.table = learner.make_table(examples, max(len(xs), learner.piece_size()))
    learner.table.bring(examples)
    slots = learner.own_memory.place(learner.draws, examples.task_ids())
    learner.finish(Outcome(len(xs)), slots, examples, learner.table)
