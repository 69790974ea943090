"""Experiments as plain configurations: names and numbers in, a learner and its stream out."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, final

from torch import nn

from metareplay import data, networks
from metareplay.engines.choose import check_gpu
from metareplay.errors import InputError
from metareplay.experiments.loop import Run
from metareplay.learners import (
    ER,
    EWC,
    GEM,
    MER,
    ERTasks,
    Independent,
    Learner,
    MERCurrentRate,
    MEROneBigBatch,
    Online,
    TaskInput,
)
from metareplay.memories import Memory, Recent, Reservoir, Ring
from metareplay.paper.best import best
from metareplay.streams import ManyPermutations, Permutations, Rotations, Stream

LEARNERS: dict[str, type[Learner]] = {
    "online": Online,
    "independent": Independent,
    "task-input": TaskInput,
    "ewc": EWC,
    "gem": GEM,
    "er": ER,
    "er-tasks": ERTasks,
    "mer": MER,
    "mer-one-big-batch": MEROneBigBatch,
    "mer-current-rate": MERCurrentRate,
}
STREAMS: dict[str, Callable[..., Stream]] = {
    "rotations": Rotations,
    "permutations": Permutations,
    "many-permutations": ManyPermutations,
}
IMAGES: dict[str, Callable[[], data.Images]] = {"mnist": data.mnist, "fashion-mnist": data.fashion_mnist}
MEMORIES = ("reservoir", "ring", "recent")
PIXELS, CLASSES = 784, 10


@final
@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One run of the paper's kind. What is not given is the paper's best setting for it (`metareplay.paper.best`)."""

    learner: str = "mer"
    stream: str = "rotations"
    memory: int = 500  # examples held, for learners with a memory
    memory_kind: str | None = None  # reservoir, ring or recent; None: the paper's
    hidden: tuple[int, ...] = (100, 100)  # widths of the MLP's hidden layers
    options: dict[str, Any] = field(default_factory=dict)  # the learner's own fields: lr, beta, s, k, ...
    tasks: int | None = None  # None: the stream's own number
    examples: int | None = None  # of each task; None: the stream's own number
    images: str = "mnist"
    test_examples: int | None = None  # None: the whole test set
    seed: int = 0  # of the stream, the first weights and the learner
    engine: str = "auto"  # auto, torch, cpu or cuda
    full_matrix: bool = False  # measure every task after every task
    alignment: int = 0  # compare each example's gradient with those of so many past ones

    def start(self) -> Run:
        """The run, of which nothing has been computed yet."""
        return Run(*self.build(), full_matrix=self.full_matrix, alignment=self.alignment)

    def work(self) -> float:
        """Roughly how long it takes, in SGD steps on one example: to tell the time that is left."""
        stream, options = self._stream(), best(self.learner, self.stream, self.memory) | self.options
        steps = float(options.get("k", 1))
        if self.learner in ("mer", "mer-one-big-batch"):
            steps *= options["s"]
        elif self.learner == "gem":
            steps = 300 + 25 * stream.tasks + self.memory / 20
        elif options.get("optimizer", "sgd") != "sgd":
            steps = max(steps, 450)  # by torch
        rows = stream.tasks if self.full_matrix else 4
        return steps * (stream.total or 0) + 0.2 * rows * stream.tasks * (self.test_examples or 10_000)

    def build(self) -> tuple[Learner, Stream]:
        """The learner with its first weights, and the stream; nothing has been computed yet."""
        kind = _named("learner", self.learner, LEARNERS)
        if self.seed >= 2**32:
            raise InputError(f"seed={self.seed}: use a whole number from 0 to 2**32 - 1")
        stream = self._stream()
        taken = {f.name for f in fields(kind)} - {"model", "memory", "engine", "seed"}
        for name in self.options:
            if name not in taken:
                raise InputError(f"{self.learner} has no option {name!r}; it takes {', '.join(sorted(taken))}")
        options: dict[str, Any] = {}
        if "memory" in {f.name for f in fields(kind)}:
            options["memory"] = self._memory(stream.tasks)
        elif self.memory_kind is not None:
            raise InputError(f"{self.learner} has no memory: leave the kind of memory out")
        options |= best(self.learner, self.stream, self.memory) | self.options
        model = self._model(stream.tasks)
        if self.engine == "cuda":
            check_gpu()
            model = model.cuda()
        return kind(model, seed=self.seed, engine=self.engine, **options), stream

    def _stream(self) -> Stream:
        make = _named("stream", self.stream, STREAMS)
        images = None if self.images == "mnist" else _named("images", self.images, IMAGES)()
        sizes = {"tasks": self.tasks, "examples": self.examples, "test_examples": self.test_examples}
        given = {name: value for name, value in sizes.items() if value is not None}
        stream: Stream = make(seed=self.seed, images=images, **given)
        return stream

    def _memory(self, tasks: int) -> Memory:
        kind = self.memory_kind or ("ring" if self.learner == "gem" else "reservoir")
        if kind not in MEMORIES:
            raise InputError(f"memory kind {kind!r}: use one of {', '.join(MEMORIES)}")
        if kind == "ring":
            return Ring(self.memory, tasks)
        return Reservoir(self.memory) if kind == "reservoir" else Recent(self.memory)

    def _model(self, tasks: int) -> nn.Module:
        if self.learner == "independent":
            return networks.separate_mlps(PIXELS, self.hidden, CLASSES, tasks, seed=self.seed)
        if self.learner == "task-input":
            return networks.task_input_mlp(PIXELS, self.hidden, CLASSES, tasks, seed=self.seed)
        return networks.mlp(PIXELS, self.hidden, CLASSES, seed=self.seed)


def _named(what: str, name: str, known: dict[str, Any]) -> Any:
    if name not in known:
        raise InputError(f"{what} {name!r}: use one of {', '.join(known)}")
    return known[name]
