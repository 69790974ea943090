import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from metareplay.networks import (
    glorot,
    mlp,
    nature_cnn,
    omniglot_cnn,
    separate_mlps,
    task_input_mlp,
    uniform_by_fan_in,
)


def test_first_weights_are_glorot_uniform_and_biases_zero() -> None:
    net = mlp(784, (100, 100), 10, seed=0)
    for layer in (net[1], net[3], net[5]):
        assert isinstance(layer, nn.Linear)
        limit = math.sqrt(6 / (layer.in_features + layer.out_features))
        assert layer.weight.abs().max() <= limit
        assert layer.weight.abs().max() > 0.95 * limit
        assert abs(float(layer.weight.detach().var()) - limit**2 / 3) < 0.1 * limit**2
        assert not layer.bias.any()


def test_the_seed_decides_and_the_global_generator_is_left_alone() -> None:
    state = torch.get_rng_state()
    one, same, other = mlp(5, (4,), 3, seed=1), mlp(5, (4,), 3, seed=1), mlp(5, (4,), 3, seed=2)
    assert torch.equal(one[1].weight, same[1].weight)  # type: ignore[arg-type]
    assert not torch.equal(one[1].weight, other[1].weight)  # type: ignore[arg-type]
    assert torch.equal(torch.get_rng_state(), state)


def test_networks_are_made_without_reading_the_global_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lock is taken while Python's own lock is held, so several threads that read its state may wait for ever."""

    def unasked(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(torch.random, "fork_rng", unasked)
    monkeypatch.setattr(torch, "get_rng_state", unasked)
    state = torch.default_generator.get_state()
    made: list[nn.Module] = [
        mlp(4, (3,), 2),
        omniglot_cnn(classes=(3, 4), norm="batch"),
        omniglot_cnn(init="torch"),
        nature_cnn(),
    ]
    made += [separate_mlps(4, (3,), 2, tasks=2), task_input_mlp(4, (3,), 2, tasks=2)]
    assert torch.equal(torch.default_generator.get_state(), state)
    assert all(torch.isfinite(value).all() for net in made for value in net.parameters())


@pytest.mark.parametrize("layer", [nn.Linear(400, 30), nn.Conv2d(16, 60, 5)])
def test_weights_are_uniform_by_fan_in_and_biases_zero(layer: nn.Linear | nn.Conv2d) -> None:
    limit = 1 / math.sqrt(400)  # 16 * 5 * 5 inputs of each filter are 400 too
    assert uniform_by_fan_in(layer, seed=0) is layer
    weight = layer.weight.detach()
    assert 0.95 * limit < weight.abs().max() <= limit
    assert abs(float(weight.var()) - limit**2 / 3) < 0.02 * limit**2
    assert layer.bias is not None
    assert not layer.bias.any()


@pytest.mark.parametrize("draw", [glorot, uniform_by_fan_in])
def test_gains_stay_and_the_seed_decides_alone(draw: Callable[[nn.Module, int], nn.Module]) -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    nn.init.constant_(net[1].weight, 7.0)  # type: ignore[arg-type]
    state = torch.get_rng_state()
    first, again, other = (nn.utils.parameters_to_vector(draw(net, seed).parameters()).clone() for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert net[1].weight.tolist() == [7.0] * 3  # type: ignore[operator]
    assert torch.equal(torch.get_rng_state(), state)
