"""Printing: results go to standard output, everything else to standard error."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from metareplay.errors import PicturesMissingError

shown = Console(emoji=False)  # results
aside = Console(stderr=True, emoji=False)  # progress and remarks


def open_streams() -> None:
    """Let nothing be read and let output disappear where the shell has closed a stream, as `>&-` does.

    Otherwise Python has no stream there, and the next file that is opened takes its number.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 (open as long as the process)


def remark(text: str) -> None:
    """Print a remark on standard error, without any formatting."""
    aside.print(text, highlight=False, markup=False, soft_wrap=True)


def print_table(rows: Table) -> None:
    """Print a table at its own width even if the screen is narrower, so that no number is cut off."""
    width = shown.measure(rows, options=shown.options.update(width=sys.maxsize)).maximum
    Console(width=max(width, shown.width)).print(rows)


def print_json(document: dict[str, Any]) -> None:
    """Print one JSON document."""
    sys.stdout.write(json.dumps(document, indent=1) + "\n")


def draw(plot: Callable[..., None], path: Path) -> None:
    """Draw a picture and say where it is; pictures are extra, so without matplotlib only say what is missing.

    Args:
        plot: Draws it, given `path`.
        path: The file to write.
    """
    try:
        plot(path=path)
        remark(f"picture: {path}")
    except PicturesMissingError as error:
        remark(f"no picture: {error}")


def fail_on_disk(error: OSError) -> None:
    """Say in one line what the system refused, and exit with code 2.

    Args:
        error: What it said. If it names no file, it was about standard output.
    """
    if error.filename is None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still in the buffer
    where = "standard output" if error.filename is None else str(error.filename)
    fail(f"cannot use {where}: {error.strerror or error}; free some space or choose another place")


def fail(message: str) -> None:
    """Print an error in one line and exit with code 2."""
    aside.print(f"metareplay: {' '.join(message.split())}", style="red", highlight=False, markup=False, soft_wrap=True)
    sys.exit(2)
