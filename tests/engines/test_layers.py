"""Chains of layers found by watching a call: what is one, what is not, and that the call leaves no trace."""

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from metareplay.engines.layers import Layers, NotAChainError


class Own(nn.Module):
    """A class of the user's own, whose forward is a function of (self, x)."""

    def __init__(self, forward: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.last = nn.Linear(5, 3)  # not in the order of the calls
        self.first = nn.Linear(6, 5)
        self.norm = nn.LayerNorm(5)
        self.drop = nn.Dropout(0.3)
        self.calls = 0
        self._does = forward

    def forward(self, x: Tensor) -> Any:
        return self._does(self, x)


CHAINS: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "layers": (lambda m, x: m.last(m.drop(m.norm(m.first(x)))), "LINEAR LAYER_NORM DROPOUT LINEAR"),
    "functions": (
        lambda m, x: m.last(functional.gelu(m.norm(torch.tanh(m.first(x))))),
        "LINEAR TANH LAYER_NORM GELU LINEAR",
    ),
    "methods": (lambda m, x: m.last(m.norm(m.first(x).sigmoid().relu())), "LINEAR SIGMOID RELU LAYER_NORM LINEAR"),
    "in place": (lambda m, x: m.last(m.norm(m.first(x).relu_())), "LINEAR RELU LAYER_NORM LINEAR"),
    "a view": (lambda m, x: m.last(m.norm(m.first(x.view(x.size(0), -1)))), "LINEAR LAYER_NORM LINEAR"),
    "a dtype": (lambda m, x: m.last(m.norm(m.first(x.float()))), "LINEAR LAYER_NORM LINEAR"),
    "dropout": (
        lambda m, x: m.last(functional.dropout(m.norm(m.first(x)), p=0.1, training=m.training)),
        "LINEAR LAYER_NORM DROPOUT LINEAR",
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_class_of_ones_own(name: str) -> None:
    forward, expected = CHAINS[name]
    found = Layers.of(Own(forward))
    assert " ".join(layer.kind.name for layer in found.each) == expected
    assert found.inputs == 6
    assert found.takes(torch.Size([6]))
    assert found.takes(torch.Size([2, 3])) == (name == "a view")
    assert not found.takes(torch.Size([7]))


def usual(m: Any, x: Tensor) -> Tensor:
    found: Tensor = m.last(m.norm(m.first(x)))
    return found


def counting(m: Any, x: Tensor) -> Tensor:
    m.calls += 1
    return usual(m, x)


def drawing(m: Any, x: Tensor) -> Tensor:
    return usual(m, x) if random.random() < 2 else x


def drawing_by_numpy(m: Any, x: Tensor) -> Tensor:
    return usual(m, x) if np.random.rand() < 2 else x  # noqa: NPY002 (what users may write)


OTHERS: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "a residual": (lambda m, x: m.last(m.first(x) + m.norm.weight), "calls add"),
    "a branch": (lambda m, x: usual(m, x) if x.sum() > 0 else usual(m, -x), "calls sum"),
    "another input": (lambda m, x: (m.first(x), m.last(m.norm(m.first(x))))[1], "calls linear"),
    "a tuple": (lambda m, x: (usual(m, x),), "returns what its last layer gives"),
    "an earlier value": (lambda m, x: (usual(m, x), x)[1], "returns what its last layer gives"),
    "an unused layer": (lambda m, x: m.last(m.first(x)), "uses all of its trained parameters"),
    "detached": (lambda m, x: usual(m, x).detach(), "calls detach"),
    "computed weights": (lambda m, x: functional.linear(x, m.first.weight * 2), "calls mul"),
    "noise": (lambda m, x: usual(m, x + torch.randn(6)), "calls"),
    "more for one input": (
        lambda m, x: usual(m, x).relu() if len(x) == 1 else usual(m, x),
        "treats one input like many",
    ),
    "a counter": (counting, "changes nothing"),
    "draws": (drawing, "draws nothing"),
    "draws by NumPy": (drawing_by_numpy, "draws nothing"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_chain_says_why(name: str) -> None:
    forward, message = OTHERS[name]
    model = Own(forward)
    with pytest.raises(NotAChainError, match=message):
        Layers.of(model)
    assert model.calls == 0


def shared() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer)


def hooked() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    net[1].register_forward_hook(lambda *_: None)
    return net


MODULES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "convolution": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3)), "has a Conv2d"),
    "batch norm": (lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), "has a BatchNorm1d"),
    "shared": (shared, "uses each layer once"),
    "hooked": (hooked, "one on a Tanh"),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(3)), "sizes are known"),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_that_are_no_chain(name: str) -> None:
    make, message = MODULES[name]
    with pytest.raises(NotAChainError, match=message):
        Layers.of(make())


def test_watching_changes_nothing() -> None:
    model = Own(CHAINS["dropout"][0]).eval()
    model.drop.train()
    torch.manual_seed(0)
    states = torch.get_rng_state(), random.getstate(), {k: v.clone() for k, v in model.state_dict().items()}
    Layers.of(model)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert all(torch.equal(value, states[2][name]) for name, value in model.state_dict().items())
    assert not model.training
    assert model.drop.training


def test_inside_inference_mode() -> None:
    with torch.inference_mode():
        assert len(Layers.of(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3), nn.Tanh())).each) == 3


def test_a_model_that_cannot_be_copied() -> None:
    model = Own(usual)
    model.lock = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(NotAChainError, match="can be copied"):
        Layers.of(model)
