"""CUDA graphs: work on the device, recorded once and done again at little cost."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property
from typing import Protocol, final

import torch

_turns: dict[int, threading.RLock] = {}  # by stream
exclusive = threading.Lock()  # torch captures one graph at a time, and has one generator per device

Work = Callable[[], None]


class Recorder(Protocol):
    """What turns work on the device into something that can be done again at little cost."""

    def aside(self) -> AbstractContextManager[None]:
        """Where all work is done: after what was asked before, and before what is asked afterwards."""

    def record(self, work: Work) -> Work:
        """The same work on the same tensors, recorded without doing it."""


@final
class CudaGraphs:
    """CUDA graphs on a stream of their own, so that those of several learners run side by side.

    torch has 32 streams and gives them out in turn. Two learners that got the same one take turns too: otherwise one's
    work could end up in the other's graph.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._failed: list[torch.cuda.CUDAGraph] = []
        self._pool = torch.cuda.graph_pool_handle()  # graphs that never run at the same time share their memory

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        """Taken when it is needed: many learners are made and never learn."""
        return torch.cuda.Stream(self._device)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """On our stream."""
        with _turns.setdefault(self._stream.cuda_stream, threading.RLock()), torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            try:
                with torch.cuda.stream(self._stream):
                    yield
            finally:
                current.wait_stream(self._stream)

    def record(self, work: Work) -> Work:
        """A graph."""
        with exclusive:
            try:
                return self._capture(work)
            except BaseException:
                self._pool = torch.cuda.graph_pool_handle()
                with suppress(Exception):  # a capture that ends well sets torch's generator free again
                    self._capture(torch.empty(1, device=self._device).zero_)
                raise

    def _capture(self, work: Callable[[], object]) -> Work:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                work()
        except BaseException:
            self._failed.append(graph)  # torch's allocator may still ask it
            raise
        replay: Work = graph.replay
        return replay
