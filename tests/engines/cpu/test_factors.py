"""Inner products and steps from the inputs and deltas of rows, without their gradients."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

import metareplay as mr
from metareplay.engines.cpu import engine as cpu_engine
from metareplay.engines.cpu import layout
from metareplay.engines.cpu.engine import CpuEngine
from metareplay.engines.cpu.factors import Factors, pays
from metareplay.engines.cpu.mlp_kernel import MlpKernel
from metareplay.engines.engine import Gradients

TASKS, EACH = 30, 12


def test_many_groups_of_few_rows_pay() -> None:
    paper = (784, 100, 100, 10)
    assert pays(501, 100, paper)
    assert pays(201, 20, paper)
    assert not pays(501, 20, paper)
    assert not pays(5121, 100, paper)
    assert not pays(501, 2, paper)


def stream(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    xs = torch.rand(TASKS * EACH, 40, generator=generator, dtype=torch.float64)
    xs *= torch.rand(xs.shape, generator=generator) < 0.3
    ys = torch.randint(3, (len(xs),), generator=generator)
    return xs.to(dtype), ys, torch.arange(TASKS).repeat_interleave(EACH)


def gem(engine: str, dtype: torch.dtype = torch.float64) -> mr.GEM:
    net = mr.networks.mlp(40, (20, 9), 3, seed=1).to(dtype)
    return mr.GEM(net, memory=mr.Ring(4 * TASKS, tasks=TASKS), lr=0.1, strength=0.2, engine=engine, seed=3)  # type: ignore[arg-type]


@pytest.fixture
def only_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody computes a gradient."""
    monkeypatch.setattr(cpu_engine, "pays", lambda *_: True)
    monkeypatch.setattr(MlpKernel, "gradients", None)


@pytest.mark.usefixtures("only_factors")
def test_gem_has_the_weights_of_the_torch_engine() -> None:
    found = []
    for engine in ("torch", "cpu"):
        learner = gem(engine)
        learner.observe_many(*stream(torch.float64))
        found.append(learner.weights.theta)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-11)


@pytest.mark.usefixtures("only_factors")
def test_pieces_and_a_loaded_learner_give_the_same_weights(tmp_path: Path) -> None:
    xs, ys, tasks = stream(torch.float32)
    whole = gem("cpu", torch.float32)
    whole.observe_many(xs, ys, tasks)
    pieces = gem("cpu", torch.float32)
    for part in torch.arange(len(xs)).split(37):
        pieces.observe_many(xs[part], ys[part], tasks[part])
        pieces.save(tmp_path / "gem.ckpt")
        pieces = mr.load(tmp_path / "gem.ckpt", mr.networks.mlp(40, (20, 9), 3, seed=2), engine="cpu")  # type: ignore[assignment]
    assert torch.equal(pieces.weights.theta, whole.weights.theta)


def gradients(learner: mr.GEM, groups: list[list[int]]) -> Gradients:
    engine = learner.chosen_engine
    assert isinstance(engine, CpuEngine)
    assert learner.table is not None
    return engine.gradients(learner.table, [np.array(group) for group in groups], learner.objective, 0)


def test_gradients_themselves_are_there_for_those_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = gem("cpu")
    learner.observe_many(*stream(torch.float64))
    groups = [[3], [0, 1], [7, 2, 5]]
    monkeypatch.setattr(cpu_engine, "pays", lambda *_: False)
    packed = gradients(learner, groups)
    each, products = packed.each().clone(), packed.products().clone()
    monkeypatch.setattr(cpu_engine, "pays", lambda *_: True)
    before, rates = learner.weights.theta.clone(), torch.tensor([0.1, 0.0, 0.3], dtype=torch.float64)
    for asked in (False, True):
        learner.weights.theta.copy_(before)
        factored = gradients(learner, groups)
        torch.testing.assert_close(factored.products(), products, rtol=1e-12, atol=1e-14)
        assert not asked or torch.equal(factored.each(), each)
        factored.descend(rates)
        torch.testing.assert_close(learner.weights.theta, before - rates @ each, rtol=0, atol=1e-14)


def test_products_beyond_float32_are_those_of_the_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of about 1e-20 have products that float32 cannot hold."""
    monkeypatch.setattr(cpu_engine, "pays", lambda *_: True)
    xs, ys, tasks = stream(torch.float32)
    learner = gem("cpu", torch.float32)
    learner.observe_many(xs[:24] * 1e-22, ys[:24], tasks[:24])
    with torch.no_grad():
        learner.weights.theta.fill_(0)
    found = gradients(learner, [[0], [1]])
    expected = found.each().double()
    torch.testing.assert_close(found.products(), expected @ expected.T)


def test_a_loss_that_is_not_finite_is_undone() -> None:
    xs, ys, tasks = stream(torch.float32)
    learner, spared = gem("cpu", torch.float32), gem("cpu", torch.float32)
    for one in (learner, spared):
        one.observe_many(xs[:100], ys[:100], tasks[:100])
    poison = torch.tensor([[3e38, -3e38]]).repeat(1, 20)  # finite, but the loss is not
    with pytest.raises(mr.NonFiniteError):
        learner.observe_many(poison, ys[100:101], tasks[100:101])
    for one in (learner, spared):
        one.observe_many(xs[100:], ys[100:], tasks[100:])
    assert torch.equal(learner.weights.theta, spared.weights.theta)


def test_gradients_that_cancel_each_other_have_precise_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same input with every label: what is left of the sum of its gradients has no digits in common with them."""
    monkeypatch.setattr(cpu_engine, "pays", lambda *_: True)
    learner = gem("cpu", torch.float32)
    xs = stream(torch.float32)[0][:1].repeat(6, 1)
    learner.observe_many(xs, torch.arange(6) % 3, torch.arange(6) // 3)
    with torch.no_grad():
        learner.model[-1].weight.mul_(1e-4)  # type: ignore[index]
        learner.model[-1].bias.zero_()  # type: ignore[index]
    found = gradients(learner, [[0, 1, 2], [0]])
    expected = found.each().double()
    torch.testing.assert_close(found.products(), expected @ expected.T, rtol=1e-4, atol=0)


def test_an_update_that_was_interrupted_is_made_again() -> None:
    table = layout.sparse_rows(6, 5, np.float32)
    layout.pack(table, np.random.default_rng(0).random((6, 5), np.float32), np.arange(6))
    writes = np.ones(6, np.int64)
    factors, fresh = (Factors(3, (5, 4), 16, np.float32) for _ in range(2))
    first, second = np.array([0, 1, 2]), np.array([3, 4, 5])
    for one in (factors, fresh):
        one.take(first, writes[first], table)
    whole = factors._code.update_first

    def interrupted(*arguments: object) -> None:
        whole(*arguments)
        raise KeyboardInterrupt

    factors._code = SimpleNamespace(update_first=interrupted)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        factors.take(second, writes[second], table)
    factors._code = fresh._code
    factors.take(first, writes[first], table)
    assert np.array_equal(np.triu(factors._first_products), np.triu(fresh._first_products))
