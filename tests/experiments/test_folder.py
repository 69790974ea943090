"""All records of a folder as one table."""

import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest
from small_runs import ALIGNED, RECORD

import metareplay as mr
from metareplay._core.seal import sealed_json
from metareplay.experiments import pack
from metareplay.experiments.folder import UNUSED
from metareplay.rl import GameRecord


def test_settings_and_results_are_columns(tmp_path: Path) -> None:
    held = replace(RECORD, seed=4, settings=RECORD.settings | {"seed": 4}, held_out=[50.0, 60.0], training=[70.0])
    RECORD.write(tmp_path)
    pack([held, ALIGNED, RECORD], tmp_path / "more.jsonl")
    (tmp_path / "table.json").write_text('{"rows": [1, 2]}')
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "notes.txt").write_text("nothing")
    (tmp_path / ".hidden.json").write_text("{")
    table = mr.records(tmp_path)
    assert len(table) == 3
    [row] = table.where(seed=4)
    expected = {"learner": "mer", "stream": "rotations", "lr": 0.1, "memory": 5, "memory_kind": "reservoir", "tasks": 2}
    assert row.items() >= (expected | {"ra": 75.0, "la": 85.0, "va": 55.0, "ta": 70.0, "seconds": 1.75}).items()
    assert [row["dot"] for row in table if "dot" in row] == [-0.125]
    assert set(table["key"]) == {RECORD.key, held.key, ALIGNED.key}


def test_games_have_a_score(tmp_path: Path) -> None:
    record = GameRecord(
        learner="DQNMER",
        settings={"lr": 0.1, "memory": {"kind": "Recent", "capacity": 9}},
        model="Linear()",
        game={"game": "catcher", "order": "published", "evaluation": {"every": 100}},
        seed=1,
        engine="cpu",
        frames=[0, 100],
        scores=[[[1.0], [2.0]], [[5.0], [8.0]]],
        episodes=3,
        weights="ab",
        seconds={"learn": 1.0},
        versions={},
        date="2026-01-02",
    )
    record.write(tmp_path)
    [row] = mr.records(str(tmp_path))
    assert (row["learner"], row["stream"], row["order"], row["memory"]) == ("dqn-mer", "catcher", "published", 9)
    assert row["score"] == record.final_mean == 6.5


def test_words_that_stand_elsewhere_do_no_harm(tmp_path: Path) -> None:
    """The parts that are skipped are found by words, which may occur in a setting of the user's own."""
    for number, (start, end) in enumerate(UNUSED):
        word = start.decode().strip('": ')
        settings = RECORD.settings | {word: {"x": 1}, "seed": number, "end": end.decode()}
        replace(RECORD, settings=settings, seed=number).write(tmp_path)
    table = mr.records(tmp_path)
    assert sorted(table["ra"]) == [75.0] * len(UNUSED)
    assert set(table["stream"]) == {"rotations"}


def test_a_damaged_record_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    RECORD.write(tmp_path)
    whole = json.dumps(RECORD.to_json(compact=True))
    (tmp_path / "packed.jsonl").write_text(f"{whole}\n{whole[:90]}\n")
    with caplog.at_level(logging.WARNING, "metareplay"):
        assert len(mr.records(tmp_path)) == 1
    assert "packed.jsonl, record 2, cannot be read" in caplog.text


SPOILT: dict[str, bytes] = {
    "settings in words": sealed_json(RECORD.to_json() | {"settings": "good ones"}),
    "a list for a key": sealed_json(RECORD.to_json() | {"key": []}),
    "no learner": sealed_json({name: value for name, value in RECORD.to_json().items() if name != "learner"}),
    "times in words": sealed_json(RECORD.to_json() | {"seconds": {"learn": "long"}}),
    "nested too deeply": b"[" * 200_000,
}


@pytest.mark.parametrize("content", SPOILT.values(), ids=SPOILT.keys())
def test_what_strangers_write_is_left_alone(content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    RECORD.write(tmp_path)
    (tmp_path / "strange.json").write_bytes(content)
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "link.json").symlink_to(tmp_path / "nowhere.json")
    with caplog.at_level(logging.WARNING, "metareplay"):
        assert [row["key"] for row in mr.records(tmp_path)] == [RECORD.key]
    assert "strange.json, record 1, cannot be read" in caplog.text
    assert "pipe.json cannot be read (not a regular file)" in caplog.text
    assert "link.json cannot be read" in caplog.text


def test_a_single_file_will_do(tmp_path: Path) -> None:
    RECORD.write(tmp_path)
    pack([replace(RECORD, seed=4), ALIGNED], tmp_path / "more.jsonl")
    assert len(mr.records(tmp_path / "more.jsonl")) == 2
    assert len(mr.records(tmp_path / f"{RECORD.name}.json")) == 1
    (tmp_path / "notes.txt").write_text("nothing")
    (tmp_path / "table.json").write_text('{"rows": [1, 2]}')
    for name in ("nowhere", "nowhere.jsonl", "notes.txt", "table.json"):
        with pytest.raises(mr.MetareplayError, match=rf"{name} holds no records: give a folder such as 'runs', or"):
            mr.records(tmp_path / name)
