"""CUDA graphs: work on the device that is recorded once and repeated at little cost."""

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
    """Record work on the device, so that it can be repeated at little cost."""

    def aside(self) -> AbstractContextManager[None]:
        """Enter the place where all work is done, after the work asked for before and before that asked for later."""

    def record(self, work: Work) -> Work:
        """Record work without doing it.

        Args:
            work: The work.

        Returns:
            A function that does the work, on the same tensors.
        """


@final
class CudaGraphs:
    """Record CUDA graphs on a stream of their own, so that those of several learners run side by side.

    torch has 32 streams and hands them out in turn. Two learners that got the same stream take turns on it; otherwise
    the work of one could end up in the graph of the other.

    Args:
        device: The GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._failed: list[torch.cuda.CUDAGraph] = []
        self._pool = torch.cuda.graph_pool_handle()  # graphs that never run at the same time share their memory

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        """The stream, which is taken only when it is needed: many learners are made and never learn."""
        return torch.cuda.Stream(self._device)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Enter our stream."""
        with _turns.setdefault(self._stream.cuda_stream, threading.RLock()), torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            try:
                with torch.cuda.stream(self._stream):
                    yield
            finally:
                current.wait_stream(self._stream)

    def record(self, work: Work) -> Work:
        """Record work as a graph."""
        with exclusive:
            try:
                return self._capture(work)
            except BaseException:
                self._give_back_pool()
                with suppress(Exception):  # a capture that succeeds releases torch's generator again
                    self._capture(torch.empty(1, device=self._device).zero_)
                raise

    def _give_back_pool(self) -> None:
        """Let torch free memory again, and take another pool.

        Up to version 2.12, torch goes on believing that a capture which failed is still under way (pytorch/pytorch
        #180395): for the rest of the process, `torch.cuda.empty_cache` frees nothing and what is cached cannot be used
        for larger tensors.
        """
        pool, self._pool = self._pool, torch.cuda.graph_pool_handle()
        index = torch.cuda.current_device() if self._device.index is None else self._device.index
        with suppress(RuntimeError):  # torch has done it
            torch._C._cuda_endAllocateToPool(index, pool)
            torch._C._cuda_releasePool(index, pool)

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
