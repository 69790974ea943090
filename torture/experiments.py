"""Experiments with the learners that are tortured."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import final

import metareplay as mr
from metareplay.engines.choose import EngineName
from metareplay.experiments import BaseExperiment
from torture.subjects import SUBJECTS, stream


@final
@dataclass(frozen=True, kw_only=True)
class SubjectRun(BaseExperiment[mr.Record]):
    """Describe a run of one of the learners.

    Args:
        learner: Its name in SUBJECTS.
        seed: Does nothing.
        engine: Does nothing.
    """

    learner: str
    seed: int = 7
    engine: EngineName = "auto"

    def start(self, checkpoint: Path | None = None) -> mr.Run:
        """Build the run."""
        return mr.Run(SUBJECTS[self.learner](), stream(), checkpoint=checkpoint)

    @cached_property
    def key(self) -> str:
        """The key of the run's record."""
        return self.start().key

    @property
    def work(self) -> float:
        """The cost of the run."""
        return 1.0

    @property
    def label(self) -> str:
        """The experiment in a few words."""
        return self.learner

    @property
    def shape(self) -> str:
        """What runs that can take their steps together share."""
        return self.learner

    @property
    def result(self) -> type[mr.Record]:
        """The class of its record."""
        return mr.Record
