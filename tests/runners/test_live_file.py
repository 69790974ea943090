"""A run shows how it is going in a small file, which goes when the record has come."""

import json
import os
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_builds import build
from small_runs import instead_of_mnist

import metareplay as mr
from metareplay._core.files import MACHINE
from metareplay.errors import DiskError
from metareplay.experiments import AnyExperiment, Experiment, OwnExperiment, following
from metareplay.runners import Processes, Threads, Watcher, carry_out
from metareplay.runners.announcement import Announcement
from metareplay.runners.live_file import CURVES, _latest, _thinned, live_path
from metareplay.runners.memory_view import MemoryView
from metareplay.runners.runner import StoppedError


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    instead_of_mnist(monkeypatch)
    monkeypatch.setattr(following, "EVERY", 0.0)
    monkeypatch.setattr(following, "SHARE", 1e9)


def experiment(seed: int = 0) -> Experiment:
    return Experiment(learner="er", memory=20, tasks=2, examples=60, seed=seed)


class Reading(Watcher):
    """Reads the run's file at every step, and all names in the folder."""

    def __init__(self, folder: Path, stop: Event | None = None) -> None:
        self.folder, self.stop = folder, stop
        self.found: list[dict[str, Any]] = []
        self.names = set[str]()

    def step(self, experiment: AnyExperiment, progress: mr.Progress, tasks: int) -> None:
        del tasks
        self.names |= {path.name for path in self.folder.iterdir()}
        path = live_path(self.folder, experiment.key)
        if path.exists():
            self.found.append(json.loads(path.read_text()))
        if self.stop is not None and progress.seen:
            self.stop.set()


def test_a_run_shows_itself_until_its_record_is_there(tmp_path: Path) -> None:
    one, watcher = experiment(), Reading(tmp_path)
    record = carry_out(one, tmp_path, watcher=watcher)
    first, last = watcher.found[0], watcher.found[-1]
    assert (first["key"], first["label"], first["state"], first["tasks"]) == (one.key, one.label, "running", 2)
    assert (first["process"], first["machine"], first["learner"]) == (os.getpid(), MACHINE, "ER")
    assert 0 < last["seen"] <= last["total"] == 120
    assert last["memory"]["held"] == 20
    assert last["memory"]["pictures"]["shape"] == [20, 28, 28, 1]
    assert len(last["memory"]["labels"]) == 20
    assert [path.name for path in tmp_path.iterdir()] == [f"{record.name}.json"]


def test_an_interrupted_run_says_so_and_goes_on(tmp_path: Path) -> None:
    one, stop = experiment(), Event()
    with pytest.raises(StoppedError):
        carry_out(one, tmp_path, watcher=Reading(tmp_path, stop), stop=stop)
    assert json.loads(live_path(tmp_path, one.key).read_text())["state"] == "stopped"
    record = carry_out(one, tmp_path)
    assert not live_path(tmp_path, one.key).exists()
    assert record.weights == carry_out(one, tmp_path / "again").weights


def test_a_failure_is_shown_and_what_a_killed_process_left_goes_with_the_record(tmp_path: Path) -> None:
    bad = Experiment(learner="er", memory=20, tasks=2, examples=60, options={"lr": 1e30})
    with pytest.raises(mr.NonFiniteError):
        Threads(1).run([bad], tmp_path)
    shown = json.loads(live_path(tmp_path, bad.key).read_text())
    assert shown["state"] == "failed"
    assert "not finite" in shown["reason"]
    Threads(1).run([bad], tmp_path, keep_going=True)
    assert not live_path(tmp_path, bad.key).exists()  # its failure has a file of its own now
    one = experiment()
    (record,) = Threads(1).run([one], tmp_path)
    live_path(tmp_path, one.key).write_text("{}")
    assert Threads(1).run([one], tmp_path)[0] is not None
    assert record is not None
    assert not live_path(tmp_path, one.key).exists()


def test_a_folder_without_room_disturbs_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise DiskError("no space left on device")

    expected = carry_out(experiment(), tmp_path / "one").weights
    monkeypatch.setattr("metareplay.runners.live_file.write_atomically", refuse)
    assert carry_out(experiment(), tmp_path / "other").weights == expected


def test_several_runs_are_announced_as_long_as_they_are_due(tmp_path: Path) -> None:
    watcher = Reading(tmp_path)
    Threads(1).run([experiment(seed) for seed in range(2)], tmp_path, watcher=watcher)
    (name,) = [name for name in watcher.names if name.endswith(".waiting")]
    assert name.startswith(f".{MACHINE}-{os.getpid()}-")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_an_announcement_says_how_far_runs_have_come_together(tmp_path: Path) -> None:
    dead = tmp_path / f".{MACHINE}-4194305-0.waiting"
    dead.write_text("{}")
    announced = Announcement(tmp_path, [experiment(0), experiment(1)])
    announced.together(2, 60, 120)
    (path,) = tmp_path.iterdir()  # that of the dead process is gone
    said = json.loads(path.read_text())
    assert said["together"] == {"count": 2, "seen": 60, "total": 120}
    assert [one["key"] for one in said["runs"]] == [experiment(0).key, experiment(1).key]
    assert said["runs"][0]["settings"]["memory"] == 20
    del announced
    assert not path.exists()


class Marking(mr.Follower):
    """Leaves a file for each run that it follows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, run: mr.FollowedRun) -> None:
        self.name = run.key

    def measure(self, news: mr.Measurements) -> None:
        (self.folder / self.name).write_text(str(news.seen))


class Made:
    """Makes followers; it can be sent to another process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self) -> Marking:
        return Marking(self.folder)


@pytest.mark.parametrize("runner", [Threads(2), Processes(1)], ids=["threads", "processes"])
def test_followers_reach_the_runs_wherever_they_are_done(runner: Any, tmp_path: Path) -> None:
    marks, watcher = tmp_path / "marks", Watcher()
    marks.mkdir()
    watcher.followers = [Made(marks)]
    own = [OwnExperiment(build=build, settings={"lr": 0.05}, seed=seed) for seed in range(2)]
    runner.run(own, tmp_path / "runs", watcher=watcher)
    assert {path.name: path.read_text() for path in marks.iterdir()} == {one.key: "60" for one in own}


@given(shape=st.lists(st.integers(1, 40), min_size=1, max_size=3), floats=st.booleans(), held=st.integers(1, 30))
def test_any_memory_can_be_shown(shape: list[int], floats: bool, held: int) -> None:
    size = int(np.prod(shape))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(size, 3))
    learner = mr.ER(model, memory=mr.Reservoir(20), lr=0.01, k=2, engine="torch", seed=0)
    xs = torch.rand(held, *shape) if floats else torch.randint(256, (held, *shape), dtype=torch.uint8)
    assert MemoryView(learner).shown() is None
    learner.observe_many(xs, torch.arange(held) % 3)
    shown = MemoryView(learner).shown()
    assert shown is not None
    json.dumps(shown, allow_nan=False)
    assert sum(count for _, count in shown["classes"]) == shown["held"] == min(held, 20)
    assert ("pictures" in shown) != ("rows" in shown)


def test_a_follower_that_cannot_be_made_does_not_fail_the_run(tmp_path: Path) -> None:
    def unmade() -> mr.Follower:
        raise OSError("no room")

    watcher = Watcher()
    watcher.followers = [unmade]
    assert carry_out(experiment(), tmp_path, watcher=watcher).examples == 120


def test_tasks_that_have_been_learned_are_shown_before_those_to_come() -> None:
    """Of a thousand tasks, every one has been measured once before the first example."""
    measured = {f"accuracy of task {task}": [(0, 10.0), (5, 90.0)][: 2 if task < 100 else 1] for task in range(1000)}
    shown = [name for name, _ in _latest({**measured, "examples per second": [(1, 2.0), (3, 4.0)]})]
    assert len(shown) == CURVES
    assert shown[-101:] == [*list(measured)[:100], "examples per second"]


def test_small_and_large_values_keep_six_digits() -> None:
    assert _thinned([(1, 0.000012345678), (2, 123456.789)]) == [(1, 0.0000123457), (2, 123457.0)]


def test_a_link_at_the_name_of_a_part_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    folder = tmp_path / "runs"
    folder.mkdir()
    one = experiment()
    path = live_path(folder, one.key)
    for name in (f"{path.name}.{MACHINE}-{os.getpid()}.part", f".{path.name}.{MACHINE}-{os.getpid()}.part"):
        path.with_name(name).symlink_to(target)
    carry_out(one, folder)
    assert target.read_text() == "mine"
