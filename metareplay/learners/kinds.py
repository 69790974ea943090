"""The learners of this package, in the order of the paper's tables, and those that learn by playing."""

from metareplay.learners.dqn import DQN
from metareplay.learners.dqn_mer import DQNMER
from metareplay.learners.er import ER
from metareplay.learners.er_tasks import ERTasks
from metareplay.learners.ewc import EWC
from metareplay.learners.gem import GEM
from metareplay.learners.independent import Independent
from metareplay.learners.learner import Learner
from metareplay.learners.mer import MER
from metareplay.learners.mer_current_rate import MERCurrentRate
from metareplay.learners.mer_one_big_batch import MEROneBigBatch
from metareplay.learners.online import Online
from metareplay.learners.q_learner import QLearner
from metareplay.learners.task_input import TaskInput

LEARNERS: tuple[type[Learner], ...] = (
    Online,
    Independent,
    TaskInput,
    EWC,
    GEM,
    ER,
    ERTasks,
    MER,
    MEROneBigBatch,
    MERCurrentRate,
)

Q_LEARNERS: tuple[type[QLearner], ...] = (DQN, DQNMER)
