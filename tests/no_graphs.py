"""In place of CUDA graphs, for tests on the CPU: the work itself."""

from collections.abc import Iterator
from contextlib import contextmanager

from metareplay.engines.cuda.graphs import Work


class Rerun:
    """Records work by remembering it; counts."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    @contextmanager
    def aside(self) -> Iterator[None]:
        yield

    def record(self, work: Work) -> Work:
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            work()

        return replay
