"""Experiments side by side in processes of this machine, any of which may die without harm to the others."""

import multiprocessing
import pickle
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from typing import Any, Final, Generic, Literal, cast, final

from metareplay.errors import InputError, MetareplayError
from metareplay.experiments.base import AnyRecord, BaseExperiment
from metareplay.runners.claims import Claim
from metareplay.runners.failure import Failure, described
from metareplay.runners.runner import SILENT, Runner, Watcher
from metareplay.runners.threads import count_jobs
from metareplay.runners.worker import END, Done, Message, Raised, Ready, Remark, Step, Unreadable, serve
from metareplay.runners.worklist import OTHERS, Worklist

LOSSES: Final = 3  # times that a run is begun whose worker dies
PATIENCE: Final = 20.0  # seconds that a worker that has nothing to do may take to end
WHERE: Final = "define it at the top of a module that can be imported, or run on threads"


@final
class Processes(Runner):
    """Run experiments in worker processes, the longest first.

    Each worker does one run at a time and writes its checkpoints and its record itself. A worker that dies, for
    instance because there is not enough memory, is replaced, and its run continues from its checkpoint; after the
    third time the run has failed. If this process dies, the workers save what they do and end.

    What runs must be picklable: an experiment of your own, or a function in one, is defined at the top of a module. A
    script that starts this must do so under `if __name__ == "__main__":`.

    Args:
        jobs: How many runs at a time; "auto" for one per core.
    """

    def __init__(self, jobs: int | Literal["auto"] = "auto") -> None:
        self.jobs = count_jobs(jobs)

    def run(
        self,
        experiments: Sequence[BaseExperiment[AnyRecord]],
        folder: Path,
        *,
        fresh: bool = False,
        keep_going: bool = False,
        watcher: Watcher = SILENT,
    ) -> list[AnyRecord | Failure | None]:
        """Run every experiment that has no record in the folder yet.

        Ctrl-C stops all runs after saving; the next call continues from there.
        """
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            sys.exit(1)  # a worker reads a script that starts the work anew: the first process says what to do
        work = Worklist(experiments, folder, fresh=fresh, keep_going=keep_going, watcher=watcher)
        due = work.due or work.unreadable()
        while due:
            _Pool(work, due, self.jobs, keep_going=keep_going).run()
            due = work.unreadable()
        return work.results()


@final
class _Worker(Generic[AnyRecord]):
    """Hold one worker process.

    Args:
        context: Starts processes.

    Attributes:
        doing: What it is running.
        ready: Whether it has started.
    """

    def __init__(self, context: ForkServerContext | SpawnContext) -> None:
        self.connection: Connection[Any, Any]
        self.connection, there = context.Pipe()
        self.process = context.Process(target=serve, args=(there,), daemon=True)
        self.process.start()
        there.close()  # so that the connection ends with the process
        self.doing: BaseExperiment[AnyRecord] | None = None
        self.ready = False

    def end(self) -> None:
        """Ask the process to save what it does and to end."""
        with suppress(OSError):
            self.connection.send_bytes(END)

    def how_it_ended(self) -> str:
        """Return how the process ended, in words."""
        self.process.join(PATIENCE)
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}" + (": is there enough memory?" if code == -9 else "")
        return f"exit code {code}"


@final
class _Pool(Generic[AnyRecord]):
    """Hand out runs to workers until nothing is left.

    Args:
        work: Knows what has become of the runs.
        due: What has to be run.
        jobs: How many workers there are at most.
        keep_going: Whether the others go on if a run is lost.
    """

    def __init__(
        self, work: Worklist[AnyRecord], due: list[BaseExperiment[AnyRecord]], jobs: int, *, keep_going: bool
    ) -> None:
        self._work, self._jobs, self._keep_going = work, jobs, keep_going
        self._todo = due[::-1]  # the next one is the last
        self._workers: dict[Connection[Any, Any], _Worker[AnyRecord]] = {}
        self._losses = Counter[str]()
        self._unready = 0  # workers that died before they had started
        self._said = set[str]()  # remarks, which several workers may make
        methods = multiprocessing.get_all_start_methods()
        self._context: ForkServerContext | SpawnContext
        if "forkserver" in methods:
            self._context = multiprocessing.get_context("forkserver")
            self._context.set_forkserver_preload(["metareplay.runners.worker"])
        else:
            self._context = multiprocessing.get_context("spawn")

    def run(self) -> None:
        """Do all the work; at the end, and if an error or Ctrl-C comes between, all workers save and end."""
        try:
            while self._todo or self._busy() or self._work.waits:
                self._hand_out()
                for connection in wait(list(self._workers), timeout=OTHERS):
                    self._hear(self._workers[cast("Connection[Any, Any]", connection)])
                if self._work.waits:
                    self._todo += self._work.free_again()[::-1]
        finally:
            self._end()

    def _busy(self) -> list[_Worker[AnyRecord]]:
        return [worker for worker in self._workers.values() if worker.doing is not None]

    def _hand_out(self) -> None:
        """Give work to everybody who has none, and start workers if there are too few."""
        for worker in list(self._workers.values()):
            if self._todo and worker.ready and worker.doing is None:
                worker.doing = self._todo.pop()
                try:
                    given = pickle.dumps(self._work.assignment(worker.doing, again=self._losses[worker.doing.key] > 0))
                except Exception as error:
                    raise InputError(
                        f"{worker.doing.label} cannot be sent to another process ({described(error)}): {WHERE}"
                    ) from error
                with suppress(OSError):  # it has died: `_hear` notices
                    worker.connection.send_bytes(given)
        starting = sum(not worker.ready for worker in self._workers.values())
        for _ in range(min(self._jobs - len(self._workers), len(self._todo) - starting)):
            try:
                worker = _Worker[AnyRecord](self._context)
            except (EOFError, OSError) as error:  # multiprocessing's own server has been killed; it starts a new one
                self._count_unready(described(error))
                continue
            self._workers[worker.connection] = worker

    def _hear(self, worker: _Worker[AnyRecord]) -> None:
        """Receive a message of a worker, or notice that it has died."""
        try:
            message: Message = worker.connection.recv()
        except (EOFError, OSError):
            self._lose(worker)
            return
        doing = worker.doing
        if isinstance(message, Ready):
            worker.ready = True
        elif isinstance(message, Remark):
            if message.text not in self._said:
                self._said.add(message.text)
                self._work.watcher.remark(message.text)
        elif doing is not None:
            self._hear_of(worker, doing, message)

    def _hear_of(
        self, worker: _Worker[AnyRecord], doing: BaseExperiment[AnyRecord], message: Step | Done | Raised | Unreadable
    ) -> None:
        """Receive news of a run."""
        if isinstance(message, Step):
            self._work.watcher.step(doing, message.progress, message.tasks)
            return
        worker.doing = None
        if isinstance(message, Done):
            self._work.settle(doing, cast("AnyRecord | Failure | None", message.outcome))
        elif isinstance(message, Raised):
            self._work.refuse(doing, message.error)
        else:
            raise InputError(f"{doing.label} cannot be read in another process ({message.reason}): {WHERE}")

    def _lose(self, worker: _Worker[AnyRecord]) -> None:
        """Give the run of a worker that has died to another one, or give it up."""
        del self._workers[worker.connection]
        worker.connection.close()
        how, doing = worker.how_it_ended(), worker.doing
        if not worker.ready:
            self._count_unready(how)
        if doing is None:
            return
        self._losses[doing.key] += 1
        if self._losses[doing.key] < LOSSES:
            self._work.watcher.remark(f"{doing.label}: its process ended ({how}); it is tried again")
            self._todo.append(doing)
            return
        claim = Claim.take(self._work.folder, doing.key)
        if claim is None:  # another process has taken it over
            self._work.settle(doing, None)
            return
        with claim:
            reason = f"its process ended {LOSSES} times ({how})"
            if not self._keep_going:
                self._work.refuse(doing, MetareplayError(f"{doing.label}: {reason}"))
            failure = Failure.of(doing, reason, "lost")
            self._work.settle(doing, self._work.assignment(doing).fail(failure))

    def _count_unready(self, how: str) -> None:
        """Raise an error if workers do not start, unless they were killed and may start the next time."""
        self._unready += 1
        if how == "exit code 1" or self._unready > LOSSES * self._jobs:
            raise MetareplayError(
                f"a worker process did not start ({how}): put what starts the runs under "
                f"`if __name__ == '__main__':`, or run on threads"
            )

    def _end(self) -> None:
        """Ask all workers to end, and wait until they have saved what they were doing."""
        try:
            for worker in self._workers.values():
                worker.end()
            for worker in self._workers.values():
                self._wait_for(worker)
        finally:
            for worker in self._workers.values():  # those that have ended, unless Ctrl-C came again
                worker.process.kill()
                worker.process.join()
                worker.connection.close()

    def _wait_for(self, worker: _Worker[AnyRecord]) -> None:
        """Wait until a worker has ended; a run that has finished on the way counts."""
        with suppress(EOFError, OSError):
            while worker.doing is not None or worker.connection.poll(PATIENCE):
                message: Message = worker.connection.recv()
                if worker.doing is not None and isinstance(message, Done):
                    self._work.settle(worker.doing, cast("AnyRecord | Failure | None", message.outcome))
                    worker.doing = None
                elif worker.doing is not None and isinstance(message, Raised):
                    self._work.watcher.end(worker.doing, finished=False)
                    worker.doing = None
