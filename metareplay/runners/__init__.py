"""Where experiments run: threads of this machine, or a fleet on one GPU."""

from metareplay.runners.fleet.runner import FleetRunner
from metareplay.runners.runner import Runner, Watcher, carry_out
from metareplay.runners.threads import Threads

__all__ = ["FleetRunner", "Runner", "Threads", "Watcher", "carry_out"]
