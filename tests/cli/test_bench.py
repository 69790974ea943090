"""The command `bench`: what it prints, and what it refuses."""

import json

import pytest
from small_runs import Call

from metareplay.bench import cpu as bench_cpu
from metareplay.cli import bench as command


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = bench_cpu.Setting("a small setting", hidden=(8,), memory=40, k=3, s=2, dense=True, promised=5)
    monkeypatch.setattr(bench_cpu, "SETTINGS", (setting,))


@pytest.mark.usefixtures("_small")
def test_a_table_or_one_json_document(call: Call) -> None:
    answer = call("bench", "--quick")
    assert answer.code == 0
    assert "a small setting" in answer.out
    assert "times faster" in answer.out
    answer = call("bench", "--quick", "--json", "--engine", "torch")
    (timing,) = json.loads(answer.out)["timings"]
    assert (timing["name"], timing["engine"], timing["at_least"]) == ("a small setting", "torch", 5)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--engine", "fleet"], "use --on fleet"),
        (["--on", "ray"], "--on ray: use --on fleet"),
        (["--on", "fleet", "--engine", "cuda"], "--engine cuda and --on fleet: use one of them"),
        (["--engine", "abacus"], "'abacus': use one of auto, torch, cpu, cuda"),
        (["--rounds", "0"], "rounds=0: use at least 1"),
        (["--seconds", "0", "--quick"], "seconds=0: use a positive number"),
    ],
)
def test_what_cannot_be_timed_is_refused_in_one_line(call: Call, words: list[str], says: str) -> None:
    answer = call("bench", *words)
    assert answer.code == 2
    assert says in answer.err
    assert answer.err.count("\n") == 1


def test_every_place_and_engine_has_its_benchmark() -> None:
    found = [
        command._benchmark(*words) for words in (("auto", None), ("torch", None), ("cuda", None), ("auto", "fleet"))
    ]
    assert [type(one).__name__ for one in found] == [
        "CpuBenchmark",
        "CpuBenchmark",
        "CudaBenchmark",
        "FleetBenchmark",
    ]
