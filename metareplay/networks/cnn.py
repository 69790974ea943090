"""Convolutional networks: the one of the paper for Omniglot, and the one of DQN for Atari games."""

from collections.abc import Sequence
from typing import Final, Literal, get_args, overload

from torch import nn

from metareplay._core.checks import check_count, check_room, choice, whole
from metareplay.errors import InputError
from metareplay.networks.by_task import MultiHead
from metareplay.networks.initial import glorot, linear, torch_default, undrawn

Norm = Literal["group", "batch"]
Init = Literal["glorot", "torch"]
FILTERS: Final = 64
GROUPS: Final = 8  # of filters that GroupNorm takes together
SMALLEST: Final = 16  # pixels along a side that four poolings reduce to one


@overload
def omniglot_cnn(
    seed: int = 0, *, classes: int = 55, norm: Norm | None = None, init: Init = "glorot", resolution: int = 28
) -> nn.Sequential: ...


@overload
def omniglot_cnn(
    seed: int = 0, *, classes: Sequence[int], norm: Norm | None = None, init: Init = "glorot", resolution: int = 28
) -> MultiHead: ...


def omniglot_cnn(
    seed: int = 0,
    *,
    classes: int | Sequence[int] = 55,
    norm: Norm | None = None,
    init: Init = "glorot",
    resolution: int = 28,
) -> nn.Sequential | MultiHead:
    """Make the paper's network for Omniglot: four times 64 filters of 3x3, ReLU and pooling, then a linear layer.

    Inputs are grey images of 28x28 pixels, of shape (1, 28, 28). The paper mentions no normalisation, but the network
    without it often stops learning for good at the paper's rates.

    >>> import torch
    >>> omniglot_cnn(classes=20)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 20])
    >>> omniglot_cnn(classes=(20, 55), norm="group")(torch.zeros(2, 1, 28, 28), torch.tensor([0, 1])).shape
    torch.Size([2, 55])

    Args:
        seed: Decides the first weights.
        classes: The number of outputs; the largest alphabet of Omniglot has 55 characters. Several numbers, one for
            each task, make a `MultiHead` with an output layer for each task.
        norm: What normalises the outputs of each convolution, before the ReLU: None for nothing, as printed in the
            paper, "group" for GroupNorm in 8 groups, or "batch" for BatchNorm.
        init: How the first weights are drawn: "glorot" for Glorot uniform with zero biases, or "torch" as torch draws
            them.
        resolution: The number of pixels along each side of an image.
    """
    for count in classes if isinstance(classes, Sequence) and not isinstance(classes, str) else [classes]:
        check_count("classes", count, "a network needs at least one output")
        check_room("classes", count, 4 * FILTERS * count)
    if not classes:
        raise InputError("classes=(): give the number of classes of each task")
    if norm is not None:
        choice("norm", norm, get_args(Norm), "None")
    choice("init", init, get_args(Init))
    classes = classes if isinstance(classes, Sequence) else whole("classes", classes)
    if whole("resolution", resolution) < SMALLEST:
        raise InputError(f"resolution={resolution}: the network halves images four times; use {SMALLEST} or more")
    features = FILTERS * (resolution // SMALLEST) ** 2
    counts = sum(classes) if isinstance(classes, Sequence) else classes
    check_room("resolution", resolution, 4 * features * counts)
    layers: list[nn.Module] = []
    for channels in (1, FILTERS, FILTERS, FILTERS):
        layers += [undrawn(nn.Conv2d, channels, FILTERS, 3, padding=1), *_norm(norm), nn.ReLU(), nn.MaxPool2d(2)]
    layers.append(nn.Flatten())
    net: nn.Sequential | MultiHead
    if isinstance(classes, Sequence):
        net = MultiHead(nn.Sequential(*layers), features, classes)
    else:
        net = nn.Sequential(*layers, linear(features, classes))
    return glorot(net, seed) if init == "glorot" else torch_default(net, seed)


def _norm(norm: Norm | None) -> list[nn.Module]:
    """Make the normalisation of one module of the network, if there is one."""
    if norm is None:
        return []
    return [nn.GroupNorm(GROUPS, FILTERS) if norm == "group" else nn.BatchNorm2d(FILTERS)]


def nature_cnn(seed: int = 0, *, actions: int = 3, frames: int = 4, size: int = 84) -> nn.Sequential:
    """Make the network of Mnih et al. (2015) for Atari games: three convolutions and a layer of 512 units.

    Inputs are the last frames of a game, of shape (frames, size, size). Sizes of 36, 44, 52 and so on are seen whole.
    With others, the last rows and columns have no effect: four of each at 64, for instance.

    >>> import torch
    >>> nature_cnn(actions=6)(torch.zeros(2, 4, 84, 84)).shape
    torch.Size([2, 6])

    Args:
        seed: Decides the first weights, Glorot uniform with zero biases.
        actions: The number of outputs, one value per action.
        frames: How many frames one input has.
        size: Pixels on each side of a frame, at least 36.
    """
    check_count("actions", actions, "a network needs at least one output")
    check_count("frames", frames, "an input has at least one frame")
    if whole("size", size) < 36:
        raise InputError(f"size={size}: three convolutions need frames of at least 36x36 pixels")
    actions, frames, size = whole("actions", actions), whole("frames", frames), whole("size", size)
    check_room("frames", frames, 4 * 32 * 64 * frames)
    check_room("actions", actions, 4 * 512 * actions)
    check_room("size", size, 4 * 64 * 512 * (size // 8 - 4) ** 2)
    left = ((size - 8) // 4 + 1 - 4) // 2 + 1 - 2  # pixels on each side after the three convolutions
    first, second, third = (
        undrawn(nn.Conv2d, *sizes) for sizes in ((frames, 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1))
    )
    net = nn.Sequential(
        first, nn.ReLU(), second, nn.ReLU(), third, nn.ReLU(),
        nn.Flatten(), linear(64 * left**2, 512), nn.ReLU(), linear(512, actions),
    )  # fmt: skip
    return glorot(net, seed)
