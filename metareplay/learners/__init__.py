"""Learners: the paper's algorithms and baselines."""

from metareplay.learners.dqn import DQN
from metareplay.learners.dqn_mer import DQNMER
from metareplay.learners.er import ER
from metareplay.learners.er_tasks import ERTasks
from metareplay.learners.ewc import EWC
from metareplay.learners.gem import GEM
from metareplay.learners.independent import Independent
from metareplay.learners.kinds import LEARNERS, Q_LEARNERS
from metareplay.learners.learner import Learner
from metareplay.learners.load import load
from metareplay.learners.mer import MER
from metareplay.learners.mer_current_rate import MERCurrentRate
from metareplay.learners.mer_one_big_batch import MEROneBigBatch
from metareplay.learners.online import Online
from metareplay.learners.q_learner import QLearner
from metareplay.learners.replay import ReplayLearner
from metareplay.learners.reptile import Reptile
from metareplay.learners.table_learner import TableLearner
from metareplay.learners.task_input import TaskInput

__all__ = [
    "DQN",
    "DQNMER",
    "ER",
    "EWC",
    "GEM",
    "LEARNERS",
    "MER",
    "Q_LEARNERS",
    "ERTasks",
    "Independent",
    "Learner",
    "MERCurrentRate",
    "MEROneBigBatch",
    "Online",
    "QLearner",
    "ReplayLearner",
    "Reptile",
    "TableLearner",
    "TaskInput",
    "load",
]
