"""A stopwatch for training: it counts until the device is done, and tells apart what `mix` and `step` take."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import torch


@final
class Watch:
    """Add up the seconds between `start` and `pause`, and those of them that are spent in `mer` blocks.

    A GPU computes while the host goes on. `pause` waits for it, so that all that was begun is counted. A `mer` block
    counts with the time of the host or that between two events on the GPU, whichever is longer.

    Args:
        device: "cpu" or "cuda".
    """

    def __init__(self, device: str) -> None:
        self.seconds, self.mer_seconds = 0.0, 0.0
        self._is_gpu = device.startswith("cuda")
        self._began: float | None = None
        self._blocks: list[tuple[float, Any, Any]] = []  # seconds of the host, and two events, of what is not added yet

    def start(self) -> None:
        """Go on counting."""
        if self._began is None:
            self._synchronize()
            self._began = time.perf_counter()

    def pause(self) -> None:
        """Wait for the device, and stop counting."""
        if self._began is None:
            return
        self._synchronize()
        self.seconds += time.perf_counter() - self._began
        self._began = None
        for host, first, last in self._blocks:
            self.mer_seconds += max(host, first.elapsed_time(last) / 1000) if self._is_gpu else host
        self._blocks.clear()

    @contextmanager
    def mer(self) -> Iterator[None]:
        """Count what is done inside as `mix` or `step`."""
        first, last = self._event(), self._event()
        began = time.perf_counter()
        if self._is_gpu:
            first.record()
        yield
        if self._is_gpu:
            last.record()
        self._blocks.append((time.perf_counter() - began, first, last))

    def _event(self) -> Any:
        return torch.cuda.Event(enable_timing=True) if self._is_gpu else None

    def _synchronize(self) -> None:
        if self._is_gpu:
            torch.cuda.synchronize()
