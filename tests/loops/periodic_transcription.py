"""PeriodicMER as a literal transcription, and the small models and batches that it is held against."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import metareplay as mr
from metareplay._core.draws import Purpose

Optimizer = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Optimizer] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def batches(count: int, dtype: torch.dtype = torch.float64) -> Iterator[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    for _ in range(count):
        x = torch.rand(6, 4, generator=generator, dtype=torch.float64)
        yield {"x": x.to(dtype), "y": torch.randint(3, (6,), generator=generator)}


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def learn(model: nn.Module, batch: Any, parts: int = 1) -> None:
    """Accumulate the gradients of a batch, in a given number of parts."""
    for x, y in zip(batch["x"].chunk(parts), batch["y"].chunk(parts), strict=True):
        (functional.cross_entropy(model(x).float(), y) / parts).backward()


class Transcription:
    """What the class says, written with lists: rows in a Python list, Algorithm 3, and the line of the paper."""

    def __init__(self, model: nn.Module, capacity: int, share: float, every: int, rate: float, seed: int) -> None:
        self.model, self.capacity, self.ratio, self.every, self.rate = model, capacity, share / (1 - share), every, rate
        self.draws, self.rows, self.seen, self.sampled, self.steps = mr.Draws(seed), list[Any](), 0, 0, 0
        self.owed = 0.0
        self.before = weights(model)

    def mix(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        own = list(zip(batch["x"], batch["y"], strict=True))
        replayed = list[Any]()
        if self.rows:
            self.owed += len(own) * self.ratio
            size = int(self.owed + 1e-9)
            self.owed -= size
            if size:
                drawn = self.draws.integers(Purpose.REPLAY, self.sampled, size, len(self.rows))
                replayed = [self.rows[i] for i in drawn.tolist()]
                self.sampled += 1
        for row in own:
            j = self.draws.integers(Purpose.KEEP, self.seen, 1, self.seen + 1).item()
            if len(self.rows) < self.capacity:
                self.rows.append(row)
            elif j < self.capacity:
                self.rows[j] = row
            self.seen += 1
        xs, ys = zip(*own, *replayed, strict=True)
        return {"x": torch.stack(xs), "y": torch.stack(ys)}

    def step(self) -> None:
        self.steps += 1
        if self.steps % self.every == 0:
            with torch.no_grad():
                for before, theta in zip(self.before, self.model.parameters(), strict=True):
                    theta.copy_(before.double() + self.rate * (theta.double() - before.double()))
            self.before = weights(self.model)
