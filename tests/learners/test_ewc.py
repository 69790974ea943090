from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import metareplay as mr


@pytest.mark.parametrize("engine", ["torch", "cpu"])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("fisher", ["squared-mean", "mean-square"])
def test_equals_a_literal_transcription(
    fisher: Literal["squared-mean", "mean-square"], steps: int, engine: Literal["torch", "cpu"]
) -> None:
    """The penalty summed over tasks and differentiated by autograd, with a Fisher and an anchor kept for each task."""
    generator = torch.Generator().manual_seed(1)
    xs = torch.rand(40, 5, generator=generator, dtype=torch.float64)
    ys = torch.randint(3, (40,), generator=generator)
    tasks = torch.arange(40) // 10
    net = mr.networks.mlp(5, (6,), 3, seed=2).double()
    model = mr.networks.mlp(5, (6,), 3, seed=2).double()
    options: dict[str, float] = {"lr": 0.1, "strength": 3.0, "fisher_examples": 4, "steps": steps}
    learner = mr.EWC(model, fisher=fisher, engine=engine, **options)  # type: ignore[arg-type]
    learner.observe_many(xs, ys, tasks)

    parameters = list(net.parameters())

    def gradients(chosen: list[int]) -> list[Tensor]:
        return list(torch.autograd.grad(functional.cross_entropy(net(xs[chosen]), ys[chosen]), parameters))

    kept: list[tuple[list[Tensor], list[Tensor]]] = []
    for i in range(40):
        if i % 10 == 0 and i > 0:
            first = list(range(i - 10, i - 6))
            if fisher == "squared-mean":
                importance = [g**2 for g in gradients(first)]
            else:
                importance = [sum(g**2 for g in gs) / 4 for gs in zip(*(gradients([j]) for j in first), strict=True)]
            kept.append((importance, [p.detach().clone() for p in parameters]))
        for _ in range(steps):
            loss = functional.cross_entropy(net(xs[i : i + 1]), ys[i : i + 1])
            for importance, anchor in kept:
                for f, p, a in zip(importance, parameters, anchor, strict=True):
                    loss = loss + 3.0 * (f * (p - a) ** 2).sum()
            found = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for p, g in zip(parameters, found, strict=True):
                    p.sub_(g, alpha=0.1)
    ours = torch.nn.utils.parameters_to_vector(learner.model.parameters())
    torch.testing.assert_close(ours, torch.nn.utils.parameters_to_vector(parameters), rtol=1e-10, atol=1e-12)


def test_without_strength_it_is_online_learning() -> None:
    generator = torch.Generator().manual_seed(1)
    data = torch.rand(30, 5, generator=generator), torch.randint(3, (30,), generator=generator), torch.arange(30) // 10
    ewc = mr.EWC(mr.networks.mlp(5, (6,), 3, seed=2), lr=0.1, strength=0.0)
    online = mr.Online(mr.networks.mlp(5, (6,), 3, seed=2), lr=0.1)
    for learner in (ewc, online):
        learner.observe_many(*data)
    torch.testing.assert_close(ewc.weights.theta, online.weights.theta)


@pytest.mark.parametrize("wrong", [{"strength": -1.0}, {"fisher_examples": 0}, {"fisher": "other"}, {"steps": 0}])
def test_settings_outside_their_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(mr.InputError, match=next(iter(wrong))):
        mr.EWC(mr.networks.mlp(5, (6,), 3), **wrong)  # type: ignore[arg-type]
