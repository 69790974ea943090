"""What the fleet's benchmark says; its kernel is interpreted on the CPU, the numbers themselves need a GPU."""

from io import StringIO
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console
from small_runs import Call

from metareplay.bench import fleet as bench_fleet
from metareplay.bench.frame import QUICK, Effort, Timing
from metareplay.cli.display import bench_table
from metareplay.data import Images


def test_the_floor_grows_with_the_gpu() -> None:
    assert bench_fleet.floor_rate(132) == pytest.approx(2 * bench_fleet.floor_rate(66))
    assert 100 < bench_fleet.floor_rate(132) < 1000


@pytest.mark.slow
def test_a_fleet_is_timed_against_the_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    xs, ys = rng.integers(256, size=(1010, 28, 28), dtype=np.uint8), rng.integers(10, size=1010, dtype=np.uint8)
    images = Images("noise", xs[:1000], ys[:1000], xs[1000:], ys[1000:])
    monkeypatch.setattr("metareplay.streams.images.mnist", lambda: images)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    setting = bench_fleet.Setting(2, 2, promised=25, aim=60)
    found = bench_fleet.measure(setting, Effort(rounds=1, seconds=1e-6), "cpu").to_json(bench_fleet.AGAINST_FLOOR)
    assert found["name"] == "2 runs of MER, 784-100-100-10, k=2, s=10"
    assert (found["runs"], found["k"], found["at_least"], found["aim"]) == (2, 2, 25, 60)
    assert found["rate"] == pytest.approx(2 / found["step"])
    assert found["share"] == pytest.approx(found["rate"] / found["floor"])
    assert found["floor"] == bench_fleet.floor_rate(132)


def test_the_table() -> None:
    timing = {"name": "132 runs", "step": 3.5, "rate": 37.7, "share": 0.096, "at_least": 25, "aim": 60}
    found = {
        "device": "GPU",
        "error": 2e-7,
        "timings": [timing, timing | {"name": "one", "at_least": None, "aim": None}],
    }
    out = StringIO()
    (sheet,) = bench_fleet.FleetBenchmark().sheets(found)
    Console(file=out, width=120).print(bench_table(sheet))
    assert "37.7" in out.getvalue()
    assert "10 %" in out.getvalue()
    assert "2e-07" in out.getvalue()


def test_quick_times_the_first_fleet_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, outcome in {"check_device": None, "error": 2e-7, "describe_gpu": "some GPU"}.items():
        monkeypatch.setattr(bench_fleet, name, lambda *_, outcome=outcome: outcome)
    monkeypatch.setattr(bench_fleet, "measure", lambda setting, _: Timing(setting.name, 1.0, 2.0, 0.5))
    for effort, count in ((QUICK, 1), (Effort(), len(bench_fleet.SETTINGS))):
        found = bench_fleet.FleetBenchmark().run(effort, lambda _: None)
        assert [one["name"] for one in found["timings"]] == [one.name for one in bench_fleet.SETTINGS[:count]]
        assert found.keys() == {"device", "error", "timings", "versions", "date"}


def test_without_a_gpu_both_commands_say_so(call: Call) -> None:
    for words in (
        ("bench", "--on", "fleet"),
        ("run", "mer", "--on", "fleet", "--tasks", "2", "--examples", "5"),
    ):
        answer = call(*words)
        assert answer.code == 2
        assert answer.err.count("\n") == 1
        assert "needs a CUDA GPU" in answer.err
