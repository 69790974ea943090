"""Sweeps: many settings with several seeds each, an honest choice among them, and what they show."""

from metareplay.sweeps.grid import Grid
from metareplay.sweeps.outcome import Outcome
from metareplay.sweeps.report import Report
from metareplay.sweeps.results import Sweep
from metareplay.sweeps.search import sweep
from metareplay.sweeps.subject import GameSubject, OwnSubject, StreamSubject, Subject
from metareplay.sweeps.watching import Case, Standing, SweepWatcher

__all__ = [
    "Case",
    "GameSubject",
    "Grid",
    "Outcome",
    "OwnSubject",
    "Report",
    "Standing",
    "StreamSubject",
    "Subject",
    "Sweep",
    "SweepWatcher",
    "sweep",
]
