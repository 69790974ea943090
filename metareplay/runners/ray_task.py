"""What a worker of a Ray cluster does: one run, whose results go back to the driver."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import final

import torch

from metareplay.data import provide
from metareplay.data.named import Dataset
from metareplay.experiments.base import AnyExperiment, BaseRecord
from metareplay.experiments.following import MakeFollower
from metareplay.runners.failure import portable
from metareplay.runners.runner import Watcher, carry_out, checkpoint_path


@final
@dataclass(frozen=True)
class Finished:
    """Bring back what a run has made.

    Args:
        record: Its record.
        files: What else it has written, by name, such as the file of an agent.
    """

    record: BaseRecord
    files: dict[str, bytes]


@final
@dataclass(frozen=True)
class Failed:
    """Bring back the error that ended a run.

    Args:
        error: The error.
    """

    error: Exception


def carry_out_there(
    experiment: AnyExperiment,
    checkpoint: bytes | None,
    home: Path,
    followers: Sequence[MakeFollower],
    *datasets: Dataset,
) -> Finished | Failed:
    """Do one run in a temporary folder of this machine.

    Args:
        experiment: What to run.
        checkpoint: The checkpoint to continue from, if there is one.
        home: The folder of the records on the machine that has sent the run; if this machine sees it, too, the run
            shows there how it is going.
        followers: Each of these functions makes a follower of the run.
        datasets: The data that it reads, in memory that all workers of this machine share.
    """
    torch.set_num_threads(1)
    watcher = Watcher()
    watcher.followers = followers
    for one in datasets:
        provide(one)
    with TemporaryDirectory(prefix="metareplay-") as name:
        folder = Path(name)
        if checkpoint is not None:
            checkpoint_path(folder, experiment.key).write_bytes(checkpoint)
        try:
            record = carry_out(experiment, folder, watcher=watcher, shown_in=home)
        except Exception as error:
            return Failed(portable(error))
        return Finished(record, {one.name: one.read_bytes() for one in folder.iterdir() if one.suffix != ".json"})
