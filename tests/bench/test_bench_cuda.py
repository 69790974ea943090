"""What `bench --engine cuda` does, on the CPU: the same code with plain stepping."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from small_runs import Call
from torch import nn

from metareplay import networks
from metareplay.bench import cuda as bench_cuda
from metareplay.bench.frame import AGAINST_ONE, AGAINST_TORCH, QUICK, Effort, Timing
from metareplay.cli.display import bench_table

CPU = torch.device("cpu")
BRIEF = Effort(rounds=1, seconds=0.01)
SMALL = bench_cuda.Setting(
    "small", lambda seed: networks.mlp(6, (4,), 3, seed=seed), (6,), 3, k=3, s=2, promised=8, aim=20
)


@pytest.mark.parametrize("regression", [False, True])
def test_a_step_is_timed_against_the_torch_loop(regression: bool) -> None:
    timing = bench_cuda.measure(replace(SMALL, regression=regression), BRIEF, device=CPU)
    assert timing.extra["engine"] == "torch"
    assert timing.ours > 0
    assert timing.ratio == pytest.approx(timing.theirs / timing.ours)
    assert timing.extra["steps_per_second"] == pytest.approx(1e6 / timing.ours)
    assert (timing.promised, timing.aim) == (8, 20)
    assert (timing.extra["kernels"], timing.extra["floor"]) == (None, None)
    assert timing.extra["bytes"] == 6 * 4 * (6 * 4 + 4 + 4 * 3 + 3)


def test_replicas_are_timed_against_one() -> None:
    found = bench_cuda.replicas(BRIEF, SMALL, 2.0, 1.3, count=2, device=CPU).to_json(AGAINST_ONE)
    assert found["name"] == "2 runs side by side, small"
    assert found["ratio"] == pytest.approx(found["all"] / found["one"])
    assert (found["at_most"], found["aim"]) == (2.0, 1.3)


@pytest.mark.parametrize("setting", bench_cuda.SETTINGS, ids=lambda one: one.name)
def test_the_networks_take_their_inputs(setting: bench_cuda.Setting) -> None:
    xs, ys = setting.examples(2)
    model = setting.model(0)
    path = model.paths()[-1] if isinstance(model, networks.TaskModule) else model
    assert path(xs.float() / 255).shape[1] >= setting.outputs
    assert ys.shape == ((2, setting.outputs) if setting.regression else (2,))


def test_the_omniglot_network_is_the_paper_s() -> None:
    layers = [layer for layer in networks.omniglot_cnn().modules() if isinstance(layer, nn.Conv2d)]
    assert [(layer.in_channels, layer.out_channels, layer.kernel_size) for layer in layers] == [
        (1, 64, (3, 3)), (64, 64, (3, 3)), (64, 64, (3, 3)), (64, 64, (3, 3)),
    ]  # fmt: skip


def test_what_is_promised_is_what_is_timed() -> None:
    assert [(one.promised, one.aim) for one in bench_cuda.SETTINGS] == [(None, None), *[(8, 20)] * 4]
    assert [(one.most, one.wanted) for one in bench_cuda.SETTINGS[1:4]] == [(80, 50)] * 3
    assert [one[1:] for one in bench_cuda.SIDE_BY_SIDE] == [(2.0, 1.3), (3.0, 1.5)]


def test_the_document_is_plain_json_and_makes_tables() -> None:
    timing = bench_cuda.measure(SMALL, BRIEF, device=CPU).to_json(AGAINST_TORCH)
    beside = bench_cuda.replicas(BRIEF, SMALL, 2.0, 1.3, count=2, device=CPU).to_json(AGAINST_ONE)
    found = {"device": "some GPU", "timings": [timing], "replicas": [beside]}
    sheets = bench_cuda.CudaBenchmark().sheets(json.loads(json.dumps(found)))
    assert sum(bench_table(sheet).row_count for sheet in sheets) == 2
    assert "some GPU" in sheets[0].title


@pytest.mark.parametrize("effort", [BRIEF, QUICK], ids=["all", "quick"])
def test_kernels_are_counted_last(effort: Effort, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def step(name: str, outcome: object) -> Callable[..., object]:
        def act(*_: object) -> object:
            done.append(name)
            return outcome

        return act

    timing = Timing("a setting", 1.0, 2.0, 2.0)
    counted = timing.with_extra(kernels=3.0, floor=1.5)
    for name, outcome in {
        "check_gpu": None, "node_latency": 0.5, "measure": timing, "replicas": timing, "with_kernels": counted,
        "describe_gpu": "some GPU",
    }.items():  # fmt: skip
        monkeypatch.setattr(bench_cuda, name, step(name, outcome))
    found = bench_cuda.CudaBenchmark().run(effort, lambda _: None)
    count = 1 if effort.quick else len(bench_cuda.SETTINGS)
    every = ["measure"] * count, ["with_kernels"] * count
    beside = ["replicas"] * (1 if effort.quick else len(bench_cuda.SIDE_BY_SIDE))
    assert done == ["check_gpu", "node_latency", *every[0], *beside, *every[1], "describe_gpu"]
    assert found.keys() == {"device", "empty_kernel", "timings", "replicas", "versions", "date"}
    assert [one["kernels"] for one in found["timings"]] == [3.0] * count


@pytest.mark.parametrize("words", [("bench", "--engine", "cuda"), ("run", "--engine", "cuda")])
def test_without_a_gpu_one_line_says_so(call: Call, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    answer = call(*words)
    assert answer.code == 2
    assert "needs a CUDA GPU" in answer.err
    assert answer.err.count("\n") == 1


def test_a_gpu_without_room_is_explained_in_one_line(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(bench_cuda, "check_gpu", lambda: None)
    monkeypatch.setattr(bench_cuda, "node_latency", full)
    answer = call("bench", "--engine", "cuda")
    assert answer.code == 2
    assert "not enough GPU memory" in answer.err
