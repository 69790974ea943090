import json
import math

import numpy as np
import pytest
import torch

from metareplay.bench import cpu as bench
from metareplay.data import Images


@pytest.fixture(autouse=True)
def _noise(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    xs, ys = rng.integers(256, size=(2600, 28, 28), dtype=np.uint8), rng.integers(10, size=2600, dtype=np.uint8)
    monkeypatch.setattr(
        "metareplay.streams.images.mnist", lambda: Images("noise", xs[:2500], ys[:2500], xs[2500:], ys[2500:])
    )


@pytest.mark.parametrize("algorithm", ["mer", "mer-current-rate", "er", "online", "ewc", "gem"])
def test_every_algorithm_is_timed_against_the_torch_loop(algorithm: str) -> None:
    setting = bench.Setting("small", algorithm, hidden=(8,), memory=40, k=3, s=2, at_least=5, aim=10)
    timing = bench.measure(setting, rounds=1, seconds=0.01)
    assert timing.engine == "cpu"
    assert timing.ours > 0
    assert timing.ratio == pytest.approx(timing.torch / timing.ours)
    assert (timing.at_least, timing.aim) == (5, 10)


@pytest.mark.parametrize("setting", [bench.SETTINGS[1], bench.SETTINGS[3]])
def test_the_memory_is_full_when_timing_starts(setting: bench.Setting) -> None:
    xs, ys = bench._examples(setting, 200)
    learner = bench.Setting("small", memory=50).learner("auto")
    bench.fill(learner, xs[:50], ys[:50])
    assert learner.own_memory is not None
    assert len(learner.own_memory) == learner.own_memory.seen == learner.seen == 50
    assert torch.equal(learner.own_memory.examples().xs, xs[:50])


def test_the_document_is_plain_json() -> None:
    setting = bench.Setting("small", hidden=(8,), memory=40, k=3, s=2)
    timing = bench.measure(setting, rounds=1, seconds=0.01)
    document = json.loads(json.dumps(bench.document([timing], [], 0.5)))
    assert document["timings"][0]["name"] == "small"
    assert {"torch", "numpy", "processor"} <= document["versions"].keys()


def test_two_jobs_is_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "FIRST", bench.Setting("small", hidden=(8,), memory=40, k=3, s=2))
    share = bench.two_jobs(rounds=1, seconds=0.01)
    assert share > 0
    assert math.isfinite(share)


def test_what_is_promised_is_what_is_timed() -> None:
    assert [(one.at_least, one.aim) for one in bench.SETTINGS] == [
        (100, 200),
        (60, 120),
        (100, 200),
        (40, 80),
        (20, 40),
    ]
    assert bench.FIRST.steps == 1010
