"""Chains of layers of many kinds, also inside a user's own class: which modules are one, found by watching a call."""

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from metareplay.engines.chain import Chain, hooked
from metareplay.engines.model_state import ModelState
from metareplay.engines.torch_engine import own_randomness
from metareplay.errors import MetareplayError
from metareplay.networks import TaskModule


class Kind(IntEnum):
    """Name the layers that the compiled engine knows."""

    LINEAR = 0
    LAYER_NORM = 1
    DROPOUT = 2
    RELU = 3
    LEAKY_RELU = 4
    ELU = 5
    TANH = 6
    SIGMOID = 7
    GELU = 8
    GELU_TANH = 9  # GELU's approximation by tanh
    SILU = 10


class NotAChainError(MetareplayError):
    """Say why a module is not a chain of known layers."""


@final
@dataclass(frozen=True, eq=False)
class Layer:
    """Describe one layer.

    Args:
        kind: What it does.
        outputs: How many outputs it has.
        option: LeakyReLU's slope, ELU's alpha, LayerNorm's eps or Dropout's p.
        weight: Its weights, if it has any.
        bias: Its bias, if it has one.
    """

    kind: Kind
    outputs: int
    option: float = 0.0
    weight: nn.Parameter | None = None
    bias: nn.Parameter | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """What tells this layer from others."""
        return self.kind, self.outputs, self.option, id(self.weight), id(self.bias)


@final
@dataclass(frozen=True, eq=False)
class Layers:
    """Hold the layers that an input goes through while the module learns, one after the other.

    Args:
        inputs: How many inputs the first layer has.
        each: The layers.
        flattens: Whether inputs of any shape are first made vectors.
    """

    inputs: int
    each: tuple[Layer, ...]
    flattens: bool

    @staticmethod
    def of(module: nn.Module, learning: bool = True) -> "Layers":
        """Return the layers of a module; raise NotAChainError, which says why, if it is anything but a chain of them.

        A copy of the module is called on made-up inputs, and every function of torch that it calls is recorded. So it
        may be of any class, and nothing about it changes.

        Args:
            module: Any module.
            learning: Whether it is called as when it learns, or in evaluation mode.

        >>> class Own(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.first, self.last = nn.Linear(4, 3), nn.Linear(3, 2, bias=False)
        ...     def forward(self, x):
        ...         return self.last(torch.tanh(self.first(x)))
        >>> [layer.kind.name for layer in Layers.of(Own()).each]
        ['LINEAR', 'TANH', 'LINEAR']
        """
        _check_parts(module)
        try:
            twin = copy.deepcopy(module)
        except Exception as error:
            raise NotAChainError("a model that can be copied") from error
        if not learning:
            twin.eval()
        elif not twin.training:  # as the torch engine does it
            twin.train()
        return _watched(twin)._of_twin(twin, module)

    def _of_twin(self, twin: nn.Module, module: nn.Module) -> "Layers":
        """Return the layers of a module, given those of its copy."""
        own: dict[int, nn.Parameter] = {
            id(theirs): ours for theirs, ours in zip(twin.parameters(), module.parameters(), strict=True)
        }
        each = [replace(one, weight=own.get(id(one.weight)), bias=own.get(id(one.bias))) for one in self.each]
        return replace(self, each=tuple(each))

    def chain(self, module: nn.Module) -> Chain | None:
        """Return the module as a chain of Linear and ReLU layers, which has a faster kernel; None if it is none.

        Args:
            module: The module that these are the layers of.
        """
        kinds = [layer.kind for layer in self.each]
        linear = {id(part.weight): part for part in module.modules() if type(part) is nn.Linear}
        parts = [linear.get(id(layer.weight)) for layer in self.each if layer.kind is Kind.LINEAR]
        found = tuple(part for part in parts if part is not None and part.bias is not None)
        in_order = [id(p) for part in found for p in (part.weight, part.bias)]
        trained = [id(p) for p in module.parameters() if p.requires_grad]
        if kinds != [Kind.LINEAR, *[Kind.RELU, Kind.LINEAR] * (len(kinds) // 2)] or in_order != trained:
            return None
        return Chain(found, self.flattens) if Layers.of(module, learning=False).same(self) else None

    def same(self, other: "Layers") -> bool:
        """Return whether these are the same layers, not just equal ones.

        Args:
            other: Other layers.
        """
        mine, others = ((one.inputs, one.flattens, [layer.key for layer in one.each]) for one in (self, other))
        return mine == others

    def takes(self, shape: torch.Size) -> bool:
        """Return whether the first layer sees one input of this shape as one vector.

        Args:
            shape: The shape of one input.
        """
        return shape.numel() == self.inputs and len(shape) >= 1 and (len(shape) == 1 or self.flattens)


def _check_parts(module: nn.Module) -> None:
    """Raise NotAChainError for what a call does not show, or what a call would change."""
    if isinstance(module, TaskModule):
        raise NotAChainError("one part for all tasks, or parts of Linear and ReLU layers that are all trained")
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters()):
        raise NotAChainError("layers whose sizes are known")
    known = (nn.Linear, nn.LayerNorm, nn.Sequential, nn.Flatten, nn.Identity, *_MODULES)
    for part in module.modules():
        name = type(part).__name__
        if any(True for _ in part.buffers(recurse=False)):
            raise NotAChainError(f"layers without buffers, and this model has a {name}")
        if type(part).__module__.startswith("torch.") and type(part) not in known:
            raise NotAChainError(f"a chain of layers that it knows, and this model has a {name}")
        if hooked(part):
            raise NotAChainError(f"layers without hooks, and this model has one on a {name}")


def _watched(module: nn.Module) -> Layers:
    """Call a module on one and on several inputs of every size that it might take; return its layers."""
    parameters = list(module.parameters())
    widths = [p.shape[-1] for p in parameters if p.dim() == 2] + [p.shape[0] for p in parameters if p.dim() == 1]
    refused = NotAChainError("a model that takes vectors and has Linear layers")
    for width in dict.fromkeys(widths):  # one of them takes the inputs
        try:
            alone, many = (_recorded(module, (n, width)) for n in (1, 3))
        except NotAChainError as error:
            refused = error
            continue
        except Exception:  # it takes inputs of another size
            continue
        if not alone.same(many):
            raise NotAChainError("a model that treats one input like many")
        return alone
    raise refused


def _recorded(module: nn.Module, shape: tuple[int, int]) -> Layers:
    """Call a module on made-up inputs of this shape and return the layers that they went through."""
    with _nothing_drawn(), torch.inference_mode(False), torch.no_grad():
        inputs = torch.zeros(shape).to(next(module.parameters()))
        recorder, before = _Recorder(inputs), ModelState(module)
        with recorder:
            result = module(inputs)
    if before.changed():
        raise NotAChainError("a model whose forward changes nothing")
    if result is not recorder.current or not recorder.layers:
        raise NotAChainError("a model that returns what its last layer gives")
    used = [id(p) for layer in recorder.layers for p in (layer.weight, layer.bias) if p is not None]
    if len(set(used)) < len(used):
        raise NotAChainError("a model that uses each layer once")
    if not {id(p) for p in module.parameters() if p.requires_grad} <= set(used):
        raise NotAChainError("a model that uses all of its trained parameters")
    return Layers(shape[1], tuple(recorder.layers), recorder.flattens)


@contextmanager
def _nothing_drawn() -> Iterator[None]:
    """Restore torch's and Python's random numbers; raise NotAChainError if Python's or NumPy's were used."""
    python, numpy = random.getstate(), _numpy_state()
    with own_randomness(torch.device("cpu")):
        yield
    if random.getstate() != python or _numpy_state() != numpy:
        random.setstate(python)
        raise NotAChainError("a model that draws nothing but Dropout's masks")


def _numpy_state() -> str:
    """Return what NumPy's global generator will draw next, as text."""
    return repr(np.random.get_state(legacy=False))  # noqa: NPY002 (a user's forward may draw from it)


Read = Callable[[Tensor, tuple[Any, ...], dict[str, Any]], Layer]


def _plain(kind: Kind) -> Read:
    """Return a reader of calls without options."""
    return lambda x, *_: Layer(kind, x.shape[-1])


def _with(kind: Kind, name: str, default: float) -> Read:
    """Return a reader of calls with one number as an option."""
    return lambda x, args, options: Layer(kind, x.shape[-1], float(args[0] if args else options.get(name, default)))


def _gelu(x: Tensor, _args: tuple[Any, ...], options: dict[str, Any]) -> Layer:
    """Read a call of gelu."""
    return Layer(Kind.GELU_TANH if options.get("approximate", "none") == "tanh" else Kind.GELU, x.shape[-1])


def _dropout(x: Tensor, args: tuple[Any, ...], options: dict[str, Any]) -> Layer:
    """Read a call of dropout(x, p, training)."""
    p, training = _arguments(args, options, p=0.5, training=True)[:2]
    if not 0 <= p < 1:
        raise NotAChainError("Dropout that keeps something")
    return Layer(Kind.DROPOUT, x.shape[-1], float(p) if training else 0.0)


def _linear(_x: Tensor, args: tuple[Any, ...], options: dict[str, Any]) -> Layer:
    """Read a call of linear(x, weight, bias)."""
    weight, bias = _arguments(args, options, weight=None, bias=None)
    return Layer(Kind.LINEAR, weight.shape[0], 0.0, _parameter(weight), None if bias is None else _parameter(bias))


def _layer_norm(x: Tensor, args: tuple[Any, ...], options: dict[str, Any]) -> Layer:
    """Read a call of layer_norm(x, shape, weight, bias, eps)."""
    shape, weight, bias, eps = _arguments(args, options, normalized_shape=(), weight=None, bias=None, eps=1e-5)
    if tuple(shape) != x.shape[1:]:
        raise NotAChainError("LayerNorm over all entries of a vector")
    scale, shift = (None if p is None else _parameter(p) for p in (weight, bias))
    return Layer(Kind.LAYER_NORM, x.shape[-1], float(eps), scale, shift)


def _parameter(value: Tensor) -> nn.Parameter:
    """Return a parameter of the model; raise NotAChainError for a tensor that was computed."""
    if not isinstance(value, nn.Parameter):
        raise NotAChainError("weights that are parameters themselves")
    return value


def _arguments(args: tuple[Any, ...], options: dict[str, Any], **defaults: Any) -> list[Any]:
    """Return the arguments of a call in the order of their defaults."""
    named = {**defaults, **dict(zip(defaults, args, strict=False)), **options}
    return [named[name] for name in defaults]


_MODULES = (
    nn.Dropout,
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.Tanh,
    nn.Sigmoid,
    nn.GELU,
    nn.SiLU,
    nn.ParameterList,
    nn.ModuleList,
    nn.ModuleDict,
)
_READERS: dict[Any, Read] = {
    functional.linear: _linear,
    functional.layer_norm: _layer_norm,
    functional.dropout: _dropout,
    functional.gelu: _gelu,
    functional.leaky_relu: _with(Kind.LEAKY_RELU, "negative_slope", 0.01),
    functional.elu: _with(Kind.ELU, "alpha", 1.0),
    functional.silu: _plain(Kind.SILU),
    **dict.fromkeys((functional.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_), _plain(Kind.RELU)),
    **dict.fromkeys((torch.tanh, Tensor.tanh, Tensor.tanh_, functional.tanh), _plain(Kind.TANH)),
    **dict.fromkeys((torch.sigmoid, Tensor.sigmoid, Tensor.sigmoid_, functional.sigmoid), _plain(Kind.SIGMOID)),
}
_QUESTIONS = (Tensor.size, Tensor.dim, Tensor.__len__, Tensor.is_floating_point, Tensor.numel)  # change nothing
_ASKED = ("shape", "dtype", "device", "ndim")  # attributes
_SHAPES = (torch.flatten, Tensor.flatten, Tensor.view, Tensor.reshape, torch.reshape)


@final
class _Recorder(TorchFunctionMode):
    """Record the layers that some inputs go through; raise NotAChainError at the first thing that is none.

    Only calls of this thread are seen.

    Args:
        inputs: The inputs.
    """

    def __init__(self, inputs: Tensor) -> None:
        super().__init__()
        self.current, self._shape, self.layers, self.flattens = inputs, inputs.shape, list[Layer](), False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Record a call."""
        options = dict(kwargs or {})
        x = args[0] if args else options.pop("input", None)
        result = func(*args, **(kwargs or {}))
        if func in _QUESTIONS or (func.__name__ == "__get__" and getattr(func.__self__, "__name__", "") in _ASKED):
            return result
        if func in _SHAPES and x is self.current and result.shape == x.shape:
            self.flattens = self.flattens or not self.layers
        elif result is self.current and func not in _READERS:  # such as float(), if it is one already
            return result
        elif func in _READERS and x is self.current:
            self.layers.append(_READERS[func](x, args[1:], options))
        else:
            raise NotAChainError(f"a chain of layers that it knows, and this model calls {func.__name__}")
        self.current = result
        return result
