from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

import metareplay as mr
from metareplay.networks import nature_cnn, omniglot_cnn


def shapes(net: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(parameter.shape) for parameter in net.parameters() if parameter.dim() > 1]


def test_the_omniglot_network_is_the_papers() -> None:
    assert shapes(omniglot_cnn()) == [(64, 1, 3, 3), (64, 64, 3, 3), (64, 64, 3, 3), (64, 64, 3, 3), (55, 64)]
    assert omniglot_cnn(classes=7)(torch.zeros(2, 1, 28, 28)).shape == (2, 7)


def test_the_nature_network_is_dqns() -> None:
    assert shapes(nature_cnn()) == [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3), (512, 3136), (3, 512)]
    assert nature_cnn(actions=6, frames=1)(torch.zeros(2, 1, 84, 84)).shape == (2, 6)


@pytest.mark.parametrize("make", [omniglot_cnn, nature_cnn])
def test_the_seed_decides_and_the_global_generator_is_left_alone(make: Callable[[int], nn.Module]) -> None:
    state = torch.get_rng_state()
    one, same, other = (nn.utils.parameters_to_vector(make(seed).parameters()) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(omniglot_cnn, classes=0), "classes=0: a network needs at least one output; use classes >= 1"),
        (partial(nature_cnn, actions=0), "actions=0: a network needs at least one output; use actions >= 1"),
        (partial(nature_cnn, frames=0), "frames=0: an input has at least one frame; use frames >= 1"),
        (partial(nature_cnn, frames=1.5), "frames=1.5: use a whole number"),  # type: ignore[arg-type]
    ],
)
def test_sizes_that_cannot_be_are_refused(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(mr.InputError, match=message):
        make()
