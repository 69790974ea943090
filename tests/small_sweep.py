"""Small experiments that any process can import and run without data, and that do what they are told on the way."""

import logging
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, final

from small_runs import small_images

import metareplay as mr
from metareplay.engines.choose import EngineName
from metareplay.experiments import BaseExperiment
from metareplay.experiments.base import BaseRun, Progress
from metareplay.learners.table_learner import TableLearner


def start_nothing(_connection: object) -> None:
    """End a worker process before it has said that it is ready."""
    raise SystemExit(1)


Trouble = Literal["", "warning", "nan", "error", "memory", "killed once", "killed always", "slow", "slower"]


@final
class TroubledRun(BaseRun[mr.Record]):
    """A run that has some trouble at example 12, after it was saved."""

    def __init__(self, run: mr.Run, trouble: Trouble) -> None:
        self.run, self.trouble = run, trouble

    @property
    def key(self) -> str:
        return self.run.key

    @property
    def tasks(self) -> int:
        return self.run.tasks

    @property
    def trained(self) -> TableLearner:
        return self.run.trained

    def steps(self) -> Iterator[Progress]:
        for step in self.run.steps():
            if step.seen >= 12:
                self.happen()
            yield step

    def happen(self) -> None:
        path, trouble = self.run.path, self.trouble
        if trouble in ("slow", "slower"):
            time.sleep(0.05 if trouble == "slow" else 0.3)
        if trouble == "warning":
            logging.getLogger("metareplay").warning("it takes %d seconds", 20)
        if trouble == "nan":
            raise mr.NonFiniteError("example 12 made the loss or the weights not finite")
        if trouble == "error":
            raise TypeError("something\nis wrong")
        if trouble == "memory":
            raise MemoryError
        if trouble.startswith("killed") and path is not None:
            once = path.with_name("killed")
            self.save()
            if trouble == "killed always" or not once.exists():
                once.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    def save(self) -> None:
        self.run.save()

    def record(self) -> mr.Record:
        return self.run.record()


@final
@dataclass(frozen=True, kw_only=True)
class Small(BaseExperiment[mr.Record]):
    """A small run of MER."""

    learner: str = "mer"
    seed: int = 0
    engine: EngineName = "auto"
    lr: float = 0.1
    examples: int = 20
    trouble: Trouble = ""

    def start(self, checkpoint: Path | None = None) -> TroubledRun:
        stream = mr.Rotations(2, self.examples, self.seed, images=small_images())
        net = mr.networks.mlp(784, (8,), 10, seed=self.seed)
        learner = mr.MER(net, memory=mr.Reservoir(8), lr=self.lr, beta=0.3, s=2, k=3, seed=self.seed)
        return TroubledRun(mr.Run(learner, stream, checkpoint=checkpoint), self.trouble)

    @cached_property
    def key(self) -> str:
        return self.start().key

    @property
    def work(self) -> float:
        return float(self.examples)

    @property
    def label(self) -> str:
        return f"small, lr {self.lr}, seed {self.seed}"

    @property
    def shape(self) -> str:
        return "small"

    @property
    def result(self) -> type[mr.Record]:
        return mr.Record
