"""The script that measures PeriodicMER runs in miniature, so that it does not fail on the machine with the GPU."""

import json
import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "measure-periodic-mer"
SMALL = "--size mini --context 8 --steps 2 --rounds 1 --capacity 2048 --open-rows 500"


@pytest.mark.parametrize("as_json", [False, True])
def test_the_script_prints_a_table_or_one_json_document(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *SMALL.split(), *(["--json"] if as_json else [])])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    printed = capsys.readouterr().out
    if not as_json:
        assert "opening a reservoir of 500 rows" in printed
        return
    found = json.loads(printed)
    assert [cost["copy_on"] for cost in found["costs"]] == ["device", "host"]
    assert all(cost["plain_ms"] > 0 and cost["line_ms"] > 0 for cost in found["costs"])
    assert found["offered"]["while_it_fills"] > 0
    assert found["opening"]["rows"] == 500
