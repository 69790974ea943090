"""First weights, drawn from a seed with a random generator of their own."""

import math
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import torch
from torch import Tensor, nn

from metareplay._core.checks import instance, shown, whole
from metareplay.errors import InputError

Net = TypeVar("Net", bound=nn.Module)
FIRST_WEIGHTS: Final = "first_weights"  # an attribute that `torch_default` sets; others set none, so that keys stay


def checked_seed(seed: int) -> int:
    """Return a seed that torch's generators take, or raise InputError."""
    if not 0 <= whole("seed", seed) < 2**64:
        raise InputError(f"seed={shown(seed)}: use a whole number from 0 to 2**64 - 1")
    return whole("seed", seed)


def glorot(net: Net, seed: int) -> Net:
    """Draw every weight matrix and filter anew from Glorot's uniform distribution, and set biases to zero.

    U(-a, a) with a = sqrt(6 / (fan_in + fan_out)): Glorot and Bengio (2010). The gains of normalisation layers are left
    as they are.

    Args:
        net: The module whose parameters are changed in place.
        seed: Decides the draws.

    Returns:
        The module itself.
    """
    generator = torch.Generator().manual_seed(checked_seed(seed))
    return _redraw(net, partial(nn.init.xavier_uniform_, generator=generator))


def uniform_by_fan_in(net: Net, seed: int) -> Net:
    """Draw every weight matrix and filter anew from a uniform distribution that depends on fan_in, with zero biases.

    U(-a, a) with a = 1 / sqrt(fan_in), from which `nn.Linear` draws its weights too. The gains of normalisation layers
    are left as they are.

    Args:
        net: The module whose parameters are changed in place.
        seed: Decides the draws.

    Returns:
        The module itself.
    """
    generator = torch.Generator().manual_seed(checked_seed(seed))

    def draw(parameter: Tensor) -> None:
        limit = 1 / math.sqrt(parameter[0].numel())
        nn.init.uniform_(parameter, -limit, limit, generator=generator)

    return _redraw(net, draw)


def torch_default(net: Net, seed: int) -> Net:
    """Draw the weights and biases of every linear layer and convolution anew, as torch does when it makes the layer.

    They are those that the module has if it is made just after `torch.manual_seed(seed)`, but torch's global generator
    is not used. The module is marked, because what it prints does not tell how its weights were drawn.

    Args:
        net: The module whose parameters are changed in place.
        seed: Decides the draws.

    Returns:
        The module itself.
    """
    instance("net", net, nn.Module, "a torch.nn.Module")
    generator = torch.Generator().manual_seed(checked_seed(seed))
    for layer in net.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5), generator=generator)
            if layer.bias is not None:
                limit = 1 / math.sqrt(layer.weight[0].numel())
                nn.init.uniform_(layer.bias, -limit, limit, generator=generator)
    setattr(net, FIRST_WEIGHTS, "torch's default")
    return net


def undrawn(kind: Callable[..., nn.Module], *sizes: int, **options: int) -> nn.Module:
    """Make a layer whose weights are not drawn yet.

    Torch's global generator is not touched, not even to restore it: in several threads at once, reading its state can
    block all of them for ever.

    Args:
        kind: The layer's class.
        sizes: Its sizes.
        options: Its options.
    """
    made: nn.Module = nn.utils.skip_init(kind, *sizes, device=torch.empty(0).device, **options)
    return made


def linear(inputs: int, outputs: int) -> nn.Module:
    """Make a linear layer whose weights are not drawn yet.

    Args:
        inputs: The number of inputs.
        outputs: The number of outputs.
    """
    return undrawn(nn.Linear, inputs, outputs)


def _redraw(net: Net, draw: Callable[[Tensor], object]) -> Net:
    """Apply `draw` to every weight matrix and filter in order, and set biases to zero."""
    instance("net", net, nn.Module, "a torch.nn.Module")
    for name, parameter in net.named_parameters():
        if parameter.dim() > 1:
            draw(parameter)
        elif name.rpartition(".")[2] == "bias":
            nn.init.zeros_(parameter)
    return net
