"""What disturbs some work at a moment that is chosen beforehand: Ctrl-C at a line, or memory that runs out."""

import random
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import metareplay as mr

PACKAGE = str(Path(mr.__file__).parent)


class Disturbance(ABC):
    """Disturb some work at the n-th of the moments at which it can be disturbed.

    Args:
        number: The number of the moment, counted from 0; -1 to count them only.

    Attributes:
        count: How many moments there were.
        where: The place at which the work was disturbed; empty if it was not.
        times: The moments at each place, by their numbers.
    """

    def __init__(self, number: int = -1) -> None:
        self.number, self.count, self.where = number, 0, ""
        self.times: dict[tuple[str, int], list[int]] = {}

    def drawn(self, count: int, rng: random.Random) -> list[int]:
        """Draw one of the moments at every place, or at only some of them.

        Args:
            count: How many places, at most.
            rng: Draws.
        """
        times = [rng.choice(found) for found in self.times.values()]
        return sorted(rng.sample(times, min(count, len(times))))

    @abstractmethod
    def during(self, work: Callable[[], object]) -> str | None:
        """Do some work and disturb it; return what is wrong with how the disturbance was treated.

        Args:
            work: The work. What it does may depend on the clock, so the moment need not come.
        """


@final
class AtLine(Disturbance):
    """Send Ctrl-C to this process at the n-th line of the package that is executed."""

    def __enter__(self) -> "AtLine":
        """Begin to count."""
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _value: object) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            self.times.setdefault((frame.f_code.co_filename, frame.f_lineno), []).append(self.count)
            if self.count == self.number:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                signal.raise_signal(signal.SIGINT)
            self.count += 1
        return self._trace

    def during(self, work: Callable[[], object]) -> str | None:
        """Do some work and send Ctrl-C; it must not get lost, and its handler must stay."""
        before, came = signal.getsignal(signal.SIGINT), False
        try:
            with self:
                work()
        except KeyboardInterrupt:
            came = True
        finally:
            sys.settrace(None)
            after = signal.getsignal(signal.SIGINT)
            signal.signal(signal.SIGINT, before)
        if after is not before:
            return "the handler of Ctrl-C has changed"
        return "Ctrl-C got lost" if self.where and not came else None


class WithoutMemory(Disturbance):
    """Let the n-th operation of torch that takes memory find none, as on a GPU that is full."""

    @final
    def during(self, work: Callable[[], object]) -> str | None:
        """Do some work and let memory run out; whatever error comes must have this cause."""
        try:
            with _Operations(self._before):
                work()
        except (mr.MetareplayError, torch.cuda.OutOfMemoryError) as error:
            return None if self.where else f"without any reason: {error}"
        return None

    def fails(self) -> bool:
        """Return whether the operation that comes now is the one."""
        return self.count == self.number

    def _before(self, operation: str) -> None:
        """Count an operation, or let it fail."""
        place = _innermost(sys._getframe())
        self.times.setdefault(place, []).append(self.count)
        fails = self.fails()
        self.count += 1
        if fails:
            self.where = self.where or f"{Path(place[0]).name}:{place[1]} ({operation})"
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


@final
class OutOfMemoryOnce(WithoutMemory):
    """Let one operation of torch find no memory."""


@final
class OutOfMemory(WithoutMemory):
    """Let an operation of torch find no memory, and all that come after it."""

    def fails(self) -> bool:
        """Return whether the operation that comes now is the first that fails, or a later one."""
        return 0 <= self.number <= self.count


def _innermost(frame: FrameType | None) -> tuple[str, int]:
    """Return the line of the package that is being executed, of several that call each other the innermost."""
    while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


@final
class _Operations(TorchDispatchMode):
    """Tell somebody of every operation of torch that may take memory, before it is executed.

    Views take none, nor does copying, filling or weighing values in place.

    Args:
        tell: What is called with the operation's name.
    """

    NEEDS_NONE = ("aten.copy_", "aten.detach", "aten.fill_", "aten.lerp_", "aten.lift_fresh", "aten.zero_")

    def __init__(self, tell: Callable[[str], None]) -> None:
        begin: Callable[[], None] = super().__init__  # which has no types
        begin()
        self._tell = tell

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Execute an operation, unless there is an objection."""
        if not func.is_view and not str(func).startswith(self.NEEDS_NONE):
            self._tell(str(func))
        return func(*args, **(kwargs or {}))
