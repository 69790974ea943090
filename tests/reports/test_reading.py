"""What is in a folder is read, named or left alone, and nothing in it stops the report."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from small_report import LANGUAGES, PREQUENTIAL, run

from metareplay.reports.reading import read


def test_only_regular_files_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run().write(tmp_path)
    names = {"pipe.json", "pipe.failed"}
    for name in names:
        os.mkfifo(tmp_path / name)
    whole = Path.read_bytes

    def opened(path: Path, *_: object) -> bytes:
        assert path.name not in names  # it would wait for ever
        return whole(path)

    monkeypatch.setattr(Path, "read_bytes", opened)
    monkeypatch.setattr(Path, "read_text", opened)
    found = read([tmp_path])
    assert found.runs == 1
    assert {(one.place, one.reason) for one in found.broken} == {(name, "not a regular file") for name in names}


@pytest.mark.parametrize("seconds", [1.2e308, 1e12, -1.0])
def test_times_that_no_run_takes_are_refused(tmp_path: Path, seconds: float) -> None:
    for seed in (0, 1):
        run(seed, seconds={"learn": seconds}).write(tmp_path)
    replace(PREQUENTIAL, seconds={"learn": 1.0, "predict": seconds}).write(tmp_path)
    replace(LANGUAGES, seconds=seconds).save(tmp_path / "lm.json")
    found = read([tmp_path])
    assert (found.runs, len(found.broken)) == (0, 4)
    assert all("seconds" in one.reason for one in found.broken)
