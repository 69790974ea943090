"""Flying a fleet: records and interruptions. The kernel is interpreted on the CPU."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_runs import instead_of_mnist, small_images

import metareplay as mr
from metareplay._core.archive import read_archive, write_archive
from metareplay.experiments.experiment import Experiment
from metareplay.runners.fleet import fleet as fleet_engine
from metareplay.runners.fleet import flight as fleets
from metareplay.runners.fleet.flight import fly

SMALL = Experiment(options={"k": 3, "s": 1}, memory=5, tasks=2, examples=4, test_examples=9, hidden=(10, 6))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Experiment:
    small_instead_of_mnist(monkeypatch)
    return SMALL


def small_instead_of_mnist(monkeypatch: pytest.MonkeyPatch) -> None:
    instead_of_mnist(monkeypatch)
    monkeypatch.setattr(fleet_engine, "mnist", small_images)


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


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a flight that was interrupted when everything had been learned."""

    def stop(seen: int, total: int) -> None:
        if seen == total:
            raise KeyboardInterrupt

    folder = tmp_path_factory.mktemp("left_behind")
    with pytest.MonkeyPatch.context() as patch:
        small_instead_of_mnist(patch)
        patch.setattr(fleets, "SAVE_EVERY", 0.0)
        with pytest.raises(KeyboardInterrupt):
            fly([SMALL], folder, device="cpu", report=stop)
    [path] = folder.glob(".fleet*")
    return path


def test_a_checkpoint_is_an_archive_of_tensors_and_plain_values(left_behind: Path) -> None:
    about, tensors = read_archive(left_behind)
    assert about["keys"] == [SMALL.key]
    assert np.array(about["accuracy"], np.float64).shape == (1, 3, 2)
    assert about["seconds"].keys() == {"learn", "evaluate"}
    assert tensors
    with np.load(left_behind, allow_pickle=False) as archive:
        assert {archive[name].dtype.hasobject for name in archive.files} == {False}


DAMAGES: dict[str, Callable[[Path], object]] = {
    "something else": lambda path: path.write_bytes(b"no checkpoint"),
    "empty": lambda path: path.write_bytes(b""),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-300]),
    "pickled": lambda path: path.write_bytes(pickle.dumps({"keys": []})),
    "nothing measured": lambda path: changed(path, accuracy=None),
    "measured for other tasks": lambda path: changed(path, accuracy=[[[1.0], [2.0]]]),
    "measured for more runs": lambda path: changed(path, accuracy=[[[1.0] * 2] * 3] * 2),
    "a learner": lambda path: mr.Online(mr.networks.mlp(4, (3,), 2)).save(path),
}


def changed(path: Path, **parts: object) -> None:
    """Write a checkpoint again, with some of its values changed or, where None, left out."""
    about, tensors = read_archive(path)
    values = {name: value for name, value in (about | parts).items() if value is not None and name != "dtypes"}
    write_archive(path, values, tensors)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_checkpoint_is_named(
    damage: Callable[[Path], object], small: Experiment, left_behind: Path, tmp_path: Path
) -> None:
    path = tmp_path / left_behind.name
    path.write_bytes(left_behind.read_bytes())
    damage(path)
    content = path.read_bytes()
    with pytest.raises(mr.MetareplayError, match="damaged: delete it") as caught:
        fly([small], tmp_path, device="cpu")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == content


def test_fresh_a_damaged_checkpoint_does_no_harm(small: Experiment, left_behind: Path, tmp_path: Path) -> None:
    (tmp_path / left_behind.name).write_bytes(b"no checkpoint")
    assert fly([small], tmp_path, device="cpu", fresh=True)[0] is not None
    assert not (tmp_path / left_behind.name).exists()


def test_a_flight_measures_what_was_held_out(small: Experiment, tmp_path: Path) -> None:
    whole = replace(small, tasks=3, held_out=0.3, first_tasks=2)
    [record] = fly([whole], tmp_path, device="cpu")
    plain = replace(whole, engine="torch").start()
    for _ in plain.steps():
        pass
    theirs = plain.record()
    assert record is not None
    assert record.key == theirs.key
    assert record.held_out == theirs.held_out
    assert len(record.held_out or ()) == 2
    assert record.accuracy == pytest.approx(theirs.accuracy, nan_ok=True)
