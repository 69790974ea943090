"""Learners: the paper's algorithms and baselines."""

from metareplay.learners.er import ER
from metareplay.learners.er_tasks import ERTasks
from metareplay.learners.ewc import EWC
from metareplay.learners.gem import GEM
from metareplay.learners.independent import Independent
from metareplay.learners.kinds import LEARNERS
from metareplay.learners.learner import Learner
from metareplay.learners.load import load
from metareplay.learners.mer import MER
from metareplay.learners.mer_current_rate import MERCurrentRate
from metareplay.learners.mer_one_big_batch import MEROneBigBatch
from metareplay.learners.online import Online
from metareplay.learners.replay import ReplayLearner
from metareplay.learners.reptile import Reptile
from metareplay.learners.task_input import TaskInput

__all__ = [
    "ER",
    "EWC",
    "GEM",
    "LEARNERS",
    "MER",
    "ERTasks",
    "Independent",
    "Learner",
    "MERCurrentRate",
    "MEROneBigBatch",
    "Online",
    "ReplayLearner",
    "Reptile",
    "TaskInput",
    "load",
]
