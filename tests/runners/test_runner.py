"""A runner from outside the package: what it stands on is public, and what it runs goes there and back in bytes."""

import pickle
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from small_runs import instead_of_mnist

import metareplay as mr
from metareplay.experiments import AnyExperiment, Experiment, Records
from metareplay.runners import Failure, Runner, Threads, Watcher, carry_out
from metareplay.runners.runner import StoppedError, checkpoint_path

SILENT = Watcher()


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    instead_of_mnist(monkeypatch)


def experiments(count: int, **options: float) -> list[Experiment]:
    return [
        Experiment(learner="mer", memory=20, tasks=2, examples=60, seed=seed, options=options) for seed in range(count)
    ]


class Elsewhere(Runner):
    """Runs everything at once, as another machine would that shares the folder."""

    def __init__(self) -> None:
        self.ran: list[Experiment] = []

    def run(
        self,
        experiments: Sequence[Any],
        folder: Path,
        *,
        fresh: bool = False,
        keep_going: bool = False,
        watcher: Watcher = SILENT,
    ) -> list[Any]:
        del keep_going
        records = Records(folder, mr.Record)
        found: dict[str, mr.Record | None] = {}
        for one in experiments:
            if one.key not in found:
                found[one.key] = (None if fresh else records.find(one.key)) or self._carry_out(one, folder, fresh)
                watcher.end(one, finished=True)
        return [found[one.key] for one in experiments]

    def _carry_out(self, experiment: Experiment, folder: Path, fresh: bool) -> mr.Record:
        there, given, options = pickle.loads(pickle.dumps((carry_out, (experiment, folder), {"fresh": fresh})))
        self.ran.append(given[0])
        try:
            answer = pickle.dumps(there(*given, **options))
        except mr.MetareplayError as error:
            raise pickle.loads(pickle.dumps(error)) from None
        record: mr.Record = pickle.loads(answer)
        return record


def results(records: Sequence[mr.Record | Failure | None]) -> list[dict[str, object]]:
    """All of each record but for the time it took and the date."""
    return [one.to_json() | {"seconds": None, "date": None} for one in records if isinstance(one, mr.Record)]


def test_it_gives_the_same_records(tmp_path: Path) -> None:
    runner = Elsewhere()
    given = experiments(3)
    there = runner.run([*given, given[0]], tmp_path / "there")
    here = Threads(1).run([*given, given[0]], tmp_path / "here")
    assert len(results(there)) == 4
    assert results(there) == results(here)
    written, others = (sorted((tmp_path / name).iterdir()) for name in ("there", "here"))
    assert [path.name for path in written] == [path.name for path in others]
    assert results([mr.Record.read(path) for path in written]) == results([mr.Record.read(path) for path in others])
    assert [one.seed for one in runner.ran] == [0, 1, 2]
    assert runner.run(given, tmp_path / "there") == there[:3]
    assert len(runner.ran) == 3
    assert results(runner.run(given, tmp_path / "there", fresh=True)) == results(there[:3])
    assert len(runner.ran) == 6


def test_each_goes_on_with_what_the_other_has_done(tmp_path: Path) -> None:
    given = experiments(3)
    runner = Elsewhere()
    runner.run(given[:2], tmp_path)
    found = Threads(1).run(given, tmp_path)
    assert runner.run(given, tmp_path) == found
    assert len(runner.ran) == 2


def test_it_goes_on_from_checkpoints(tmp_path: Path) -> None:
    (one,) = experiments(1)
    work = one.start(checkpoint=checkpoint_path(tmp_path, one.key))
    for step in work.steps():
        if step.seen > 20:
            work.save()
            break
    there = Elsewhere().run([one], tmp_path)
    assert results(there) == results(Threads(1).run([one], tmp_path / "again"))
    assert not list(tmp_path.glob(".*"))


def test_an_error_there_is_raised_here(tmp_path: Path) -> None:
    wrong = Experiment(learner="mer", memory=20, tasks=2, examples=60, options={"lr": 1e38})
    with pytest.raises(mr.NonFiniteError, match="made the loss or the weights not finite"):
        Elsewhere().run([wrong, *experiments(1)], tmp_path)


@pytest.mark.parametrize("known", [False, True])
def test_an_experiment_comes_back_from_bytes(known: bool) -> None:
    one = Experiment(learner="gem", memory=60, tasks=3, options={"lr": np.float32(0.5)}, alignment=2, past="after")
    if known:
        assert one.key
    again = pickle.loads(pickle.dumps(one))
    assert again == one
    assert again.key == one.key


# One experiment


def test_one_is_carried_out_and_recorded(tmp_path: Path) -> None:
    (one,) = experiments(1)
    record = carry_out(one, tmp_path)
    assert record.key == one.key
    assert [mr.Record.read(path) for path in tmp_path.iterdir()] == [record]


def test_told_to_stop_it_saves_and_goes_on_later(tmp_path: Path) -> None:
    class Stopping(Watcher):
        """Says stop once some examples were learned."""

        def step(self, experiment: AnyExperiment, progress: mr.Progress, tasks: int) -> None:
            del experiment, tasks
            seen.append(progress.seen)
            if progress.seen >= 16:
                stop.set()

    (one,) = experiments(1)
    stop, seen = Event(), list[int]()
    with pytest.raises(StoppedError):
        carry_out(one, tmp_path, watcher=Stopping(), stop=stop)
    stopped = seen.copy()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f".{one.key}.ckpt", f".{one.key}.live"]
    record = carry_out(one, tmp_path, watcher=Stopping())
    assert seen[len(stopped)] >= stopped[-1] >= 16
    assert results([record]) == results([carry_out(one, tmp_path / "again")])


def test_fresh_it_starts_anew(tmp_path: Path) -> None:
    (one,) = experiments(1)
    path = checkpoint_path(tmp_path, one.key)
    path.write_bytes(b"something that is no checkpoint")
    with pytest.raises(mr.CheckpointError):
        carry_out(one, tmp_path)
    record = carry_out(one, tmp_path, fresh=True)
    assert not path.exists()
    assert results([record]) == results([carry_out(one, tmp_path / "again")])
