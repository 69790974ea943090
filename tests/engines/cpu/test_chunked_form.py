"""The exact chunked form, as docs/architecture.md shows it, gives the weights of plain SGD and of the engines."""

import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

import metareplay as mr
from metareplay._core.draws import Draws, Purpose
from metareplay.engines.choose import EngineName

FILE = Path(__file__).with_name("chunked_form.py")
PAGE = Path(__file__).parents[3] / "docs" / "architecture.md"
learn: Any = runpy.run_path(str(FILE))["learn"]
Layers = list[tuple[NDArray[np.float64], NDArray[np.float64]]]


def net(seed: int = 0) -> nn.Sequential:
    made: nn.Sequential = mr.networks.mlp(30, (12, 9), 4, seed=seed).double()
    return made


def layers_of(model: nn.Module) -> Layers:
    linear = [part for part in model.modules() if isinstance(part, nn.Linear)]
    return [(part.weight.detach().numpy().copy(), part.bias.detach().numpy().copy()) for part in linear]


def flat(layers: Layers) -> NDArray[np.float64]:
    return np.concatenate([part.ravel() for layer in layers for part in layer])


def examples(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    xs = rng.random((count, 30)) * (rng.random((count, 30)) < 0.5)
    return torch.from_numpy(xs), torch.from_numpy(rng.integers(0, 4, count))


def test_the_page_shows_this_very_code() -> None:
    assert FILE.read_text() in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


@given(
    size=st.integers(1, 12),
    batches=st.integers(1, 4),
    rate=st.sampled_from([0.03, 0.3]),
    beta=st.sampled_from([0.01, 0.3, 1.0]),
    seed=st.integers(0, 100),
)
def test_it_equals_a_literal_loop_of_sgd_steps(size: int, batches: int, rate: float, beta: float, seed: int) -> None:
    xs, ys = examples(size * batches, seed)
    model = net(seed)
    found = learn(layers_of(model), xs.numpy(), ys.numpy(), size, rate, beta)
    weights = list(model.parameters())
    for batch in torch.arange(len(xs)).split(size):
        before = [part.detach().clone() for part in weights]
        for row in batch:
            gradients = torch.autograd.grad(functional.cross_entropy(model(xs[row][None]), ys[row][None]), weights)
            with torch.no_grad():
                for part, gradient in zip(weights, gradients, strict=True):
                    part.sub_(rate * gradient)
        with torch.no_grad():
            for part, old in zip(weights, before, strict=True):
                part.copy_(old + beta * (part - old))
    np.testing.assert_allclose(flat(found), flat(layers_of(model)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", ["torch", "cpu"])
@pytest.mark.parametrize("k", [3, 21])
def test_it_equals_the_engines(engine: EngineName, k: int) -> None:
    """A whole run of MER whose memory has room for all examples, so that slot i holds example i."""
    xs, ys = examples(40)
    learner = mr.MER(net(), memory=mr.Reservoir(40), lr=0.1, beta=0.3, s=2, k=k, seed=5, engine=engine)
    learner.observe_many(xs, ys)
    layers, draws = layers_of(net()), Draws(5)
    for n in range(40):
        drawn = min(k - 1, n)
        replayed = draws.integers(Purpose.REPLAY, n, 2 * drawn, n).reshape(2, drawn) if n else np.zeros((2, 0), int)
        rows = np.hstack([np.full((2, 1), n), replayed]).ravel()
        layers = learn(layers, xs.numpy()[rows], ys.numpy()[rows], 1 + drawn, 0.1, 0.3)
    np.testing.assert_allclose(learner.weights.theta.numpy(), flat(layers), rtol=0, atol=1e-12)
