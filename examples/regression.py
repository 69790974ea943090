"""Predict real numbers with a Huber loss, which a few wild targets disturb less than squared error.

Run it with: python examples/regression.py
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

import metareplay as mr

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "squared error": functional.mse_loss,
    "Huber loss": functional.huber_loss,
}


def examples(count: int, seed: int, wild: float) -> tuple[Tensor, Tensor]:
    """Draw inputs and a smooth function of them; a share of the targets is replaced by wild values."""
    generator = torch.Generator().manual_seed(seed)
    xs = 2 * torch.rand(count, 2, generator=generator) - 1
    ys = torch.sin(3 * xs[:, 0]) + xs[:, 1] ** 2
    is_wild = torch.rand(count, generator=generator) < wild
    return xs, torch.where(is_wild, 8 * torch.randn(count, generator=generator), ys)


def main() -> None:
    """Learn the same stream with both losses and compare them on clean targets."""
    xs, ys = examples(1500, seed=0, wild=0.1)
    test_xs, test_ys = examples(500, seed=1, wild=0.0)
    for name, loss in LOSSES.items():
        network = mr.networks.mlp(2, (32,), 1, seed=0)
        learner = mr.ER(network, memory=mr.Reservoir(200), lr=0.05, k=10, regression=True, loss=loss)
        learner.observe_many(xs, ys)
        error = (learner.predict(test_xs)[:, 0] - test_ys).abs().mean()
        print(f"{name:13} mean absolute error {error:.3f}")


if __name__ == "__main__":
    main()
