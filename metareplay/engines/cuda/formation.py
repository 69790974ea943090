"""Runs of several threads that learn side by side on one GPU, in lockstep."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition
from typing import final

import torch

from metareplay._core.plan import Plan
from metareplay._core.table import Table
from metareplay.engines.cuda.batches import too_large
from metareplay.engines.cuda.convnet import ConvNet
from metareplay.engines.cuda.graphs import Recorder
from metareplay.engines.cuda.lockstep import Job, Lockstep, Terms
from metareplay.engines.engine import Outcome
from metareplay.engines.objective import Objective, Supervised
from metareplay.engines.torch_engine import TorchEngine
from metareplay.errors import MetareplayError


@final
class Formation:
    """Let runs with networks of one shape take their steps together.

    Each run lives in a thread of its own. A plan waits until every run in the formation has handed in one; the thread
    that was last executes them all. The result of a run does not depend on the runs beside it.

    Args:
        size: How many runs can take part at a time.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._turn = Condition()
        self._free = list(range(size))
        self._present = 0
        self._lockstep: Lockstep | None = None
        self._recorder: Recorder | None = None
        self._waiting: dict[int, Job] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._busy = False

    @contextmanager
    def place(self) -> Iterator["Place"]:
        """Take part for as long as this context lasts."""
        with self._turn:
            if not self._free:
                raise MetareplayError(f"{self.size} runs take part in this formation already: make it larger")
            place = Place(self, self._free.pop(0))
            self._present += 1
        try:
            yield place
        finally:
            place.leave()
            with self._turn:
                self._free.append(place.number)

    def alone(self) -> "Place":
        """Return the first place, for a run that learns alone and never leaves."""
        self._present += 1
        return Place(self, self._free.pop(0))

    def takes(self, net: ConvNet, terms: Terms, recorder: Recorder, make: Callable[[int], Lockstep]) -> bool:
        """Return whether runs with this network and these terms can take part; the first one decides.

        Args:
            net: The network.
            terms: Which kernels a step needs.
            recorder: Makes graphs, and knows where work is done.
            make: Makes room for a given number of runs.
        """
        with self._turn:
            if self._lockstep is None:
                self._lockstep, self._recorder = make(self.size), recorder
            return (self._lockstep.net.shape, self._lockstep.terms) == (net.shape, terms)

    def execute(self, number: int, job: Job) -> Outcome:
        """Hand in a plan and wait until it has been executed.

        Args:
            number: Which run hands it in.
            job: The plan and what it works on.
        """
        with self._turn:
            self._waiting[number] = job
            while number not in self._outcomes:
                if self._busy or len(self._waiting) < self._present:
                    self._turn.wait()
                    continue
                jobs, self._waiting, self._busy = self._waiting, {}, True
                self._turn.release()
                try:
                    found = self._together(jobs)
                finally:
                    self._turn.acquire()
                    self._busy = False
                self._outcomes |= found
                self._turn.notify_all()
            return self._outcomes.pop(number)

    def _together(self, jobs: dict[int, Job]) -> dict[int, Outcome]:
        lockstep, recorder = self._lockstep, self._recorder
        try:
            if lockstep is None or recorder is None:
                raise MetareplayError("nobody asked whether this formation takes such runs")
            with recorder.aside(), torch.inference_mode(False), torch.no_grad():
                learned = lockstep.execute([jobs.get(number) for number in range(self.size)])
            return {number: Outcome(learned[number]) for number in jobs}
        except torch.cuda.OutOfMemoryError as error:
            return dict.fromkeys(jobs, Outcome(0, too_large(error)))
        except BaseException as error:
            return dict.fromkeys(jobs, Outcome(0, error))

    def leave(self) -> None:
        """Let the others go on without one run."""
        with self._turn:
            self._present -= 1
            self._turn.notify_all()


@final
class Place:
    """Hold one run's place in a formation.

    Args:
        formation: The formation.
        number: Which place it is.

    Attributes:
        left: Whether the run has left the formation.
    """

    def __init__(self, formation: Formation, number: int) -> None:
        self.formation, self.number = formation, number
        self.left = False

    def leave(self) -> None:
        """Let the others go on without this run; leaving twice does nothing."""
        if not self.left:
            self.left = True
            self.formation.leave()


@final
class SideBySide:
    """Execute the plans of one run in a formation.

    Args:
        plain: The torch engine of the same learner.
        place: The run's place.
        terms: Which kernels a step needs.
        table: The examples by row.
    """

    def __init__(self, plain: TorchEngine, place: Place, terms: Terms, table: Table) -> None:
        self._weights, self._place, self._terms, self._table = plain.weights, place, terms, table

    def serves(self, plan: Plan, table: Table, objective: Objective) -> bool:
        """Return whether plans like this one can be executed."""
        return not self._place.left and table is self._table and Terms.of(plan, table, objective) == self._terms

    def execute(self, plan: Plan, objective: Objective) -> Outcome:
        """Learn the plan's examples together with the other runs of the formation."""
        assert isinstance(objective, Supervised), "checked when the network was described"
        return self._place.formation.execute(self._place.number, Job(self._weights, plan, self._table, objective))
