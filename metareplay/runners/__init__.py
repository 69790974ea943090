"""Where experiments run: threads or processes of this machine, or a fleet on one GPU."""

from metareplay.runners.failure import Failure, forget_failures
from metareplay.runners.fleet.runner import FleetRunner
from metareplay.runners.processes import Processes
from metareplay.runners.runner import Runner, Watcher, carry_out, without_failures
from metareplay.runners.threads import Threads

__all__ = [
    "Failure",
    "FleetRunner",
    "Processes",
    "Runner",
    "Threads",
    "Watcher",
    "carry_out",
    "forget_failures",
    "without_failures",
]
