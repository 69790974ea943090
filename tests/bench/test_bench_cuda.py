"""What `bench --engine cuda` does, on the CPU: the same code with plain stepping."""

import json
from dataclasses import asdict, replace

import pytest
import torch
from small_runs import Call
from torch import nn

from metareplay import networks
from metareplay.bench import cuda as bench_cuda
from metareplay.cli.display import cuda_bench_table

CPU = torch.device("cpu")
SMALL = bench_cuda.Setting(
    "small", lambda seed: networks.mlp(6, (4,), 3, seed=seed), (6,), 3, k=3, s=2, at_least=8, aim=20
)


@pytest.mark.parametrize("regression", [False, True])
def test_a_step_is_timed_against_the_torch_loop(regression: bool) -> None:
    timing = bench_cuda.measure(replace(SMALL, regression=regression), rounds=1, seconds=0.01, device=CPU)
    assert timing.engine == "torch"
    assert timing.ours > 0
    assert timing.ratio == pytest.approx(timing.torch / timing.ours)
    assert timing.steps_per_second == pytest.approx(1e6 / timing.ours)
    assert (timing.at_least, timing.aim, timing.kernels, timing.floor) == (8, 20, None, None)
    assert timing.bytes == 6 * 4 * (6 * 4 + 4 + 4 * 3 + 3)


def test_replicas_are_timed_against_one() -> None:
    found = bench_cuda.replicas(rounds=1, seconds=0.01, setting=SMALL, count=2, device=CPU)
    assert found.ratio == pytest.approx(found.all / found.one)
    assert (found.at_most, found.aim) == (2.0, 1.3)


@pytest.mark.parametrize("setting", bench_cuda.SETTINGS, ids=lambda one: one.name)
def test_the_networks_take_their_inputs(setting: bench_cuda.Setting) -> None:
    xs, ys = setting.examples(2)
    outputs = setting.model(0)(xs.float() / 255)
    assert outputs.shape == (2, setting.outputs)
    assert ys.shape == ((2, setting.outputs) if setting.regression else (2,))


def test_the_omniglot_network_is_the_paper_s() -> None:
    layers = [layer for layer in networks.omniglot_cnn().modules() if isinstance(layer, nn.Conv2d)]
    assert [(layer.in_channels, layer.out_channels, layer.kernel_size) for layer in layers] == [
        (1, 64, (3, 3)), (64, 64, (3, 3)), (64, 64, (3, 3)), (64, 64, (3, 3)),
    ]  # fmt: skip


def test_what_is_promised_is_what_is_timed() -> None:
    assert [(one.at_least, one.aim) for one in bench_cuda.SETTINGS] == [(None, None), (8, 20), (8, 20)]


def test_the_document_is_plain_json_and_makes_a_table() -> None:
    timing = bench_cuda.measure(SMALL, rounds=1, seconds=0.01, device=CPU)
    beside = bench_cuda.replicas(rounds=1, seconds=0.01, setting=SMALL, count=2, device=CPU)
    found = {"device": "some GPU", "timings": [asdict(timing)], "replicas": asdict(beside)}
    table = cuda_bench_table(json.loads(json.dumps(found)))
    assert table.row_count == 2


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

    monkeypatch.setattr(bench_cuda, "document", full)
    answer = call("bench", "--engine", "cuda")
    assert answer.code == 2
    assert "not enough memory" in answer.err
