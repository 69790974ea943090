"""Gradients of groups of rows by graphs, without a GPU: in place of a graph, the captured function is run again."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from every_learner import EVERY, assert_same_state, examples, heads, mlp, reservoir, state
from hypothesis import given, settings
from hypothesis import strategies as st
from no_graphs import Rerun
from torch import Tensor, nn
from torch.nn import functional

import metareplay as mr
from metareplay._core.columns import Columns
from metareplay._core.draws import Draws, Ints
from metareplay._core.table import Table, TensorStorage
from metareplay._core.weights import Weights
from metareplay.engines.cuda.engine import CudaEngine
from metareplay.engines.cuda.gradients import OFTEN, GroupGradients
from metareplay.engines.cuda.graphs import Work
from metareplay.engines.objective import Objective, Supervised
from metareplay.engines.torch_engine import TorchEngine

PLAIN = Supervised(functional.cross_entropy)


class Broken(Rerun):
    """Fails to record, as a capture fails in a module that waits for the device."""

    def record(self, work: Work) -> Work:
        del work
        raise RuntimeError("operation not permitted when stream is capturing")


class Forgetful(Rerun):
    """Replays nothing."""

    def record(self, work: Work) -> Work:
        del work
        return lambda: None


def table_of(xs: Tensor | None = None) -> Table:
    """Thirty examples of three tasks."""
    given_xs, ys, tasks = examples()
    columns = Columns({"x": given_xs if xs is None else xs, "y": ys, "task": tasks})
    table = Table(0, 30, columns, TensorStorage(torch.device("cpu")))
    table.bring(columns)
    return table


def made(
    net: nn.Module, table: Table, objective: Objective = PLAIN, recorder: Rerun | None = None
) -> tuple[GroupGradients, TorchEngine]:
    plain = TorchEngine(Weights(net), Draws(0))
    return GroupGradients(plain, recorder or Rerun(), table, objective), plain


def asked(gradients: GroupGradients, plain: TorchEngine, groups: list[Ints]) -> Tensor | None:
    """Ask as the engine does."""
    with plain.learning():
        return gradients.each(groups)


def rows(*numbers: int) -> Ints:
    return np.array(numbers, np.int64)


NETS: dict[str, Callable[[], nn.Module]] = {"one head": mlp, "several heads": heads}


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("by_task", [False, True])
@pytest.mark.parametrize("double", [False, True])
def test_gradients_are_those_of_the_torch_engine(net: str, by_task: bool, double: bool) -> None:
    model, table = NETS[net](), table_of()
    objective, recorder = Supervised(functional.cross_entropy, by_task=by_task), Rerun()
    gradients, plain = made(model.double() if double else model, table, objective, recorder)
    groups = [rows(0, 11, 29), rows(5), rows(1, 2, 15), rows(28)]
    assert asked(gradients, plain, groups) is None  # two of each size: not often enough
    for number in range(3):
        plain.weights.theta.add_(0.1)  # at other weights, too
        groups = [group + number for group in groups[:2]] + groups[2:]
        groups = [group % 30 for group in groups]
        found = asked(gradients, plain, groups)
        assert found is not None
        wanted = plain.gradients(table, groups, objective, 0).each()
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-12 if double else 1e-7)
    assert recorder.recorded == 2  # one graph for each size
    assert not gradients.fails


@given(groups=st.lists(st.lists(st.integers(0, 29), min_size=1, max_size=3), min_size=1, max_size=5))
@settings(max_examples=10)
def test_any_groups(groups: list[list[int]]) -> None:
    table = table_of()
    gradients, plain = made(heads(), table)
    asked_for = [rows(*group) for group in groups]
    gradients._seen.update({1: OFTEN, 2: OFTEN, 3: OFTEN})
    found = asked(gradients, plain, asked_for)
    assert found is not None
    torch.testing.assert_close(found, plain.gradients(table, asked_for, PLAIN, 0).each(), rtol=1e-5, atol=1e-7)


def test_sizes_that_come_rarely_are_left_to_torch() -> None:
    recorder = Rerun()
    gradients, plain = made(mlp(), table_of(), recorder=recorder)
    for size in range(1, 9):
        for _ in range(OFTEN - 1):
            assert asked(gradients, plain, [rows(*range(size))]) is None
    assert recorder.recorded == 0
    assert asked(gradients, plain, [rows(7)]) is not None
    assert asked(gradients, plain, [rows(7), rows(*range(9))]) is None  # one of them is rare


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(), nn.Linear(8, 4))


@pytest.mark.parametrize("net", [normed, dropping])
def test_modules_with_buffers_or_random_numbers_are_left_to_torch(net: Callable[[], nn.Module]) -> None:
    recorder = Rerun()
    gradients, plain = made(net(), table_of(), recorder=recorder)
    before = {name: value.clone() for name, value in plain.weights.module.state_dict().items()}
    random = torch.get_rng_state()
    assert asked(gradients, plain, OFTEN * [rows(1, 2, 3)]) is None
    assert gradients.fails
    assert recorder.recorded == 0
    assert torch.equal(torch.get_rng_state(), random)
    for name, value in plain.weights.module.state_dict().items():
        assert torch.equal(value, before[name]), name  # statistics did not move, either
    assert asked(gradients, plain, [rows(1, 2, 3)]) is None


@pytest.mark.parametrize("recorder", [Broken(), Forgetful()])
def test_what_cannot_be_captured_or_gives_something_else_is_left_to_torch(recorder: Rerun) -> None:
    gradients, plain = made(mlp(), table_of(), recorder=recorder)
    groups = [rows(3, number) for number in range(OFTEN)]
    assert asked(gradients, plain, groups) is None
    assert gradients.fails


def test_running_out_of_memory_is_not_hidden() -> None:
    class Full(Rerun):
        def record(self, work: Work) -> Work:
            del work
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    gradients, plain = made(mlp(), table_of(), recorder=Full())
    with pytest.raises(torch.cuda.OutOfMemoryError):
        asked(gradients, plain, OFTEN * [rows(1)])


def test_a_loss_that_is_not_finite_gives_nan() -> None:
    xs = examples()[0].float()
    xs[4] = torch.inf
    table = table_of(xs)
    gradients, plain = made(mlp(), table)
    found = asked(gradients, plain, [rows(number, number + 1) for number in (0, 10, 20)])
    assert found is not None
    assert torch.isfinite(found).all()
    found = asked(gradients, plain, [rows(0, 1), rows(4, 5)])
    assert found is not None
    assert torch.isfinite(found[0]).all()
    assert torch.isnan(found[1]).all()


class OneClass(nn.Module):
    """Only the first class has a finite score: gradients are finite where the loss is not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.missing = torch.tensor([0.0, -torch.inf, -torch.inf, -torch.inf])

    def forward(self, xs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(xs) + self.missing
        return outputs


def test_a_loss_that_is_infinite_with_finite_gradients_gives_nan() -> None:
    table = table_of()
    table.fill("y", torch.arange(30), (torch.arange(30) == 29).long())
    gradients, plain = made(OneClass(), table)
    assert asked(gradients, plain, [rows(0), rows(1), rows(2)]) is not None
    found = asked(gradients, plain, [rows(3), rows(29)])
    assert found is not None
    assert torch.isfinite(found[0]).all()
    assert torch.isnan(found[1]).all()


def test_only_the_same_table_and_objective_are_served() -> None:
    table = table_of()
    gradients, _ = made(mlp(), table)
    assert gradients.serves(table, PLAIN)
    assert not gradients.serves(table_of(), PLAIN)
    assert not gradients.serves(table, Supervised(functional.cross_entropy, by_task=True))


def gem(net: nn.Module, **options: Any) -> mr.Learner:
    return mr.GEM(net, memory=mr.Ring(9, 3), lr=0.1, strength=0.5, engine="torch", **options)


LEARNERS: dict[str, Callable[[], mr.Learner]] = {
    "one head": lambda: gem(mlp()),
    "several heads": lambda: gem(heads()),
    "clipped": lambda: gem(heads(), clip=0.5),
    "reservoir": lambda: mr.GEM(mlp(), memory=reservoir(), lr=0.1, engine="torch"),
    "ewc": lambda: EVERY["ewc-mean-square"](engine="torch"),
}


def on_graphs(learner: mr.Learner, recorder: Rerun) -> mr.Learner:
    assert isinstance(learner.chosen_engine, TorchEngine)
    learner.chosen_engine = CudaEngine(learner.chosen_engine, recorder, fewer_kernels=False)
    return learner


@pytest.mark.parametrize("name", LEARNERS)
def test_learners_have_the_weights_of_the_torch_engine(name: str) -> None:
    recorder = Rerun()
    plain, ours = LEARNERS[name](), on_graphs(LEARNERS[name](), recorder)
    for learner in (plain, ours):
        learner.observe_many(*examples())
    assert recorder.replayed > 0
    for one, other in zip(state(plain).values(), state(ours).values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("net", [normed, dropping])
def test_learners_that_graphs_cannot_serve_are_the_same_bits_as_torch(net: Callable[[], nn.Module]) -> None:
    """Also the statistics, which a pass that is not needed would move."""
    model, other = net(), net()
    other.load_state_dict(model.state_dict())
    plain = mr.GEM(model, memory=mr.Reservoir(9), lr=0.1, engine="torch")
    ours = on_graphs(mr.GEM(other, memory=mr.Reservoir(9), lr=0.1, engine="torch"), Rerun())
    table = table_of()
    for engine in (plain.chosen_engine, ours.chosen_engine):
        for number in range(5):
            gradients = engine.gradients(table, [rows(0, 1 + number), rows(2, 3, 4 + number)], PLAIN, number)
            gradients.descend(torch.tensor([0.1, 0.1], dtype=torch.float64))
    assert_same_state(state(plain), state(ours))


def test_an_example_that_is_not_finite_is_undone_by_gem() -> None:
    recorder, net = Rerun(), nn.Linear(6, 4)
    net.weight.data.mul_(100)  # so that large inputs overflow
    learner = on_graphs(gem(net), recorder)
    xs, ys, tasks = (values[:12] for values in examples())
    learner.observe_many(xs.float() / 255, ys, tasks)
    before, replayed = learner.weights.theta.clone(), recorder.replayed
    with pytest.raises(mr.NonFiniteError, match="example 12 of the stream"):
        learner.observe(torch.full((6,), 3e38), 1, 1)
    assert recorder.replayed > replayed > 0
    assert torch.equal(learner.weights.theta, before)
    learner.observe(torch.rand(6), 1, 1)
    assert not torch.equal(learner.weights.theta, before)
