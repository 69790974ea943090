"""`metareplay play` in a pseudo-terminal: what is shown, which keys count, and that the terminal is as before."""

import os
import re
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from small_runs import DEADLINE

if sys.platform == "win32":
    pytest.skip("there are no pseudo-terminals", allow_module_level=True)

import fcntl
import termios

OPEN, CLOSE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


class Terminal:
    """The person's side of a terminal of 40 lines and 100 columns, in which a command runs."""

    def __init__(self, ours: int, process: "subprocess.Popen[bytes]") -> None:
        self.ours, self.process = ours, process
        self._seen = b""

    @property
    def text(self) -> str:
        """Everything that has been shown so far."""
        return self._seen.decode(errors="ignore")  # the last character may not be complete

    def until(self, pattern: str) -> None:
        """Read until the text has this in it."""
        end = time.monotonic() + DEADLINE
        while not re.search(pattern, self.text):
            assert time.monotonic() < end, self.text[-2000:]
            if select.select([self.ours], [], [], 0.1)[0]:
                self._seen += os.read(self.ours, 65536)

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self.ours, keys.encode())


@contextmanager
def terminal(*words: str) -> Iterator[Terminal]:
    """Run a command in a terminal; at the end its mode must be as before."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    before = termios.tcgetattr(theirs)
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # in the background it is ignored
    code = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from metareplay.cli import main; main()"
    variables = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", f"{heard}; {code}", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env=variables | {"TERM": "xterm-256color", "COLORTERM": "truecolor"},
    )
    try:
        yield Terminal(ours, process)
        assert termios.tcgetattr(theirs) == before
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def test_a_person_plays_until_ctrl_c() -> None:
    with terminal("play", "catcher", "--seed", "0", "--frames", "100000") as screen:
        screen.until("any key: begin")
        assert OPEN in screen.text
        assert not re.search(r"frame [1-9]", screen.text)  # nothing moves before the first key
        screen.type("d")
        screen.until(r"frame 1\d\b")
        screen.type("\x1b[D")
        screen.until(r"frame 2\d\b")
        assert "▀" in screen.text
        assert "left/right or a/d: push; q: leave" in screen.text
        screen.type("\x03")
        screen.until(r"│ left")
        assert screen.process.wait(DEADLINE) == 0
        assert screen.text.index(CLOSE) < screen.text.index("player: me; seed: 0")


def test_a_player_is_watched_until_q() -> None:
    with terminal("play", "flappy", "--player", "greedy", "--speed", "3") as screen:
        screen.until(r"frame 1\d\b")
        assert "any key: begin" not in screen.text
        screen.type("xq")
        screen.until(r"│ left")
        assert screen.process.wait(DEADLINE) == 0
        assert screen.text.count(CLOSE) == 1


def test_a_signal_ends_the_game_too() -> None:
    with terminal("play", "flappy", "--player", "random", "--episodes", "100000", "--speed", "20") as screen:
        screen.until(r"frame 1\d\b")
        screen.process.send_signal(signal.SIGTERM)
        screen.until(r"player: random")
        assert screen.process.wait(DEADLINE) == 0
        assert CLOSE in screen.text
