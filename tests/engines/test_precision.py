from threading import Barrier, Thread
from typing import Any

import pytest
import torch

from metareplay.engines.precision import full_precision

GPU = torch.device("cuda")


def settings() -> list[Any]:
    cudnn: Any = torch.backends.cudnn
    matmul = torch.backends.cuda.matmul
    return [cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision, cudnn.deterministic, matmul.allow_tf32]


def test_convolutions_and_products_are_exact_inside_and_as_before_outside() -> None:
    before = settings()
    assert before[0] == "tf32"  # torch's default, the reason for all this
    with full_precision(GPU):
        assert settings() == ["ieee", "ieee", True, False]
        with full_precision(GPU):
            assert settings() == ["ieee", "ieee", True, False]
        assert settings() == ["ieee", "ieee", True, False]
    assert settings() == before
    assert torch.backends.cudnn.allow_tf32


def test_what_the_user_had_set_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    torch.set_float32_matmul_precision("high")
    try:
        with full_precision(GPU):
            assert not torch.backends.cuda.matmul.allow_tf32
            assert not torch.backends.cudnn.benchmark
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cudnn.benchmark
    finally:
        torch.set_float32_matmul_precision("highest")


def test_nothing_changes_on_the_cpu() -> None:
    with full_precision(torch.device("cpu")):
        assert settings()[0] == "tf32"


def test_the_last_thread_that_leaves_puts_it_back() -> None:
    before, turn = settings(), Barrier(2)
    seen: list[list[Any]] = []

    def first() -> None:
        with full_precision(GPU):
            turn.wait()  # both inside
            turn.wait()  # the other one stays

    def second() -> None:
        with full_precision(GPU):
            turn.wait()
            turn.wait()
            threads[0].join()
            seen.append(settings())

    threads = [Thread(target=work) for work in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [["ieee", "ieee", True, False]]
    assert settings() == before
