"""The benchmark of agents that play: it times what it says, and its table can be read."""

from dataclasses import replace

import pytest

from metareplay.bench import games
from metareplay.bench.frame import QUICK
from metareplay.bench.games import SETTINGS, GamesBenchmark
from metareplay.engines.choose import EngineName
from metareplay.rl.playing import Compiled, FrameByFrame, playing


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_ours_is_compiled_and_theirs_goes_frame_by_frame(setting: games.Setting) -> None:
    ways: dict[EngineName, type] = {"auto": Compiled, "torch": FrameByFrame}
    if setting.experiment.observation == "pixels":
        ways["auto"] = FrameByFrame
    for engine, way in ways.items():
        training = replace(setting.experiment, engine=engine).start()
        seen, _ = training.env.reset(seed=0)
        assert isinstance(playing(training.agent, training.env, seen), way)
        assert training.agent.chosen_engine.name == ("cpu" if engine == "auto" else "torch")
        assert training.agent.k == 17


def test_a_quick_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(games, "WARM_UP", 505)  # five frames after learning has begun
    said: list[str] = []
    found = GamesBenchmark().run(QUICK, said.append)
    (timing,) = found["timings"]
    assert timing["name"] == SETTINGS[0].name
    assert timing["ratio"] > 0
    assert timing["run"] == pytest.approx(0.15 * timing["ours"])
    assert said
    (sheet,) = GamesBenchmark().sheets(found)
    assert sheet.cells()[0][0] == SETTINGS[0].name
