"""How long an example of a user's own stream takes: one by one, in chunks, and in other libraries, in turns.

`metareplay bench --streaming`. Libraries that are not installed are named and left out.
"""

import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, final

import torch
from torch import Tensor, nn

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
    clock_in_turns,
    clock_learner,
    document,
)
from metareplay.experiments.record import versions
from metareplay.learners import ER, MER, Learner, Online
from metareplay.memories import Reservoir

INPUTS: Final = 20
EXAMPLES: Final = 2000
WARM_UP: Final = 600  # examples, after which everything is compiled and memories are full
ROWS_ON_DISK: Final = 10_000_000
AGAINST: Final = {"promised": "at_least"}  # JSON names
COLUMNS: Final = (
    Column("ours", "name"),
    Column("against", "against"),
    Column("ours, us per example", "ours", ".1f"),
    Column("theirs, us", "theirs", ".1f"),
    Column("times faster", "ratio", ".2f"),
    Column("promised", "at_least", "g"),
    Column("aim", "aim", ".2g"),
)
DISK_COLUMNS: Final = (
    Column("rows of 20 numbers", "rows", ","),
    Column("memory, MB", "megabytes", ".0f"),
    Column("promised at most", "at_most", "g"),
    Column("aim", "aim", "g"),
    Column("seconds", "seconds", ".0f"),
)


@final
@dataclass(frozen=True)
class Setting:
    """Describe what to time.

    Args:
        name: What we do.
        against: What the others do.
        ours: Makes the clock of our side.
        theirs: Makes the clock of the other side.
        needs: The package that the other side needs, if any.
        promised: How many times faster we promise to be, if we do.
        aim: How many times faster we aim to be, if we do.
    """

    name: str
    against: str
    ours: Callable[[], Clock]
    theirs: Callable[[], Clock]
    needs: str | None = None
    promised: float | None = None
    aim: float | None = None


@final
class OwnClass(nn.Module):
    """Have a forward pass written by hand, as most people's models do."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(INPUTS, 64), nn.Linear(64, 2)

    def forward(self, xs: Tensor) -> Tensor:
        """Return the outputs.

        Args:
            xs: A batch of inputs.
        """
        outputs: Tensor = self.head(torch.relu(self.hidden(xs)))
        return outputs


def _mlp() -> nn.Module:
    return networks.mlp(INPUTS, (64,), 2, seed=0)


def _with(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(INPUTS, 64), *layers, nn.Linear(64, 2))


MODELS: Final[dict[str, Callable[[], nn.Module]]] = {
    "a class of one's own": OwnClass,
    "Tanh": lambda: _with(nn.Tanh()),
    "GELU": lambda: _with(nn.GELU()),
    "LayerNorm": lambda: _with(nn.LayerNorm(64), nn.ReLU()),
    "Dropout": lambda: _with(nn.ReLU(), nn.Dropout(0.1)),
}


def _examples(inputs: int = INPUTS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    xs = torch.rand(EXAMPLES, inputs, generator=generator)
    return xs, (xs[:, 0] > xs[:, 1]).long()


def _mer(model: nn.Module) -> Learner:
    return MER(model, memory=Reservoir(500), lr=0.03, beta=0.3, s=2, k=5)


def _one_by_one(learner: Learner, *, predict: bool) -> Clock:
    """Return a clock of `observe` on single rows, after `predict` if wanted."""
    xs, ys = _examples()
    rows = itertools.cycle(list(zip(xs.numpy(), ys.tolist(), strict=True)))

    def learn(count: int) -> float:
        chunk = list(itertools.islice(rows, count))
        start = time.perf_counter()
        for x, y in chunk:
            if predict:
                learner.predict(x[None])
            learner.observe(x, y)
        return time.perf_counter() - start

    return learn


def _in_chunks(learner: Learner, inputs: int = INPUTS) -> Clock:
    return clock_learner(learner, *_examples(inputs))


def _torch_steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, steps: int = 1, batch: int = 1, inputs: int = INPUTS
) -> Clock:
    """Return a clock of a clean torch loop that takes a given number of steps per example."""
    xs, ys = _examples(inputs)
    batches, loss = itertools.cycle(list(zip(xs.split(batch), ys.split(batch), strict=True))), nn.CrossEntropyLoss()

    def learn(count: int) -> float:
        start = time.perf_counter()
        for x, y in itertools.islice(batches, count * steps):
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
        return time.perf_counter() - start

    return learn


def _sgd_steps(model: nn.Module, steps: int = 1) -> Clock:
    return _torch_steps(model, torch.optim.SGD(model.parameters(), lr=0.03), steps=steps)


def _wide() -> nn.Module:
    return networks.mlp(784, (100, 100), 10, seed=0)


def _adam_steps(model: nn.Module) -> Clock:
    return _torch_steps(model, torch.optim.Adam(model.parameters(), lr=0.001), batch=26, inputs=784)


def _river(make: Callable[[], Any], *, predict: bool = True) -> Clock:
    """Return a clock of a model of river, or of one that has its methods, on dictionaries."""
    xs, ys = _examples()
    names = [f"x{number}" for number in range(INPUTS)]
    given = [dict(zip(names, x, strict=True)) for x in xs.tolist()]
    rows = itertools.cycle(list(zip(given, ys.tolist(), strict=True)))
    model = make()

    def learn(count: int) -> float:
        chunk = list(itertools.islice(rows, count))
        start = time.perf_counter()
        for x, y in chunk:
            if predict:
                model.predict_one(x)
            model.learn_one(x, y)
        return time.perf_counter() - start

    return learn


def _logistic_regression() -> Any:
    from river import linear_model

    return linear_model.LogisticRegression()


def _adaptive_tree() -> Any:
    from river import tree

    return tree.HoeffdingAdaptiveTreeClassifier(seed=0)


def _deep_river() -> Any:
    from deep_river.classification import Classifier

    return Classifier(module=_mlp(), loss_fn="cross_entropy", optimizer_fn="sgd", lr=0.03)


def _in_compiled_code(name: str, make: Callable[[], nn.Module]) -> Setting:
    """Return the setting of a model that people may write themselves, in chunks."""
    ours, theirs = f"observe_many, MER s=2, k=5, {name}", "ten plain torch steps"
    return Setting(
        ours, theirs, lambda: _in_chunks(_mer(make())), lambda: _sgd_steps(make(), steps=10), promised=20, aim=60
    )


SETTINGS: Final = (
    Setting(
        "observe, MER s=2, k=5",
        "observe_many",
        lambda: _one_by_one(_mer(_mlp()), predict=False),
        lambda: _in_chunks(_mer(_mlp())),
        promised=0.25,
        aim=0.5,
    ),
    Setting(
        "predict + observe, Online",
        "one plain torch step",
        lambda: _one_by_one(Online(_mlp(), lr=0.03), predict=True),
        lambda: _sgd_steps(_mlp()),
        promised=2,
    ),
    Setting(
        "predict + observe, Online",
        "river: logistic regression",
        lambda: _one_by_one(Online(_mlp(), lr=0.03), predict=True),
        lambda: _river(_logistic_regression),
        needs="river",
        aim=1,
    ),
    Setting(
        "predict + observe, MER s=2, k=5",
        "river: Hoeffding adaptive tree",
        lambda: _one_by_one(_mer(_mlp()), predict=True),
        lambda: _river(_adaptive_tree),
        needs="river",
        promised=1,
        aim=10 / 3,
    ),
    Setting(
        "predict + observe, MER s=2, k=5",
        "deep-river: learn_one, without replay",
        lambda: _one_by_one(_mer(_mlp()), predict=True),
        lambda: _river(_deep_river, predict=False),
        needs="deep_river",
        promised=2,
        aim=5,
    ),
    *(_in_compiled_code(name, make) for name, make in MODELS.items()),
    Setting(
        "observe_many, ER with Adam, k=26, 784-100-100-10",
        "a plain torch step with Adam",
        lambda: _in_chunks(ER(_wide(), memory=Reservoir(500), lr=0.001, k=26, optimizer="adam"), 784),
        lambda: _adam_steps(_wide()),
        promised=3,
        aim=8,
    ),
)


@final
@dataclass(frozen=True)
class StreamingBenchmark(Benchmark):
    """Time examples that come one by one or in chunks, and weigh a memory on disk."""

    def run(self, effort: Effort, say: Say) -> dict[str, Any]:
        """Time everything and return the JSON document: see `Benchmark.run`."""
        wanted = SETTINGS[:1] if effort.quick else SETTINGS
        missing = sorted({one.needs for one in wanted if one.needs and not find_spec(one.needs)})
        there = [one for one in wanted if one.needs not in missing]
        timings = [measure(setting, effort).to_json(AGAINST) for setting in announced(there, say)]
        say("weighing a memory on disk")
        disk = weigh_disk(50_000 if effort.quick else ROWS_ON_DISK)
        return document(versions()["processor"], timings=timings, disk=disk, missing=missing)

    def sheets(self, found: Mapping[str, Any]) -> list[Sheet]:
        """Return the tables that show a document to people: see `Benchmark.sheets`."""
        note = f"Not installed here: {', '.join(found['missing'])}." if found["missing"] else ""
        title = f"Examples of a stream of 20 numbers, MLP 20-64-2, one core of {found['device']}"
        return [
            Sheet(title, COLUMNS, found["timings"], note),
            Sheet(
                "A memory on disk: rows offered and sampled, without learning", DISK_COLUMNS, [found["disk"]], DISK_NOTE
            ),
        ]


def measure(setting: Setting, effort: Effort) -> Timing:
    """Time one setting, both sides in turns.

    Args:
        setting: What to time.
        effort: How much time to spend.
    """
    turns = clock_in_turns(setting.ours(), setting.theirs(), effort, warm_up=WARM_UP)
    timing = Timing(setting.name, 1e6 * turns.first, 1e6 * turns.second, turns.ratio, setting.promised, setting.aim)
    return timing.with_extra(against=setting.against)


DISK_NOTE: Final = "Learning with them takes more: python scripts/measure-disk-reservoir."
WEIGH: Final = """
import sys, time, torch, metareplay as mr
from metareplay.bench.streaming import resident
rows, folder = int(sys.argv[1]), sys.argv[2]
memory = mr.DiskReservoir(folder, capacity=rows)
xs, ys = torch.rand(10_000, 20), torch.zeros(10_000, dtype=torch.int64)
memory.offer((xs[:10], ys[:10]))
before, start = resident(), time.perf_counter()
for _ in range(0, rows, len(xs)):
    memory.offer((xs, ys))
    memory.sample(64)
print(resident() - before, time.perf_counter() - start)
"""


def weigh_disk(rows: int) -> dict[str, float]:
    """Offer rows to a memory on disk and sample from it, in a process of its own; return what that process grew by.

    Args:
        rows: How many rows of 20 numbers.
    """
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-c", WEIGH, str(rows), folder]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    megabytes, seconds = (float(word) for word in done.stdout.split())
    return {"rows": rows, "megabytes": megabytes, "at_most": 300, "aim": 100, "seconds": seconds}


def resident() -> float:
    """Return how many megabytes of this process are in memory and its own, as Linux counts them."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return float(fields["RssAnon"].split()[0]) / 1024
