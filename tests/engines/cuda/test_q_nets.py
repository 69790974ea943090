"""Q-networks side by side take the steps that torch's layers and optimizers take one by one."""

import pytest
import torch
from small_games import small_cnn
from torch import Tensor, nn
from torch.nn import functional

from metareplay.engines.cuda.q_nets import QNets, huber_slope
from metareplay.engines.cuda.q_passes import Pass
from metareplay.engines.q_shape import Shape

CPU = torch.device("cpu")


def networks(runs: int, size: int = 36) -> list[nn.Sequential]:
    """Networks with weights and biases of their own."""
    made = [small_cnn(run, actions=3, frames=2, size=size) for run in range(runs)]
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
def test_steps_are_torchs(adam: bool, batch: int, size: int) -> None:
    nets, rates = networks(2, size), [1e-3, 3e-3] if adam else [0.01, 0.03]
    ours = side_by_side(nets, rates, adam=adam, size=size)
    by = Pass(ours.shape, 2, batch, CPU)
    optimizer = torch.optim.Adam if adam else torch.optim.SGD
    optimizers = [optimizer(net.parameters(), lr=rate) for net, rate in zip(nets, rates, strict=True)]
    start = [flat(net) for net in nets]
    for _ in range(3):
        xs = torch.randint(256, (2, batch, 2, size, size), dtype=torch.uint8)
        actions, ys = torch.randint(3, (2, batch)), 2 * torch.randn(2, batch)
        first = by.take(xs)
        found = by.values(ours.matrices(ours.theta), first)
        for run, net in enumerate(nets):
            wanted = step_one_by_one(net, optimizers[run], xs[run], actions[run], ys[run])
            torch.testing.assert_close(found[run], wanted, rtol=1e-3, atol=1e-3)
        ours.step(by, huber_slope(found, ys[:, :, None], functional.one_hot(actions, 3) / batch), first)
    for run, net in enumerate(nets):
        apart = (ours.weights_of(ours.theta, run) - flat(net)).norm() / (flat(net) - start[run]).norm()
        assert apart < (0.02 if adam else 1e-4)  # Adam divides by gradients that are almost 0
    for matrix, layer in zip(ours.matrices(ours.theta), ours.shape.layers, strict=True):
        assert not matrix[:, :, layer.inputs + 1 :].any()  # the padding


def test_rows_by_themselves() -> None:
    ours = side_by_side(networks(2), [0.1, 0.1], adam=False)
    one, many = Pass(ours.shape, 2, 1, CPU), Pass(ours.shape, 2, 3, CPU)
    xs, matrices = torch.randint(256, (2, 3, 2, 36, 36), dtype=torch.uint8), ours.matrices(ours.theta)
    each = [one.values(matrices, first).clone() for first in one.rows(xs)]
    torch.testing.assert_close(torch.cat(each, 1), many.values(matrices, many.take(xs)), rtol=1e-4, atol=1e-4)


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
