"""The benchmark of agents side by side: it times what it says, and its table can be read."""

from dataclasses import replace

import pytest
from small_games import small_cnn

from metareplay.bench.arcade import CATCHER, SETTINGS, ArcadeBenchmark, measure
from metareplay.bench.frame import AGAINST_ONE, QUICK
from metareplay.rl.arcade import obstacle


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
