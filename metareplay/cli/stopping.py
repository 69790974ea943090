"""Stopping at a good moment when Ctrl-C is pressed or the process is told to end."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from types import FrameType

SIGNALS = [signal.SIGINT, signal.SIGTERM]
if sys.platform != "win32":
    SIGNALS.append(signal.SIGHUP)


@contextmanager
def asked_to_stop() -> Iterator[Event]:
    """Yield an event that is set by the first Ctrl-C, or when the process is told to end; the second one stops at once.

    Nothing is interrupted by it, so that files are written to their end and the terminal is put back in order.
    """
    asked = Event()
    found = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: handler for number, handler in found.items() if handler != signal.SIG_IGN}  # nohup ignores some

    def restore() -> None:
        """Let the signals do what they did before."""
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(_number: int, _frame: FrameType | None) -> None:
        """Note that we are to stop."""
        asked.set()
        restore()

    for number in before:
        signal.signal(number, ask)
    try:
        yield asked
    finally:
        restore()
