"""What is still to be run in a folder, what has become of the rest, and what other processes are doing there."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, final

from metareplay._core.files import names_in, remove
from metareplay.errors import DataError, DiskError, MetareplayError, NonFiniteError
from metareplay.experiments.base import AnyRecord, BaseExperiment
from metareplay.experiments.following import MakeFollower
from metareplay.experiments.record import versions
from metareplay.experiments.store import Records
from metareplay.runners.announcement import Announcement
from metareplay.runners.claims import Claim, can_share, is_claimed
from metareplay.runners.failure import Failure, failures, forget_failures
from metareplay.runners.runner import StoppedError, Watcher, checked_run, checkpoint_path

OTHERS: Final = 0.5  # seconds between two looks at what other processes have done

Stamp = tuple[str, int, int]  # name, inode and time of a file: says whether it is still the same one


@final
@dataclass(frozen=True)
class Assignment(Generic[AnyRecord]):
    """Describe one run that is to be done, and how.

    Args:
        experiment: What to run.
        folder: Where the record is going to be.
        fresh: Start from the beginning even if there is a checkpoint.
        keep_going: Write a failure instead of raising an error that is the run's own.
        old: Records that were there before and do not count, because the run is to be done again.
        followers: Each of these functions makes a follower of the run.
    """

    experiment: BaseExperiment[AnyRecord]
    folder: Path
    fresh: bool = False
    keep_going: bool = False
    old: frozenset[Stamp] = frozenset()
    followers: Sequence[MakeFollower] = ()

    def attempt(self, work: Callable[[], AnyRecord]) -> AnyRecord | Failure | None:
        """Do the run while holding its claim; None if somebody else is doing it.

        If somebody else has finished it in the meantime, that result is returned.

        Args:
            work: Does the run and writes its record.
        """
        claim = Claim.take(self.folder, self.experiment.key)
        if claim is None:
            return None
        with claim:
            found = self.outcome()
            if found is not None:
                return found
            _clear(self.folder, [self.experiment.key], (".part",))
            try:
                record = work()
            except Exception as error:
                if not self.keep_going or not is_its_own(error):
                    raise
                return self.fail(Failure.of(self.experiment, error))
            forget_failures([self.experiment], self.folder)
            return record

    def outcome(self) -> AnyRecord | Failure | None:
        """Return the result that has been written by now; None if there is none."""
        key = self.experiment.key
        names = names_in(self.folder)
        for name in sorted((name for name in names if name.endswith(f"-{key}.json")), reverse=True):
            try:
                if stamp(self.folder / name) not in self.old:
                    record = self.experiment.result.read(self.folder / name)
                    if record.key == key:
                        return record
            except (OSError, MetareplayError):
                continue  # it is left alone, as the warning of `Records` says
        return failures(self.folder, [key]).get(key) if self.keep_going else None

    def fail(self, failure: Failure) -> Failure:
        """Write a failure; a checkpoint that cannot help is removed.

        Args:
            failure: The failure.
        """
        failure.write(self.folder)
        if not failure.can_continue:
            remove(checkpoint_path(self.folder, failure.key))
        return failure


@final
class Worklist(Generic[AnyRecord]):
    """Know which experiments have to be run in a folder, and collect what becomes of them.

    Args:
        experiments: What is wanted; all of one kind, and equal ones are run once.
        folder: Where records and checkpoints are.
        fresh: Run again what has a record, and start what was interrupted from its beginning.
        keep_going: Record the failure of a run and go on; do not run again what has failed.
        watcher: Receives news of how the work is going.

    Attributes:
        due: What has to be run, the longest first, and equally long ones in the order in which they were given.
        announcement: Tells other processes what is due, for `metareplay watch`.
    """

    def __init__(
        self,
        experiments: Sequence[BaseExperiment[AnyRecord]],
        folder: Path,
        *,
        fresh: bool,
        keep_going: bool,
        watcher: Watcher,
    ) -> None:
        experiments, folder, fresh, keep_going = checked_run(experiments, folder, fresh, keep_going, watcher)
        versions()  # notes the commit now, in case the files change while this runs
        self.folder, self.watcher = folder, watcher
        self._wanted = {one.key: one for one in reversed(experiments)}
        self._keys = [one.key for one in experiments]
        self._fresh, self._keep_going = fresh, keep_going
        self._results: dict[str, AnyRecord | Failure] = {}
        self._others: dict[str, BaseExperiment[AnyRecord]] = {}  # what other processes are doing
        self._not_finite: list[str] = []
        self._unread: list[str] = []  # what has a record, which is read at the end
        if fresh:
            forget_failures(self._wanted.values(), folder)
        elif experiments:
            self._records = Records(folder, experiments[0].result)
            self._unread = list(self._wanted.keys() & self._records.keys)
            if self._unread:
                watcher.remark(f"{len(self._unread)} of {len(self._wanted)} runs are in {folder} already")
            if keep_going:
                self._results |= self._failures()
        order = {key: number for number, key in reversed(list(enumerate(self._keys)))}
        missing = self._wanted.keys() - self._results.keys() - set(self._unread)
        due = sorted(missing, key=lambda key: (-self._wanted[key].work, order[key]))
        self.due = [self._wanted[key] for key in due]
        self._old = _stamps(folder, due) if fresh else {}
        watcher.begin(self.due)
        if due and not can_share(folder):
            watcher.remark(f"{folder} has no file locks: other processes that use it will not share the work")
        self.announcement = Announcement(folder, self.due)

    def assignment(self, experiment: BaseExperiment[AnyRecord], *, again: bool = False) -> Assignment[AnyRecord]:
        """Describe how an experiment is to be run.

        Args:
            experiment: One of those that are due.
            again: Whether it was begun before and should continue from its checkpoint.
        """
        old = self._old.get(experiment.key, frozenset())
        followers = self.watcher.followers
        return Assignment(experiment, self.folder, self._fresh and not again, self._keep_going, old, followers)

    def settle(self, experiment: BaseExperiment[AnyRecord], outcome: AnyRecord | Failure | None) -> None:
        """Note what has become of an experiment.

        Args:
            experiment: The experiment.
            outcome: Its record or its failure; None if another process is doing it.
        """
        if outcome is None:
            self._others[experiment.key] = experiment
            return
        self._results[experiment.key] = outcome
        if isinstance(outcome, Failure):
            self.watcher.failed(experiment, outcome)
        self.watcher.end(experiment, finished=not isinstance(outcome, Failure))

    def refuse(self, experiment: BaseExperiment[AnyRecord], error: BaseException) -> None:
        """Note that an experiment raised an error: numbers that are not finite are for the end, others are raised.

        Args:
            experiment: The experiment.
            error: The error.
        """
        self.watcher.end(experiment, finished=False)
        if not isinstance(error, NonFiniteError):
            raise error
        self._not_finite.append(f"{experiment.label}: {error}")

    @property
    def waits(self) -> bool:
        """Whether there are runs that other processes are doing."""
        return bool(self._others)

    def free_again(self) -> list[BaseExperiment[AnyRecord]]:
        """Settle what other processes have finished, and return what they have given up, which is due again."""
        free = [one for one in self._others.values() if not is_claimed(self.folder, one.key)]
        for one in free:
            del self._others[one.key]
            found = self.assignment(one).outcome()
            if found is not None:
                self.settle(one, found)
        return [one for one in free if one.key not in self._results]

    def unreadable(self) -> list[BaseExperiment[AnyRecord]]:
        """Read the records that were there from the beginning; return the experiments whose record is damaged."""
        unread, self._unread = self._unread, []
        found = {key: self._records.find(key) for key in unread}
        self._results |= {key: record for key, record in found.items() if record is not None}
        damaged = [self._wanted[key] for key, record in found.items() if record is None]
        if damaged:
            self.watcher.remark(f"{len(damaged)} of these records cannot be read: running again what they are of")
            self.watcher.begin(damaged)
        return damaged

    def results(self) -> list[AnyRecord | Failure | None]:
        """Return what has become of the experiments, in their order, and remove what killed processes have left."""
        self.announcement.withdraw()
        recorded = [key for key, one in self._results.items() if not isinstance(one, Failure)]
        failed = [key for key, one in self._results.items() if isinstance(one, Failure)]
        tidy(self.folder, recorded, (".ckpt", ".part", ".claim", ".failed", ".live"))
        tidy(self.folder, failed, (".part", ".claim", ".live"))
        if self._not_finite:
            others = f" (and {len(self._not_finite) - 1} other runs likewise)" if len(self._not_finite) > 1 else ""
            raise NonFiniteError(self._not_finite[0] + others)
        return [self._results.get(key) for key in self._keys]

    def _failures(self) -> dict[str, Failure]:
        """Return the failures of earlier calls."""
        found = failures(self.folder, self._wanted.keys() - set(self._unread))
        if found:
            self.watcher.remark(f"{len(found)} of {len(self._wanted)} runs failed before and are not tried again")
        return found


def is_its_own(error: BaseException) -> bool:
    """Return whether an error is due to the run that raised it, and not to the data or the disk, or to Ctrl-C.

    Args:
        error: The error.
    """
    return isinstance(error, Exception) and not isinstance(error, (DataError, DiskError, StoppedError))


def tidy(folder: Path, keys: Iterable[str], endings: tuple[str, ...]) -> None:
    """Delete what killed processes have left of some runs, unless somebody is doing them just now.

    Args:
        folder: Where the records are.
        keys: The keys of the runs.
        endings: How the names of such files end.
    """
    for key in _left(names_in(folder), keys, endings):
        try:
            claim = Claim.take(folder, key)
            if claim is not None:
                with claim:
                    _clear(folder, [key], endings)
        except DiskError:
            return  # all records are there, so a folder that cannot be written does not matter


def _clear(folder: Path, keys: Sequence[str], endings: tuple[str, ...]) -> None:
    """Delete some files of runs that this process has claimed; the claims themselves are left."""
    names = names_in(folder)
    for names_of_one in _left(names, keys, tuple(set(endings) - {".claim"})).values():
        for name in names_of_one:
            remove(folder / name)


def _left(names: Iterable[str], keys: Iterable[str], endings: tuple[str, ...]) -> dict[str, list[str]]:
    """Return which names are those of passing files of some runs, by key."""
    wanted, found = set(keys), dict[str, list[str]]()
    for name in names:
        if name.endswith(endings):
            for key in wanted.intersection(re.split(r"\W|-", name)):
                found.setdefault(key, []).append(name)
    return found


def _stamps(folder: Path, keys: Iterable[str]) -> dict[str, frozenset[Stamp]]:
    """Return the files that hold records of some runs, by key."""
    wanted, found = set(keys), dict[str, set[Stamp]]()
    for name in names_in(folder):
        key = name.removesuffix(".json").rpartition("-")[2]
        if name.endswith(".json") and key in wanted:
            found.setdefault(key, set()).add(stamp(folder / name))
    return {key: frozenset(stamps) for key, stamps in found.items()}


def stamp(path: Path) -> Stamp:
    """Return what tells a file from the one that replaces it.

    Args:
        path: The file.
    """
    about = path.stat()
    return path.name, about.st_ino, about.st_mtime_ns
