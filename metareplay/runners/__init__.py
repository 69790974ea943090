"""Where experiments run: threads of this machine, or a fleet on one GPU."""

from metareplay.runners.failure import Failure, forget_failures
from metareplay.runners.fleet.runner import FleetRunner
from metareplay.runners.runner import Runner, Watcher, carry_out, without_failures
from metareplay.runners.threads import Threads

__all__ = ["Failure", "FleetRunner", "Runner", "Threads", "Watcher", "carry_out", "forget_failures", "without_failures"]
