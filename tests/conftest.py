import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from small_runs import Answer, Call, instead_of_data
from torch import Tensor, nn

import metareplay as mr
from metareplay import cli
from metareplay.experiments import Experiment
from metareplay.runners import carry_out, threads

os.environ["TRITON_INTERPRET"] = "1"  # kernels for GPUs, where they are tested at all, run on the CPU
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell; tests send Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # tests run side by side, one per core
settings.register_profile("metareplay", deadline=None, derandomize=True, print_blob=True, max_examples=6)
settings.register_profile("thorough", deadline=None, print_blob=True, max_examples=200)  # make test-all
settings.load_profile("metareplay")


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    """What a test draws from torch's global generator is the same in every run."""
    torch.manual_seed(0)


@pytest.fixture
def small_net() -> Callable[[], nn.Module]:
    """Makes the same small float64 network again and again."""
    return lambda: mr.networks.mlp(6, (7, 5), 3, seed=1).double()


@pytest.fixture
def small_data() -> tuple[Tensor, Tensor, Tensor]:
    """45 random examples of 3 tasks, 15 each."""
    generator = torch.Generator().manual_seed(0)
    xs = torch.rand(45, 6, generator=generator, dtype=torch.float64)
    ys = torch.randint(3, (45,), generator=generator)
    return xs, ys, torch.arange(45) // 15


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    """`metareplay` with these words after it, in an empty folder, with small images instead of MNIST and Omniglot."""
    instead_of_data(monkeypatch)
    monkeypatch.chdir(tmp_path)

    def called(*words: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["metareplay", *words])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        printed = capsys.readouterr()
        assert isinstance(stopped.value.code, int)
        return Answer(stopped.value.code, printed.out, printed.err)

    return called


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Experiment]:
    """The experiments that threads carried out, in the order they were begun."""
    begun: list[Experiment] = []

    def noted(experiment: Experiment, *rest: Any, **options: Any) -> mr.Record:
        begun.append(experiment)
        return carry_out(experiment, *rest, **options)

    monkeypatch.setattr(threads, "carry_out", noted)
    return begun
