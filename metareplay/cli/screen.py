"""Moving pictures in a terminal, drawn in place at a steady pace."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import final

from metareplay.cli.console import shown
from metareplay.environments.pictures import Picture, fitting, half_blocks

Draw = Callable[[tuple[int, int]], Picture]  # draws a picture of this height and width
Wait = Callable[[float], object]  # waits this many seconds

_OPEN = "\x1b[?1049h\x1b[?25l\x1b[2J"  # the second screen, without a cursor, cleared
_CLOSE = "\x1b[0m\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR, _CLEAR_LINE = "\x1b[H", "\x1b[2J", "\x1b[K"
_LATE = 0.5  # seconds; after a longer stop the clock goes on from now instead of catching up


def can_show() -> bool:
    """Return whether standard output is a terminal that can show pictures."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    return is_terminal and not shown.is_dumb_terminal and shown.encoding.lower().startswith("utf")


@contextmanager
def screen(size: tuple[int, int], pictures_per_second: float, wait: Wait) -> Iterator["Screen"]:
    """Clear the terminal and hide the cursor; afterwards everything is as it was before.

    Args:
        size: The height and width of the pictures at their own size.
        pictures_per_second: The pace.
        wait: Waits until the next picture is due.
    """
    if sys.platform == "win32":
        os.system("")  # lets older consoles understand what moves the cursor
    try:
        _write(_OPEN)
        yield Screen(size, 1 / pictures_per_second, wait)
    finally:
        _write(_CLOSE)


@final
class Screen:
    """Show pictures, each for the same time.

    Args:
        size: The height and width of the pictures at their own size.
        seconds: For how long each is shown.
        wait: Waits until the next one is due.
    """

    def __init__(self, size: tuple[int, int], seconds: float, wait: Wait) -> None:
        self._size, self._seconds, self._wait = size, seconds, wait
        self._due = time.monotonic()
        self._terminal: os.terminal_size | None = None

    def show(self, draw: Draw, caption: Sequence[str]) -> None:
        """Draw a picture, unless its time is over already, and wait until the next one is due.

        Args:
            draw: Draws it.
            caption: Lines below it; what is too long for the terminal is cut off.
        """
        self._due += self._seconds
        if time.monotonic() < self._due:
            self.draw(draw, caption)
        left = self._due - time.monotonic()
        if left > 0:
            self._wait(left)
        elif left < -_LATE:
            self.restart()

    def draw(self, draw: Draw, caption: Sequence[str]) -> None:
        """Draw a picture at once.

        Args:
            draw: Draws it.
            caption: Lines below it; what is too long for the terminal is cut off.
        """
        terminal = shutil.get_terminal_size()
        height, width = fitting(self._size, terminal.lines - len(caption), terminal.columns)
        lines = half_blocks(draw((height, width)), "24-bit" if shown.color_system == "truecolor" else "256")
        start = _HOME if terminal == self._terminal else _CLEAR + _HOME
        self._terminal = terminal
        lines += [line[: terminal.columns - 1] + _CLEAR_LINE for line in caption]
        _write(start + "\n".join(lines))

    def restart(self) -> None:
        """Count the time of the next picture from now on."""
        self._due = time.monotonic()


def _write(text: str) -> None:
    """Write to the terminal at once."""
    sys.stdout.write(text)
    sys.stdout.flush()
