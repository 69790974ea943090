"""The benchmark of streams: what it times runs, and packages that are missing are named."""

import pytest
from small_runs import Answer, Call

from metareplay.bench import streaming
from metareplay.bench.frame import Effort
from metareplay.bench.streaming import SETTINGS, Setting, StreamingBenchmark, measure

BRIEF = Effort(rounds=1, seconds=0.001)


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
    monkeypatch.setattr(streaming, "ROWS_ON_DISK", 1000)
    monkeypatch.setattr(streaming, "find_spec", lambda _: None)
    monkeypatch.setattr(streaming, "SETTINGS", SETTINGS[1:4])
    said: list[str] = []
    found = StreamingBenchmark().run(BRIEF, said.append)
    assert found["missing"] == ["river"]
    assert len(found["timings"]) == 1
    assert found["disk"]["rows"] == 1000
    first, second = StreamingBenchmark().sheets(found)
    assert first.note == "Not installed here: river."
    assert second.cells()[0][0] == "1,000"


def test_the_command(call: Call) -> None:
    answer: Answer = call("bench", "--streaming", "--quick", "--json")
    assert answer.code == 0
    assert "observe_many" in answer.out
    refused = call("bench", "--streaming", "--on", "games")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
