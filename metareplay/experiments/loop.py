"""The one training loop: a learner, a stream, a record."""

import hashlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch

from metareplay._core.files import exists
from metareplay.errors import InputError
from metareplay.experiments.alignment import Alignment
from metareplay.experiments.metrics import Matrix, needed
from metareplay.experiments.record import Record, now, run_key, versions
from metareplay.learners import checkpoint as checkpoints
from metareplay.learners.learner import Learner
from metareplay.networks import TaskModule
from metareplay.streams.stream import Chunk, Stream

SAVE_EVERY = 20.0  # seconds between checkpoints


@final
@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    doing: str  # "learning" or "evaluating"
    finished: int  # tasks whose last example was learned
    seen: int  # examples learned
    total: int | None  # examples in all, if the stream knows


def run(
    learner: Learner,
    stream: Stream,
    *,
    full_matrix: bool = False,
    alignment: int = 0,
    checkpoint: str | Path | None = None,
) -> Record:
    """Feed a stream to a learner, measure accuracy where tasks begin and end, return the record.

    Only the accuracies that the metrics need are computed (about 4 T of T (T + 1)) unless `full_matrix` is asked for.
    With `alignment`, each example's gradient is first compared with those of so many past ones (`Alignment`; Table 4 of
    the paper: 5), which changes nothing in what is learned. With `checkpoint`, the run is saved at that path as it
    goes, and goes on from there if the file exists: killed and started again it ends with the same weights, memory and
    metrics, bit for bit.
    """
    work = Run(learner, stream, full_matrix=full_matrix, alignment=alignment, checkpoint=checkpoint)
    for _ in work.steps():
        pass
    return work.record()


@final
class Run:
    """A run that can be watched: iterate over `steps`, then ask for the `record`."""

    def __init__(
        self,
        learner: Learner,
        stream: Stream,
        *,
        full_matrix: bool = False,
        alignment: int = 0,
        checkpoint: str | Path | None = None,
    ) -> None:
        self.learner, self.stream = learner, stream
        self.path = Path(checkpoint) if checkpoint is not None else None
        tasks = stream.tasks
        if tasks and learner.regression:
            raise InputError("run measures accuracy, which regression has not: use observe_many and outputs instead")
        self.accuracy: Matrix = np.full((tasks + 1, tasks), math.nan)
        self._wanted = np.ones_like(self.accuracy, np.bool_) if full_matrix else needed(tasks)
        self.alignment = Alignment(learner, alignment) if alignment else None
        self._size = 16  # examples to learn before the next look
        self._finished = 0  # tasks whose last example was learned
        self._seconds = {"learn": 0.0, "evaluate": 0.0}
        self._settings = {f"stream.{name}": value for name, value in stream.settings().items()}
        self._full = bool((self._wanted & ~needed(tasks)).any())  # of up to two tasks the metrics need everything
        self._settings |= {"full_matrix": self._full, "alignment": alignment or None}

    def steps(self) -> Iterator[Progress]:
        """Do the work, a chunk at a time."""
        if self.path is not None and exists(self.path):
            self._restore(self.path)
        elif self.learner.seen:
            raise InputError(f"this learner has already seen {self.learner.seen} examples: give run a new one")
        if self.learner.seen == 0:
            self.save()  # a path that cannot be written is known before the work
        yield from self._evaluate()
        saved = time.monotonic()
        for chunk in self._chunks():
            self._expect(chunk)
            if chunk.task > self._finished:
                yield from self._finish_task()
            for piece in self._pieces(chunk):
                self._learn(piece)
                if time.monotonic() - saved > SAVE_EVERY:
                    self.save()
                    saved = time.monotonic()
                yield self._progress("learning")
        if self.learner.seen == 0:
            raise InputError("the stream is empty: give it at least one example")
        if self._finished + 1 < self.stream.tasks:
            raise InputError(
                f"the stream ended after {self._finished + 1} of its {self.stream.tasks} tasks: give examples of every "
                f"task that has a test set"
            )
        if self._finished < self.stream.tasks:
            yield from self._finish_task()
        self.save()

    @property
    def key(self) -> str:
        """The key its record will have."""
        learner, samples = self.learner, self.alignment.samples if self.alignment else 0
        model, stream = describe(learner.model), self.stream.settings()
        return run_key(type(learner).__name__, learner.settings(), model, stream, samples, self._full)

    def record(self) -> Record:
        """What ran and what came out."""
        learner = self.learner
        theta = learner.weights.theta.detach().cpu().contiguous()
        return Record(
            learner=type(learner).__name__,
            settings=learner.settings(),
            model=describe(learner.model),
            stream=self.stream.settings(),
            seed=learner.seed,
            engine=learner.compute.name,
            examples=learner.seen,
            accuracy=self.accuracy,
            weights=hashlib.sha256(theta.view(torch.uint8).numpy().tobytes()).hexdigest(),
            seconds={name: round(value, 3) for name, value in self._seconds.items()},
            versions=versions(),
            date=now(),
            alignment=self.alignment.summary() if self.alignment else None,
        )

    def missing(self, finished: int) -> list[int]:
        """The tasks to be measured once so many tasks were learned, of those not measured yet."""
        tasks: list[int] = np.flatnonzero(self._wanted[finished] & np.isnan(self.accuracy[finished])).tolist()
        return tasks

    def _learn(self, chunk: Chunk) -> None:
        start = time.perf_counter()
        if self.alignment is None:
            self.learner.observe_many(chunk.xs, chunk.ys, chunk.task)
        else:
            incoming, table = self.learner.accept(chunk.xs, chunk.ys, chunk.task)
            for one in self.alignment.each(incoming):
                self.learner.learn(one, table)
        self._seconds["learn"] += time.perf_counter() - start

    def _chunks(self) -> Iterator[Chunk]:
        """What is still to be learned; what was learned before is read again if gradients are compared with its own."""
        learned = self.learner.seen
        if self.alignment is None or learned == 0:
            yield from self.stream.chunks(learned)
            return
        at = 0
        for chunk in self.stream.chunks():
            past = min(max(learned - at, 0), len(chunk))
            if past:
                incoming, _ = self.learner.accept(chunk.xs[:past], chunk.ys[:past], chunk.task)
                self.alignment.remember(incoming, at)
            at += len(chunk)
            if past < len(chunk):
                yield Chunk(chunk.xs[past:], chunk.ys[past:], chunk.task)
        if at < learned:
            raise InputError(f"the stream ended after {at} examples, but {learned} were learned from it: give it whole")

    def _pieces(self, chunk: Chunk) -> Iterator[Chunk]:
        """The chunk in pieces that take about half a second each, so that progress is seen and Ctrl-C is heard."""
        at = 0
        while at < len(chunk):
            piece = Chunk(chunk.xs[at : at + self._size], chunk.ys[at : at + self._size], chunk.task)
            start = time.perf_counter()
            yield piece
            took = time.perf_counter() - start
            at += self._size
            self._size = 2 * self._size if took < 0.25 else max(1, self._size // 2) if took > 1 else self._size

    def _finish_task(self) -> Iterator[Progress]:
        self._finished += 1
        yield from self._evaluate()

    def _evaluate(self) -> Iterator[Progress]:
        """Fill in what is wanted and missing in the row of the matrix that belongs to this moment."""
        if not self.stream.tasks:
            return
        for task in self.missing(self._finished):
            yield self._progress("evaluating")
            start = time.perf_counter()
            examples = self.stream.test(task)
            labels = self.learner.predict(examples.xs, task if isinstance(self.learner.model, TaskModule) else None)
            right = labels.cpu() == examples.ys.cpu()
            self.accuracy[self._finished, task] = 100 * right.double().mean().item()
            self._seconds["evaluate"] += time.perf_counter() - start

    def _expect(self, chunk: Chunk) -> None:
        """A matrix of T tasks needs them in order, each once."""
        due = (self._finished, self._finished + 1) if self.learner.seen else (0,)
        if self.stream.tasks and chunk.task not in due:
            raise InputError(
                f"task {chunk.task} came where task {due[-1]} was due: number the tasks 0, 1, 2, ... in the order they "
                f"come, each once, and give each a test set"
            )

    def _progress(self, doing: str) -> Progress:
        return Progress(doing, self._finished, self.learner.seen, self.stream.total)

    def save(self) -> None:
        """Write the checkpoint, if the run has one."""
        if self.path is not None:
            accuracy = [[None if math.isnan(value) else value for value in row] for row in self.accuracy.tolist()]
            state = {"accuracy": accuracy, "finished": self._finished, "seconds": self._seconds}
            measured = {"products": self.alignment.products()} if self.alignment else {}
            checkpoints.save(self.learner, self.path, {"run": state, "settings": self._settings}, measured)

    def _restore(self, path: Path) -> None:
        extra, measured = checkpoints.restore(self.learner, path, self._settings)
        state = extra["run"]
        rows = [[math.nan if value is None else value for value in row] for row in state["accuracy"]]
        self.accuracy = np.array(rows, np.float64).reshape(self.accuracy.shape)
        self._finished, self._seconds = state["finished"], dict(state["seconds"])
        if self.alignment is not None:
            self.alignment.restore(measured["products"])


def describe(model: torch.nn.Module) -> str:
    """A module in one line."""
    return " ".join(str(model).split())
