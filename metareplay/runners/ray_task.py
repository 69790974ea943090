"""What a worker of a Ray cluster does: one run, whose results go back to the driver."""

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import torch

from metareplay._core.files import MACHINE, is_alive, names_in
from metareplay.data import provide
from metareplay.data.named import Dataset
from metareplay.experiments.base import AnyExperiment, BaseRecord
from metareplay.experiments.following import MakeFollower
from metareplay.runners.failure import portable
from metareplay.runners.runner import Watcher, carry_out, checkpoint_path

PREFIX: Final = f"metareplay-{MACHINE}-"  # of the names of temporary folders; the number of the process follows


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
    clean_up()
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-") as name:
        folder = Path(name)
        if checkpoint is not None:
            checkpoint_path(folder, experiment.key).write_bytes(checkpoint)
        try:
            record = carry_out(experiment, folder, watcher=watcher, shown_in=home)
        except Exception as error:
            return Failed(portable(error))
        return Finished(record, {one.name: one.read_bytes() for one in folder.iterdir() if one.suffix != ".json"})


def clean_up() -> None:
    """Delete the temporary folders of workers of this machine that were killed."""
    folder = Path(tempfile.gettempdir())
    for name in names_in(folder):
        process = name.removeprefix(PREFIX).partition("-")[0]
        if name.startswith(PREFIX) and process.isdecimal() and not is_alive(int(process)):
            shutil.rmtree(folder / name, ignore_errors=True)
