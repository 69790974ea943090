"""Experiments side by side."""

import io
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import metareplay as mr
from metareplay.data import Images
from metareplay.experiments.experiment import Experiment
from metareplay.experiments.store import pack
from metareplay.runners import threads as jobs

QUIET = Console(quiet=True)


@pytest.fixture(autouse=True)
def _noise(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    xs, ys = rng.integers(256, size=(300, 28, 28), dtype=np.uint8), rng.integers(10, size=300, dtype=np.uint8)
    monkeypatch.setattr(
        "metareplay.streams.images.mnist", lambda: Images("noise", xs[:200], ys[:200], xs[200:], ys[200:])
    )


def experiments(count: int, **options: float) -> list[tuple[str, Experiment]]:
    return [
        (f"seed {seed}", Experiment(learner="mer", memory=20, tasks=2, examples=60, seed=seed, options=options))
        for seed in range(count)
    ]


def weights(records: list[mr.Record]) -> list[str]:
    return [record.weights for record in records]


def test_the_same_records_however_many_run_at_once(tmp_path: Path) -> None:
    console = Console(quiet=True)
    one = jobs.carry_out_all(experiments(4), tmp_path / "one", console, jobs=1)
    four = jobs.carry_out_all(experiments(4), tmp_path / "four", console, jobs=4)
    assert weights(one) == weights(four)
    assert [record.seed for record in four] == [0, 1, 2, 3]
    assert len(list((tmp_path / "four").glob("*.json"))) == 4
    assert not list((tmp_path / "four").glob(".*"))


def test_an_error_in_one_stops_the_others_and_nothing_is_lost(tmp_path: Path) -> None:
    wrong = ("wrong", Experiment(learner="mer", memory=20, tasks=2, examples=60, options={"lr": 1e38}))
    with pytest.raises(mr.NonFiniteError):
        jobs.carry_out_all([wrong, *experiments(3)], tmp_path, Console(quiet=True), jobs=2)
    records = jobs.carry_out_all(experiments(3), tmp_path, Console(quiet=True), jobs=2)
    assert weights(records) == weights(jobs.carry_out_all(experiments(3), tmp_path / "again", Console(quiet=True)))


def test_interrupted_and_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()

    def ctrl_c(works: list[object]) -> None:
        del works
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
        patched.setattr(jobs, "_watch", ctrl_c)
        patched.setattr(mr.Run, "steps", slow_steps)
        with pytest.raises(KeyboardInterrupt):
            jobs.carry_out_all(experiments(2), tmp_path, Console(quiet=True), jobs=2)
    assert list(tmp_path.glob(".*.ckpt"))
    records = jobs.carry_out_all(experiments(2), tmp_path, Console(quiet=True), jobs=2)
    assert weights(records) == weights(jobs.carry_out_all(experiments(2), tmp_path / "again", Console(quiet=True)))


@pytest.mark.parametrize("wrong", ["0", "-1", "two", "1.5", ""])
def test_a_wrong_number_of_jobs(wrong: str) -> None:
    with pytest.raises(mr.InputError, match="jobs"):
        jobs.count_jobs(wrong)


def test_auto_is_at_least_one() -> None:
    assert jobs.count_jobs("auto") >= 1


def test_stopped_while_measuring_nothing_stays_unmeasured(tmp_path: Path) -> None:
    """A run stopped between two measurements of one row measures the rest when it goes on."""

    def run() -> mr.Run:
        learner, stream = experiments(1)[0][1].build()
        return mr.Run(learner, stream, checkpoint=tmp_path / "run.ckpt")

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
        np.testing.assert_array_equal(again.accuracy, whole.accuracy)


# What is run


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Experiment]:
    """The experiments that were carried out, in the order they were begun."""
    begun: list[Experiment] = []
    carry_out = jobs.carry_out

    def noted(experiment: Experiment, *rest: Any) -> mr.Record:
        begun.append(experiment)
        return carry_out(experiment, *rest)

    monkeypatch.setattr(jobs, "carry_out", noted)
    return begun


def test_what_has_a_record_is_not_run_again(tmp_path: Path, ran: list[Experiment]) -> None:
    first = jobs.carry_out_all(experiments(2), tmp_path, QUIET)
    assert len(ran) == 2
    said = io.StringIO()
    again = jobs.carry_out_all(experiments(3), tmp_path, Console(file=said))
    assert again[:2] == first
    assert [one.seed for one in ran] == [0, 1, 2]
    assert said.getvalue() == f"2 of 3 runs are in {tmp_path} already\n"


def test_a_record_is_found_by_what_was_run(tmp_path: Path, ran: list[Experiment]) -> None:
    (first, second) = jobs.carry_out_all(experiments(2), tmp_path, QUIET)
    pack([first], tmp_path / "all.jsonl")
    for path in tmp_path.glob("*.json"):
        path.unlink()
    second.write(tmp_path).rename(tmp_path / f"renamed-{second.key}.json")
    found = jobs.carry_out_all(experiments(2), tmp_path, QUIET)
    assert [(record.key, record.date) for record in found] == [(record.key, record.date) for record in (first, second)]
    assert weights(found) == weights([first, second])
    assert len(ran) == 2
    jobs.carry_out_all(experiments(2, lr=0.05), tmp_path, QUIET)
    assert len(ran) == 4


def test_equal_ones_are_run_once_and_all_get_the_record(tmp_path: Path, ran: list[Experiment]) -> None:
    (one, two) = experiments(2)
    found = jobs.carry_out_all([one, two, ("another name", one[1]), one], tmp_path, QUIET, jobs=2)
    assert [record.seed for record in found] == [0, 1, 0, 0]
    assert len(ran) == 2
    assert found[0] is found[2] is found[3]


def full(record: mr.Record) -> bool:
    return not np.isnan(record.accuracy).any()


@pytest.mark.parametrize("order", [1, -1])
def test_a_run_that_measures_the_whole_matrix_is_another_one(order: int, tmp_path: Path, ran: list[Experiment]) -> None:
    plain = Experiment(learner="online", tasks=3, examples=20)
    both = [("plain", plain), ("full", replace(plain, full_matrix=True))][::order]
    found = jobs.carry_out_all(both, tmp_path, QUIET)
    assert [full(record) for record in found] == [False, True][::order]
    assert weights(found[:1]) == weights(found[1:])
    assert jobs.carry_out_all(both, tmp_path, QUIET) == found
    assert len(ran) == 2


@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_stopped_with_one_matrix_it_can_be_run_with_the_other(tasks: int, tmp_path: Path) -> None:
    plain = Experiment(learner="online", tasks=tasks, examples=20)
    whole = replace(plain, full_matrix=True)
    for stopped, other in ((plain, whole), (whole, plain)):
        folder = tmp_path / f"{stopped.full_matrix}"
        work = stopped.start()
        work.path = folder / f".{work.key}.ckpt"
        next(work.steps())
        assert work.path.exists()
        (record,) = jobs.carry_out_all([("run", other)], folder, QUIET)
        assert full(record) == (other.full_matrix or tasks < 3)  # of up to two tasks the metrics need everything
        jobs.carry_out_all([("run", stopped)], folder, QUIET)
        assert not list(folder.glob(".*"))


def test_fresh_runs_again_what_has_a_record(tmp_path: Path, ran: list[Experiment]) -> None:
    first = jobs.carry_out_all(experiments(2), tmp_path, QUIET)
    again = jobs.carry_out_all(experiments(2), tmp_path, QUIET, fresh=True)
    assert len(ran) == 4
    assert weights(again) == weights(first)
    assert len(list(tmp_path.iterdir())) == 2


def test_nothing_to_run(tmp_path: Path) -> None:
    assert jobs.carry_out_all([], tmp_path / "new", QUIET) == []
    assert not (tmp_path / "new").exists()


def test_the_bars_count_runs(tmp_path: Path) -> None:
    said = io.StringIO()
    jobs.carry_out_all(experiments(3), tmp_path, Console(file=said, force_terminal=True, width=200), jobs=2)
    assert "all runs: 0 of 3 done" in said.getvalue()
    assert "all runs: 3 of 3 done" in said.getvalue()


# Where it is run


class Elsewhere(Executor):
    """Runs what it is given at once, as another process would: everything goes there and comes back in bytes."""

    def __init__(self) -> None:
        self.given: list[Experiment] = []
        self.ended = False

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        there, given, options = pickle.loads(pickle.dumps((work, args, kwargs)))
        self.given.append(given[0])
        future: Future[Any] = Future()
        try:
            future.set_result(pickle.loads(pickle.dumps(there(*given, **options))))
        except mr.MetareplayError as error:
            future.set_exception(pickle.loads(pickle.dumps(error)))
        return future

    def shutdown(self, *_: object, **__: object) -> None:
        self.ended = True


def test_another_executor_gives_the_same_records(tmp_path: Path) -> None:
    pool = Elsewhere()
    there = jobs.carry_out_all(experiments(3), tmp_path / "there", QUIET, pool=pool)
    assert weights(there) == weights(jobs.carry_out_all(experiments(3), tmp_path / "here", QUIET))
    assert [mr.Record.read(path).seed for path in sorted((tmp_path / "there").glob("*.json"))] == [0, 1, 2]
    assert not list((tmp_path / "there").glob(".*"))
    assert not pool.ended  # it is not ours
    jobs.carry_out_all(experiments(3), tmp_path / "there", QUIET, pool=pool)
    assert len(pool.given) == 3


def test_another_executor_goes_on_from_checkpoints(tmp_path: Path) -> None:
    (_, experiment) = experiments(1)[0]
    work = experiment.start()
    work.path = tmp_path / f".{work.key}.ckpt"
    for step in work.steps():
        if step.seen > 20:
            work.save()
            break
    (record,) = jobs.carry_out_all([("run", experiment)], tmp_path, QUIET, pool=Elsewhere())
    assert weights([record]) == weights(jobs.carry_out_all([("run", experiment)], tmp_path / "again", QUIET))


def test_an_error_elsewhere_is_raised_here(tmp_path: Path) -> None:
    wrong = ("wrong", Experiment(learner="mer", memory=20, tasks=2, examples=60, options={"lr": 1e38}))
    with pytest.raises(mr.NonFiniteError):
        jobs.carry_out_all([wrong, *experiments(1)], tmp_path, QUIET, pool=Elsewhere())


def test_the_longest_are_begun_first_and_equally_long_ones_in_order(tmp_path: Path) -> None:
    sizes = [(10, 0), (40, 1), (20, 2), (40, 3), (10, 4)]
    given = [
        (f"{examples}", Experiment(learner="online", tasks=1, examples=examples, seed=seed, test_examples=5))
        for examples, seed in sizes
    ]
    pool = Elsewhere()
    found = jobs.carry_out_all(given, tmp_path, QUIET, pool=pool)
    assert [one.seed for one in pool.given] == [1, 3, 2, 0, 4]
    assert [record.seed for record in found] == [0, 1, 2, 3, 4]


def test_what_a_fleet_lost_is_named(tmp_path: Path) -> None:
    some = [one for _, one in experiments(3)]
    record = jobs.carry_out(some[0], tmp_path)
    assert jobs.all_of(some[:1], [record], tmp_path) == [record]
    with pytest.raises(mr.NonFiniteError, match=r"2 of 3 runs .*seeds 1, 2.*use a smaller lr, or engine cpu"):
        jobs.all_of(some, [record, None, None], tmp_path)


def test_a_checkpoint_that_outlived_its_record_is_removed(tmp_path: Path) -> None:
    (record,) = jobs.carry_out_all(experiments(1), tmp_path, QUIET)
    left = tmp_path / f".{record.key}.ckpt"
    left.write_bytes(b"killed between the record and this")
    assert jobs.carry_out_all(experiments(1), tmp_path, QUIET) == [record]
    assert not left.exists()
