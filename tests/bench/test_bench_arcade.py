"""The benchmark of agents side by side: it times what it says, and its table can be read."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from small_games import small_cnn

from metareplay.bench.arcade import CATCHER, SETTINGS, ArcadeBenchmark, measure
from metareplay.bench.frame import AGAINST_ONE, QUICK
from metareplay.rl.arcade import obstacle

ROOT = Path(__file__).parents[2]


def test_every_setting_can_play_side_by_side() -> None:
    for setting in SETTINGS:
        run = setting.experiment.start()
        assert obstacle(run) is None
        assert run.agent.k == 17


def test_a_quick_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metareplay.rl.game_experiment.nature_cnn", small_cnn)
    small = replace(
        CATCHER, frames=50, memory=50, game_options={"size": 36}, options={"warmup": 4, "k": 3}, episodes=1, cap=3
    )
    setting = replace(SETTINGS[0], experiment=small, agents=2)
    effort = replace(QUICK, seconds=0.001, rounds=1)
    timing = measure(setting, effort, "cpu", warm_up=6).to_json(AGAINST_ONE)
    assert timing["ratio"] == pytest.approx(timing["all"] / timing["one"])
    assert timing["run"] == pytest.approx(150 * timing["one"] / 60)
    (sheet,) = ArcadeBenchmark().sheets({"device": "any", "timings": [timing]})
    assert sheet.cells()[0][0] == setting.name


def test_the_table_in_the_documentation_is_what_was_measured() -> None:
    found = json.loads((ROOT / "results" / "bench-arcade.json").read_text())
    page = (ROOT / "docs" / "rl.md").read_text()
    assert [timing["name"] for timing in found["timings"]] == [setting.name for setting in SETTINGS]
    for timing in found["timings"]:
        agents = timing["name"].partition(" x ")[0]
        row = next(line for line in page.splitlines() if f"| {timing['all']:.1f} | {timing['one']:.1f} |" in line)
        assert row.startswith(f"| {agents} x ")
        assert f"| {timing['ratio']:.1f}" in row
        assert f"{150 * timing['all'] / 60:.1f} min" in row
    assert f"one alone {found['timings'][0]['run']:.1f} " in page
    assert len(ArcadeBenchmark().sheets(found)[0].cells()) == len(SETTINGS)
