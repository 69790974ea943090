"""Experiments on the machines of a Ray cluster; the records come back into the folder of this process."""

import logging
import math
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Generic, cast, final

from metareplay._core.checks import real, text
from metareplay._core.files import exists, remove, write_atomically
from metareplay.data import dataset
from metareplay.errors import DiskError, InputError, MetareplayError, RayMissingError
from metareplay.experiments.base import AnyExperiment, AnyRecord, BaseExperiment
from metareplay.learners.input_checks import one_line
from metareplay.runners.claims import Claim, allow
from metareplay.runners.failure import Failure, FailureKind, described, forget_failures
from metareplay.runners.ray_task import Failed, Finished, carry_out_there
from metareplay.runners.runner import SILENT, Runner, Watcher, checkpoint_path
from metareplay.runners.worklist import OTHERS, Worklist, is_its_own

LOSSES: Final = 3  # times that a run is begun whose worker dies
MOVES: Final = 20  # times that a run is begun whose machine is lost, which is hardly its fault
AHEAD: Final = 2  # runs that are handed to the cluster for each that it can do at a time
MOST: Final = 10_000  # runs that are handed to the cluster at most
LOOK: Final = 5.0  # seconds between two looks at the size of the cluster


@final
class RayCluster(Runner):
    """Run experiments on a Ray cluster (`pip install 'metareplay[ray]'`), the longest first.

    Datasets are read here and shared in the memory of each machine, so that the others need no data; they need this
    package in the same version. Records are written here. A run whose worker or machine is lost begins again elsewhere.
    A run that was interrupted here continues from its checkpoint there, but there it is not saved until it ends.

    Args:
        address: The address of a cluster, as `ray start` shows it; None for the one that runs on this machine, or a
            cluster of this machine alone that is started now and ended afterwards.
        cores_per_run: How many cores a run takes up, in whole or in part.
        gpus_per_run: How many GPUs a run takes up, in whole or in part.
    """

    def __init__(self, address: str | None = None, *, cores_per_run: float = 1.0, gpus_per_run: float = 0.0) -> None:
        if address is not None:
            text("address", address)
        cores_per_run, gpus_per_run = real("cores per run", cores_per_run), real("gpus per run", gpus_per_run)
        for name, value in (("cores", cores_per_run), ("gpus", gpus_per_run)):
            if not 0 <= value < math.inf or (value > 1 and value != int(value)):  # Ray's own rule
                raise InputError(f"{name} per run {value}: use 0, a part of 1, or a whole number")
        if not cores_per_run and not gpus_per_run:
            raise InputError("0 cores and 0 gpus per run: use a part of at least one of them")
        self.address, self.cores_per_run, self.gpus_per_run = address, cores_per_run, gpus_per_run

    def run(
        self,
        experiments: Sequence[BaseExperiment[AnyRecord]],
        folder: Path,
        *,
        fresh: bool = False,
        keep_going: bool = False,
        watcher: Watcher = SILENT,
    ) -> list[AnyRecord | Failure | None]:
        """Run every experiment that has no record in the folder yet."""
        ray = need_ray()
        work = Worklist(experiments, folder, fresh=fresh, keep_going=keep_going, watcher=watcher)
        due = work.due or work.unreadable()
        while due:
            with _connected(ray, self.address):
                self._check(ray, watcher)
                _Tasks(ray, work, due, self._needs(), keep_going=keep_going).run()
            due = work.unreadable()
        return work.results()

    def _needs(self) -> dict[str, float]:
        """Return what a run takes up, in Ray's words."""
        return {"CPU": self.cores_per_run, "GPU": self.gpus_per_run}

    def _check(self, ray: Any, watcher: Watcher) -> None:
        """Say so if no machine is large enough for a run: Ray would wait for one without a word."""
        machines = [one["Resources"] for one in ray.nodes() if one["Alive"]]
        if not any(all(one.get(name, 0) >= needed for name, needed in self._needs().items()) for one in machines):
            asked = f"{self.cores_per_run:g} cores and {self.gpus_per_run:g} GPUs per run"
            watcher.remark(f"{asked}: no machine of the cluster has that much; waiting until one joins it")


def need_ray() -> Any:
    """Return the package ray; raise an error that says how to install it if it is not there."""
    try:
        return import_module("ray")
    except ImportError as error:
        raise RayMissingError("Ray is not installed: pip install 'metareplay[ray]'") from error


@contextmanager
def _connected(ray: Any, address: str | None) -> Iterator[None]:
    """Join a cluster, or start one on this machine; leave it, or end it, afterwards.

    A connection that exists already is used and left as it is.
    """
    if address is not None:
        _knock(address)
    if ray.is_initialized():
        yield
        return
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.ERROR)
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
    try:
        try:
            ray.init(address=address or "auto", **quiet)
        except Exception as error:
            if address is not None:
                raise _not_there(address, error) from error
            ray.init(address="local", include_dashboard=False, **quiet)
        yield
    finally:
        ray.shutdown()
        logger.setLevel(level)


def _knock(address: str) -> None:
    """Raise an error at once if nobody answers at HOST:PORT: Ray would wait for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=LOOK).close()
        except (OSError, OverflowError) as error:
            raise _not_there(address, error) from error


def _not_there(address: str, error: Exception) -> InputError:
    return InputError(
        f"no Ray cluster at {address} ({one_line(error)}): check the address, that this machine is part of the cluster "
        f"(ray start --address={address}), and that RAY_AUTH_MODE and Ray's token are the same everywhere"
    )


@final
@dataclass(frozen=True)
class _Task(Generic[AnyRecord]):
    """Hold one run that was handed to the cluster.

    Args:
        experiment: What is being run.
        claim: Our claim on it.
    """

    experiment: BaseExperiment[AnyRecord]
    claim: Claim


@final
class _Tasks(Generic[AnyRecord]):
    """Hand runs to the cluster, a few more than it can do at a time, and take in the results.

    Args:
        ray: The package.
        work: Knows what has become of the runs.
        due: What has to be run.
        needs: What a run takes up.
        keep_going: Whether the others go on if a run fails.
    """

    def __init__(
        self,
        ray: Any,
        work: Worklist[AnyRecord],
        due: list[BaseExperiment[AnyRecord]],
        needs: dict[str, float],
        *,
        keep_going: bool,
    ) -> None:
        self._ray, self._work, self._needs, self._keep_going = ray, work, needs, keep_going
        self._todo = due[::-1]  # the next one is the last
        self._flying: dict[Any, _Task[AnyRecord]] = {}
        self._losses, self._moves = Counter[str](), Counter[str]()
        self._limit, self._looked = 0, -LOOK
        self._function = ray.remote(carry_out_there).options(
            num_cpus=needs["CPU"], num_gpus=needs["GPU"], max_retries=0
        )
        self._data: dict[str, Any] = {}

    def run(self) -> None:
        """Do all the work; if an error or Ctrl-C comes between, what the cluster is doing is given up."""
        try:
            while self._todo or self._flying or self._work.waits:
                self._hand_out()
                for task in self._wait():
                    self._take_in(task)
                if self._work.waits:
                    self._todo += self._work.free_again()[::-1]
        finally:
            for ref, task in self._flying.items():
                with suppress(Exception):
                    self._ray.cancel(ref, force=True)
                task.claim.give_back()

    def _wait(self) -> list[Any]:
        """Wait until some run has ended, but not for long."""
        if not self._flying:
            if not self._todo:
                time.sleep(OTHERS)
            return []
        ready, _ = self._ray.wait(list(self._flying), num_returns=1, timeout=OTHERS)
        return list(ready)

    def _hand_out(self) -> None:
        """Give the cluster work, unless it has enough."""
        while self._todo and len(self._flying) < self._room():
            one = self._todo.pop()
            claim = Claim.take(self._work.folder, one.key)
            if claim is None:
                self._work.settle(one, None)
                continue
            try:
                again = self._losses[one.key] + self._moves[one.key] > 0
                assignment = self._work.assignment(one, again=again)
                found = assignment.outcome()
                if found is None:
                    path = checkpoint_path(self._work.folder, one.key)
                    if assignment.fresh:
                        remove(path)
                    ref = self._send(one, path.read_bytes() if exists(path) else None)
                    self._flying[ref] = _Task(one, claim)
                    continue
            except BaseException:
                claim.give_back()
                raise
            claim.give_back()
            self._work.settle(one, found)

    def _send(self, experiment: BaseExperiment[AnyRecord], checkpoint: bytes | None) -> Any:
        """Hand one run to the cluster, with references to the data that it reads."""
        for name in experiment.datasets:
            if name not in self._data:
                self._data[name] = self._ray.put(dataset(name))
        data = [self._data[name] for name in experiment.datasets]
        try:
            home, followers = self._work.folder.absolute(), self._work.watcher.followers
            return self._function.remote(experiment, checkpoint, home, followers, *data)
        except TypeError as error:
            raise InputError(
                f"{experiment.label} cannot be sent to another machine ({described(error)}): leave out what cannot be "
                f"pickled"
            ) from error

    def _room(self) -> int:
        """Return how many runs the cluster should have; it may have grown or shrunk since the last look."""
        if time.monotonic() - self._looked > LOOK:
            there = self._ray.cluster_resources()
            at_a_time = min(there.get(name, 0) / needed for name, needed in self._needs.items() if needed)
            self._limit, self._looked = min(MOST, AHEAD * max(1, int(at_a_time))), time.monotonic()
            allow(self._limit)
        return self._limit

    def _take_in(self, ref: Any) -> None:
        """Write what a run has made, or note how it failed."""
        task = self._flying.pop(ref)
        one, errors = task.experiment, self._ray.exceptions
        with task.claim:
            try:
                answer: Finished | Failed = self._ray.get(ref)
            except errors.RayTaskError as error:
                raise MetareplayError(
                    f"{one.label} could not begin on the cluster ({described(error.cause)}): its machines need the "
                    f"same version of metareplay, and your own modules"
                ) from error
            except errors.RayError as error:
                self._lose(one, error)
                return
            if isinstance(answer, Finished):
                self._work.settle(one, self._write(one, answer))
            elif isinstance(answer.error, DiskError):
                self._lose(one, answer.error)  # a disk of another machine
            elif self._keep_going and is_its_own(answer.error):
                self._work.settle(one, self._work.assignment(one).fail(Failure.of(one, answer.error)))
            else:
                self._work.refuse(one, answer.error)

    def _write(self, experiment: AnyExperiment, answer: Finished) -> AnyRecord:
        """Write what a run has made; the record comes last."""
        folder = self._work.folder
        for name, content in answer.files.items():
            with write_atomically(folder / name) as file:
                file.write(content)
        answer.record.write(folder)
        remove(checkpoint_path(folder, experiment.key))
        forget_failures([experiment], folder)
        return cast("AnyRecord", answer.record)

    def _lose(self, one: BaseExperiment[AnyRecord], error: Exception) -> None:
        """Begin a run again whose worker or machine was lost, or give it up."""
        errors = self._ray.exceptions
        its_own = isinstance(error, (errors.WorkerCrashedError, errors.OutOfMemoryError, DiskError))
        count, most = (self._losses, LOSSES) if its_own else (self._moves, MOVES)
        count[one.key] += 1
        if count[one.key] < most:
            self._work.watcher.remark(f"{one.label}: its worker was lost ({described(error)}); it begins again")
            self._todo.append(one)
            return
        reason = f"its worker was lost {most} times ({described(error)})"
        if not self._keep_going:
            self._work.refuse(one, MetareplayError(f"{one.label}: {reason}"))
        kind: FailureKind = "memory" if isinstance(error, errors.OutOfMemoryError) else "lost"
        self._work.settle(one, self._work.assignment(one).fail(Failure.of(one, reason, kind)))
