"""What a worker of a Ray cluster does: one run, whose results go back to the driver."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import final

import torch

from metareplay.data import provide
from metareplay.data.named import Dataset
from metareplay.experiments.base import AnyExperiment, BaseRecord
from metareplay.runners.failure import portable
from metareplay.runners.runner import carry_out, checkpoint_path


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


def carry_out_there(experiment: AnyExperiment, checkpoint: bytes | None, *datasets: Dataset) -> Finished | Failed:
    """Do one run in a temporary folder of this machine.

    Args:
        experiment: What to run.
        checkpoint: The checkpoint to continue from, if there is one.
        datasets: The data that it reads, in memory that all workers of this machine share.
    """
    torch.set_num_threads(1)
    for one in datasets:
        provide(one)
    with TemporaryDirectory(prefix="metareplay-") as name:
        folder = Path(name)
        if checkpoint is not None:
            checkpoint_path(folder, experiment.key).write_bytes(checkpoint)
        try:
            record = carry_out(experiment, folder)
        except Exception as error:
            return Failed(portable(error))
        return Finished(record, {one.name: one.read_bytes() for one in folder.iterdir() if one.suffix != ".json"})
