"""Worker processes: the same records, whoever dies on the way."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from small_sweep import Small, Trouble, start_nothing

import metareplay as mr
from metareplay.experiments import AnyExperiment
from metareplay.runners import Failure, Processes, Threads, Watcher, processes
from metareplay.runners.claims import Claim
from metareplay.runners.runner import checkpoint_path

FOLDERS = (Path(__file__).parents[1], Path(__file__).parents[2])
DEADLINE = 60.0


def experiments(count: int, **options: Any) -> list[Small]:
    return [Small(seed=seed, **options) for seed in range(count)]


def result(found: Sequence[Any]) -> list[dict[str, Any]]:
    """All of each record but for the time it took and the date."""
    return [one.to_json() | {"seconds": None, "date": None} for one in found]


def expected(folder: Path, given: Sequence[Small]) -> list[dict[str, Any]]:
    return result(Threads(1).run([Small(seed=one.seed, examples=one.examples) for one in given], folder / "expected"))


def files(folder: Path) -> list[str]:
    return sorted(path.suffix for path in folder.iterdir() if path.is_file())


class Noting(Watcher):
    def __init__(self) -> None:
        self.begun: list[int] = []
        self.steps: list[int] = []
        self.ended: list[tuple[int, bool]] = []
        self.failures: list[Failure] = []
        self.said: list[str] = []

    def begin(self, experiments: Sequence[AnyExperiment]) -> None:
        self.begun = [one.seed for one in experiments]

    def step(self, experiment: AnyExperiment, progress: mr.Progress, tasks: int) -> None:
        assert tasks == 2
        assert 0 <= progress.seen <= 40
        self.steps.append(experiment.seed)

    def end(self, experiment: AnyExperiment, finished: bool) -> None:
        self.ended.append((experiment.seed, finished))

    def failed(self, experiment: AnyExperiment, failure: Failure) -> None:
        assert experiment.key == failure.key
        self.failures.append(failure)

    def remark(self, text: str) -> None:
        self.said.append(text)


def test_the_same_records_as_on_threads(tmp_path: Path) -> None:
    given, watcher = [*experiments(3), Small(seed=3, examples=30), Small(seed=0)], Noting()
    found = Processes(2).run(given, tmp_path, watcher=watcher)
    assert result(found) == expected(tmp_path, given)
    assert found[0] is found[4]
    assert watcher.begun == [3, 0, 1, 2]
    assert sorted(watcher.ended) == [(0, True), (1, True), (2, True), (3, True)]
    assert set(watcher.steps) == {0, 1, 2, 3}
    assert files(tmp_path) == [".json"] * 4
    assert Processes(2).run(given, tmp_path) == found  # from the records


def test_what_workers_log_is_said_once_by_the_watcher_who_owns_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    watcher = Noting()
    Processes(2).run(experiments(3, trouble="warning"), tmp_path, watcher=watcher)
    assert [one for one in watcher.said if "seconds" in one] == ["it takes 20 seconds"]
    assert "seconds" not in capfd.readouterr().err


def test_failures_of_every_kind_and_the_others_go_on(tmp_path: Path) -> None:
    troubles: tuple[Trouble, ...] = ("nan", "error", "memory", "killed always")
    given = [Small(lr=0.1 + number, trouble=trouble) for number, trouble in enumerate(troubles, 1)]
    watcher = Noting()
    found = Processes(2).run([*given, *experiments(2)], tmp_path, keep_going=True, watcher=watcher)
    failures = [one for one in found if isinstance(one, Failure)]
    assert [one.kind for one in failures] == ["not finite", "error", "memory", "lost"]
    assert failures[1].reason == "TypeError: something"
    assert failures[3].reason == "its process ended 3 times (killed by SIGKILL: is there enough memory?)"
    assert sorted(one.key for one in watcher.failures) == sorted(one.key for one in failures)
    assert result(found[4:]) == expected(tmp_path, experiments(2))
    assert len([text for text in watcher.said if "it is tried again" in text]) == 2
    assert sorted(path.name for path in tmp_path.glob(".*")) == sorted(f".{one.key}.ckpt" for one in given[2:])
    assert Processes(1).run([*given, *experiments(2)], tmp_path, keep_going=True) == found


def test_a_worker_that_is_killed_is_replaced_and_its_run_goes_on(tmp_path: Path) -> None:
    (one,) = experiments(1, trouble="killed once")
    watcher = Noting()
    found = Processes(1).run([one, *experiments(2)[1:]], tmp_path, fresh=True, watcher=watcher)
    assert result(found) == expected(tmp_path, experiments(2))
    path = checkpoint_path(tmp_path, one.key)
    assert f"{one.label}: continuing from {path}" in watcher.said
    assert files(tmp_path) == ["", ".json", ".json"]


@pytest.mark.parametrize(
    ("trouble", "error", "message"),
    [
        ("nan", mr.NonFiniteError, "^small, lr 0.1, seed 0: example 12 made"),
        pytest.param("error", TypeError, "something\nis wrong", marks=pytest.mark.slow),
        ("killed always", mr.MetareplayError, "^small, lr 0.1, seed 0: its process ended 3 times"),
    ],
)
def test_without_keeping_going_errors_are_raised(
    trouble: Trouble, error: type[Exception], message: str, tmp_path: Path
) -> None:
    given = [Small(trouble=trouble), *experiments(2)[1:]]
    with pytest.raises(error, match=message):
        Processes(2).run(given, tmp_path)
    assert not list(tmp_path.glob("*.failed"))
    assert not list(tmp_path.glob(".*.claim"))


@pytest.mark.parametrize(
    ("reduced", "message"),
    [
        (lambda: None, r"cannot be sent to another process \(.*\): define it at the top of a module"),
        (attrgetter("build"), r"cannot be read in another process \(AttributeError: .*'build'\): define it"),
    ],
)
def test_what_cannot_go_to_another_process_is_refused_in_one_line(
    reduced: Callable[..., object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Small, "__reduce__", lambda _: (reduced, (1,)), raising=False)
    with pytest.raises(mr.InputError, match=f"^small, lr 0.1, seed 0 {message}"):
        Processes(1).run(experiments(1), tmp_path, keep_going=True)


def test_a_script_without_a_guard_is_told_to_have_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker reads the script from which it was started, and ends where that starts workers again."""
    with monkeypatch.context() as patch:
        patch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
        with pytest.raises(SystemExit):
            Processes(1).run(experiments(1), tmp_path)
    monkeypatch.setattr(processes, "serve", start_nothing)
    with pytest.raises(mr.MetareplayError, match=r"^a worker process did not start \(exit code 1\): put what starts"):
        Processes(1).run(experiments(1), tmp_path)


# Scripts


def script(folder: Path, text: str) -> "subprocess.Popen[str]":
    path = folder / "script.py"
    path.write_text(text)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, FOLDERS))}
    return subprocess.Popen([sys.executable, str(path)], env=environment, cwd=folder, stderr=subprocess.PIPE, text=True)


def answer(process: "subprocess.Popen[str]") -> str:
    try:
        return process.communicate(timeout=DEADLINE)[1]
    finally:
        process.kill()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


SLOW = """
from pathlib import Path
from small_sweep import Small
from metareplay.runners import Processes

if __name__ == "__main__":
    Processes(2).run([Small(seed=seed, trouble="slow") for seed in range(4)], Path('runs'))
"""


@pytest.mark.parametrize("how", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL])
def test_when_the_driver_ends_the_workers_save_and_end(how: signal.Signals, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    process = script(tmp_path, SLOW)
    until(lambda: len(list(folder.glob(".*.ckpt"))) == 2 or process.poll() is not None)
    first = {path.name: path.stat().st_mtime_ns for path in folder.glob(".*.ckpt")}
    assert len(first) == 2
    process.send_signal(how)
    answer(process)
    until(lambda: not any(map(claimed, experiments(4), [folder] * 4)))
    later = {path.name: path.stat().st_mtime_ns for path in folder.glob(".*.ckpt")}
    assert all(later[name] > written for name, written in first.items() if name in later)
    found = Processes(2).run(experiments(4), folder)
    assert result(found) == expected(tmp_path, experiments(4))
    assert files(folder) == [".json"] * 4


def claimed(one: Small, folder: Path) -> bool:
    claim = Claim.take(folder, one.key)
    if claim is None:
        return True
    claim.give_back()
    return False


def test_two_pools_share_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    process = script(tmp_path, SLOW)
    until(lambda: len(list(folder.glob(".*.ckpt"))) == 2 or process.poll() is not None)
    watcher = Noting()
    found = Processes(2).run(experiments(4, trouble="slow"), folder, watcher=watcher)
    assert answer(process) == ""
    assert result(found) == expected(tmp_path, experiments(4))
    assert len(set(watcher.steps)) == 2  # the other two were done by the script
    assert sorted(watcher.ended) == [(seed, True) for seed in range(4)]
    assert files(folder) == [".json"] * 4
