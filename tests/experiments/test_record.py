import hashlib
import json
import math
import platform
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_runs import ALIGNED, RECORD

import metareplay as mr
from metareplay.experiments.metrics import needed
from metareplay.experiments.record import versions

nan = math.nan
NOT_MEASURED = replace(RECORD, accuracy=np.array([[10.0, nan], [nan, 30.0], [70.0, nan]]))
ENDS = ("first", "before", "after", "last")
NO_TESTS = replace(RECORD, accuracy=np.zeros((1, 0)))


@pytest.mark.parametrize(
    "record",
    [RECORD, NOT_MEASURED, NO_TESTS, ALIGNED],
    ids=["whole", "not all measured", "no test sets", "gradients compared"],
)
def test_written_and_read_it_is_equal(record: mr.Record, tmp_path: Path) -> None:
    read = mr.Record.read(record.write(tmp_path))
    assert read == record
    np.testing.assert_array_equal(read.accuracy, record.accuracy)
    assert read.accuracy.dtype == np.float64
    assert read.accuracy.shape == record.accuracy.shape
    assert read.key == record.key
    assert read.alignment == record.alignment


def test_earlier_records_are_read() -> None:
    document = RECORD.to_json()
    del document["alignment"]
    assert mr.Record.from_json(document) == RECORD


@given(rows=st.lists(st.lists(st.floats(0, 100) | st.just(nan), min_size=3, max_size=3), min_size=4, max_size=4))
def test_numbers_come_back_bit_for_bit(rows: list[list[float]]) -> None:
    record = replace(RECORD, accuracy=np.array(rows))
    text = json.dumps(record.to_json(), allow_nan=False)
    np.testing.assert_array_equal(mr.Record.from_json(json.loads(text)).accuracy, record.accuracy)


def test_what_was_not_measured_is_null_in_the_file(tmp_path: Path) -> None:
    text = NOT_MEASURED.write(tmp_path).read_text()
    assert "NaN" not in text
    document = json.loads(text)
    assert document["accuracy"] == [[10.0, None], [None, 30.0], [70.0, None]]
    assert (document["ra"], document["la"], document["bti"], document["fti"]) == (None,) * 4


@pytest.mark.parametrize("tasks", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("full", [False, True])
def test_compact_it_holds_the_same(tasks: int, full: bool) -> None:
    measured = np.random.default_rng(tasks).integers(0, 10_001, (tasks + 1, tasks)) / 100  # of 10,000 test examples
    accuracy = measured if full else np.where(needed(tasks), measured, nan)
    record = replace(RECORD, accuracy=accuracy)
    document = json.loads(json.dumps(record.to_json(compact=True), allow_nan=False))
    read = mr.Record.from_json(document)
    assert read == record
    np.testing.assert_array_equal(read.accuracy, accuracy)
    assert read.accuracy.shape == accuracy.shape
    short = isinstance(document["accuracy"], dict)
    assert short == (not full or tasks <= 2)  # of up to two tasks the metrics need everything
    if short:
        assert {name: len(row) for name, row in document["accuracy"].items()} == dict.fromkeys(ENDS, tasks)


def test_compact_a_matrix_with_more_or_less_than_the_metrics_need_is_kept_as_it_is() -> None:
    for record in (NOT_MEASURED, replace(RECORD, accuracy=np.full((4, 3), nan))):
        assert record.to_json(compact=True) == record.to_json()


def test_compact_it_has_nine_digits_after_the_point() -> None:
    record = replace(RECORD, accuracy=RECORD.accuracy / 3)
    read = mr.Record.from_json(record.to_json(compact=True))
    np.testing.assert_allclose(read.accuracy, record.accuracy, rtol=0, atol=1e-9)
    assert read.key == record.key


def test_the_key_says_whether_more_was_measured_than_the_metrics_need() -> None:
    whole = np.random.default_rng(0).random((4, 3))
    full, partial = (replace(RECORD, accuracy=each) for each in (whole, np.where(needed(3), whole, nan)))
    assert full.key != partial.key == replace(partial, accuracy=np.full((4, 3), nan)).key


def test_the_file_says_metrics_and_everything_that_ran(tmp_path: Path) -> None:
    path = RECORD.write(tmp_path / "new" / "folder")
    assert path.name == f"MER-Rotations-seed3-{RECORD.key}.json"
    document = json.loads(path.read_text())
    assert (document["ra"], document["la"], document["bti"], document["fti"]) == (75, 85, -10, 10)
    assert (RECORD.ra, RECORD.la, RECORD.bti, RECORD.fti) == (75, 85, -10, 10)
    assert (document["format"], document["key"], document["settings"]["lr"]) == (1, RECORD.key, 0.1)
    assert document["versions"].keys() == {
        "metareplay", "commit", "torch", "numpy", "python", "machine", "processor"
    }  # fmt: skip


def test_a_stream_without_a_name_is_called_own(tmp_path: Path) -> None:
    assert replace(RECORD, stream={}).write(tmp_path).name.startswith("MER-own-seed3-")


@pytest.mark.parametrize("accuracy", [NO_TESTS.accuracy, NOT_MEASURED.accuracy])
def test_records_are_equal_only_if_all_of_them_is(accuracy: Any) -> None:
    record = replace(RECORD, accuracy=accuracy)
    assert record == replace(record, accuracy=accuracy.copy())
    assert record != replace(record, accuracy=np.zeros((3, 2)))
    assert record != replace(record, weights="cd" * 32)
    assert record != "a record"


SAME_RUN = {
    "engine": {"engine": "cuda", "settings": RECORD.settings | {"engine": "cuda"}},
    "results": {"accuracy": np.zeros((3, 2)), "weights": "", "examples": 7},
    "circumstances": {"seconds": {}, "versions": {}, "date": ""},
    "order": {"settings": dict(reversed(RECORD.settings.items()))},
}
OTHER_RUN = {
    "learner": {"learner": "ER"},
    "rate": {"settings": RECORD.settings | {"lr": 0.2}},
    "seed": {"settings": RECORD.settings | {"seed": 4}},
    "memory": {"settings": RECORD.settings | {"memory": {"kind": "Reservoir", "capacity": 6}}},
    "option": {"settings": RECORD.settings | {"clip": 1.0}},
    "stream": {"stream": RECORD.stream | {"tasks": 3}},
    "model": {"model": "Linear(in_features=4, out_features=4, bias=True)"},
    "gradients compared": {"alignment": ALIGNED.alignment},
}


@pytest.mark.parametrize("changes", SAME_RUN.values(), ids=SAME_RUN.keys())
def test_the_key_does_not_depend_on(changes: dict[str, Any]) -> None:
    assert replace(RECORD, **changes).key == RECORD.key


@pytest.mark.parametrize("changes", OTHER_RUN.values(), ids=OTHER_RUN.keys())
def test_the_key_depends_on(changes: dict[str, Any]) -> None:
    assert replace(RECORD, **changes).key != RECORD.key


def test_training_accuracy_is_part_of_the_key_and_of_the_file_only_where_it_was_measured(tmp_path: Path) -> None:
    trained = replace(RECORD, training=[40.0, 70.0])
    assert trained.ta == 55
    assert np.isnan(RECORD.ta)
    assert trained.key != RECORD.key
    assert "training" not in RECORD.to_json()
    assert mr.Record.read(trained.write(tmp_path)) == trained
    assert trained.identity.training
    assert not RECORD.identity.training


def test_the_key_depends_on_how_many_gradients_are_compared() -> None:
    assert ALIGNED.alignment is not None
    assert replace(ALIGNED, alignment=ALIGNED.alignment | {"mean": 7.0}).key == ALIGNED.key
    assert replace(ALIGNED, alignment=ALIGNED.alignment | {"samples": 6}).key != ALIGNED.key
    assert replace(ALIGNED, alignment=ALIGNED.alignment | {"past": "after"}).key != ALIGNED.key
    assert replace(ALIGNED, alignment=ALIGNED.alignment | {"past": "before"}).key == ALIGNED.key


@pytest.mark.parametrize("record", [RECORD, NOT_MEASURED, ALIGNED], ids=["whole", "not all measured", "aligned"])
def test_the_identity_is_what_was_run(record: mr.Record) -> None:
    found = record.identity
    assert (found.learner, found.settings, found.model, found.stream) == (
        record.learner,
        record.settings,
        record.model,
        record.stream,
    )
    assert found.key == record.key
    assert (found.alignment, found.past) == (0 if record.alignment is None else 5, "before")
    assert not found.full_matrix  # of up to two tasks the metrics need everything
    assert replace(record, accuracy=np.zeros((4, 3))).identity.full_matrix


def test_a_record_is_made_of_an_identity_and_what_came_out() -> None:
    theta = torch.arange(6, dtype=torch.float32)
    made = mr.Record.of(
        ALIGNED.identity,
        seed=3,
        engine="torch",
        examples=20,
        accuracy=RECORD.accuracy,
        theta=theta,
        seconds={"learn": 1.23456, "evaluate": 0.5},
        alignment=ALIGNED.alignment,
    )
    weights = hashlib.sha256(theta.numpy().tobytes()).hexdigest()
    assert made.seconds == {"learn": 1.235, "evaluate": 0.5}
    assert datetime.now(UTC) - datetime.fromisoformat(made.date) < timedelta(minutes=5)
    assert made == replace(ALIGNED, weights=weights, seconds=made.seconds, date=made.date)
    assert made.identity == ALIGNED.identity


def spoiled(**changes: object) -> Callable[[dict[str, Any]], object]:
    return lambda document: document | changes


DAMAGED: dict[str, Callable[[dict[str, Any]], object]] = {
    "a part missing": lambda document: {name: value for name, value in document.items() if name != "weights"},
    "no accuracy": lambda document: {name: value for name, value in document.items() if name != "accuracy"},
    "ragged": spoiled(accuracy=[[1.0], [1.0, 2.0]]),
    "words": spoiled(accuracy=[["much"]]),
    "no rows": spoiled(accuracy=5),
    "a row missing": spoiled(accuracy={"first": [1.0], "before": [1.0], "after": [1.0]}),
    "a row too long": spoiled(accuracy={"first": [1.0], "before": [1.0, 2.0], "after": [1.0], "last": [1.0]}),
    "a list": lambda document: [document],
    "a number": lambda _: 5,
    "something else": lambda _: {"name": "a package", "version": "1.0"},
}


@pytest.mark.parametrize("spoil", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_is_named_in_one_line(spoil: Callable[[dict[str, Any]], object], tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(json.dumps(spoil(RECORD.to_json())))
    with pytest.raises(mr.MetareplayError, match=r"record.json is damaged or not a record: delete it") as caught:
        mr.Record.read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("left", [0.0, 0.3, 0.99])
def test_a_file_cut_short_is_damaged(left: float, tmp_path: Path) -> None:
    path = RECORD.write(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: int(left * len(content))])
    with pytest.raises(mr.MetareplayError, match="is damaged"):
        mr.Record.read(path)
    path.write_bytes(b"\xff\xfe" + content)
    with pytest.raises(mr.MetareplayError, match="is damaged"):
        mr.Record.read(path)


def test_another_format_is_named_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(json.dumps(RECORD.to_json() | {"format": 2}))
    with pytest.raises(mr.MetareplayError, match=r"record.json is a record of format 2: this version reads format 1"):
        mr.Record.read(path)


def test_a_missing_file_and_a_folder_are_named_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(mr.MetareplayError, match=r"no record at .*nowhere.json: check the path"):
        mr.Record.read(tmp_path / "nowhere.json")
    with pytest.raises(mr.MetareplayError, match="is damaged or not a record"):
        mr.Record.read(tmp_path)


def test_a_failed_write_leaves_the_earlier_record(tmp_path: Path) -> None:
    path = RECORD.write(tmp_path)
    before = path.read_bytes()
    later = replace(RECORD, examples=21, seconds={"learn": object()})  # type: ignore[dict-item]
    with pytest.raises(TypeError):
        later.write(tmp_path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_written_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(mr.MetareplayError, match=r"cannot write .*file/MER-Rotations.*; .*choose another place"):
        RECORD.write(tmp_path / "file")


UNREADABLE = {
    "of another format": json.dumps(RECORD.to_json() | {"format": 2}),
    "damaged": json.dumps(RECORD.to_json())[:200],
    "something else": "5",
    "empty": "",
}


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_file_in_its_place_that_it_cannot_read_is_left_alone(content: str, tmp_path: Path) -> None:
    there = tmp_path / f"{RECORD.name}.json"
    there.write_text(content)
    for record in (RECORD, replace(RECORD, date="later")):
        written = record.write(tmp_path)
        assert written == tmp_path / f"format1-{RECORD.name}.json"
        assert mr.Record.read(written) == record
    assert there.read_text() == content
    assert set(tmp_path.iterdir()) == {there, written}


def test_a_record_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    path = RECORD.write(tmp_path)
    assert replace(RECORD, date="later").write(tmp_path) == path
    assert mr.Record.read(path).date == "later"
    assert list(tmp_path.iterdir()) == [path]


def test_versions_name_the_commit_and_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = versions.__wrapped__
    assert re.fullmatch(r"([0-9a-f]{10,}\+?)?", fresh()["commit"])
    assert fresh()["processor"]

    def no_git(*_: object, **__: object) -> None:
        raise FileNotFoundError("git")

    def no_file(*_: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "run", no_git)
    monkeypatch.setattr(Path, "read_text", no_file)
    assert fresh() == fresh() | {"commit": "", "processor": platform.processor() or platform.machine()}
    monkeypatch.setattr(Path, "exists", lambda _: False)
    assert fresh()["commit"] == ""


def test_versions_are_those_of_the_first_time_they_were_asked_for() -> None:
    assert versions() is versions()
