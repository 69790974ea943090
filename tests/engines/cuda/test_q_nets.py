"""Q-networks side by side take the steps that torch's layers and optimizers take one by one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_games import small_cnn
from torch import Tensor, nn
from torch.nn import functional

from metareplay.engines.cuda import conv_kernels, dense_kernels
from metareplay.engines.cuda.q_kernels import Kernels
from metareplay.engines.cuda.q_nets import QNets, huber_slope
from metareplay.engines.cuda.q_products import Products
from metareplay.engines.cuda.q_shape import Conv, Shape

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
@pytest.mark.parametrize(("kind", "batch", "size"), [(Products, 1, 36), (Products, 4, 40), (Kernels, 1, 36)])
def test_steps_are_torchs(adam: bool, kind: type[Products] | type[Kernels], batch: int, size: int) -> None:
    nets, rates = networks(2, size), [1e-3, 3e-3] if adam else [0.01, 0.03]
    ours = side_by_side(nets, rates, adam=adam, size=size)
    by = kind(ours.shape, 2, batch, CPU)  # the kernels run in Triton's interpreter
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


@pytest.mark.parametrize("kind", [Products, Kernels])
def test_rows_by_themselves(kind: type[Products] | type[Kernels]) -> None:
    ours = side_by_side(networks(2), [0.1, 0.1], adam=False)
    one, many = kind(ours.shape, 2, 1, CPU), Products(ours.shape, 2, 3, CPU)
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


@given(runs=st.integers(1, 3), outs=st.integers(1, 140), inputs=st.integers(1, 40), relu=st.booleans())
@settings(max_examples=15)
def test_kernels_of_linear_layers(runs: int, outs: int, inputs: int, relu: bool) -> None:
    columns = inputs + 1
    matrices = torch.randn(runs, outs * columns + 5)[:, : outs * columns].unflatten(1, (outs, columns))
    xs = torch.cat([torch.randn(runs, inputs).relu(), torch.ones(runs, 1)], 1)
    outputs, of_inputs, slope = torch.empty(runs, outs), torch.empty(runs, inputs), torch.randn(runs, outs)
    dense_kernels.forward(matrices, xs, outputs, relu=relu)
    wanted = torch.bmm(matrices, xs[:, :, None])[:, :, 0]
    torch.testing.assert_close(outputs, wanted.relu() if relu else wanted, rtol=1e-4, atol=1e-4)
    before, gradient = matrices.clone(), torch.empty(matrices.shape)
    dense_kernels.backward(matrices, gradient, xs, slope, of_inputs)
    torch.testing.assert_close(gradient, slope[:, :, None] * xs[:, None])
    dense_kernels.backward(matrices, matrices, xs, slope, of_inputs)
    torch.testing.assert_close(matrices, before - gradient, rtol=1e-5, atol=1e-5)
    wanted = torch.bmm(slope[:, None], before)[:, 0, :inputs] * (xs[:, :inputs] > 0)
    torch.testing.assert_close(of_inputs, wanted, rtol=1e-4, atol=1e-4)


@given(
    ins=st.integers(1, 3),
    outs=st.integers(1, 20),
    size=st.tuples(st.integers(4, 9), st.integers(4, 9)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
@settings(max_examples=15)
def test_kernels_of_convolutions(
    ins: int, outs: int, size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int]
) -> None:
    conv = Conv(ins, *size, outs, kernel, stride)
    seen, sees = conv.tables()
    columns, pixels = conv.inputs + 3, size[0] * size[1]
    matrices = torch.zeros(2, outs, columns)
    matrices[:, :, : conv.inputs + 1] = torch.randn(2, outs, conv.inputs + 1)
    images = torch.randn(2, ins, pixels).relu()
    maps, below = torch.empty(2, outs, conv.pixels), torch.empty(2, ins, pixels)
    conv_kernels.forward(matrices, images, seen, maps)
    delta, before, gradient = torch.randn(2, outs, conv.pixels), matrices.clone(), torch.zeros(matrices.shape)
    conv_kernels.backward(matrices, delta, sees, images, below)
    conv_kernels.descend(gradient, delta, images, seen, subtract=False)
    conv_kernels.descend(matrices, delta, images, seen, subtract=True)
    for run in range(2):
        weight = before[run, :, : conv.inputs].unflatten(1, (ins, *kernel)).requires_grad_()
        bias = before[run, :, conv.inputs].clone().requires_grad_()
        given_images = images[run].unflatten(1, size)[None].requires_grad_()
        found = functional.conv2d(given_images, weight, bias, stride)
        torch.testing.assert_close(maps[run].view_as(found[0]), found[0].relu(), rtol=1e-4, atol=1e-4)
        slopes = torch.autograd.grad(found, [given_images, weight, bias], delta[run].view_as(found))
        wanted = slopes[0][0].flatten(1) * (images[run] > 0)
        torch.testing.assert_close(below[run], wanted, rtol=1e-4, atol=1e-4)
        wanted = torch.cat([slopes[1].flatten(1), slopes[2][:, None], torch.zeros(outs, 2)], 1)
        torch.testing.assert_close(gradient[run], wanted, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(matrices[run], before[run] - wanted, rtol=1e-4, atol=1e-4)
