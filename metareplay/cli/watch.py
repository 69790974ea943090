"""`metareplay watch`: a local web page that shows how runs are going."""

import time
from pathlib import Path
from typing import Annotated

import typer

from metareplay.cli.console import remark, shown
from metareplay.errors import MetareplayError
from metareplay.watch.server import serving


def watch(
    folder: Annotated[Path, typer.Argument(help="The folder with the runs; it need not exist yet.")] = Path("runs"),
    port: Annotated[
        int | None, typer.Option(help="The port of the page; default: the one it had before, or any that is free.")
    ] = None,
) -> None:
    """Show runs and sweeps while they run, on a local web page: progress, accuracy, speed, and what the memory holds.

    The page is for this machine alone, and only its link opens it. It reads, and takes no commands. Ctrl-C ends it;
    the runs go on.
    """
    if folder.exists() and not folder.is_dir():
        raise MetareplayError(f"{folder} is not a folder: give the one with the runs, such as runs")
    with serving(folder, port) as address:
        shown.print(address, highlight=False, markup=False, soft_wrap=True)
        remark("open this link in a browser on this machine; Ctrl-C ends the page, and the runs go on")
        try:
            wait()
        except KeyboardInterrupt:
            remark("the page has ended")


def wait() -> None:
    """Wait for Ctrl-C."""
    while True:
        time.sleep(3600)
