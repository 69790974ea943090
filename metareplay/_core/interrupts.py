"""Holding back Ctrl-C while something is changed that must be changed completely or not at all."""

import threading
from _signal import SIGINT, getsignal, signal  # the functions behind `signal`, whose search for names takes 10 us
from types import FrameType
from typing import Any, Self, final


@final
class HeldBack:
    """Hold back Ctrl-C in a `with` block of the main thread; at the end of the block it does what it would have done.

    In a long block, `let_through` marks the places where Ctrl-C may come, because the work can be undone there. A
    second Ctrl-C is not held back, so that a model that hangs can be stopped. Blocks may be nested: what comes while
    two hold it back is handed from the inner to the outer one, a second one at once. In other threads, which Python
    never interrupts, the block does nothing.
    """

    def __init__(self) -> None:
        self._before: Any = None  # the handler that was there; None if nothing is held back
        self._came = False
        self._handed_on = False  # a second one came, which counts for both

    def __enter__(self) -> Self:
        """Begin to hold back Ctrl-C."""
        if threading.current_thread() is threading.main_thread():
            before = getsignal(SIGINT)
            if callable(before):
                self._before = before
                signal(SIGINT, self)
        return self

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Note that Ctrl-C came; if one has come before, do what it would have done."""
        if self._came:
            self._handed_on = True
            self._before(number, frame)
        self._came = True

    def __exit__(self, *_: object) -> None:
        """Put back the handler that was there before, and let it have what has come."""
        if self._before is not None:
            signal(SIGINT, self._before)
            if self._came and not self._handed_on:
                self._before(SIGINT, None)

    def release(self) -> None:
        """Do now what a Ctrl-C that was held back would have done."""
        if self._came and threading.current_thread() is threading.main_thread():
            self._came = False
            self._before(SIGINT, None)
            if isinstance(self._before, HeldBack):
                self._before.release()


def let_through() -> None:
    """Let a Ctrl-C that was held back take effect now; call this where whatever has begun will be undone."""
    handler = getsignal(SIGINT)
    if isinstance(handler, HeldBack):
        handler.release()
