"""The kernels of deep Q-learning do what torch does, for networks of any widths."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

import metareplay as mr
from metareplay.engines.cpu import q_steps
from metareplay.engines.cpu.q_steps import QNet, QRates, Transitions

Array = NDArray[Any]
widths = st.lists(st.integers(1, 50), min_size=2, max_size=5).map(tuple)


def network(shape: tuple[int, ...], seed: int = 0) -> nn.Module:
    return mr.networks.mlp(shape[0], shape[1:-1], shape[-1], seed=seed)


def flat(model: nn.Module) -> Array:
    found: Array = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()
    return found


def made(model: nn.Module, shape: tuple[int, ...], batch: int = 20, adam: bool = False, target: Any = None) -> QNet:
    net = q_steps.make_net(shape, batch, adam)
    q_steps.pack(net, flat(model), net.weights)
    q_steps.pack(net, flat(target or model), net.target)
    return net


def theta(net: QNet, size: int) -> Array:
    found = np.full(size, np.nan, np.float32)
    q_steps.unpack(net, net.weights, found)
    return found


def rates(**changes: Any) -> QRates:
    one = np.float32(1)
    plain = QRates(np.float32(0.1), np.float32(0.1), one, one, np.inf, np.float32(0.9), False, False, False, 1e-3)
    return plain._replace(**changes)


def transitions(shape: tuple[int, ...], count: int, seed: int = 0) -> Transitions:
    rng = np.random.default_rng(seed)
    x, following = rng.normal(size=(2, count, shape[0])).astype(np.float32)
    x[rng.random(x.shape) < 0.2] = 0
    reward = (2 * rng.normal(size=count)).astype(np.float32)
    return Transitions(x, rng.integers(0, shape[-1], count), reward, following, rng.random(count) < 0.3)


@given(shape=widths)
def test_packing_loses_nothing(shape: tuple[int, ...]) -> None:
    model = network(shape)
    net = made(model, shape)
    assert np.array_equal(theta(net, flat(model).size), flat(model))
    assert np.count_nonzero(net.weights.flat) == np.count_nonzero(flat(model))
    assert net.weights.rows.ctypes.data % 64 == 0


@given(shape=widths, seed=st.integers(0, 100))
def test_values_of_all_actions(shape: tuple[int, ...], seed: int) -> None:
    model, xs = network(shape, seed), transitions(shape, 7, seed).x
    found = np.full((7, shape[-1]), np.nan, np.float32)
    q_steps.outputs(made(model, shape), xs, found)
    expected = model.double()(torch.from_numpy(xs).double()).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("values", [[1.0, 3.0, 3.0], [np.nan, 1.0, np.nan], [2.0, np.nan, 5.0], [-np.inf, -np.inf]])
def test_the_best_action_is_torch_s(values: list[float]) -> None:
    """The first of the greatest values, and NaN before anything else."""
    layer = nn.Linear(1, len(values))
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.copy_(torch.tensor(values))
    net = made(layer, (1, len(values)))
    found = q_steps.best_action(net, net.weights, np.zeros((1, 1), np.float32), np.int64(0))
    assert found == int(torch.tensor(values).argmax())


@given(shape=widths, size=st.integers(1, 12), double=st.booleans(), seed=st.integers(0, 100))
def test_a_batch_against_autograd(shape: tuple[int, ...], size: int, double: bool, seed: int) -> None:
    """One plain step on the mean Huber loss of a batch, with targets from another network."""
    model, target = network(shape, seed).double(), network(shape, seed + 1).double()
    table = transitions(shape, size, seed)
    net = made(model.float(), shape, target=target.float())
    ends, rows = np.array([0, size]), np.arange(size)
    by_kernel = rates(double=double, together=True)
    assert q_steps.run_plan(net, table, rows, ends, 1, 1, size - 1, by_kernel) == 1
    model, target = model.double(), target.double()
    x, following, reward = (torch.from_numpy(v).double() for v in (table.x, table.next_x, table.reward))
    over, action = torch.from_numpy(table.over), torch.from_numpy(table.action)
    with torch.no_grad():
        chosen = (model if double else target)(following).argmax(1, keepdim=True)
        y = torch.where(over, reward, reward + np.float32(0.9) * target(following).gather(1, chosen)[:, 0])
    loss = nn.functional.huber_loss(model(x).gather(1, action[:, None])[:, 0], y)
    loss.backward()
    expected = np.concatenate([(p - np.float32(0.1) * p.grad).detach().flatten() for p in model.parameters()])  # type: ignore[operator]
    np.testing.assert_allclose(theta(net, expected.size), expected, rtol=1e-5, atol=2e-6)


@given(shape=widths, seed=st.integers(0, 100))
def test_padding_stays_zero(shape: tuple[int, ...], seed: int) -> None:
    model, table = network(shape, seed), transitions(shape, 12, seed)
    for adam in (False, True):
        net = made(model, shape, adam=adam)
        q_steps.run_plan(net, table, np.arange(12), np.arange(0, 13, 4), 3, 1, 0, rates(adam=adam))
        used = q_steps.make_net(shape, 1, adam=False).weights
        q_steps.pack(net, np.ones(flat(model).size, np.float32), used)
        assert not net.weights.flat[used.flat == 0].any()


def test_adam_is_torch_s_also_where_moments_vanish() -> None:
    """Weights without a gradient keep moments that shrink; they are set to 0 before they become denormal numbers."""
    shape = (3, 17, 2)
    model = network(shape)
    net = made(model, shape, adam=True)
    size = flat(model).size
    weights = nn.Parameter(torch.from_numpy(flat(model)).double())
    optimizer = torch.optim.Adam([weights], lr=1e-3)
    for step in range(1500):
        gradient = np.random.default_rng(step).normal(size=size).astype(np.float32)
        gradient[: size // 2] *= step < 10
        q_steps.pack(net, gradient, net.gradient)
        q_steps.adam(net, np.float32(1), 1e-3)
        weights.grad = torch.from_numpy(gradient).double()
        optimizer.step()
    np.testing.assert_allclose(theta(net, size), weights.detach().numpy(), rtol=1e-4, atol=3e-6)
    moments = net.moments.flat[net.moments.flat != 0]
    assert 0 < len(moments) <= size - size // 2
    assert np.abs(moments).min() > np.finfo(np.float32).tiny


@pytest.mark.parametrize("adam", [False, True])
def test_what_is_not_finite_is_undone(adam: bool) -> None:
    shape = (3, 20, 18, 2)
    model, table = network(shape), transitions(shape, 9)
    table.reward[5] = np.inf
    net = made(model, shape, adam=adam)
    rows, ends = np.arange(9), np.arange(0, 10, 3)
    assert q_steps.run_plan(net, table, rows, ends, 3, 1, 100, rates(adam=adam)) == 1
    expected = made(model, shape, adam=adam)
    assert q_steps.run_plan(expected, table, rows[:3], ends[:2], 1, 1, 100, rates(adam=adam)) == 1
    for one, other in ((net.weights, expected.weights), (net.moments, expected.moments)):
        assert np.array_equal(one.flat, other.flat)
    assert net.steps[0] == expected.steps[0]
    table.reward[5], table.x[4] = 0, 3e38  # hidden units overflow
    assert q_steps.run_plan(net, table, rows[3:6], ends[:2], 1, 1, 100, rates(adam=adam)) == 0
    assert np.array_equal(net.weights.flat, expected.weights.flat)
    table.x[4] = 0
    assert q_steps.run_plan(net, table, rows[3:6], ends[:2], 1, 1, 100, rates(adam=adam)) == 1
    assert np.isfinite(net.weights.flat).all()
