"""Keys of the terminal, read without waiting for them."""

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Keys = Callable[[], list[str]]  # returns the keys that were pressed since the last call, the oldest first

LEAVE = "q"

_KEY = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|[\x00\xe0].|.", re.DOTALL)  # an arrow is several characters
_ARROWS = {"A": "up", "C": "right", "D": "left"}  # the last character, after escape and [ or O
_WINDOWS_ARROWS = {"H": "up", "M": "right", "K": "left"}  # the last character, after \x00 or \xe0


def has_keyboard() -> bool:
    """Return whether standard input is a terminal."""
    return sys.stdin is not None and sys.stdin.isatty()


@contextmanager
def keyboard() -> Iterator[Keys]:
    """Read keys from the terminal one by one, without showing them; afterwards the terminal is as it was before.

    Ctrl-C stays what it is. Ctrl-Z does nothing: the shell would come back to a terminal that hides what is typed.
    """
    if sys.platform == "win32":
        yield _windows_keys
        return
    import termios
    import tty

    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    try:
        tty.setcbreak(file)
        changed = termios.tcgetattr(file)
        changed[6][termios.VSUSP] = bytes([os.fpathconf(file, "PC_VDISABLE") & 255])
        termios.tcsetattr(file, termios.TCSANOW, changed)
        yield lambda: _posix_keys(file)
    finally:
        termios.tcsetattr(file, termios.TCSAFLUSH, before)  # keys that nobody has read do not reach the shell


def names(text: str) -> list[str]:
    """Return the names of keys: up, left, right, space, or the character itself in lower case.

    >>> names("a\\x1b[DQ ")
    ['a', 'left', 'q', 'space']

    Args:
        text: What the terminal sent.
    """
    return [_name(key) for key in _KEY.findall(text)]


def _name(key: str) -> str:
    """Return the name of one key."""
    if len(key) > 1:
        return (_ARROWS if key.startswith("\x1b") else _WINDOWS_ARROWS).get(key[-1], key)
    return "space" if key == " " else key.lower()


def _posix_keys(file: int) -> list[str]:
    """Return the keys that are waiting; a terminal that has gone away asks to leave."""
    import select

    text = ""
    while select.select([file], [], [], 0)[0]:
        data = os.read(file, 1024)
        if not data:
            return [LEAVE]
        text += data.decode(errors="replace")
    return names(text)


def _windows_keys() -> list[str]:
    """Return the keys that are waiting."""
    text = ""
    if sys.platform == "win32":
        import msvcrt

        while msvcrt.kbhit():
            text += msvcrt.getwch()
    return names(text)
