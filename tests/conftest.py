from collections.abc import Callable

import pytest
import torch
from hypothesis import settings
from torch import Tensor, nn

import metareplay as mr

settings.register_profile("metareplay", deadline=None, derandomize=True, print_blob=True, max_examples=40)
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
