"""Keys are read without waiting, and the terminal is as before in every case."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from metareplay.cli.keyboard import Keys, has_keyboard, keyboard, names

if sys.platform == "win32":
    pytest.skip("there are no pseudo-terminals", allow_module_level=True)

import pty
import termios


@pytest.fixture
def typist(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The other side of a terminal that is the standard input."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        yield ours
    os.close(ours)


def soon(keys: Keys, count: int) -> list[str]:
    """Wait for some keys; the terminal may need a moment."""
    found: list[str] = []
    while len(found) < count:
        found += keys()
    return found


def test_keys_have_names() -> None:
    assert names("aD \x1b[A\x1b[C\x1b[D") == ["a", "d", "space", "up", "right", "left"]
    assert names("\x1bOA\x1bOC\x1bOD") == ["up", "right", "left"]
    assert names("\xe0H\xe0M\x00K") == ["up", "right", "left"]
    assert "left" not in names("\x1b[B\x1b[1;5H\x1b[3~")
    assert names("") == []


def test_keys_are_read_without_waiting(typist: int) -> None:
    assert has_keyboard()
    with keyboard() as keys:
        assert keys() == []
        os.write(typist, b"a\x1b[C")
        assert soon(keys, 2) == ["a", "right"]
        assert keys() == []


def test_keys_are_not_shown_and_the_terminal_is_as_before(typist: int) -> None:
    before = termios.tcgetattr(sys.stdin)
    with keyboard():
        during = termios.tcgetattr(sys.stdin)
        assert not during[3] & (termios.ECHO | termios.ICANON)
        assert during[3] & termios.ISIG  # Ctrl-C
        os.write(typist, b"keys that nobody reads\n")
    assert termios.tcgetattr(sys.stdin) == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ZeroDivisionError])
def test_the_terminal_is_as_before_after_an_error(error: type[BaseException], typist: int) -> None:
    assert typist
    before = termios.tcgetattr(sys.stdin)
    with pytest.raises(error), keyboard():
        raise error
    assert termios.tcgetattr(sys.stdin) == before


def test_without_a_terminal_there_is_no_keyboard(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert not has_keyboard()
    monkeypatch.setattr(sys, "stdin", None)
    assert not has_keyboard()
