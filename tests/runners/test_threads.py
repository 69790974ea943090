"""Experiments side by side."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import instead_of_mnist

import metareplay as mr
from metareplay.experiments import AnyExperiment, Experiment, pack
from metareplay.runners import Threads, Watcher, carry_out, threads
from metareplay.runners.runner import checkpoint_path


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    instead_of_mnist(monkeypatch)


def experiments(count: int, **options: float) -> list[Experiment]:
    return [
        Experiment(learner="mer", memory=20, tasks=2, examples=60, seed=seed, options=options) for seed in range(count)
    ]


def run_all(given: Sequence[Experiment], folder: Path, jobs: int = 1, **options: Any) -> list[mr.Record]:
    found = Threads(jobs).run(given, folder, **options)
    records = [record for record in found if isinstance(record, mr.Record)]
    assert len(records) == len(given)
    return records


class Noting(Watcher):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.begun: list[list[int]] = []
        self.ended: list[tuple[int, bool]] = []
        self.seen: dict[int, list[int]] = {}

    def begin(self, experiments: Sequence[AnyExperiment]) -> None:
        self.begun.append([one.seed for one in experiments])

    def step(self, experiment: AnyExperiment, progress: mr.Progress, tasks: int) -> None:
        assert (tasks, progress.total) == (2, 120)
        self.seen.setdefault(experiment.seed, []).append(progress.seen)

    def end(self, experiment: AnyExperiment, finished: bool) -> None:
        self.ended.append((experiment.seed, finished))

    def remark(self, text: str) -> None:
        self.said.append(text)


def weights(records: list[mr.Record]) -> list[str]:
    return [record.weights for record in records]


def test_the_same_records_however_many_run_at_once(tmp_path: Path) -> None:
    one = run_all(experiments(4), tmp_path / "one", jobs=1)
    four = run_all(experiments(4), tmp_path / "four", jobs=4)
    assert weights(one) == weights(four)
    assert [record.seed for record in four] == [0, 1, 2, 3]
    assert len(list((tmp_path / "four").glob("*.json"))) == 4
    assert not list((tmp_path / "four").glob(".*"))


def test_numbers_that_are_not_finite_in_one_do_not_stop_the_others(tmp_path: Path) -> None:
    wrong = Experiment(learner="mer", memory=20, tasks=2, examples=60, options={"lr": 1e38})
    with pytest.raises(mr.NonFiniteError):
        run_all([wrong, *experiments(3)], tmp_path, jobs=1)
    assert len(list(tmp_path.glob("*.json"))) == 3
    records = run_all(experiments(3), tmp_path, jobs=2)
    assert weights(records) == weights(run_all(experiments(3), tmp_path / "again"))


def test_an_error_in_one_stops_the_others_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(one: Experiment, *given: Any, **options: Any) -> mr.Record:
        if one.seed == 0:
            raise mr.MetareplayError("the disk is full")
        return carry_out(one, *given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(threads, "carry_out", fail)
        with pytest.raises(mr.MetareplayError, match="the disk is full"):
            run_all(experiments(3), tmp_path, jobs=1)
    records = run_all(experiments(3), tmp_path, jobs=2)
    assert weights(records) == weights(run_all(experiments(3), tmp_path / "again"))


def test_interrupted_and_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()

    def ctrl_c(ended: object) -> None:
        del ended
        asked.wait(5)
        raise KeyboardInterrupt

    steps = mr.Run.steps

    def slow_steps(self: mr.Run):  # type: ignore[no-untyped-def]
        for step in steps(self):
            if step.seen > 30:
                asked.set()
                threading.Event().wait(0.05)
            yield step

    with monkeypatch.context() as patched:
        patched.setattr(threads, "_next", ctrl_c)
        patched.setattr(mr.Run, "steps", slow_steps)
        with pytest.raises(KeyboardInterrupt):
            run_all(experiments(2), tmp_path, jobs=2)
    assert list(tmp_path.glob(".*.ckpt"))
    records = run_all(experiments(2), tmp_path, jobs=2)
    assert weights(records) == weights(run_all(experiments(2), tmp_path / "again"))


@pytest.mark.parametrize("wrong", ["0", "-1", "two", "1.5", ""])
def test_a_wrong_number_of_jobs(wrong: str) -> None:
    with pytest.raises(mr.InputError, match="jobs"):
        threads.count_jobs(wrong)
    with pytest.raises(mr.InputError, match="jobs"):
        Threads(wrong)  # type: ignore[arg-type]


def test_auto_is_at_least_one() -> None:
    assert threads.count_jobs("auto") == Threads().jobs >= 1


def test_stopped_while_measuring_nothing_stays_unmeasured(tmp_path: Path) -> None:
    """A run stopped between two measurements of one row measures the rest when it goes on."""

    def run() -> mr.Run:
        return experiments(1)[0].start(checkpoint=tmp_path / "run.ckpt")

    whole = run()
    steps = [step.doing for step in whole.steps()]
    for stop in [number for number, doing in enumerate(steps) if doing == "evaluating"]:
        (tmp_path / "run.ckpt").unlink()
        work = run()
        for number, _ in enumerate(work.steps()):
            if number == stop:
                work.save()
                break
        again = run()
        list(again.steps())
        np.testing.assert_array_equal(again.measured.values, whole.measured.values)


# What is run


def test_what_has_a_record_is_not_run_again(tmp_path: Path, ran: list[Experiment]) -> None:
    first = run_all(experiments(2), tmp_path)
    assert len(ran) == 2
    watcher = Noting()
    again = run_all(experiments(3), tmp_path, watcher=watcher)
    assert again[:2] == first
    assert [one.seed for one in ran] == [0, 1, 2]
    assert watcher.said == [f"2 of 3 runs are in {tmp_path} already"]


def test_a_record_is_found_by_what_was_run(tmp_path: Path, ran: list[Experiment]) -> None:
    (first, second) = run_all(experiments(2), tmp_path)
    pack([first], tmp_path / "all.jsonl")
    for path in tmp_path.glob("*.json"):
        path.unlink()
    second.write(tmp_path).rename(tmp_path / f"renamed-{second.key}.json")
    found = run_all(experiments(2), tmp_path)
    assert [(record.key, record.date) for record in found] == [(record.key, record.date) for record in (first, second)]
    assert weights(found) == weights([first, second])
    assert len(ran) == 2
    run_all(experiments(2, lr=0.05), tmp_path)
    assert len(ran) == 4


def test_equal_ones_are_run_once_and_all_get_the_record(tmp_path: Path, ran: list[Experiment]) -> None:
    (one, two) = experiments(2)
    found = run_all([one, two, replace(one, engine="cpu"), one], tmp_path, jobs=2)  # any engine gives the same run
    assert [record.seed for record in found] == [0, 1, 0, 0]
    assert len(ran) == 2
    assert found[0] is found[2] is found[3]


def full(record: mr.Record) -> bool:
    return not np.isnan(record.accuracy).any()


@pytest.mark.parametrize("order", [1, -1])
def test_a_run_that_measures_the_whole_matrix_is_another_one(order: int, tmp_path: Path, ran: list[Experiment]) -> None:
    plain = Experiment(learner="online", tasks=3, examples=20)
    both = [plain, replace(plain, full_matrix=True)][::order]
    found = run_all(both, tmp_path)
    assert [full(record) for record in found] == [False, True][::order]
    assert weights(found[:1]) == weights(found[1:])
    assert run_all(both, tmp_path) == found
    assert len(ran) == 2


@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_stopped_with_one_matrix_it_can_be_run_with_the_other(tasks: int, tmp_path: Path) -> None:
    plain = Experiment(learner="online", tasks=tasks, examples=20)
    whole = replace(plain, full_matrix=True)
    for stopped, other in ((plain, whole), (whole, plain)):
        folder = tmp_path / f"{stopped.full_matrix}"
        path = checkpoint_path(folder, stopped.key)
        next(stopped.start(checkpoint=path).steps())
        assert path.exists()
        (record,) = run_all([other], folder)
        assert full(record) == (other.full_matrix or tasks < 3)  # of up to two tasks the metrics need everything
        run_all([stopped], folder)
        assert not list(folder.glob(".*"))


def test_fresh_runs_again_what_has_a_record(tmp_path: Path, ran: list[Experiment]) -> None:
    first = run_all(experiments(2), tmp_path)
    again = run_all(experiments(2), tmp_path, fresh=True)
    assert len(ran) == 4
    assert weights(again) == weights(first)
    assert len(list(tmp_path.iterdir())) == 2


def test_nothing_to_run(tmp_path: Path) -> None:
    assert Threads(1).run([], tmp_path / "new") == []
    assert not (tmp_path / "new").exists()


def test_the_longest_are_begun_first_and_equally_long_ones_in_order(tmp_path: Path, ran: list[Experiment]) -> None:
    sizes = [(10, 0), (40, 1), (20, 2), (40, 3), (10, 4)]
    given = [
        Experiment(learner="online", tasks=1, examples=examples, seed=seed, test_examples=5) for examples, seed in sizes
    ]
    found = run_all(given, tmp_path)
    assert [one.seed for one in ran] == [1, 3, 2, 0, 4]
    assert [record.seed for record in found] == [0, 1, 2, 3, 4]


def test_a_checkpoint_that_outlived_its_record_is_removed(tmp_path: Path) -> None:
    (record,) = run_all(experiments(1), tmp_path)
    left = tmp_path / f".{record.key}.ckpt"
    left.write_bytes(b"killed between the record and this")
    assert run_all(experiments(1), tmp_path) == [record]
    assert not left.exists()


# What a watcher is told


def test_a_watcher_is_told_of_every_run_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    watcher = Noting()
    run_all(experiments(1), tmp_path)
    run_all(experiments(3), tmp_path, jobs=2, watcher=watcher)
    assert watcher.begun == [[1, 2]]  # seed 0 has a record
    assert sorted(watcher.ended) == [(1, True), (2, True)]
    assert watcher.seen.keys() == {1, 2}
    for seen in watcher.seen.values():
        assert seen == sorted(seen)
        assert (seen[0], seen[-1]) == (0, 120)


def test_a_watcher_is_told_of_runs_that_did_not_finish(tmp_path: Path) -> None:
    wrong = Experiment(learner="mer", memory=20, tasks=2, examples=60, seed=9, options={"lr": 1e38})
    watcher = Noting()
    with pytest.raises(mr.NonFiniteError):
        run_all([wrong, *experiments(2)], tmp_path, watcher=watcher)
    assert (9, False) in watcher.ended
    assert {seed for seed, _ in watcher.ended} == {0, 1, 9}


def test_a_watcher_is_told_where_a_run_goes_on(tmp_path: Path) -> None:
    (one,) = experiments(1)
    path = checkpoint_path(tmp_path, one.key)
    next(one.start(checkpoint=path).steps())
    watcher = Noting()
    run_all([one], tmp_path, watcher=watcher)
    assert watcher.said == [f"mer 20, rotations, seed 0: continuing from {path}"]
