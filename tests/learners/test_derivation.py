"""The paper's derivation (Appendix I) holds numerically: what the update of MER is made of."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad
from torch.nn import functional

import metareplay as mr
from metareplay._core.draws import Draws, Purpose

NET = mr.networks.mlp(4, (6,), 3, seed=0).double()
XS = torch.rand(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
YS = torch.tensor([0, 2, 1])


def loss_of(example: int) -> Callable[[Tensor], Tensor]:
    names, shapes = zip(*((name, p.shape) for name, p in NET.named_parameters()), strict=True)
    sizes = [shape.numel() for shape in shapes]

    def loss(theta: Tensor) -> Tensor:
        parts = zip(names, shapes, theta.split(sizes), strict=True)
        weights = {name: part.reshape(shape) for name, shape, part in parts}
        return functional.cross_entropy(functional_call(NET, weights, (XS[example][None],)), YS[example][None])

    return loss


def expansion(theta: Tensor, order: list[int], alpha: float, beta: float) -> Tensor:
    """g_MER for s = k = 2, up to alpha^2: the sum of gradients, less alpha times Hessians times gradients.

    (The derivation divides the differences of weights by alpha; its beta is alpha times Algorithm 1's.)
    """
    losses = [loss_of(example) for example in order]
    g = [grad(loss)(theta) for loss in losses]

    def hessian_times(i: int, vector: Tensor) -> Tensor:
        at = theta.clone().requires_grad_()
        (slope,) = torch.autograd.grad(losses[i](at), at, create_graph=True)
        return torch.autograd.grad(slope @ vector, at)[0]

    within = hessian_times(1, g[0]) + hessian_times(3, g[2])
    across = sum((hessian_times(i, g[j]) for i in (2, 3) for j in (0, 1)), torch.zeros_like(theta))
    total: Tensor = g[0] + g[1] + g[2] + g[3] - alpha * within - alpha * beta * across
    return total


@pytest.mark.parametrize("beta", [1.0, 0.3])
def test_the_update_matches_its_expansion_with_an_error_of_alpha_squared(beta: float) -> None:
    errors = []
    for alpha in (0.008, 0.004, 0.002, 0.001):
        NET.load_state_dict(mr.networks.mlp(4, (6,), 3, seed=0).state_dict())
        learner = mr.MER(NET, memory=mr.Reservoir(5), lr=alpha, beta=beta, s=2, k=2, seed=1)
        learner.observe_many(XS[:2], YS[:2])
        theta = learner.weights.theta.clone()
        drawn = Draws(1).integers(Purpose.REPLAY, example=2, count=2, high=2).tolist()
        expected = expansion(theta, [2, drawn[0], 2, drawn[1]], alpha, beta)
        learner.observe(XS[2], int(YS[2]))
        g_mer = (theta - learner.weights.theta) / (alpha * beta)
        errors.append(float((g_mer - expected).norm() / expected.norm()))
    ratios = [coarse / fine for coarse, fine in pairwise(errors)]
    assert errors[-1] < 1e-4
    assert all(3.5 < ratio < 4.5 for ratio in ratios), (errors, ratios)
