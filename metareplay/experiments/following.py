"""Following runs: a `Follower` is told how a run is going while it learns."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar, final

from metareplay._core.checks import instance
from metareplay.errors import InputError
from metareplay.experiments.base import BaseRecord, BaseRun, Curves, Progress
from metareplay.learners.input_checks import one_line
from metareplay.learners.table_learner import TableLearner

logger = logging.getLogger("metareplay")

EVERY: Final = 0.5  # seconds between two pieces of news, at least
SHARE: Final = 0.004  # of the time, at most, is spent on followers
SPEED: Final = "examples per second"  # the name of a curve
MOST: Final = 400  # points of that curve; a longer one is thinned out


@final
@dataclass(frozen=True, kw_only=True)
class FollowedRun:
    """Describe the run that a follower follows.

    Args:
        key: The key that its record will have.
        label: The run in a few words.
        settings: What is run, as plain JSON values: the learner and its options, the model, the stream or the game.
        tasks: How many tasks there are.
        learner: The learner that is being trained. A follower may look at it, but must not change it.
    """

    key: str
    label: str
    settings: Mapping[str, Any]
    tasks: int
    learner: TableLearner


@final
@dataclass(frozen=True, kw_only=True)
class Measurements:
    """Say how a run is going.

    Args:
        doing: "learning" or "evaluating".
        task: The task that is being learned, counted from 0.
        seen: How many examples (or frames) have been learned.
        total: How many there are; None if the stream does not know.
        seconds: How long the run has been going on, in seconds, since it was started or continued.
        per_second: How many examples are learned per second at the moment; None before that is known.
        accuracy: The latest accuracy on the test set of each task, in percent; None for a task that has not been
            measured, and an empty list if the run has no test sets.
        curves: Everything that has been measured so far: by name, a list of points, each of which is the number of
            examples learned and a value. The names are for people: "accuracy of task 1", "prequential accuracy",
            "score of task 1", "gradient alignment", "examples per second".
    """

    doing: Literal["learning", "evaluating"]
    task: int
    seen: int
    total: int | None
    seconds: float
    per_second: float | None = None
    accuracy: Sequence[float | None] = ()
    curves: Curves = field(default_factory=dict)


class Follower(ABC):
    """Follow one run while it learns. An implementation defines `measure`, and what else it wants to know.

    All methods are called in the thread of the run, and learning waits until they return, so they should be quick. An
    error that a method raises becomes one line of warning; the run goes on, and that follower is not called again.
    """

    def begin(self, run: FollowedRun) -> None:
        """Receive what is going to run, before the first example.

        Args:
            run: The run.
        """
        del run

    @abstractmethod
    def measure(self, news: Measurements) -> None:
        """Receive how the run is going: at most about twice per second, and once more at its end.

        Args:
            news: How it is going.
        """

    def end(self, record: BaseRecord) -> None:
        """Receive the record of the run, which has come to its end.

        Args:
            record: The record.
        """
        del record

    def stop(self, reason: str | None) -> None:
        """Receive the news that the run has ended without a record.

        Args:
            reason: Why it has failed, in one line; None if it was interrupted, and may be continued later.
        """
        del reason


Made = TypeVar("Made", bound=BaseRecord)
MakeFollower = Callable[[], Follower]  # makes a follower for one run; on processes and clusters it is pickled


def followers_in(given: object) -> list[Follower]:
    """Return the followers that a user has given, or raise InputError.

    Args:
        given: A list of followers.
    """
    if not isinstance(given, (list, tuple)):
        raise InputError(f"follow is a {type(given).__name__}: give a list of followers")
    for one in given:
        instance("follow", one, Follower, "a list of followers, for instance [trackers.TensorBoard('runs/tb')]")
    return list(given)


def made(makers: Sequence[MakeFollower], label: str) -> list[Follower]:
    """Make the followers of one run; one that cannot be made is left out with one line of warning.

    Args:
        makers: Functions that make one follower each.
        label: The run in a few words.
    """
    found: list[Follower] = []
    for make in makers:
        try:
            found += followers_in([make()])
        except Exception as error:
            kind = getattr(make, "func", make)  # what a functools.partial calls
            _warn(getattr(kind, "__name__", type(kind).__name__), label, error)
    return found


@final
class Following:
    """Tell followers how a run is going; leaving the context tells them how it ended.

    Args:
        work: The run.
        followers: Who is told, each of them only of this run.
        label: The run in a few words; "" for its learner's and its stream's names.
        stopped: Errors that mean that the run was interrupted, and not that it has failed.
    """

    def __init__(
        self,
        work: BaseRun[BaseRecord],
        followers: Sequence[Follower],
        label: str = "",
        stopped: tuple[type[BaseException], ...] = (),
    ) -> None:
        self._work, self._followers = work, list(followers)
        self._stopped: tuple[type[BaseException], ...] = (KeyboardInterrupt, *stopped)
        self._label = label or work.title
        self._speeds: list[tuple[int, float]] = []
        self._last: Progress | None = None
        self._ended = False
        self._evaluated = False  # since the last piece of news: the time of learning is not known then
        self._began = self._told = time.monotonic()
        self._pause = 0.0  # seconds until the next piece of news
        self._seen_then = 0  # examples when the last piece of news was told

    def __enter__(self) -> Self:
        """Tell the followers what is going to run."""
        if self._followers:
            work = self._work
            run = FollowedRun(
                key=work.key, label=self._label, settings=work.described(), tasks=work.tasks, learner=work.trained
            )
            self._tell(lambda one: one.begin(run))
            self._began = self._told = time.monotonic()
        return self

    def step(self, progress: Progress) -> None:
        """Tell how far the run has come, unless the last piece of news is too recent.

        Args:
            progress: How far.
        """
        if not self._followers:
            return
        if self._last is None:
            self._seen_then = progress.seen  # a continued run does not begin at 0
        self._last = progress
        self._evaluated |= progress.doing == "evaluating"
        if time.monotonic() - self._told >= self._pause:
            self._measure(progress)

    def end(self, record: Made) -> Made:
        """Tell the followers the last measurements and the record, and return it.

        Args:
            record: The record of the run.
        """
        self._ended = True
        if self._followers:
            if self._last is not None:
                done = Progress(self._last.doing, self._work.tasks, self._work.trained.seen, self._last.total)
                self._measure(done)
            self._tell(lambda one: one.end(record))
        return record

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Tell the followers if the run has failed or was interrupted."""
        if error is not None and not self._ended:
            reason = None if isinstance(error, self._stopped) else one_line(error)
            self._tell(lambda one: one.stop(reason))

    def _measure(self, progress: Progress) -> None:
        """Tell the followers how the run is going; the more time that takes, the longer is the pause afterwards."""
        start = time.monotonic()
        learned, took = progress.seen - self._seen_then, start - self._told
        if learned > 0 and took > 0 and not (self._evaluated and self._speeds):
            self._speeds.append((progress.seen, learned / took))
            self._speeds = self._speeds if len(self._speeds) <= MOST else self._speeds[::2]
        tasks, self._evaluated = max(1, self._work.tasks), progress.doing == "evaluating"
        news = Measurements(
            doing=progress.doing,
            task=min(progress.finished, tasks - 1),
            seen=progress.seen,
            total=progress.total,
            seconds=start - self._began,
            per_second=self._speeds[-1][1] if self._speeds else None,
            accuracy=self._work.accuracies(),
            curves={**self._work.curves(), SPEED: list(self._speeds)},
        )
        self._tell(lambda one: one.measure(news))
        self._seen_then, self._told = progress.seen, time.monotonic()
        self._pause = max(EVERY, (self._told - start) / SHARE)

    def _tell(self, what: Callable[[Follower], None]) -> None:
        """Tell every follower something; one that raises an error is left out from now on."""
        for one in list(self._followers):
            try:
                what(one)
            except Exception as error:
                self._followers.remove(one)
                _warn(type(one).__name__, self._label, error)


def done(work: BaseRun[Made], follow: object) -> Made:
    """Do a run from its first step to its last and return its record.

    Args:
        work: The run.
        follow: A list of followers that a user has given.
    """
    with Following(work, followers_in(follow)) as following:
        for step in work.steps():
            following.step(step)
        return following.end(work.record())


def _warn(name: str, label: str, error: Exception) -> None:
    """Say in one line that a follower is left out, and why."""
    logger.warning(
        "%s does not follow %s any more (%s: %s); the run goes on", name, label, type(error).__name__, one_line(error)
    )
