"""The kernels for one example, by triton's interpreter, and the modules rewritten to use them, against torch."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import metareplay as mr
from metareplay._core.weights import Weights
from metareplay.engines.cuda.batches import Problem
from metareplay.engines.cuda.engine import CudaEngine
from metareplay.engines.cuda.graphs import Work
from metareplay.engines.cuda.rewrite import ConvBlock, LinearBlock, streamlined, streamlined_loss
from metareplay.engines.objective import Supervised
from metareplay.engines.torch_engine import TorchEngine

Pair = tuple[int, int]
Modules = list[nn.Module]


def alike(ours: nn.Module, torchs: nn.Module, xs: Tensor) -> None:
    """The same outputs, and the same gradients of inputs and parameters."""
    xs = xs.requires_grad_()
    outputs, wanted = ours(xs), torchs(xs)
    slope = torch.randn_like(wanted)
    parts = [xs, *torchs.parameters()]
    gradients, wanted_gradients = (torch.autograd.grad(found, parts, slope) for found in (outputs, wanted))
    for one, other in zip((outputs, *gradients), (wanted, *wanted_gradients), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@given(
    channels=st.integers(1, 18),
    outputs=st.integers(1, 18),
    size=st.tuples(st.integers(4, 9), st.integers(4, 9)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 1), st.integers(0, 1)),
    dilation=st.integers(1, 2),
    pool=st.sampled_from([1, 2]),
    relu=st.booleans(),
    bias=st.booleans(),
)
@settings(max_examples=20)
def test_convolutions(
    channels: int, outputs: int, size: Pair, kernel: Pair, stride: Pair, padding: Pair, dilation: int, pool: int,
    relu: bool, bias: bool,
) -> None:  # fmt: skip
    torch.manual_seed(0)
    parts: Modules = [nn.Conv2d(channels, outputs, kernel, stride, padding, dilation, bias=bias)]
    parts += [nn.ReLU()] if relu else []
    parts += [nn.MaxPool2d(pool)] if pool > 1 else []
    net, xs = nn.Sequential(*parts), torch.randn(1, channels, *size)
    ours = streamlined(net)
    assert isinstance(ours, nn.Sequential)
    assert [type(block) for block in ours] == [ConvBlock]
    try:
        net(xs)
    except RuntimeError as error:  # too small for this kernel: torch says so
        with pytest.raises(RuntimeError, match=re.escape(str(error)[:20])):
            ours(xs)
        return
    alike(ours, net, xs)


@given(inputs=st.integers(1, 90), outputs=st.integers(1, 90), relu=st.booleans(), bias=st.booleans())
@settings(max_examples=12)
def test_linear_layers(inputs: int, outputs: int, relu: bool, bias: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(inputs, outputs, bias=bias), *([nn.ReLU()] if relu else []))
    ours = streamlined(net)
    assert isinstance(ours, nn.Sequential)
    assert [type(block) for block in ours] == [LinearBlock]
    alike(ours, net, torch.randn(1, inputs))


@given(classes=st.integers(1, 40), scale=st.sampled_from([0.1, 1.0, 100.0]), seed=st.integers(0, 100))
@settings(max_examples=12)
def test_cross_entropy(classes: int, scale: float, seed: int) -> None:
    torch.manual_seed(seed)
    logits, labels = (scale * torch.randn(1, classes)).requires_grad_(), torch.randint(classes, (1,))
    ours, wanted = streamlined_loss(functional.cross_entropy)(logits, labels), functional.cross_entropy(logits, labels)
    torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-5)
    one, other = (torch.autograd.grad(3 * loss, logits)[0] for loss in (ours, wanted))
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_classes_that_a_task_has_not() -> None:
    logits = torch.tensor([[0.5, -torch.inf, 1.0]], requires_grad=True)
    loss = streamlined_loss(functional.cross_entropy)
    torch.testing.assert_close(loss(logits, torch.tensor([2])), functional.cross_entropy(logits, torch.tensor([2])))
    assert torch.autograd.grad(loss(logits, torch.tensor([2])), logits)[0][0, 1] == 0
    assert loss(logits, torch.tensor([1])) == torch.inf


def test_what_is_not_finite_is_not_hidden() -> None:
    net = streamlined(nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3), nn.ReLU()))
    assert torch.isnan(net(torch.full((1, 1, 2, 4), torch.nan))).all()


@pytest.mark.parametrize("pixel", range(4))
def test_one_pixel_that_is_not_finite_is_not_pooled_away(pixel: int) -> None:
    images = torch.arange(4.0).view(1, 1, 2, 2)
    images[0, 0, pixel // 2, pixel % 2] = torch.nan
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.MaxPool2d(2))
    assert torch.isnan(net(images)).all()
    assert torch.isnan(streamlined(net)(images)).all()


@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.MaxPool2d([2, 2]), nn.MaxPool2d((2, 2), [2, 2])])  # type: ignore[arg-type]
def test_sizes_may_be_numbers_tuples_or_lists(pool: nn.Module) -> None:
    ours = streamlined(net := nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), pool))
    assert [type(block) for block in ours] == [ConvBlock]  # type: ignore[attr-defined]
    alike(ours, net, torch.randn(1, 1, 9, 9))


def chain() -> nn.Sequential:
    inner = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU())
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), inner, nn.Flatten(), nn.Linear(36, 5), nn.ReLU(),
        nn.Linear(5, 4),
    )  # fmt: skip


def test_a_whole_net_shares_its_parameters_and_takes_batches_too() -> None:
    net = chain()
    ours = streamlined(net)
    assert [type(block).__name__ for block in ours] == [  # type: ignore[attr-defined]
        "ConvBlock", "Sequential", "Flatten", "LinearBlock", "LinearBlock",
    ]  # fmt: skip
    assert {id(p) for p in ours.parameters()} == {id(p) for p in net.parameters()}
    alike(ours, net, torch.rand(1, 1, 16, 16))
    batch = torch.rand(3, 1, 16, 16)
    assert torch.equal(ours(batch), net(batch))


def test_several_heads_on_a_streamlined_body() -> None:
    heads = mr.networks.MultiHead(chain(), 4, (2, 3), seed=1)
    assert streamlined(heads) is heads  # its parameters are not one vector
    weights = Weights(heads)
    ours = streamlined(heads)
    assert ours is not heads
    assert isinstance(heads.body[0], nn.Conv2d)  # type: ignore[index]
    xs, tasks, labels = torch.rand(3, 1, 16, 16), torch.tensor([1, 0, 1]), torch.tensor([2, 0, 1])
    torch.testing.assert_close(ours(xs[:1], tasks[:1]), heads(xs[:1], tasks[:1]))
    torch.testing.assert_close(ours(xs, tasks), heads(xs, tasks))
    parameters = Problem(ours, Supervised(functional.cross_entropy)).parameters(weights)
    found = torch.autograd.grad(functional.cross_entropy(ours(xs, tasks), labels), parameters)
    weights.gather_gradient()
    functional.cross_entropy(heads(xs, tasks), labels).backward()
    torch.testing.assert_close(torch.cat([one.reshape(-1) for one in found]), weights.gradient)


def own() -> nn.Module:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, xs: Tensor) -> Tensor:
            found: Tensor = self.layer(xs)
            return found

    return Own()


def hooked() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 2))
    net[0].register_forward_hook(lambda *_: None)
    return net


@pytest.mark.parametrize(
    "make",
    [
        own,
        hooked,
        lambda: nn.Sequential(nn.Tanh()),
        lambda: nn.Sequential(nn.Conv2d(2, 2, 3, groups=2)),
        lambda: nn.Sequential(nn.Conv2d(2, 2, 3, padding="same")),
        lambda: nn.Sequential(nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect")),
    ],
)
def test_other_modules_are_left_alone(make: Callable[[], nn.Module]) -> None:
    net = make()
    assert streamlined(net) is net


@pytest.mark.parametrize(
    "pool",
    [nn.MaxPool2d(3), nn.MaxPool2d(2, 1), nn.MaxPool2d(2, padding=1), nn.MaxPool2d(2, ceil_mode=True),
     nn.MaxPool2d((2, 1)), nn.AvgPool2d(2)],
)  # fmt: skip
def test_other_poolings_stay_torch_s(pool: nn.Module) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), pool)
    ours = streamlined(net)
    assert [type(block).__name__ for block in ours] == ["ConvBlock", type(pool).__name__]  # type: ignore[attr-defined]
    alike(ours, net, torch.randn(1, 1, 9, 9))


def test_another_loss_is_left_alone() -> None:
    assert streamlined_loss(functional.mse_loss) is functional.mse_loss


def test_a_learner_on_the_graph_engine_with_these_kernels() -> None:
    """MER on a small convolutional net, every step by our kernels, against the torch engine."""

    def learner() -> mr.Learner:
        net = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3))
        memory = mr.Reservoir(5)
        return mr.MER(mr.networks.glorot(net, 1), memory=memory, lr=0.1, beta=0.3, s=2, k=3, engine="torch")

    plain, ours = learner(), learner()
    assert isinstance(ours.chosen_engine, TorchEngine)
    engine = ours.chosen_engine = CudaEngine(ours.chosen_engine, Rerun())
    xs, ys = torch.randint(256, (6, 1, 5, 5), dtype=torch.uint8), torch.arange(6) % 3
    for one in (plain, ours):
        one.observe_many(xs, ys)
    assert engine.name == "cuda"
    assert engine._batches is not None
    assert engine._batches.model is not ours.model
    torch.testing.assert_close(plain.weights.theta, ours.weights.theta, rtol=1e-5, atol=1e-6)


class Rerun:
    """In place of a graph, the work itself."""

    def aside(self) -> AbstractContextManager[None]:
        return nullcontext()

    def record(self, work: Work) -> Work:
        return work
