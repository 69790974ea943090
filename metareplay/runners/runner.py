"""The interface of runners, which take experiments and return their records, wherever they do the work."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from threading import Event
from typing import Any

import torch

from metareplay._core.checks import flag, instance, place_of, several, shown
from metareplay._core.files import exists, remove
from metareplay.engines.cuda.engine import CudaEngine
from metareplay.engines.cuda.formation import Formation
from metareplay.errors import InputError
from metareplay.experiments.base import AnyExperiment, AnyRecord, BaseExperiment, BaseRecord, BaseRun, Progress
from metareplay.experiments.following import Following, MakeFollower, made
from metareplay.experiments.store import Records
from metareplay.runners.failure import Failure
from metareplay.runners.live_file import LiveFile


class Watcher:
    """Receive news of how the work is going. This class shows nothing; the command line has one that draws bars.

    Attributes:
        followers: Each of these functions makes a `Follower` for every run, in the process that does the run. On
            processes and clusters they are pickled: `functools.partial(TensorBoard, "runs/tensorboard")`. Runs that
            advance together on one GPU have none.
    """

    followers: Sequence[MakeFollower] = ()

    def begin(self, experiments: Sequence[AnyExperiment]) -> None:
        """Receive the list of what is going to run.

        Args:
            experiments: The experiments that have no record yet.
        """

    def step(self, experiment: AnyExperiment, progress: Progress, tasks: int) -> None:
        """Receive news of how far one run has come.

        Args:
            experiment: What is being run.
            progress: How far it has come.
            tasks: How many tasks its stream has.
        """

    def together(self, count: int, seen: int, total: int) -> None:
        """Receive news of how far several runs have come that advance together.

        Args:
            count: How many runs there are.
            seen: How many examples each of them has learned.
            total: How many examples each of them has to learn.
        """

    def end(self, experiment: AnyExperiment, finished: bool) -> None:
        """Receive the news that a run has ended.

        Args:
            experiment: What was run.
            finished: Whether it came to its end; False if it was stopped before.
        """

    def failed(self, experiment: AnyExperiment, failure: Failure) -> None:
        """Receive the news that a run has failed, if the others go on.

        Args:
            experiment: What was run.
            failure: Why it failed.
        """

    def remark(self, text: str) -> None:
        """Receive a remark to show to people.

        Args:
            text: The remark.
        """


SILENT = Watcher()


def say_untracked(watcher: Watcher, count: int) -> None:
    """Say that runs that advance together have no followers, if somebody expects some.

    Args:
        watcher: Who is told.
        count: How many runs there are.
    """
    if watcher.followers:
        watcher.remark(f"{count} runs advance together and are not tracked: use --on threads for tracked runs")


class Runner(ABC):
    """Run experiments somewhere and return their records."""

    @abstractmethod
    def run(
        self,
        experiments: Sequence[BaseExperiment[AnyRecord]],
        folder: Path,
        *,
        fresh: bool = False,
        keep_going: bool = False,
        watcher: Watcher = SILENT,
    ) -> list[AnyRecord | Failure | None]:
        """Run every experiment that has no record in the folder yet, and write its record there.

        If this is interrupted and called again, it continues from the checkpoints in the folder. Several processes may
        do this in one folder at the same time: they share the runs, and each returns all the records.

        Args:
            experiments: What to run, all of one kind; equal experiments are run once.
            folder: Where records and checkpoints are.
            fresh: Run again what has a record or has failed, and start what was interrupted from its beginning.
            keep_going: When a run fails, write its failure into the folder and go on with the others; what has a
                failure there is not run again (see `forget_failures`). Otherwise an error in one of the runs stops all
                of them after saving, and numbers that are not finite are raised when the others have finished.
            watcher: Receives news of how the work is going.

        Returns:
            The records in the order of the experiments; with `keep_going`, the failure of a run that has failed; None
            for a run that this runner could not finish.
        """


def checked_run(
    experiments: Sequence[BaseExperiment[AnyRecord]], folder: Path, fresh: bool, keep_going: bool, watcher: Watcher
) -> tuple[list[BaseExperiment[AnyRecord]], Path, bool, bool]:
    """Return what a runner is given, in the right types; raise InputError for anything else.

    Args:
        experiments: What to run.
        folder: Where records and checkpoints are.
        fresh: Whether to run everything again.
        keep_going: Whether to go on when a run fails.
        watcher: Receives news.
    """
    several_of = several("experiments", experiments, "a list of experiments")
    some = [instance("experiments", one, BaseExperiment, "a list of experiments") for one in several_of]
    instance("watcher", watcher, Watcher, "a Watcher")
    return some, place_of("folder", folder), flag("fresh", fresh), flag("keep_going", keep_going)


def without_failures(found: Sequence[AnyRecord | Failure | None]) -> list[AnyRecord | None]:
    """Return what a runner returned, with None instead of each failure.

    Args:
        found: What the runner returned.
    """
    some = several("found", found, "what a runner returned")
    return [None if isinstance(one, Failure) else one for one in some]


def device_of(device: Any) -> torch.device:
    """Return a device of torch's; raise InputError for what is none.

    Args:
        device: A device, or its name.
    """
    try:
        return torch.device(device)
    except Exception as error:  # torch raises almost anything
        raise InputError(f"device={shown(device)}: use 'cuda', 'cuda:1' and so on") from error


def rest_of(rest: Runner | None) -> Runner | None:
    """Return the runner of what another one cannot run; raise InputError for what is none.

    Args:
        rest: A runner, or None.
    """
    return None if rest is None else instance("rest", rest, Runner, "a runner, such as Threads(), or None")


class StoppedError(Exception):
    """Raised by a run that was told to stop, after it has saved its state."""


def carry_out(
    experiment: BaseExperiment[AnyRecord],
    folder: Path,
    *,
    fresh: bool = False,
    watcher: Watcher = SILENT,
    stop: Event | None = None,
    formation: Formation | None = None,
    shown_in: Path | None = None,
) -> AnyRecord:
    """Run one experiment, from its checkpoint if there is one, and write its record.

    Args:
        experiment: What to run.
        folder: Where the record and the checkpoint are.
        fresh: Start from the beginning even if there is a checkpoint.
        watcher: Receives news of how far the run has come.
        stop: Once this is set, save and raise StoppedError.
        formation: Take the steps together with other runs on the same GPU, if the network allows.
        shown_in: Where the run shows how it is going, for `metareplay watch`; None for the folder of its record.
    """
    instance("experiment", experiment, BaseExperiment, "an Experiment")
    folder, fresh = place_of("folder", folder), flag("fresh", fresh)
    instance("watcher", watcher, Watcher, "a Watcher")
    shown_in = folder if shown_in is None else place_of("shown_in", shown_in)
    if stop is not None:
        instance("stop", stop, Event, "a threading.Event, or None")
    path = checkpoint_path(folder, experiment.key)
    if fresh:
        remove(path)
    elif exists(path):
        watcher.remark(f"{experiment.label}: continuing from {path}")
    work = experiment.start(checkpoint=path)
    check_key(experiment, work)
    engine = work.trained.chosen_engine
    followers = [LiveFile(shown_in), *made(watcher.followers, experiment.label)]
    with Following(work, followers, experiment.label, (StoppedError,)) as following:
        with formation.place() if formation is not None else nullcontext() as place:
            if isinstance(engine, CudaEngine):
                engine.place = place
            for step in work.steps():
                watcher.step(experiment, step, work.tasks)
                following.step(step)
                if stop is not None and stop.is_set():
                    work.save()
                    raise StoppedError
        record = work.record()
        record.write(folder)
        remove(path)
        return following.end(record)


def check_key(experiment: AnyExperiment, work: BaseRun[BaseRecord]) -> None:
    """Refuse a run that is not the one its experiment describes: its record would never be found again.

    Args:
        experiment: What was asked for.
        work: What was built.
    """
    if work.key != experiment.key:
        raise InputError(f"{experiment.learner} changes its own options when it is made: leave them as they are given")


def finished(experiments: Sequence[BaseExperiment[AnyRecord]], folder: Path) -> dict[str, AnyRecord]:
    """Return the records of the experiments that have been run, by key.

    Args:
        experiments: What to look for, all of one kind.
        folder: Where the records are.
    """
    if not experiments:
        return {}
    records = Records(folder, experiments[0].result)
    found = {key: records.find(key) for key in dict.fromkeys(one.key for one in experiments)}
    return {key: record for key, record in found.items() if record is not None}


def checkpoint_path(folder: Path, key: str) -> Path:
    """Return the path of a run's checkpoint."""
    return folder / f".{key}.ckpt"
