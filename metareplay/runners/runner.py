"""What a runner is: it takes experiments and returns their records. Where the work is done is its own business."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from threading import Event

from metareplay._core.files import exists, remove
from metareplay.experiments.experiment import Experiment
from metareplay.experiments.loop import Progress
from metareplay.experiments.record import Record
from metareplay.experiments.store import Records


class Watcher:
    """Be told how the work goes. This one shows nothing; the command line has one that draws bars."""

    def begin(self, experiments: Sequence[Experiment]) -> None:
        """Hear what is going to run."""

    def step(self, experiment: Experiment, progress: Progress, tasks: int) -> None:
        """Hear how far one run is.

        Args:
            experiment: The run.
            progress: How far it is.
            tasks: How many tasks it has.
        """

    def together(self, count: int, seen: int, total: int) -> None:
        """Hear how far several runs are that go on together.

        Args:
            count: How many runs they are.
            seen: How many examples each of them has learned.
            total: How many there are.
        """

    def end(self, experiment: Experiment, finished: bool) -> None:
        """Hear that a run has ended, or was stopped before its end."""

    def remark(self, text: str) -> None:
        """Hear something worth telling people."""


SILENT = Watcher()


class Runner(ABC):
    """Run experiments somewhere and return their records."""

    @abstractmethod
    def run(
        self,
        experiments: Sequence[Experiment],
        folder: Path,
        *,
        fresh: bool = False,
        watcher: Watcher = SILENT,
    ) -> list[Record | None]:
        """Run what has no record in the folder yet; write a record for each.

        Interrupted and called again, it goes on from its checkpoints in the folder.

        Args:
            experiments: What to run; equal ones run once.
            folder: Where records and checkpoints are.
            fresh: Run again what has a record, and start anew what was interrupted.
            watcher: Who is told how the work goes.

        Returns:
            The records in the order of the experiments; None for a run that this runner could not finish.
        """


class StoppedError(Exception):
    """A run was told to stop; it saved where it was."""


def carry_out(
    experiment: Experiment,
    folder: Path,
    *,
    fresh: bool = False,
    watcher: Watcher = SILENT,
    stop: Event | None = None,
) -> Record:
    """Run one experiment: go on from its checkpoint if there is one, write its record.

    Args:
        experiment: What to run.
        folder: Where the record and the checkpoint are.
        fresh: Start anew even if there is a checkpoint.
        watcher: Who is told how far it is.
        stop: Save and raise StoppedError once this is set.
    """
    path = checkpoint_path(folder, experiment.key)
    if fresh:
        remove(path)
    elif exists(path):
        watcher.remark(f"{experiment.label}: going on from {path}")
    work = experiment.start(checkpoint=path)
    for step in work.steps():
        watcher.step(experiment, step, work.stream.tasks)
        if stop is not None and stop.is_set():
            work.save()
            raise StoppedError
    record = work.record()
    record.write(folder)
    remove(path)
    return record


def finished(experiments: Sequence[Experiment], folder: Path) -> dict[str, Record]:
    """Return the records of the experiments that have been run, by key.

    Checkpoints of these are removed: their runs were killed when the record had just been written.

    Args:
        experiments: What is wanted.
        folder: Where the records are.
    """
    records = Records(folder)
    found = {key: records.find(key) for key in dict.fromkeys(one.key for one in experiments)}
    done = {key: record for key, record in found.items() if record is not None}
    for path in (checkpoint_path(folder, key) for key in done):
        if exists(path):
            remove(path)
    return done


def checkpoint_path(folder: Path, key: str) -> Path:
    """Return where the checkpoint of a run is."""
    return folder / f".{key}.ckpt"
