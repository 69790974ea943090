"""One small run of each kind of kernel against the torch engine; test_other_cpus.py repeats these for other CPUs.

tests/test_every_engine.py has many more cases, which take too long to be repeated.
"""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import metareplay as mr
from metareplay.engines.choose import EngineName

TASKS = 3
LEARNERS: dict[str, Callable[[nn.Module, EngineName], mr.Learner]] = {
    "MER": lambda net, engine: mr.MER(
        net, memory=mr.Reservoir(20), lr=0.1, beta=0.3, gamma=0.7, s=2, k=11, clip=5.0, engine=engine
    ),
    "ER": lambda net, engine: mr.ER(net, memory=mr.Reservoir(20), lr=0.1, k=11, engine=engine),
    "EWC": lambda net, engine: mr.EWC(net, lr=0.1, strength=3.0, fisher_examples=4, engine=engine),
    "GEM": lambda net, engine: mr.GEM(net, memory=mr.Ring(12, TASKS), lr=0.1, engine=engine),
}
ENGINES: tuple[EngineName, ...] = ("torch", "cpu")
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", LEARNERS)
def test_same_weights_as_the_torch_engine(name: str, dtype: str) -> None:
    """Sparse and dense inputs, widths that are no whole vectors, batches of more rows than are pending at a time."""
    generator = torch.Generator().manual_seed(0)
    xs = torch.rand(30, 37, generator=generator)
    xs[:15] *= torch.rand(15, 37, generator=generator) < 0.2
    ys = torch.randint(5, (30,), generator=generator)
    tasks = torch.arange(30) * TASKS // 30
    found = []
    for engine in ENGINES:
        learner = LEARNERS[name](mr.networks.mlp(37, (40, 9), 5, seed=1).to(getattr(torch, dtype)), engine)
        learner.observe_many(xs.to(learner.weights.dtype), ys, tasks)
        assert learner.chosen_engine.name == engine
        found.append(learner.weights.theta)
    assert (found[0] - found[1]).norm() < TOLERANCE[dtype] * found[0].norm()
