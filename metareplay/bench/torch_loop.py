"""The loop that our engines are timed against: plain torch training, written fairly."""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from metareplay.bench.frame import wait
from metareplay.engines.precision import full_precision

Batches = Sequence[tuple[Tensor, Tensor]]


def torch_loop(
    model: nn.Module,
    loss: nn.Module,
    lr: float,
    batches: Batches,
    past: Batches = (),
    kind: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
) -> Callable[[float], float]:
    """Return a clean training loop: zero_grad, forward, backward, step.

    The loop takes the seconds that it should spend and returns the seconds per step. It has run once before it is
    returned, so that nothing is slow only because it happens for the first time.

    Args:
        model: The network to train.
        loss: The loss to minimise.
        lr: The optimizer's rate.
        batches: Inputs with their targets, ready on the model's device; one step each, over and over again.
        past: Batches of which each step also computes the gradient, without using it.
        kind: The class of the optimizer.
    """
    optimizer = kind(model.parameters(), lr=lr)
    device = batches[0][0].device

    def loop(seconds: float) -> float:
        with full_precision(device):
            start, steps = time.perf_counter(), 0
            while steps == 0 or time.perf_counter() - start < seconds:
                for x, y in batches:
                    for old_x, old_y in past:
                        optimizer.zero_grad()
                        loss(model(old_x), old_y).backward()
                    optimizer.zero_grad()
                    loss(model(x), y).backward()
                    optimizer.step()
                steps += len(batches)
            wait(device)
            return (time.perf_counter() - start) / steps

    loop(0.05)
    return loop
