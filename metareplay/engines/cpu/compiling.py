"""The remark that the first call of a kernel compiles it."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger("metareplay")


@contextmanager
def compiling(ran: set[tuple[bool, ...]], *kind: bool) -> Iterator[None]:
    """Log a remark if this kind of work takes long the first time: it is compiled for this CPU, once.

    Args:
        ran: The kinds of work that were done before; this one is added.
        kind: What tells this kind of work from others.
    """
    if kind in ran:
        yield
        return
    remark = "compiling the CPU engine for this machine and this kind of learner, once (up to a minute)"
    timer = threading.Timer(2.0, logger.warning, [remark])
    timer.daemon = True
    timer.start()
    ran.add(kind)
    try:
        yield
    finally:
        timer.cancel()
