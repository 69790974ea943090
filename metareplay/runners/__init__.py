"""Where experiments run: threads or processes of this machine, a fleet on one GPU, or a Ray cluster."""

from metareplay.runners.failure import Failure, forget_failures
from metareplay.runners.fleet.runner import FleetRunner
from metareplay.runners.processes import Processes
from metareplay.runners.ray_cluster import RayCluster
from metareplay.runners.runner import Runner, Watcher, carry_out, without_failures
from metareplay.runners.threads import Threads

__all__ = [
    "Failure",
    "FleetRunner",
    "Processes",
    "RayCluster",
    "Runner",
    "Threads",
    "Watcher",
    "carry_out",
    "forget_failures",
    "without_failures",
]
