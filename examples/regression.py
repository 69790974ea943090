"""Predict real numbers with a loss of your choice.

A few wild targets disturb squared error a lot, because their errors are squared. A Huber loss, which grows linearly for
large errors, is disturbed less.

Run it with: python examples/regression.py
"""

from collections.abc import Callable

import matplotlib.pyplot as plt
import torch
from torch import Tensor
from torch.nn import functional

import metareplay as mr

# %%
# The target is a smooth function of two inputs. In the stream, one target of ten is replaced by a wild value; the test
# targets are clean.


def examples(count: int, seed: int, wild: float) -> tuple[Tensor, Tensor]:
    """Draw inputs and targets; a share of the targets is wild."""
    generator = torch.Generator().manual_seed(seed)
    xs = 2 * torch.rand(count, 2, generator=generator) - 1
    ys = torch.sin(3 * xs[:, 0]) + xs[:, 1] ** 2
    is_wild = torch.rand(count, generator=generator) < wild
    return xs, torch.where(is_wild, 8 * torch.randn(count, generator=generator), ys)


xs, ys = examples(1500, seed=0, wild=0.1)
test_xs, test_ys = examples(500, seed=1, wild=0.0)

# %%
# With `regression=True` targets are real numbers. `loss` takes any function of outputs and targets that returns a mean
# over the batch.

losses: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "squared error": functional.mse_loss,
    "Huber loss": functional.huber_loss,
}
predicted = {}
for name, loss in losses.items():
    network = mr.networks.mlp(2, (32,), 1, seed=0)
    learner = mr.ER(network, memory=mr.Reservoir(200), lr=0.05, k=10, regression=True, loss=loss)
    learner.observe_many(xs, ys)
    predicted[name] = learner.predict(test_xs)[:, 0]
    print(f"{name:13} mean absolute error {(predicted[name] - test_ys).abs().mean():.3f}")

# %%
# In the picture, perfect predictions would lie on the line.

for (name, outputs), colour in zip(predicted.items(), ("#c44f00", "#0072b2"), strict=True):
    plt.scatter(test_ys, outputs, s=8, alpha=0.6, label=name, color=colour)
plt.axline((0, 0), slope=1, color="black", linewidth=0.8)
plt.xlabel("true value")
plt.ylabel("predicted value")
plt.legend(loc="upper left")
plt.show()
