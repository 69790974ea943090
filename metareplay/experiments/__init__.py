"""Experiments: a learner, a stream, a training loop, and the record of the results."""

from metareplay.experiments.alignment import Alignment
from metareplay.experiments.experiment import Experiment
from metareplay.experiments.identity import Identity
from metareplay.experiments.loop import Progress, Run, run
from metareplay.experiments.metrics import Metrics
from metareplay.experiments.record import Record
from metareplay.experiments.store import Records, pack, unpack

__all__ = [
    "Alignment",
    "Experiment",
    "Identity",
    "Metrics",
    "Progress",
    "Record",
    "Records",
    "Run",
    "pack",
    "run",
    "unpack",
]
