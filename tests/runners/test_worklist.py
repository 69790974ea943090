"""Runs that fail while others go on, and processes that share a folder."""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from small_runs import instead_of_mnist

import metareplay as mr
from metareplay.errors import DiskError
from metareplay.experiments import AnyExperiment, Experiment, pack
from metareplay.runners import Failure, Threads, Watcher, carry_out, claims, forget_failures, threads
from metareplay.runners.claims import Claim
from metareplay.runners.runner import SILENT, checkpoint_path
from metareplay.runners.worklist import Worklist


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    instead_of_mnist(monkeypatch)
    monkeypatch.setattr(threads, "OTHERS", 0.01)


def experiments(count: int, **options: float) -> list[Experiment]:
    return [
        Experiment(
            learner="mer", memory=5, tasks=2, examples=10, hidden=(4,), test_examples=5, seed=seed, options=options
        )
        for seed in range(count)
    ]


WILD = Experiment(learner="mer", memory=20, tasks=2, examples=60, options={"lr": 1e38})


def weights(found: list[Any]) -> list[str]:
    return [one.weights for one in found]


class Noting(Watcher):
    def __init__(self) -> None:
        self.failures: list[Failure] = []
        self.ended: list[tuple[int, bool]] = []
        self.said: list[str] = []

    def failed(self, experiment: AnyExperiment, failure: Failure) -> None:
        assert experiment.key == failure.key
        self.failures.append(failure)

    def end(self, experiment: AnyExperiment, finished: bool) -> None:
        self.ended.append((experiment.seed, finished))

    def remark(self, text: str) -> None:
        self.said.append(text)


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let the run with seed 0 raise an error, after its checkpoint was written."""

    def fail(one: Experiment, folder: Path, **options: Any) -> mr.Record:
        if one.seed == 0:
            next(one.start(checkpoint=checkpoint_path(folder, one.key)).steps())
            raise error
        return carry_out(one, folder, **options)

    monkeypatch.setattr(threads, "carry_out", fail)


# Failures


def test_the_others_go_on_and_the_failure_is_kept(tmp_path: Path, ran: list[Experiment]) -> None:
    given, watcher = [WILD, *experiments(3)], Noting()
    found = Threads(2).run(given, tmp_path, keep_going=True, watcher=watcher)
    (failure, *records) = found
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.key) == ("not finite", WILD.key)
    assert weights(records) == weights(Threads(1).run(experiments(3), tmp_path / "again"))
    assert watcher.failures == [failure]
    assert sorted(watcher.ended) == [(0, False), (0, True), (1, True), (2, True)]
    assert sorted(path.suffix for path in tmp_path.glob("*.*")) == [".failed", *[".json"] * 3]
    count, again = len(ran), Noting()
    assert Threads(2).run(given, tmp_path, keep_going=True, watcher=again) == found
    assert len(ran) == count
    assert again.said[1] == "1 of 4 runs failed before and are not tried again"


def test_a_forgotten_failure_is_tried_again(tmp_path: Path, ran: list[Experiment]) -> None:
    Threads(1).run([WILD], tmp_path, keep_going=True)
    assert forget_failures([WILD], tmp_path) == 1
    for fresh in (False, True):
        (failure,) = Threads(1).run([WILD], tmp_path, keep_going=True, fresh=fresh)
        assert isinstance(failure, Failure)
    assert len(ran) == 3


def test_without_keeping_going_a_failure_does_not_count(tmp_path: Path) -> None:
    Threads(1).run([WILD], tmp_path, keep_going=True)
    with pytest.raises(mr.NonFiniteError):
        Threads(1).run([WILD], tmp_path)


def test_a_record_removes_the_failure(tmp_path: Path) -> None:
    (one,) = experiments(1)
    Failure.of(one, "why").write(tmp_path)
    (record,) = Threads(1).run([one], tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]
    Failure.of(one, "it was written by somebody else, in the meantime").write(tmp_path)
    assert Threads(1).run([one], tmp_path, keep_going=True) == [record]
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


@pytest.mark.parametrize(("error", "kept"), [(MemoryError(), True), (TypeError("wrong\ntype"), False)])
def test_any_error_of_a_run_is_a_failure(
    error: Exception, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        failing(patch, error)
        (failure, record) = Threads(1).run(experiments(2), tmp_path, keep_going=True)
    assert isinstance(failure, Failure)
    assert failure.reason.startswith(type(error).__name__)
    assert isinstance(record, mr.Record)
    assert checkpoint_path(tmp_path, failure.key).exists() == kept
    assert not list(tmp_path.glob(".*.claim"))
    forget_failures(experiments(2), tmp_path)
    assert weights(Threads(1).run(experiments(2), tmp_path)) == weights(Threads(1).run(experiments(2), tmp_path / "x"))
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("error", [mr.DataError("no data"), DiskError("full"), KeyboardInterrupt()])
def test_what_concerns_all_runs_stops_them(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, error)
    with pytest.raises(type(error)):
        Threads(1).run(experiments(2), tmp_path, keep_going=True)
    assert not list(tmp_path.glob("*.failed"))
    assert not list(tmp_path.glob(".*.claim"))


# Several processes in one folder


def test_two_share_the_work(tmp_path: Path, ran: list[Experiment]) -> None:
    given, answers = experiments(12), list[list[Any]]()
    both = [
        threading.Thread(target=lambda: answers.append(Threads(2).run(given, tmp_path, keep_going=True)))
        for _ in range(2)
    ]
    for one in both:
        one.start()
    for one in both:
        one.join(60)
    assert sorted(one.seed for one in ran) == list(range(12))
    expected = weights(Threads(1).run(given, tmp_path / "again"))
    assert [weights(answer) for answer in answers] == [expected, expected]
    assert sorted(path.suffix for path in tmp_path.iterdir() if path.is_file()) == [".json"] * 12


def meanwhile(folder: Path, key: str, do: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let somebody else have claimed a run, who does something once the others have been run, and gives it back."""
    claim = Claim.take(folder, key)
    assert claim is not None

    def wait(_seconds: float) -> None:
        do()
        claim.give_back()

    monkeypatch.setattr("metareplay.runners.threads.time.sleep", wait)


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("keep_going", [False, True])
def test_what_somebody_else_finishes_is_not_run(
    keep_going: bool, fresh: bool, tmp_path: Path, ran: list[Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    given, watcher = experiments(3), Noting()
    if fresh:
        Threads(1).run(given, tmp_path)
        ran.clear()
    meanwhile(tmp_path, given[0].key, partial(carry_out, given[0], tmp_path, fresh=True), monkeypatch)
    found = Threads(1).run(given, tmp_path, keep_going=keep_going, fresh=fresh, watcher=watcher)
    assert [one.seed for one in ran] == [1, 2]
    assert watcher.ended == [(1, True), (2, True), (0, True)]
    assert weights(found) == weights(Threads(1).run(given, tmp_path / "again"))
    assert len(list(tmp_path.glob("*.*"))) == 3


def test_what_somebody_else_gives_up_is_taken_over(
    tmp_path: Path, ran: list[Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = experiments(3)

    def begin() -> None:
        next(given[0].start(checkpoint=checkpoint_path(tmp_path, given[0].key)).steps())

    meanwhile(tmp_path, given[0].key, begin, monkeypatch)
    found = Threads(1).run(given, tmp_path)
    assert [one.seed for one in ran] == [1, 2, 0]
    assert weights(found) == weights(Threads(1).run(given, tmp_path / "again"))
    assert len(list(tmp_path.glob("*.*"))) == 3


def test_what_fails_elsewhere_is_a_failure_here(
    tmp_path: Path, ran: list[Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = experiments(2)
    failure = Failure.of(given[0], "why")
    meanwhile(tmp_path, given[0].key, partial(failure.write, tmp_path), monkeypatch)
    assert Threads(1).run(given, tmp_path, keep_going=True)[0] == failure
    assert [one.seed for one in ran] == [1]


def test_after_claiming_it_looks_again(tmp_path: Path, ran: list[Experiment], monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else may have finished a run between the first look and the claim."""
    (one,) = experiments(1)
    take = Claim.take

    def late(folder: Path, key: str) -> Claim | None:
        if key == one.key and not ran:
            ran.append(one)
            carry_out(one, folder)
        return take(folder, key)

    monkeypatch.setattr(Claim, "take", late)
    assert weights(Threads(1).run([one], tmp_path)) == weights(Threads(1).run([one], tmp_path / "again"))
    assert len(list(tmp_path.glob("*.*"))) == 1


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    (done, due) = experiments(2)
    Threads(1).run([done], tmp_path)
    kept = [".notes.part", ".0123456789abcdef.ckpt", f"{done.key}.txt"]
    left = [f"..{one.key}.ckpt.7.part" for one in (done, due)]
    left += [f".MER-Rotations-seed0-{one.key}.json.7.part" for one in (done, due)]
    left += [f".{one.key}.claim" for one in (done, due)] + [f".{done.key}.ckpt"]
    for name in (*left, *kept):
        (tmp_path / name).touch()
    Threads(1).run([done, due], tmp_path)
    assert {path.name for path in tmp_path.iterdir() if path.suffix != ".json"} == set(kept)


def test_what_somebody_else_is_doing_is_not_tidied_up(tmp_path: Path) -> None:
    (one,) = experiments(1)
    Threads(1).run([one], tmp_path)
    part = tmp_path / f"..{one.key}.ckpt.7.part"
    part.touch()
    claim = Claim.take(tmp_path, one.key)
    assert claim is not None
    with claim:
        Threads(1).run([one], tmp_path)
        assert part.exists()


def test_without_locks_it_says_so_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "_locks", None)
    watcher = Noting()
    Threads(2).run(experiments(3), tmp_path, watcher=watcher)
    assert watcher.said == [f"{tmp_path} has no file locks: other processes that use it will not share the work"]


def test_a_damaged_record_is_left_alone_and_run_again(tmp_path: Path, ran: list[Experiment]) -> None:
    (one,) = experiments(1)
    Threads(1).run([one], tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_text("{")
    assert len(Threads(1).run([one], tmp_path)) == 1
    assert len(ran) == 2
    assert path.read_text() == "{"


def test_what_is_left_is_decided_without_reading_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = experiments(4)
    found = Threads(1).run(given[:3], tmp_path)
    pack([one for one in found[:1] if isinstance(one, mr.Record)], tmp_path / "all.jsonl")
    next(tmp_path.glob(f"*-{given[0].key}.json")).unlink()
    with monkeypatch.context() as patch:
        patch.setattr(mr.Record, "from_json", None)
        work = Worklist(given, tmp_path, fresh=False, keep_going=True, watcher=SILENT)
        assert work.due == given[3:]
    assert work.unreadable() == []
    assert work.results()[1:] == [*found[1:], None]


def test_all_that_failed_to_stay_finite_are_counted(tmp_path: Path) -> None:
    work = Worklist([WILD, *experiments(1)], tmp_path, fresh=False, keep_going=False, watcher=SILENT)
    work.refuse(WILD, mr.NonFiniteError("a"))
    work.refuse(work.due[1], mr.NonFiniteError("b"))
    with pytest.raises(mr.NonFiniteError, match=r"^mer 20, rotations, seed 0: a \(and 1 other runs likewise\)$"):
        work.results()
