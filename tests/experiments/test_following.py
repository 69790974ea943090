"""Followers are told how a run is going, and neither they nor their errors change what is learned."""

import itertools
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_runs import EXAMPLES, TASKS, rotations

import metareplay as mr
from metareplay.errors import InputError
from metareplay.experiments import following
from metareplay.experiments.base import BaseRecord
from metareplay.runners.memory_view import MemoryView


class Told(mr.Follower):
    """Keeps everything that it is told, and looks at the memory."""

    def __init__(self) -> None:
        self.runs: list[mr.FollowedRun] = []
        self.news: list[mr.Measurements] = []
        self.records: list[BaseRecord] = []
        self.reasons: list[str | None] = []
        self.memories: list[Any] = []

    def begin(self, run: mr.FollowedRun) -> None:
        self.runs.append(run)

    def measure(self, news: mr.Measurements) -> None:
        self.news.append(news)
        self.memories.append(MemoryView(self.runs[-1].learner).shown())

    def end(self, record: BaseRecord) -> None:
        self.records.append(record)

    def stop(self, reason: str | None) -> None:
        self.reasons.append(reason)


class Clumsy(mr.Follower):
    """Raises an error as soon as it is told a certain thing."""

    def __init__(self, when: str) -> None:
        self.when, self.calls = when, list[str]()

    def begin(self, run: mr.FollowedRun) -> None:
        del run
        self._called("begin")

    def measure(self, news: mr.Measurements) -> None:
        del news
        self._called("measure")

    def end(self, record: BaseRecord) -> None:
        del record
        self._called("end")

    def _called(self, name: str) -> None:
        self.calls.append(name)
        torch.rand(3)  # nobody else's draws change by this
        if name == self.when:
            raise OSError("no space left\non the device")


@pytest.fixture
def _always_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Followers are told at every step."""
    monkeypatch.setattr(following, "EVERY", 0.0)
    monkeypatch.setattr(following, "SHARE", 1e9)


def learner(kind: Callable[..., Any] = mr.MER, **options: Any) -> mr.Learner:
    made: mr.Learner = kind(mr.networks.mlp(784, (8,), 10, seed=0), lr=0.05, seed=0, **options)
    return made


@pytest.mark.usefixtures("_always_due")
def test_a_follower_is_told_everything() -> None:
    told = Told()
    record = mr.run(learner(memory=mr.Reservoir(8), s=2, k=3), rotations(0), follow=[told], alignment=2)
    (run,) = told.runs
    assert (run.key, run.tasks, run.label) == (record.key, TASKS, "MER on Rotations, seed 0")
    assert run.settings["settings"]["k"] == 3
    assert run.settings["stream"]["tasks"] == TASKS
    assert [news.seen for news in told.news] == sorted(news.seen for news in told.news)
    last = told.news[-1]
    assert (last.seen, last.total, last.task) == (TASKS * EXAMPLES, TASKS * EXAMPLES, TASKS - 1)
    assert list(last.accuracy) == record.accuracy[-1].tolist()
    first = [value for _, value in last.curves["accuracy of task 1"]]
    column = record.accuracy[:, 0]
    assert first == column[~(column != column)].tolist()
    assert [at for at, _ in last.curves["accuracy of task 2"]][-1] == TASKS * EXAMPLES
    assert last.per_second is not None
    assert last.per_second > 0
    assert told.records == [record]
    assert told.reasons == []


@pytest.mark.usefixtures("_always_due")
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(memory=st.sampled_from([mr.Reservoir, mr.Recent, mr.Balanced]), capacity=st.integers(1, 40), s=st.integers(1, 2))
def test_looking_at_the_memory_changes_no_weights_and_no_draws(memory: Any, capacity: int, s: int) -> None:
    made = [learner(memory=memory(capacity), s=s, k=3) for _ in range(2)]
    told = Told()
    records = [mr.run(one, rotations(0), follow=follow) for one, follow in zip(made, ([told], []), strict=True)]
    assert records[0].weights == records[1].weights
    assert records[0].key == records[1].key
    one, other = (found.own_memory for found in made)
    assert one is not None
    assert other is not None
    assert one.numbers().tolist() == other.numbers().tolist()
    shown = told.memories[-1]
    assert shown["held"] == min(capacity, TASKS * EXAMPLES)
    assert dict(shown["classes"]) == {str(label): count for label, count in one.class_counts().items()}


@pytest.mark.usefixtures("_always_due")
@pytest.mark.parametrize("when", ["begin", "measure", "end"])
def test_a_follower_that_raises_is_left_out_with_one_warning(when: str, caplog: pytest.LogCaptureFixture) -> None:
    clumsy, told = Clumsy(when), Told()
    with caplog.at_level(logging.WARNING, "metareplay"):
        record = mr.run(learner(memory=mr.Reservoir(8)), rotations(0), follow=[clumsy, told])
    assert clumsy.calls.count(when) == 1
    assert clumsy.calls[-1] == when
    (line,) = caplog.messages
    assert line == "Clumsy does not follow MER on Rotations, seed 0 any more (OSError: no space left); the run goes on"
    assert told.records == [record]
    assert record.weights == mr.run(learner(memory=mr.Reservoir(8)), rotations(0)).weights


def test_a_failure_and_an_interruption_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, reason in ((ValueError("bad\nworse"), "bad"), (KeyboardInterrupt(), None)):
        told = Told()

        def fail(*_: Any, error: BaseException = error) -> None:
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(mr.MER, "learn", fail)
            with pytest.raises(type(error)):
                mr.run(learner(memory=mr.Reservoir(8)), rotations(0), follow=[told])
        assert (told.reasons, told.records) == ([reason], [])


@pytest.mark.usefixtures("_always_due")
def test_a_prequential_run_is_followed() -> None:
    told = Told()
    record = mr.prequential(learner(mr.Online), rotations(0), every=20, follow=[told])
    last = told.news[-1]
    assert [value for _, value in last.curves["prequential window accuracy"]] == record.points["window_accuracy"]
    assert [at for at, _ in last.curves["prequential accuracy"]] == [20, 40, 60]
    assert last.accuracy == []
    assert told.memories[-1] is None
    assert told.records == [record]


def test_news_come_no_more_than_twice_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told = iter(range(1000)), Told()
    monkeypatch.setattr("metareplay.experiments.following.time.monotonic", lambda: next(clock) * 0.05)
    mr.run(learner(memory=mr.Reservoir(8)), rotations(0), follow=[told], full_matrix=True)
    moments = [news.seconds for news in told.news[:-1]]
    assert all(later - sooner >= following.EVERY for sooner, later in itertools.pairwise(moments))


def test_a_slow_follower_is_told_as_rarely_as_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    class Slow(Told):
        def measure(self, news: mr.Measurements) -> None:
            super().measure(news)
            clock[0] += 1.0

    slow = Slow()
    monkeypatch.setattr("metareplay.experiments.following.time.monotonic", lambda: clock[0])
    work = mr.Run(learner(mr.Online), rotations(0))
    with following.Following(work, [slow]) as told:
        for _ in range(300):
            clock[0] += 1.0
            told.step(mr.Progress("learning", 0, 0, None))
    assert len(slow.news) == 2  # one second in 250, at most


@pytest.mark.usefixtures("_always_due")
@pytest.mark.parametrize("older", [False, True])
def test_a_continued_run_keeps_the_places_of_its_measurements(
    older: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.ckpt"
    work = mr.Run(learner(mr.Online), rotations(0), checkpoint=path)
    for step in work.steps():
        if step.seen > EXAMPLES:
            break
    if older:
        monkeypatch.setattr(work, "_seen_at", {})
    work.save()
    told = Told()
    mr.run(learner(mr.Online), rotations(0), checkpoint=path, follow=[told])
    whole = Told()
    mr.run(learner(mr.Online), rotations(0), follow=[whole])
    names = [f"accuracy of task {task + 1}" for task in range(TASKS)]
    for name in names:
        assert list(told.news[-1].curves[name]) == list(whole.news[-1].curves[name])
        written = {point for news in told.news for point in news.curves.get(name, [])}
        assert written == set(told.news[-1].curves[name])  # no point has moved


def test_a_follower_that_cannot_be_made_is_left_out_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    def unmade(folder: str) -> mr.Follower:
        raise OSError(f"{folder} is full\nor so")

    with caplog.at_level(logging.WARNING, "metareplay"):
        (found,) = following.made([partial(unmade, "runs"), Told], "one run")
    assert isinstance(found, Told)
    assert caplog.messages == ["unmade does not follow one run any more (OSError: runs is full); the run goes on"]


@pytest.mark.parametrize("given", [3, "tensorboard", [3], [Told]])
def test_what_is_no_list_of_followers_is_refused(given: Any) -> None:
    with pytest.raises(InputError, match="followers"):
        mr.run(learner(mr.Online), rotations(0), follow=given)
