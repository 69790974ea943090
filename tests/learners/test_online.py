from typing import Literal

import pytest
import torch
from torch.nn import functional

import metareplay as mr
from metareplay.experiments import Experiment
from metareplay.runners.fleet.terms import Terms


@pytest.mark.parametrize("engine", ["torch", "cpu"])
@pytest.mark.parametrize("steps", [1, 2, 20])
def test_equals_a_literal_loop(steps: int, engine: Literal["torch", "cpu"]) -> None:
    generator = torch.Generator().manual_seed(1)
    xs = torch.rand(25, 5, generator=generator, dtype=torch.float64)
    ys = torch.randint(3, (25,), generator=generator)
    net = mr.networks.mlp(5, (6,), 3, seed=2).double()
    learner = mr.Online(mr.networks.mlp(5, (6,), 3, seed=2).double(), lr=0.1, steps=steps, engine=engine)
    learner.observe_many(xs, ys)
    parameters = list(net.parameters())
    for x, y in zip(xs, ys, strict=True):
        for _ in range(steps):
            found = torch.autograd.grad(functional.cross_entropy(net(x[None]), y[None]), parameters)
            with torch.no_grad():
                for p, g in zip(parameters, found, strict=True):
                    p.sub_(g, alpha=0.1)
    ours = torch.nn.utils.parameters_to_vector(learner.model.parameters())
    torch.testing.assert_close(ours, torch.nn.utils.parameters_to_vector(parameters), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("learner", ["online", "ewc"])
def test_one_step_per_example_is_not_mentioned_so_that_earlier_records_are_found(learner: str) -> None:
    once, plain, thrice = (Experiment(learner=learner, options=o) for o in ({"steps": 1}, {}, {"steps": 3}))
    assert once.key == plain.key != thrice.key
    assert "steps" not in once.identity.settings
    assert thrice.identity.settings["steps"] == 3
    for one in (once, thrice):
        assert one.build()[0].settings() == one.identity.settings


def test_steps_cost_time() -> None:
    assert mr.Online.work_per_example({"steps": 7}) == mr.EWC.work_per_example({"steps": 7}) == 7
    assert mr.Online.work_per_example({}) == mr.EWC.work_per_example({}) == 1


def test_no_steps_are_refused() -> None:
    with pytest.raises(mr.InputError, match="steps=0: each example is learned by at least one step; use steps >= 1"):
        mr.Online(mr.networks.mlp(4, (8,), 3), steps=0)


def test_a_fleet_takes_one_step_per_example() -> None:
    with pytest.raises(mr.InputError, match="a fleet takes Online with steps=1, not steps=2: use --on threads"):
        Terms.of(mr.Online(mr.networks.mlp(4, (8, 8), 3), steps=2))
