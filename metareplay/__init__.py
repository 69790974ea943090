"""Learning from non-stationary streams without forgetting: Meta-Experience Replay and its baselines.

>>> import torch, metareplay as mr
>>> model = mr.networks.mlp(784, (100, 100), 10, seed=0)
>>> learner = mr.MER(model, memory=mr.Reservoir(5120), lr=0.03, beta=0.03, gamma=1.0, s=2, k=11, seed=0)
>>> learner.observe(torch.rand(784), 3)
>>> learner.predict(torch.rand(5, 784)).shape
torch.Size([5])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from metareplay import _startup as _startup  # first: from now on Ctrl-C is quiet
from metareplay import data, loops, networks, streams
from metareplay._core.columns import Columns
from metareplay._core.draws import Draws
from metareplay._core.plan import Plan, Rates
from metareplay._core.table import Table
from metareplay._version import __version__
from metareplay.engines import Objective, Supervised
from metareplay.errors import CheckpointError, DataError, InputError, MetareplayError, NonFiniteError
from metareplay.experiments import (
    FollowedRun,
    Follower,
    Measurements,
    Metrics,
    PrequentialRecord,
    PrequentialRun,
    Progress,
    Record,
    Rows,
    Run,
    prequential,
    records,
    run,
)
from metareplay.learners import (
    DQN,
    DQNMER,
    ER,
    EWC,
    GEM,
    MER,
    ERTasks,
    Independent,
    Learner,
    MERCurrentRate,
    MEROneBigBatch,
    Online,
    QLearner,
    ReplayLearner,
    Reptile,
    TableLearner,
    TaskInput,
    load,
)
from metareplay.loops import PeriodicMER
from metareplay.memories import Balanced, DiskReservoir, Memory, Mixed, Recent, Reservoir, Ring, Sampler
from metareplay.streams import ManyPermutations, Omniglot, OwnStream, Permutations, Rotations, Stream

if TYPE_CHECKING:
    from metareplay import environments, rl, runners, trackers
    from metareplay.reports import report
    from metareplay.sweeps import Grid, Sweep, sweep

__all__ = [
    "DQN",
    "DQNMER",
    "ER",
    "EWC",
    "GEM",
    "MER",
    "Balanced",
    "CheckpointError",
    "Columns",
    "DataError",
    "DiskReservoir",
    "Draws",
    "ERTasks",
    "FollowedRun",
    "Follower",
    "Grid",
    "Independent",
    "InputError",
    "Learner",
    "MERCurrentRate",
    "MEROneBigBatch",
    "ManyPermutations",
    "Measurements",
    "Memory",
    "MetareplayError",
    "Metrics",
    "Mixed",
    "NonFiniteError",
    "Objective",
    "Omniglot",
    "Online",
    "OwnStream",
    "PeriodicMER",
    "Permutations",
    "Plan",
    "PrequentialRecord",
    "PrequentialRun",
    "Progress",
    "QLearner",
    "Rates",
    "Recent",
    "Record",
    "ReplayLearner",
    "Reptile",
    "Reservoir",
    "Ring",
    "Rotations",
    "Rows",
    "Run",
    "Sampler",
    "Stream",
    "Supervised",
    "Sweep",
    "Table",
    "TableLearner",
    "TaskInput",
    "__version__",
    "data",
    "environments",
    "load",
    "loops",
    "networks",
    "prequential",
    "records",
    "report",
    "rl",
    "run",
    "runners",
    "streams",
    "sweep",
    "trackers",
]


_LATER = {  # names that are imported when they are first asked for, because of what they bring along
    **dict.fromkeys(("environments", "rl", "runners", "trackers"), ""),
    **dict.fromkeys(("Grid", "Sweep", "sweep"), "sweeps"),
    "report": "reports",
}


def __getattr__(name: str) -> Any:
    """Import a package when it is first asked for, if it brings Gymnasium or the runners along."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not _LATER[name]:
        return import_module(f"{__name__}.{name}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
