import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from metareplay.bench import cpu as bench
from metareplay.bench.frame import QUICK, Effort, fill
from metareplay.data import Images

BRIEF = Effort(rounds=1, seconds=0.01)
SMALL = bench.Setting("small", hidden=(8,), memory=40, k=3, s=2)


@pytest.fixture(autouse=True)
def _noise(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    xs, ys = rng.integers(256, size=(2600, 28, 28), dtype=np.uint8), rng.integers(10, size=2600, dtype=np.uint8)
    monkeypatch.setattr(
        "metareplay.streams.images.mnist", lambda: Images("noise", xs[:2500], ys[:2500], xs[2500:], ys[2500:])
    )


OTHERS = ("mer-current-rate", "er", "online", "ewc", "gem")


@pytest.mark.parametrize("algorithm", ["mer", *(pytest.param(one, marks=pytest.mark.slow) for one in OTHERS)])
def test_every_algorithm_is_timed_against_the_torch_loop(algorithm: str) -> None:
    setting = bench.Setting("small", algorithm, hidden=(8,), memory=40, k=3, s=2, promised=5, aim=10)
    timing = bench.measure(setting, "auto", BRIEF)
    assert timing.extra == {"engine": "cpu"}
    assert timing.ours > 0
    assert timing.ratio == pytest.approx(timing.theirs / timing.ours)
    assert (timing.promised, timing.aim) == (5, 10)


@pytest.mark.parametrize("setting", [bench.SETTINGS[1], bench.SETTINGS[3]])
def test_the_memory_is_full_when_timing_starts(setting: bench.Setting) -> None:
    xs, ys = bench.examples(setting, 200)
    learner = bench.Setting("small", memory=50).learner("auto")
    fill(learner, xs[:50], ys[:50])
    assert learner.own_memory is not None
    assert len(learner.own_memory) == learner.own_memory.seen == learner.seen == 50
    assert torch.equal(learner.own_memory.examples().xs, xs[:50])


def test_the_document_is_plain_json(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SETTINGS", "BASELINES", "GROWTH"):
        monkeypatch.setattr(bench, name, (replace(SMALL, name=name),))
    monkeypatch.setattr(bench, "two_jobs", lambda *_: 0.5)
    said: list[str] = []
    document = json.loads(json.dumps(bench.CpuBenchmark().run(BRIEF, said.append)))
    assert [one["name"] for one in document["timings"]] == ["SETTINGS", "BASELINES"]
    assert [one["name"] for one in document["growth"]] == ["GROWTH"]
    assert {"torch", "numpy", "processor"} <= document["versions"].keys()
    assert said == [
        "timing 1/3: SETTINGS",
        "timing 2/3: BASELINES",
        "timing 3/3: GROWTH",
        "timing two runs side by side",
    ]
    assert document.keys() >= {"two_jobs", "timings", "growth", "versions", "date", "device"}
    first, second = bench.CpuBenchmark().sheets(document)
    assert (len(first.rows), len(second.rows)) == (2, 1)
    assert "0.50" in second.note


def test_quick_times_the_first_setting_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SETTINGS", (SMALL, replace(SMALL, name="another")))
    document = bench.CpuBenchmark().run(QUICK, lambda _: None)
    assert [one["name"] for one in document["timings"]] == ["small"]
    assert (document["growth"], document["two_jobs"]) == ([], None)
    assert len(bench.CpuBenchmark().sheets(document)) == 1


def test_two_jobs_is_a_share() -> None:
    share = bench.two_jobs("auto", BRIEF, SMALL)
    assert share > 0
    assert math.isfinite(share)


def test_what_is_promised_is_what_is_timed() -> None:
    assert [(one.promised, one.aim) for one in bench.SETTINGS] == [
        (100, 200),
        (60, 120),
        (100, 200),
        (40, 80),
        (20, 40),
    ]
    assert bench.FIRST.steps == 1010
