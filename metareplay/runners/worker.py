"""A worker process of `Processes`: it does one run after another and tells how far they have come."""

import logging
import pickle
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any, Final, final

import torch

from metareplay.experiments.base import AnyExperiment, BaseRecord, Progress
from metareplay.experiments.following import MakeFollower
from metareplay.experiments.record import versions
from metareplay.runners.failure import Failure, described, portable
from metareplay.runners.runner import Watcher, carry_out
from metareplay.runners.worklist import Assignment

NEWS: Final = 0.2  # seconds between two pieces of news about one run
END: Final = b""  # sent to a worker to end it; a run that is under way is saved


@final
@dataclass(frozen=True)
class Ready:
    """Say that the worker has started."""


@final
@dataclass(frozen=True)
class Step:
    """Say how far a run has come.

    Args:
        progress: How far.
        tasks: How many tasks there are.
    """

    progress: Progress
    tasks: int


@final
@dataclass(frozen=True)
class Remark:
    """Pass on a remark to show to people.

    Args:
        text: The remark.
    """

    text: str


@final
@dataclass(frozen=True)
class Done:
    """Say what has become of a run.

    Args:
        outcome: Its record or failure; None if another process is doing it.
    """

    outcome: BaseRecord | Failure | None


@final
@dataclass(frozen=True)
class Raised:
    """Pass on the error that ended a run.

    Args:
        error: The error.
    """

    error: Exception


@final
@dataclass(frozen=True)
class Unreadable:
    """Say that an experiment could not be read in this process.

    Args:
        reason: Why, in one line.
    """

    reason: str


Message = Ready | Step | Remark | Done | Raised | Unreadable
Send = Callable[[Message], None]


def serve(connection: "Connection[Any, Any]") -> None:
    """Do the runs that come over a connection until it is closed or asks to end; a run under way is saved then.

    The connection is also closed when the process at its other end dies, however it dies.

    Args:
        connection: Brings assignments, and takes news and results.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; ours says what is to be done
    torch.set_num_threads(1)
    versions()
    stop, inbox = Event(), SimpleQueue[bytes]()
    Thread(target=_listen, args=(connection, inbox, stop), daemon=True).start()
    send = partial(_send, connection, stop, Lock())
    logging.getLogger("metareplay").addHandler(_TellingHandler(send))
    send(Ready())
    while (given := inbox.get()) != END:
        try:
            assignment: Assignment[BaseRecord] = pickle.loads(given)
        except Exception as error:
            send(Unreadable(described(error)))
            continue
        send(_do(assignment, _Teller(send, assignment.followers), stop))


def _do(assignment: Assignment[BaseRecord], watcher: Watcher, stop: Event) -> Message:
    """Do one run."""
    experiment, folder = assignment.experiment, assignment.folder
    work = partial(carry_out, experiment, folder, fresh=assignment.fresh, watcher=watcher, stop=stop)
    try:
        return Done(assignment.attempt(work))
    except Exception as error:
        return Raised(portable(error))


def _listen(connection: "Connection[Any, Any]", inbox: "SimpleQueue[bytes]", stop: Event) -> None:
    """Receive assignments; set `stop` at the end."""
    given = None
    while given != END:
        try:
            given = connection.recv_bytes()
        except (EOFError, OSError):
            given = END
        if given == END:
            stop.set()
        inbox.put(given)


def _send(connection: "Connection[Any, Any]", stop: Event, lock: Lock, message: Message) -> None:
    """Send a message; if nobody is there any more, this process ends soon."""
    try:
        with lock:
            connection.send(message)
    except OSError:
        stop.set()


@final
class _TellingHandler(logging.Handler):
    """Send what is logged as remarks: the terminal belongs to the process at the other end, which draws on it.

    Args:
        send: Sends messages.
    """

    def __init__(self, send: Send) -> None:
        super().__init__(logging.WARNING)
        self._tell = send

    def emit(self, record: logging.LogRecord) -> None:
        """Send one line."""
        self._tell(Remark(self.format(record)))


@final
class _Teller(Watcher):
    """Send news of runs, but not too often.

    Args:
        send: Sends messages.
        followers: Each of these functions makes a follower of the run.
    """

    def __init__(self, send: Send, followers: Sequence[MakeFollower] = ()) -> None:
        self.followers = followers
        self._send = send
        self._told = 0.0

    def step(self, experiment: AnyExperiment, progress: Progress, tasks: int) -> None:
        """Tell how far the run has come."""
        del experiment
        if time.monotonic() - self._told > NEWS:
            self._told = time.monotonic()
            self._send(Step(progress, tasks))

    def remark(self, text: str) -> None:
        """Pass on a remark."""
        self._send(Remark(text))
