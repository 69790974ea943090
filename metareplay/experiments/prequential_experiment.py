"""Prequential experiments as plain configurations, from which runs are made."""

from dataclasses import dataclass
from pathlib import Path
from typing import final

from metareplay.engines.choose import EngineName
from metareplay.errors import InputError
from metareplay.experiments.base import BaseExperiment
from metareplay.experiments.experiment import Experiment
from metareplay.experiments.prequential_record import Prequential, PrequentialRecord
from metareplay.experiments.prequential_run import PrequentialRun


@final
@dataclass(frozen=True, kw_only=True)
class PrequentialExperiment(BaseExperiment[PrequentialRecord]):
    """Describe one prequential run. Make one with `of`.

    Args:
        learner: The learner's name.
        seed: The seed of the stream, the first weights and the learner.
        engine: What does the arithmetic.
        experiment: The learner and the stream; what it says of measuring plays no part.
        scored: How the predictions are scored.
    """

    learner: str
    seed: int
    engine: EngineName
    experiment: Experiment
    scored: Prequential

    @staticmethod
    def of(experiment: Experiment, scored: Prequential) -> "PrequentialExperiment":
        """Describe the prequential run of an experiment's learner on its stream.

        Args:
            experiment: The learner and the stream.
            scored: How the predictions are scored.
        """
        if experiment.alignment or experiment.training or experiment.full_matrix:
            raise InputError("a prequential run has no test sets: leave alignment, training and the full matrix out")
        return PrequentialExperiment(
            learner=experiment.learner,
            seed=experiment.seed,
            engine=experiment.engine,
            experiment=experiment,
            scored=scored,
        )

    def start(self, checkpoint: Path | None = None) -> PrequentialRun:
        """Build the run, without computing anything yet.

        Args:
            checkpoint: Save the run at this path from time to time, and continue from there if the file exists.
        """
        learner, stream = self.experiment.build()
        how = self.scored
        return PrequentialRun(
            learner,
            stream,
            every=how.every,
            window=how.window,
            fading=how.fading,
            block=how.block,
            checkpoint=checkpoint,
        )

    @property
    def key(self) -> str:
        """The key of the run's record: a hash of everything that decides its result."""
        return self.scored.key(self.experiment.identity)

    @property
    def work(self) -> float:
        """An estimate of the cost of the run, in SGD steps on one example; it predicts the time left."""
        return self.experiment.work

    @property
    def label(self) -> str:
        """The experiment in a few words."""
        return self.experiment.label

    @property
    def shape(self) -> str:
        """What runs that can take their steps together share."""
        return f"prequential {self.experiment.shape}"

    @property
    def datasets(self) -> tuple[str, ...]:
        """The name of the dataset that its stream shows."""
        return self.experiment.datasets

    @property
    def result(self) -> type[PrequentialRecord]:
        """The class of its record."""
        return PrequentialRecord
