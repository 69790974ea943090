"""Q-networks side by side take the steps that torch's layers and optimizers take one by one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from metareplay.engines.cuda import dense_kernels
from metareplay.engines.cuda.q_nets import QNets, Shape, huber_slope
from metareplay.networks import nature_cnn

CPU = torch.device("cpu")


def networks(runs: int, size: int = 36) -> list[nn.Sequential]:
    """Networks with weights and biases of their own."""
    made = [nature_cnn(run, actions=3, frames=2, size=size) for run in range(runs)]
    for parameter in (parameter for net in made for parameter in net.parameters()):
        parameter.data += 0.02 * torch.randn_like(parameter)
    return made


def flat(net: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])


def side_by_side(nets: list[nn.Sequential], rates: list[float], *, adam: bool, size: int = 36) -> QNets:
    shape = Shape.of(nets[0], (2, size, size))
    assert shape is not None
    made = QNets(shape, CPU, rates, adam=adam)
    for run, net in enumerate(nets):
        made.load(made.theta, run, flat(net))
    return made


def step_one_by_one(
    net: nn.Module, optimizer: torch.optim.Optimizer, xs: Tensor, actions: Tensor, ys: Tensor
) -> Tensor:
    values: Tensor = net(xs.float() / 255)
    optimizer.zero_grad()
    functional.huber_loss(values.gather(1, actions[:, None])[:, 0], ys).backward()
    optimizer.step()
    return values.detach()


@pytest.mark.parametrize("adam", [False, True])
@pytest.mark.parametrize(("batch", "size"), [(1, 36), (4, 40)])
@pytest.mark.parametrize("kernels", [False, True])
def test_steps_are_torchs(adam: bool, batch: int, size: int, kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    nets, rates = networks(2, size), [1e-3, 3e-3] if adam else [0.01, 0.03]
    ours = side_by_side(nets, rates, adam=adam, size=size)
    monkeypatch.setattr(ours, "_kernels", dense_kernels if kernels else None)  # by Triton's interpreter
    kind = torch.optim.Adam if adam else torch.optim.SGD
    optimizers = [kind(net.parameters(), lr=rate) for net, rate in zip(nets, rates, strict=True)]
    start, room = [flat(net) for net in nets], ours.room(batch)
    for _ in range(3):
        xs = torch.randint(256, (2, batch, 2, size, size), dtype=torch.uint8)
        actions, ys = torch.randint(3, (2, batch)), 2 * torch.randn(2, batch)
        ours.take(xs, room)
        found = ours.values(ours.theta, room)
        for run, net in enumerate(nets):
            wanted = step_one_by_one(net, optimizers[run], xs[run], actions[run], ys[run])
            torch.testing.assert_close(found[run], wanted, rtol=1e-3, atol=1e-3)
        ours.step(huber_slope(found, ys[:, :, None], functional.one_hot(actions, 3) / batch), room)
    for run, net in enumerate(nets):
        apart = (ours.weights_of(ours.theta, run) - flat(net)).norm() / (flat(net) - start[run]).norm()
        assert apart < (0.02 if adam else 1e-4)  # Adam divides by gradients that are almost 0


def test_padding_stays_zero() -> None:
    ours = side_by_side(networks(1), [0.1], adam=False)
    room = ours.room(1)
    ours.take(torch.randint(256, (1, 1, 2, 36, 36), dtype=torch.uint8), room)
    ours.step(torch.ones_like(ours.values(ours.theta, room)), room)
    for matrix, layer in zip(ours.matrices(ours.theta), ours.shape.layers, strict=True):
        assert not matrix[:, :, layer.inputs + 1 :].any()


def test_weights_go_in_and_out() -> None:
    nets = networks(3)
    ours = side_by_side(nets, [0.1] * 3, adam=False)
    for run, net in enumerate(nets):
        assert torch.equal(ours.weights_of(ours.theta, run), flat(net))


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(4, 2),
        nn.Sequential(nn.Flatten(), nn.Linear(8, 2)),
        nn.Sequential(nn.Conv2d(2, 3, 2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2)),
        nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(3, 2), nn.Tanh()),
        nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(5, 2)),
        nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(3, 2, bias=False)),
        nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(3, 2)).double(),
        nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(3, 2)).requires_grad_(False),
    ],
)
def test_other_networks_are_left_to_torch(model: nn.Module) -> None:
    assert Shape.of(model, (2, 2, 2)) is None
    assert Shape.of(nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(3, 2)), (2, 2, 2)) is not None


@given(runs=st.integers(1, 3), outs=st.integers(1, 140), inputs=st.integers(1, 40), relu=st.booleans())
@settings(max_examples=15)
def test_kernels_of_linear_layers(runs: int, outs: int, inputs: int, relu: bool) -> None:
    columns = inputs + 1
    matrices = torch.randn(runs, outs * columns + 5)[:, : outs * columns].unflatten(1, (outs, columns))
    xs = torch.cat([torch.randn(runs, inputs).relu(), torch.ones(runs, 1)], 1)
    outputs, of_inputs, slope, before = (
        torch.empty(runs, outs),
        torch.empty(runs, inputs),
        torch.randn(runs, outs),
        None,
    )
    dense_kernels.forward(matrices, xs, outputs, relu=relu)
    wanted = torch.bmm(matrices, xs[:, :, None])[:, :, 0]
    torch.testing.assert_close(outputs, wanted.relu() if relu else wanted, rtol=1e-4, atol=1e-4)
    before = matrices.clone()
    dense_kernels.backward(matrices, xs, slope, of_inputs)
    torch.testing.assert_close(matrices, before - slope[:, :, None] * xs[:, None], rtol=1e-5, atol=1e-5)
    wanted = torch.bmm(slope[:, None], before)[:, 0, :inputs] * (xs[:, :inputs] > 0)
    torch.testing.assert_close(of_inputs, wanted, rtol=1e-4, atol=1e-4)
