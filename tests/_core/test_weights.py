import pytest
import torch
from torch import nn

import metareplay as mr
from metareplay._core.weights import Weights, reptile


def test_theta_and_the_module_are_the_same_memory() -> None:
    net = mr.networks.mlp(3, (4,), 2)
    inputs = torch.rand(5, 3)
    before = net(inputs)
    weights = Weights(net)
    assert torch.equal(net(inputs), before)
    weights.theta.mul_(2)
    assert torch.equal(nn.utils.parameters_to_vector(net.parameters()), weights.theta)
    with torch.no_grad():
        net[1].weight.fill_(7)  # type: ignore[operator]
    assert (weights.theta[:12] == 7).all()


def test_loading_a_state_dict_keeps_them_together() -> None:
    net = mr.networks.mlp(3, (4,), 2)
    weights = Weights(net)
    net.load_state_dict(mr.networks.mlp(3, (4,), 2, seed=9).state_dict())
    assert torch.equal(nn.utils.parameters_to_vector(net.parameters()), weights.theta)
    weights.check()


def test_shared_parameters_count_once() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    assert len(Weights(net).theta) == 16 + 4 + 4


def test_models_that_do_not_fit_one_vector_are_refused() -> None:
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(mr.InputError, match="one dtype"):
        Weights(mixed)
    with pytest.raises(mr.InputError, match="none"):
        Weights(nn.ReLU())


def test_reptile_goes_part_of_the_way() -> None:
    theta, before = torch.tensor([4.0, 0.0]), torch.tensor([0.0, 2.0])
    reptile(theta, before, 0.25)
    assert theta.tolist() == [1.0, 1.5]
    reptile(theta, before, 1.0)
    assert theta.tolist() == [1.0, 1.5]
