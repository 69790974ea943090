"""The stopwatch of training: what counts, what does not, and what a GPU is still busy with."""

from typing import Any

import pytest
import torch

from metareplay.lm.stopwatch import Watch


class Time:
    """A clock of the host, and one of a GPU that may lag behind."""

    def __init__(self) -> None:
        self.host, self.device = 0.0, 0.0

    def synchronize(self) -> None:
        self.host = self.device = max(self.host, self.device)

    def event(self, **_: object) -> Any:
        time = self

        class Event:
            def record(self) -> None:
                self.at = time.device = max(time.host, time.device)

            def elapsed_time(self, other: Any) -> float:
                return 1000 * float(other.at - self.at)

        return Event()


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    found = Time()
    monkeypatch.setattr("time.perf_counter", lambda: found.host)
    monkeypatch.setattr(torch.cuda, "synchronize", found.synchronize)
    monkeypatch.setattr(torch.cuda, "Event", found.event)
    return found


def test_only_what_lies_between_start_and_pause_counts(time: Time) -> None:
    watch = Watch("cpu")
    for _ in range(2):
        watch.start()
        time.host += 3
        with watch.mer():
            time.host += 1
        watch.start()  # it is running already
        time.host += 2
        watch.pause()
        watch.pause()
        time.host += 100  # losses are measured
    assert (watch.seconds, watch.mer_seconds) == (12, 2)


def test_a_gpu_is_waited_for_when_it_pauses(time: Time) -> None:
    watch = Watch("cuda")
    watch.start()
    with watch.mer():
        time.host += 2  # mixing on the host, while the GPU has nothing to do
    time.device = time.host + 10  # a training step, which the host does not wait for
    with watch.mer():
        time.host += 1
        time.device += 4  # a Reptile line on the GPU
    assert watch.seconds == 0
    watch.pause()
    assert (watch.seconds, watch.mer_seconds) == (16, 6)
