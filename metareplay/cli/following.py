"""`--track` and `--watch`: where else a command shows how its runs are going."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from metareplay.cli.console import remark
from metareplay.errors import InputError
from metareplay.experiments.following import MakeFollower
from metareplay.runners import Watcher
from metareplay.trackers import MLflow, TensorBoard, WeightsAndBiases
from metareplay.watch.server import serving

TRACKERS: Final = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WeightsAndBiases}

Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        help="Also write how runs are going for tensorboard:FOLDER, mlflow:FOLDER or wandb:FOLDER; can be repeated.",
    ),
]
Watch = Annotated[bool, typer.Option("--watch", help="Show a local web page while this runs; its link is printed.")]


@contextmanager
def followed(watcher: Watcher, track: list[str] | None, watch: bool, folder: Path) -> Iterator[None]:
    """Let runs be followed as the options say.

    Args:
        watcher: Receives news of the runs, and tells each of them who follows it.
        track: What was typed after each --track, if anything was.
        watch: Whether to serve the live page meanwhile.
        folder: Where the records are going to be.
    """
    watcher.followers = [tracker_of(text) for text in track or ()]
    if not watch:
        yield
        return
    with serving(folder) as address:
        remark(f"watch it: {address}")
        yield


def tracker_of(text: str) -> MakeFollower:
    """Return what makes the follower that the words after --track name; a package that is missing is noticed now.

    Args:
        text: What was typed, such as tensorboard:runs/tensorboard.
    """
    name, colon, folder = text.partition(":")
    if name not in TRACKERS or not colon or not folder:
        raise InputError(f"--track {text}: use tensorboard:FOLDER, mlflow:FOLDER or wandb:FOLDER")
    make = partial(TRACKERS[name], Path(folder).expanduser().absolute())
    make()
    return make
