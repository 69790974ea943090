import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_runs import ALIGNED, RECORD

import metareplay as mr
from metareplay.experiments.metrics import needed
from metareplay.experiments.store import Records, pack, unpack

OTHER = replace(RECORD, settings=RECORD.settings | {"seed": 4}, seed=4)
MATRIX = np.arange(12.0).reshape(4, 3)
FULL = replace(RECORD, accuracy=MATRIX)
PARTIAL = replace(RECORD, accuracy=np.where(needed(3), MATRIX, np.nan))


def test_records_are_found_by_key_whatever_their_file_is_called(tmp_path: Path) -> None:
    RECORD.write(tmp_path)
    OTHER.write(tmp_path).rename(tmp_path / f"a-new-name-{OTHER.key}.json")
    records = Records(tmp_path, mr.Record)
    assert records.find(RECORD.key) == RECORD
    assert records.find(OTHER.key) == OTHER
    assert records.find(ALIGNED.key) is None


@pytest.mark.parametrize("place", ["nowhere", "file", "empty"])
def test_where_there_is_nothing_nothing_is_found(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    assert Records(tmp_path / place, mr.Record).find(RECORD.key) is None


def test_packed_records_are_found_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pack([RECORD, ALIGNED], tmp_path / "one.jsonl")
    pack([OTHER], tmp_path / "two.jsonl")
    records = Records(tmp_path, mr.Record)
    for record in (RECORD, ALIGNED, OTHER):
        assert records.find(record.key) == record
    assert not caplog.messages


def test_a_file_of_its_own_comes_before_a_packed_record(tmp_path: Path) -> None:
    pack([RECORD], tmp_path / "all.jsonl")
    later = replace(RECORD, date="later")
    later.write(tmp_path)
    assert Records(tmp_path, mr.Record).find(RECORD.key) == later


def test_a_record_with_the_whole_matrix_is_another_one(tmp_path: Path) -> None:
    PARTIAL.write(tmp_path)
    pack([FULL, PARTIAL], tmp_path / "all.jsonl")
    assert Records(tmp_path, mr.Record).find(PARTIAL.key) == PARTIAL
    assert Records(tmp_path, mr.Record).find(FULL.key) == FULL


SPOILED = {
    "damaged": (json.dumps(RECORD.to_json())[:200], "is damaged or not a record: delete it and run again"),
    "of another format": (
        json.dumps(RECORD.to_json() | {"format": 2}),
        "is a record of format 2: this version reads format 1",
    ),
}


@pytest.mark.parametrize(("content", "message"), SPOILED.values(), ids=SPOILED.keys())
def test_what_cannot_be_read_is_named_once_and_left_alone(
    content: str, message: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = RECORD.write(tmp_path)
    path.write_text(content)
    OTHER.write(tmp_path)
    records = Records(tmp_path, mr.Record)
    assert not caplog.messages  # nobody has asked for it yet
    assert [records.find(RECORD.key) for _ in range(2)] == [None, None]
    assert records.find(OTHER.key) == OTHER
    assert caplog.messages == [f"{path} {message}; it is left alone"]
    assert path.read_text() == content
    pack([RECORD], tmp_path / "all.jsonl")
    assert Records(tmp_path, mr.Record).find(RECORD.key) == RECORD


@pytest.mark.parametrize(("content", "message"), SPOILED.values(), ids=SPOILED.keys())
def test_a_record_written_beside_one_that_cannot_be_read_is_found(
    content: str, message: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    RECORD.write(tmp_path).write_text(content)
    RECORD.write(tmp_path)
    assert Records(tmp_path, mr.Record).find(RECORD.key) == RECORD
    assert message not in caplog.text


@pytest.mark.parametrize("line", ["", "5", "[]", '"words"', "{}", '{"format": 2}', "not JSON", "\xff"])
def test_a_packed_line_that_cannot_be_read_is_named_and_left_alone(
    line: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "all.jsonl"
    pack([RECORD], path)
    path.write_bytes(content := path.read_bytes() + line.encode("latin-1") + b"\n")
    OTHER.write(tmp_path)
    records = Records(tmp_path, mr.Record)
    assert (records.find(OTHER.key), records.find(RECORD.key)) == (OTHER, RECORD)
    (message,) = caplog.messages
    assert message.startswith(f"{path}, line 2, cannot be read (")
    assert message.endswith("); it is left alone")
    assert "\n" not in message
    assert path.read_bytes() == content


def test_packed_and_unpacked_they_are_equal_in_the_order_of_their_names_and_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "all.jsonl"
    pack([OTHER, PARTIAL, ALIGNED, OTHER], path)
    found = unpack(path, mr.Record)
    assert found == sorted([OTHER, PARTIAL, ALIGNED], key=lambda record: record.name)
    assert path.read_bytes().count(b"\n") == 3
    before = path.read_bytes()
    pack(reversed(found), path)
    assert path.read_bytes() == before
    pack([], path)
    assert unpack(path, mr.Record) == []


def test_a_record_under_the_name_of_another_run_is_named_and_not_believed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    RECORD.write(tmp_path).rename(tmp_path / f"{OTHER.name}.json")
    assert Records(tmp_path, mr.Record).find(OTHER.key) is None
    assert "holds the record of another run; it is left alone" in caplog.text
