"""The benchmark of streams: what it times runs, and packages that are missing are named."""

import json

import pytest
from small_runs import Answer, Call

from metareplay.bench import streaming
from metareplay.bench.frame import Effort
from metareplay.bench.streaming import SETTINGS, Setting, StreamingBenchmark, measure

BRIEF = Effort(rounds=1, seconds=0.001)
WEIGHED = {"megabytes": 20.0, "at_most": 300, "aim": 100, "seconds": 7.0}


@pytest.mark.slow
@pytest.mark.parametrize("setting", [one for one in SETTINGS if one.needs in (None, "river")], ids=lambda one: one.name)
def test_every_setting_can_be_timed(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "WARM_UP", 3)
    timing = measure(setting, BRIEF)
    assert min(timing.ours, timing.theirs, timing.ratio) > 0
    assert timing.extra == {"against": setting.against}
    assert (timing.promised, timing.aim) == (setting.promised, setting.aim)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "WARM_UP", 3)
    monkeypatch.setattr(streaming, "weigh_disk", lambda rows: {**WEIGHED, "rows": rows})
    monkeypatch.setattr(streaming, "find_spec", lambda _: None)
    monkeypatch.setattr(streaming, "SETTINGS", SETTINGS[1:4])
    said: list[str] = []
    found = StreamingBenchmark().run(BRIEF, said.append)
    assert found["missing"] == ["river"]
    assert len(found["timings"]) == 1
    assert found["disk"]["rows"] == streaming.ROWS_ON_DISK
    first, second = StreamingBenchmark().sheets(found)
    assert first.note == "Not installed here: river."
    assert second.cells()[0] == ["10,000,000", "20", "300", "100", "7"]


def test_the_command(call: Call) -> None:
    answer: Answer = call("bench", "--streaming", "--quick", "--json")
    assert answer.code == 0
    found = json.loads(answer.out)
    assert [timing["against"] for timing in found["timings"]] == ["observe_many"]
    assert found["disk"]["rows"] == 50_000
    assert found["disk"]["seconds"] > 0
    refused = call("bench", "--streaming", "--on", "games")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
