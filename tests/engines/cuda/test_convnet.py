"""Descriptions of convolutional networks: sizes, places in theta and tables of pixels; what is not supported."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import metareplay as mr
from metareplay._core.columns import Columns
from metareplay._core.table import Column, Storage, Table, TensorStorage
from metareplay._core.weights import Weights
from metareplay.engines.cuda import convnet as convnet_module
from metareplay.engines.cuda.convnet import ConvNet, Head, Layer, power_of_2
from metareplay.engines.objective import Objective, QuadraticPenalty, Supervised

Pair = tuple[int, int]
Make = Callable[[], nn.Module]
PLAIN = Supervised(functional.cross_entropy)
pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


def table_of(*shape: int, dtype: torch.dtype = torch.uint8, labels: torch.dtype = torch.int64) -> Table:
    """A table of four images."""
    like = Columns(
        {
            "x": torch.zeros((1, *shape), dtype=dtype),
            "y": torch.zeros(1, dtype=labels),
            "task": torch.zeros(1, dtype=torch.int64),
        }
    )
    return Table(2, 2, like, TensorStorage(torch.device("cpu")))


def described(net: nn.Module, objective: Objective = PLAIN, table: Table | None = None) -> ConvNet | None:
    return ConvNet.of(Weights(net), objective, table_of(1, 6, 6) if table is None else table)


def found(net: nn.Module, table: Table | None = None) -> ConvNet:
    description = described(net, table=table)
    assert description is not None
    return description


def layers(first: list[nn.Module] | None = None, second: list[nn.Module] | None = None) -> list[nn.Module]:
    """The layers of a network for images of 6 x 6 pixels; other ones in place of the first or second convolution."""
    above: list[nn.Module] = [nn.Conv2d(2, 4, 2)] if second is None else second
    return [*(first or [nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]), *above, nn.Flatten()]


def net_of(
    first: list[nn.Module] | None = None, second: list[nn.Module] | None = None, features: int = 16
) -> nn.Sequential:
    return nn.Sequential(*layers(first, second), nn.Linear(features, 3))


def piece(net: ConvNet, weights: Weights, start: int, like: Tensor) -> Tensor:
    assert start + like.numel() <= net.size
    return weights.theta[start : start + like.numel()].view_as(like)


def test_sizes_of_a_network_and_its_places_in_theta() -> None:
    conv, norm, second, last = (
        nn.Conv2d(1, 4, 3, padding=1),
        nn.GroupNorm(2, 4, eps=0.1),
        nn.Conv2d(4, 8, 2),
        nn.Linear(32, 3),
    )
    net = nn.Sequential(nn.Sequential(conv, norm, nn.ReLU(), nn.MaxPool2d(2)), second, nn.Flatten(), last)
    weights = Weights(net)
    torch.nn.init.normal_(weights.theta)
    description = ConvNet.of(weights, PLAIN, table_of(1, 7, 6))
    assert description is not None
    one, two = (layer.sizes for layer in description.layers)
    assert (one.ins, one.outs, one.taps, one.pixels, one.count) == (1, 4, 9, 42, 42)
    assert (one.window, one.windows, one.relu, one.groups, one.eps) == (4, 9, True, 2, 0.1)
    assert one.blocks == 16  # 42 pixels are 10.5 windows
    assert (two.ins, two.outs, two.taps, two.pixels, two.count) == (4, 8, 4, 9, 4)
    assert (two.window, two.windows, two.relu, two.groups, two.eps) == (1, 4, False, 0, 0.0)
    assert two.blocks == 4
    assert description.size == len(weights.theta)
    [head] = description.heads
    assert head.classes == 3
    places = {one.weight: conv.weight, one.bias: conv.bias, one.scale: norm.weight, one.shift: norm.bias}
    places |= {two.weight: second.weight, two.bias: second.bias, head.weight: last.weight, head.bias: last.bias}
    assert len(places) == 8
    for start, parameter in places.items():
        assert parameter is not None
        assert torch.equal(piece(description, weights, start, parameter), parameter)


def test_several_heads_have_places_of_their_own() -> None:
    net = mr.networks.MultiHead(nn.Sequential(*layers()), 16, (3, 2, 5))
    weights = Weights(net)
    description = ConvNet.of(weights, PLAIN, table_of(1, 6, 6))
    assert description is not None
    assert [head.classes for head in description.heads] == [3, 2, 5]
    for head, module in zip(description.heads, net.heads, strict=True):
        assert isinstance(module, nn.Linear)
        assert torch.equal(piece(description, weights, head.weight, module.weight), module.weight)
        assert torch.equal(piece(description, weights, head.bias, module.bias), module.bias)


@pytest.mark.parametrize("norm", [None, "group"])
@pytest.mark.parametrize("classes", [20, (20, 55)])
def test_the_networks_of_the_paper_are_supported(norm: mr.networks.cnn.Norm | None, classes: int) -> None:
    net = found(mr.networks.omniglot_cnn(classes=classes, norm=norm), table_of(1, 28, 28))
    assert [layer.sizes.windows for layer in net.layers] == [196, 49, 9, 1]
    assert [layer.sizes.groups for layer in net.layers] == 4 * [8 if norm else 0]


def position(number: int, rows: int, columns: int, pool: int) -> Pair:
    """Where an output pixel is, slowly: window by window, then those that pooling drops, row by row."""
    kept: list[Pair] = []
    for down in range(rows // pool):
        for across in range(columns // pool):
            kept += [(down * pool + i, across * pool + j) for i in range(pool) for j in range(pool)]
    dropped = [(i, j) for i in range(rows) for j in range(columns) if (i, j) not in kept]
    return [*kept, *dropped][number]


def check_tables(layer: Layer, conv: nn.Conv2d, size: Pair, rows: int, columns: int, pool: int) -> None:
    """Compare the tables with the definition of a convolution."""
    assert layer.seen.dtype == layer.sees.dtype == torch.int32
    assert layer.seen.shape == (layer.sizes.taps, layer.sizes.count)
    assert layer.sees.shape == (layer.sizes.taps, layer.sizes.pixels)
    sees = torch.full(layer.sees.shape, -1)
    assert not isinstance(conv.padding, str)
    for tap in range(layer.sizes.taps):
        i, j = divmod(tap, conv.kernel_size[1])
        for number in range(layer.sizes.count):
            row, column = position(number, rows, columns, pool)
            y = row * conv.stride[0] - conv.padding[0] + i * conv.dilation[0]
            x = column * conv.stride[1] - conv.padding[1] + j * conv.dilation[1]
            inside = 0 <= y < size[0] and 0 <= x < size[1]
            assert layer.seen[tap, number] == (y * size[1] + x if inside else -1)
            if inside:
                sees[tap, y * size[1] + x] = number
    assert torch.equal(layer.sees.long(), sees)


@given(
    size=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    kernel=pairs,
    stride=pairs,
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=pairs,
    pool=st.sampled_from([1, 2, 4]),
)
def test_tables_of_pixels(size: Pair, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, pool: int) -> None:
    conv = nn.Conv2d(1, 2, kernel, stride, padding, dilation)
    table = table_of(1, *size)
    try:
        rows, columns = conv(torch.zeros(1, 1, *size)).shape[2:]
    except RuntimeError:  # the image is too small for the filter: torch says so when it learns
        assert described(net_of([conv], [nn.Conv2d(2, 2, 1)]), table=table) is None
        return
    down, across = rows // pool, columns // pool
    after: list[nn.Module] = [nn.MaxPool2d(pool)] if pool > 1 else []
    second: list[nn.Module] = [nn.Conv2d(2, 2, 1)]
    net = described(net_of([conv, *after], second, features=max(1, 2 * down * across)), table=table)
    if min(down, across) < 1:
        assert net is None
        return
    assume(2 * power_of_2(down * across) <= convnet_module.FEATURES)
    assert net is not None
    sizes = net.layers[0].sizes
    assert (sizes.count, sizes.windows, sizes.window) == (rows * columns, down * across, pool * pool)
    check_tables(net.layers[0], conv, size, rows, columns, pool)
    kept = [position(number, rows, columns, pool) for number in range(sizes.windows * sizes.window)]
    assert all(row < down * pool and column < across * pool for row, column in kept)  # dropped pixels come last


def test_networks_of_one_shape_are_those_that_can_learn_side_by_side() -> None:
    one, same, other = net_of(), net_of(), net_of([nn.Conv2d(1, 2, 3, padding=1), nn.MaxPool2d(2)])
    assert found(one).shape == found(same).shape
    assert found(one).shape != found(other).shape
    assert found(one).shape != found(one, table_of(1, 7, 6)).shape


@given(number=st.integers(1, 10**6))
def test_powers_of_two(number: int) -> None:
    assert power_of_2(number) >= number > power_of_2(number) // 2
    assert power_of_2(number).bit_count() == 1


def test_float32_images_and_small_labels_are_supported() -> None:
    assert described(net_of(), table=table_of(1, 6, 6, dtype=torch.float32, labels=torch.uint8)) is not None


@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.MaxPool2d([2, 2]), nn.MaxPool2d((2, 2), [2, 2])])  # type: ignore[arg-type]
def test_sizes_may_be_numbers_tuples_or_lists(pool: nn.Module) -> None:
    assert found(net_of([nn.Conv2d(1, 2, 3, padding=1), pool])).layers[0].sizes.window == 4


class Own(nn.Module):
    """A module of one's own, whatever it does."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net_of()

    def forward(self, xs: Tensor) -> Tensor:
        outputs: Tensor = self.net(xs)
        return outputs


class OwnNorm(nn.GroupNorm):
    """A GroupNorm that computes something else."""

    def forward(self, xs: Tensor) -> Tensor:
        return 2 * super().forward(xs)


class OwnLinear(nn.Linear):
    """A linear layer that computes something else."""

    def forward(self, xs: Tensor) -> Tensor:
        return 2 * super().forward(xs)


def with_hook() -> nn.Module:
    net = net_of()
    net[0].register_forward_hook(lambda *_: None)
    return net


def with_gradient_hook() -> nn.Module:
    net = net_of()
    net[0].weight.register_hook(lambda gradient: gradient)  # type: ignore[operator]
    return net


def frozen() -> nn.Module:
    net = net_of()
    net[0].requires_grad_(False)
    return net


def repeated() -> nn.Module:
    conv = nn.Conv2d(2, 2, 1)
    return net_of(second=[conv, nn.ReLU(), conv], features=18)


def shared() -> nn.Module:
    first, second = nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1)
    second.weight = first.weight
    return net_of(second=[first, nn.ReLU(), second], features=18)


def heads(kind: type[nn.Module] | None = None, bias: bool = True, features: int = 16) -> nn.Module:
    net = mr.networks.MultiHead(nn.Sequential(*layers()), features, (3, 2))
    if kind is not None:
        net.heads[1] = kind(16, 2) if kind is OwnLinear else kind()
    if not bias:
        net.heads[1] = nn.Linear(16, 2, bias=False)
    return net


UNSUPPORTED: dict[str, Make] = {
    "hook": with_hook,
    "hook of a gradient": with_gradient_hook,
    "frozen": frozen,
    "float64": lambda: net_of().double(),
    "BatchNorm": lambda: net_of([nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.MaxPool2d(2)]),
    "BatchNorm without statistics": lambda: net_of(
        [nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2, track_running_stats=False), nn.MaxPool2d(2)]
    ),
    "dropout": lambda: net_of([nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Dropout(), nn.MaxPool2d(2)]),
    "dropout before all": lambda: nn.Sequential(nn.Dropout(), net_of()),
    "other activation": lambda: net_of([nn.Conv2d(1, 2, 1), nn.Tanh(), nn.MaxPool2d(2)]),
    "pooling before the ReLU": lambda: net_of([nn.Conv2d(1, 2, 1), nn.MaxPool2d(2), nn.ReLU()]),
    "ReLU before GroupNorm": lambda: net_of([nn.Conv2d(1, 2, 1), nn.ReLU(), nn.GroupNorm(1, 2), nn.MaxPool2d(2)]),
    "GroupNorm without weights": lambda: net_of([nn.Conv2d(1, 2, 1), nn.GroupNorm(1, 2, affine=False)], features=100),
    "three groups": lambda: net_of(second=[nn.Conv2d(2, 3, 1), nn.GroupNorm(3, 3)], features=27),
    "GroupNorm of one's own": lambda: net_of([nn.Conv2d(1, 2, 1), OwnNorm(1, 2), nn.MaxPool2d(2)]),
    "128 channels": lambda: net_of(second=[nn.Conv2d(2, 128, 3)], features=128),
    "three channels": lambda: net_of(second=[nn.Conv2d(2, 3, 2)], features=12),
    "no power of two in the first layer": lambda: net_of([nn.Conv2d(1, 3, 1)], [nn.Conv2d(3, 2, 3)], features=32),
    "groups": lambda: net_of(second=[nn.Conv2d(2, 4, 2, groups=2)]),
    "no bias": lambda: net_of(second=[nn.Conv2d(2, 4, 2, bias=False)]),
    "padding mode": lambda: net_of([nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), nn.MaxPool2d(2)]),
    "padding by name": lambda: net_of([nn.Conv2d(1, 2, 3, padding="same"), nn.MaxPool2d(2)]),
    "transposed": lambda: net_of(second=[nn.ConvTranspose2d(2, 4, 1)], features=36),
    "ceil_mode": lambda: net_of([nn.Conv2d(1, 2, 1), nn.MaxPool2d(2, ceil_mode=True)]),
    "windows of three": lambda: net_of([nn.Conv2d(1, 2, 1), nn.MaxPool2d(3)], [nn.Conv2d(2, 4, 1)]),
    "windows that overlap": lambda: net_of([nn.Conv2d(1, 2, 1), nn.MaxPool2d(2, 1)], features=64),
    "padded windows": lambda: net_of([nn.Conv2d(1, 2, 1), nn.MaxPool2d(2, padding=1)], features=36),
    "dilated windows": lambda: net_of([nn.Conv2d(1, 2, 1), nn.MaxPool2d(2, dilation=2)]),
    "oblong windows": lambda: net_of([nn.Conv2d(1, 2, 1), nn.MaxPool2d((2, 1))], features=40),
    "mean pooling": lambda: net_of([nn.Conv2d(1, 2, 1), nn.AvgPool2d(2)]),
    "windows that do not fit": lambda: net_of([nn.Conv2d(1, 2, 4), nn.MaxPool2d(4)], [nn.Conv2d(2, 4, 1)], 4),
    "too small for the filter": lambda: net_of(second=[nn.Conv2d(2, 4, 4)], features=4),
    "one convolution": lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(72, 3)),
    "no convolution": lambda: mr.networks.mlp(36, (8,), 3),
    "a convolution twice": repeated,
    "filters that two convolutions share": shared,
    "no Flatten": lambda: nn.Sequential(*layers()[:-1], nn.Linear(2, 3)),
    "other Flatten": lambda: nn.Sequential(*layers()[:-1], nn.Flatten(2), nn.Linear(4, 3)),
    "two linear layers": lambda: nn.Sequential(*layers(), nn.Linear(16, 4), nn.Linear(4, 3)),
    "no linear layer": lambda: nn.Sequential(*layers()),
    "linear layer without bias": lambda: nn.Sequential(*layers(), nn.Linear(16, 3, bias=False)),
    "linear layer of one's own": lambda: nn.Sequential(*layers(), OwnLinear(16, 3)),
    "something after the linear layer": lambda: nn.Sequential(*layers(), nn.Linear(16, 3), nn.ReLU()),
    "other number of features": lambda: net_of(features=8),
    "65 classes": lambda: nn.Sequential(*layers(), nn.Linear(16, 65)),
    "many features": lambda: net_of(second=[nn.Conv2d(2, 64, 2, padding=1)], features=1024),
    "two input channels": lambda: net_of([nn.Conv2d(2, 2, 3, padding=1), nn.MaxPool2d(2)]),
    "module of one's own": Own,
    "module inside of one's own": lambda: nn.Sequential(Own()),
    "empty": lambda: nn.Sequential(nn.Sequential(), nn.Linear(36, 3)),
    "a head that is no linear layer": lambda: heads(nn.Identity),
    "a head of one's own": lambda: heads(OwnLinear),
    "a head without bias": lambda: heads(bias=False),
    "heads of other features": lambda: heads(features=8),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_is_not_supported_is_not_described(name: str) -> None:
    assert described(net_of()) is not None
    assert described(UNSUPPORTED[name]()) is None


class Other(Objective):
    """An objective of one's own."""

    def loss(self, model: nn.Module, examples: Columns) -> Tensor:
        loss: Tensor = model(examples["x"]).sum()
        return loss


@pytest.mark.parametrize(
    "objective",
    [
        Supervised(functional.mse_loss, regression=True),
        Supervised(functional.cross_entropy, regression=True),
        Supervised(functional.multi_margin_loss),
        Supervised(nn.CrossEntropyLoss(label_smoothing=0.1)),
        replace(PLAIN, by_task=True),
        Other(),
    ],
)
def test_other_objectives_are_not_supported(objective: Objective) -> None:
    assert described(net_of(), objective) is None


def test_penalties_and_clipping_are_supported() -> None:
    net = net_of()
    size = sum(p.numel() for p in net.parameters())
    penalty = QuadraticPenalty(1.0, torch.ones(size), torch.ones(size))
    assert described(net, replace(PLAIN, penalty=penalty, clip=1.0)) is not None


@pytest.mark.parametrize(
    "table",
    [
        table_of(2, 6, 6),
        table_of(6, 6),
        table_of(36),
        table_of(1, 6, 6, dtype=torch.float64),
        table_of(1, 6, 6, dtype=torch.int64),
        table_of(1, 6, 6, labels=torch.float32),
        table_of(1, 33, 32),
    ],
)
def test_other_examples_are_not_supported(table: Table) -> None:
    shape = tuple(table.shape("x"))
    features = 4 * (shape[1] // 2 - 1) * (shape[2] // 2 - 1) if len(shape) == 3 else 16
    assert described(net_of(features=features), table=table) is None


def test_many_pixels_of_a_layer_are_not_supported() -> None:
    """Padding can make a layer's outputs more than its inputs."""
    large = [nn.Conv2d(1, 2, 1, padding=14), nn.MaxPool2d(4)]
    assert described(net_of([*large], [nn.Conv2d(2, 2, 2, 2)], 32)) is None


def test_examples_that_are_not_one_tensor_are_not_supported() -> None:
    class Elsewhere(Column):
        def gather(self, rows: Tensor) -> Tensor:
            return torch.zeros((len(rows), 1, 6, 6))

        def write(self, rows: Tensor, values: Tensor) -> None:
            del rows, values

    class OnDisk(Storage):
        def __init__(self, names: set[str]) -> None:
            self.names = names

        def column(self, name: str, rows: int, like: Tensor) -> Column:
            usual = TensorStorage(torch.device("cpu"))
            return Elsewhere() if name in self.names else usual.column(name, rows, like)

    like = Columns({"x": torch.zeros(1, 1, 6, 6), "y": torch.zeros(1).long(), "task": torch.zeros(1).long()})
    assert described(net_of(), table=Table(2, 2, like, OnDisk(set()))) is not None
    assert described(net_of(), table=Table(2, 2, like, OnDisk({"x"}))) is None
    assert described(net_of(), table=Table(2, 2, like, OnDisk({"y"}))) is None


def test_without_triton_nothing_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convnet_module, "find_spec", lambda _: None)
    assert described(net_of()) is None


def test_a_head_says_where_it_is() -> None:
    assert found(net_of()).heads == (Head(20 + 36, 20 + 36 + 48, 3),)
