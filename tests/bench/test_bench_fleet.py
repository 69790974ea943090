"""What the fleet's benchmark says; the numbers themselves need a GPU."""

from io import StringIO

import pytest
from rich.console import Console
from small_runs import Call

from metareplay.bench import fleet as bench_fleet
from metareplay.cli.display import fleet_bench_table


def test_the_floor_grows_with_the_gpu() -> None:
    assert bench_fleet.floor_rate(132) == pytest.approx(2 * bench_fleet.floor_rate(66))
    assert 100 < bench_fleet.floor_rate(132) < 1000


def test_the_table() -> None:
    timing = {"name": "132 runs", "step": 3.5, "rate": 37.7, "share": 0.096, "at_least": 25, "aim": 60}
    found = {
        "device": "GPU",
        "error": 2e-7,
        "timings": [timing, timing | {"name": "one", "at_least": None, "aim": None}],
    }
    out = StringIO()
    Console(file=out, width=120).print(fleet_bench_table(found))
    assert "37.7" in out.getvalue()
    assert "10 %" in out.getvalue()
    assert "2e-07" in out.getvalue()


def test_without_a_gpu_both_commands_say_so(call: Call) -> None:
    for words in (
        ("bench", "--engine", "fleet"),
        ("run", "mer", "--engine", "fleet", "--tasks", "2", "--examples", "5"),
    ):
        answer = call(*words)
        assert answer.code == 2
        assert answer.err.count("\n") == 1
        assert "needs a CUDA GPU" in answer.err
