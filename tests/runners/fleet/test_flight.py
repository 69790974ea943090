"""Flying a fleet: records, interruptions, and what can fly together. The kernel is interpreted on the CPU."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_runs import instead_of_mnist, small_images

import metareplay as mr
from metareplay.experiments.experiment import Experiment
from metareplay.runners.fleet import fleet as fleet_engine
from metareplay.runners.fleet import flight as fleets
from metareplay.runners.fleet.flight import fly


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Experiment:
    instead_of_mnist(monkeypatch)
    monkeypatch.setattr(fleet_engine, "mnist", small_images)
    options: dict[str, Any] = {"k": 3, "s": 1}
    return Experiment(options=options, memory=5, tasks=2, examples=4, test_examples=9, hidden=(10, 6))


def test_flying_gives_the_records_of_the_other_engines(small: Experiment, tmp_path: Path) -> None:
    wanted = [replace(small, seed=seed) for seed in (0, 1)]
    found = fly(wanted, tmp_path, device="cpu")
    for experiment, record in zip(wanted, found, strict=True):
        plain = replace(experiment, engine="torch").start()
        for _ in plain.steps():
            pass
        theirs = plain.record()
        assert record is not None
        assert (record.key, record.examples, record.seed) == (theirs.key, theirs.examples, theirs.seed)
        assert record.engine == "fleet"
        assert record.accuracy == pytest.approx(theirs.accuracy, nan_ok=True)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 2
    again = fly(wanted, tmp_path, device="cuda")  # there is none: nothing is run again
    assert again == found


def test_an_interrupted_flight_goes_on(small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "SAVE_EVERY", 0.0)

    def stop(seen: int, total: int) -> None:
        assert total == 8
        if seen >= 5:
            raise KeyboardInterrupt

    whole = fly([small], tmp_path / "whole", device="cpu")
    with pytest.raises(KeyboardInterrupt):
        fly([small], tmp_path / "parts", device="cpu", report=stop)
    first: list[int] = []
    parts = fly([small], tmp_path / "parts", device="cpu", report=lambda seen, _: first.append(seen))
    assert first[0] > 3
    assert whole[0] is not None
    assert parts[0] is not None
    assert parts[0].weights == whole[0].weights
    assert parts[0].accuracy == pytest.approx(whole[0].accuracy, nan_ok=True)
    assert not list((tmp_path / "parts").glob(".fleet*"))


def test_interrupted_while_records_are_written_only_the_last_few_seconds_are_flown_again(
    small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleets, "SAVE_EVERY", 0.0)
    wanted = [small, replace(small, seed=1), small]
    write, written = mr.Record.write, list[str]()

    def write_one(record: mr.Record, folder: Path) -> Path:
        if written:
            raise KeyboardInterrupt
        written.append(record.key)
        return write(record, folder)

    with monkeypatch.context() as patch:
        patch.setattr(mr.Record, "write", write_one)
        with pytest.raises(KeyboardInterrupt):
            fly(wanted, tmp_path, device="cpu")
    learned: list[int] = []
    found = fly(wanted, tmp_path, device="cpu", report=lambda seen, _: learned.append(seen))
    assert learned == []
    assert found[0] == found[2]
    assert None not in found
    assert len({record.key for record in found if record is not None}) == 2


def test_a_checkpoint_that_was_left_behind(small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "SAVE_EVERY", 0.0)
    wanted = [small, replace(small, seed=1)]

    def stop(seen: int, _: int) -> None:
        if seen >= 5:
            raise KeyboardInterrupt

    first = fly(wanted[:1], tmp_path, device="cpu")
    with pytest.raises(KeyboardInterrupt):
        fly(wanted, tmp_path, device="cpu", report=stop)  # seed 1 alone
    for path in tmp_path.glob("*.json"):
        path.unlink()
    again = fly(wanted, tmp_path, device="cpu")  # goes on with seed 1, then flies seed 0, whose record is gone
    assert None not in again
    assert again[0] is not None
    assert first[0] is not None
    assert again[0].weights == first[0].weights
    with pytest.raises(KeyboardInterrupt):
        fly(wanted, tmp_path, device="cpu", fresh=True, report=stop)
    assert list(tmp_path.glob(".fleet*"))
    assert fly(wanted, tmp_path, device="cuda") == again  # all have records: nothing flies, and the rest is removed
    assert not list(tmp_path.glob(".fleet*"))


def test_fleets_are_made_of_what_can_fly(small: Experiment) -> None:
    online = replace(small, learner="online", options={})
    grounded = [replace(small, learner="gem", memory_kind="ring", options={}), replace(small, alignment=3)]
    other = replace(small, tasks=4)
    given = [small, replace(small, seed=1), *grounded, online, other]
    assert fleets.fleets(given) == [[small, replace(small, seed=1), online], [other]]
    usual = [Experiment(learner="online", stream=stream) for stream in ("rotations", "many-permutations")]
    assert fleets.fleets(usual) == [usual[:1], usual[1:]]


def test_a_damaged_checkpoint_is_named(small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "SAVE_EVERY", 0.0)

    def stop(seen: int, total: int) -> None:
        if seen == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fly([small], tmp_path, device="cpu", report=stop)
    [path] = tmp_path.glob(".fleet*")
    path.write_bytes(b"no checkpoint")
    with pytest.raises(mr.MetareplayError, match="damaged: delete it"):
        fly([small], tmp_path, device="cpu")


def test_gradients_are_not_compared(small: Experiment, tmp_path: Path) -> None:
    with pytest.raises(mr.InputError, match="does not compare gradients"):
        fly([replace(small, alignment=5)], tmp_path, device="cpu")
