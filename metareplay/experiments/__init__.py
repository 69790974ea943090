"""Experiments: a learner, a stream, a training loop, and the record of the results."""

from metareplay._core.rows import Rows
from metareplay.experiments.alignment import Alignment
from metareplay.experiments.base import AnyExperiment, BaseExperiment, BaseRecord, BaseRun, Progress
from metareplay.experiments.experiment import Experiment
from metareplay.experiments.folder import records
from metareplay.experiments.following import FollowedRun, Follower, Measurements
from metareplay.experiments.identity import Identity
from metareplay.experiments.loop import Run, run
from metareplay.experiments.metrics import Metrics
from metareplay.experiments.own_experiment import OwnExperiment
from metareplay.experiments.prequential_experiment import PrequentialExperiment
from metareplay.experiments.prequential_record import Prequential, PrequentialRecord
from metareplay.experiments.prequential_run import PrequentialRun, prequential
from metareplay.experiments.record import Record
from metareplay.experiments.store import Records, pack, unpack

__all__ = [
    "Alignment",
    "AnyExperiment",
    "BaseExperiment",
    "BaseRecord",
    "BaseRun",
    "Experiment",
    "FollowedRun",
    "Follower",
    "Identity",
    "Measurements",
    "Metrics",
    "OwnExperiment",
    "Prequential",
    "PrequentialExperiment",
    "PrequentialRecord",
    "PrequentialRun",
    "Progress",
    "Record",
    "Records",
    "Rows",
    "Run",
    "pack",
    "prequential",
    "records",
    "run",
    "unpack",
]
