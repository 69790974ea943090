"""Experiments side by side."""

import threading
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import metareplay as mr
from metareplay import jobs
from metareplay.data import Images
from metareplay.experiment import Experiment


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
