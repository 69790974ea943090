from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

import metareplay as mr
from metareplay.networks import nature_cnn, omniglot_cnn
from metareplay.networks.cnn import Norm


def shapes(net: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(parameter.shape) for parameter in net.parameters() if parameter.dim() > 1]


def test_the_omniglot_network_is_the_papers() -> None:
    assert shapes(omniglot_cnn()) == [(64, 1, 3, 3), (64, 64, 3, 3), (64, 64, 3, 3), (64, 64, 3, 3), (55, 64)]
    assert omniglot_cnn(classes=7)(torch.zeros(2, 1, 28, 28)).shape == (2, 7)


def test_several_numbers_of_classes_make_a_head_for_each_task() -> None:
    net = omniglot_cnn(seed=3, classes=(20, 7))
    assert isinstance(net, mr.networks.MultiHead)
    assert net(torch.rand(2, 1, 28, 28), torch.tensor([0, 1])).isinf().sum() == 13
    one, plain = omniglot_cnn(seed=3, classes=[20]), omniglot_cnn(seed=3, classes=20)
    heads = [nn.utils.parameters_to_vector(made.parameters()) for made in (one, plain)]
    assert torch.equal(*heads), "the heads are drawn after the body"


@pytest.mark.parametrize(("norm", "kind"), [("group", nn.GroupNorm), ("batch", nn.BatchNorm2d)])
def test_a_norm_stands_between_each_convolution_and_its_relu(norm: Norm, kind: type[nn.Module]) -> None:
    layers = list(omniglot_cnn(norm=norm))
    assert [type(layer) for layer in layers[:4]] == [nn.Conv2d, kind, nn.ReLU, nn.MaxPool2d]
    assert sum(isinstance(layer, kind) for layer in layers) == 4
    plain = [value for value in omniglot_cnn().parameters() if value.dim() > 1]
    normed = [value for value in omniglot_cnn(norm=norm).parameters() if value.dim() > 1]
    assert all(torch.equal(one, other) for one, other in zip(plain, normed, strict=True))


@pytest.mark.parametrize("classes", [55, (20, 55)])
def test_the_default_initialisation_is_torchs_own(classes: int | tuple[int, ...]) -> None:
    state = torch.get_rng_state()
    net = omniglot_cnn(5, classes=classes, norm="group", init="torch")
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(5)
    layers = [nn.Conv2d(channels, 64, 3, padding=1) for channels in (1, 64, 64, 64)]
    heads = [nn.Linear(64, count) for count in (classes if isinstance(classes, tuple) else [classes])]
    expected = [value for layer in (*layers, *heads) for value in layer.parameters()]
    norms = [value for layer in net.modules() if isinstance(layer, nn.GroupNorm) for value in layer.parameters()]
    drawn = [value for value in net.parameters() if not any(value is one for one in norms)]
    assert all(torch.equal(one, other) for one, other in zip(drawn, expected, strict=True))


@pytest.mark.parametrize(("resolution", "features"), [(16, 64), (28, 64), (32, 256), (105, 64 * 36)])
def test_images_of_other_sizes(resolution: int, features: int) -> None:
    net = omniglot_cnn(classes=3, resolution=resolution)
    assert net(torch.zeros(2, 1, resolution, resolution)).shape == (2, 3)
    assert shapes(net)[-1] == (3, features)


def test_the_nature_network_is_dqns() -> None:
    assert shapes(nature_cnn()) == [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3), (512, 3136), (3, 512)]
    assert nature_cnn(actions=6, frames=1)(torch.zeros(2, 1, 84, 84)).shape == (2, 6)
    for size, features in ((36, 64), (43, 64), (44, 256), (64, 1024), (84, 3136), (100, 5184)):
        net = nature_cnn(size=size)
        assert shapes(net)[3] == (512, features)
        assert net(torch.zeros(1, 4, size, size)).shape == (1, 3)


@pytest.mark.parametrize(("size", "unseen"), [(36, 0), (60, 0), (64, 4), (66, 6), (68, 0), (84, 0)])
def test_how_much_of_a_picture_the_nature_network_does_not_see(size: int, unseen: int) -> None:
    picture = torch.rand(1, 4, size, size, requires_grad=True)
    nature_cnn(size=size)(picture).sum().backward()
    assert picture.grad is not None
    for rest in ((0, 1, 2), (0, 1, 3)):
        assert size - 1 - int(picture.grad.abs().sum(rest).nonzero().max()) == unseen


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
        (partial(omniglot_cnn, classes=(3, 0)), "classes=0: a network needs at least one output; use classes >= 1"),
        (partial(omniglot_cnn, classes=()), "classes=\\(\\): give the number of classes of each task"),
        (partial(omniglot_cnn, norm="layer"), "norm='layer': use one of 'group', 'batch', or None"),
        (partial(omniglot_cnn, init="he"), "init='he': use 'glorot' or 'torch'"),
        (partial(omniglot_cnn, resolution=15), "resolution=15: the network halves images four times; use 16 or more"),
        (partial(nature_cnn, actions=0), "actions=0: a network needs at least one output; use actions >= 1"),
        (partial(nature_cnn, frames=0), "frames=0: an input has at least one frame; use frames >= 1"),
        (partial(nature_cnn, frames=1.5), "frames=1.5: use a whole number"),  # type: ignore[arg-type]
        (partial(nature_cnn, size=35), "size=35: three convolutions need frames of at least 36x36 pixels"),
        (partial(nature_cnn, size=64.0), "size=64.0: use a whole number"),  # type: ignore[arg-type]
        (partial(nature_cnn, size=(64, 64)), "size=\\(64, 64\\): use a whole number"),  # type: ignore[arg-type]
    ],
)
def test_sizes_that_cannot_be_are_refused(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(mr.InputError, match=message):
        make()
