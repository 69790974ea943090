import json
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from every_learner import EVERY, INPUTS, assert_same_state, cnn, examples, heads, mlp, state
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional

import metareplay as mr
from metareplay._core.draws import Draws, Purpose
from metareplay.experiments import alignment as alignments
from metareplay.experiments.alignment import EDGES, Alignment, Moment, flat_gradients

SAMPLES = 3
ALL = examples()


def gradient(learner: mr.Learner, x: Tensor, y: Tensor, task: int) -> Tensor:
    """By plain autograd, on the model itself, which is put into evaluation mode."""
    learner.model.eval()
    learner.model.zero_grad()
    inputs = x[None].double() / 255 if x.dtype == torch.uint8 else x[None]
    several = isinstance(learner.model, mr.networks.TaskModule)
    outputs = learner.model(inputs, torch.tensor([task])) if several else learner.model(inputs)
    (learner.loss or functional.cross_entropy)(outputs, y[None]).backward()
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in learner.model.parameters() if p.requires_grad]
    found = torch.cat([grad.flatten() for grad in grads]).clone()
    learner.model.train()
    learner.model.zero_grad()
    return found


def measured(
    learner: mr.Learner, xs: Tensor, ys: Tensor, tasks: Tensor, samples: int = SAMPLES, past: Moment = "before"
) -> Alignment:
    alignment = Alignment(learner, samples, past)
    incoming, table = learner.accept(xs, ys, tasks)
    for one in alignment.each(incoming):
        learner.learn(one, table)
    return alignment


# What is measured


@pytest.mark.parametrize("make", [mlp, cnn, heads], ids=["mlp", "cnn", "heads"])
def test_products_are_those_of_plain_gradients_before_learning(make: Callable[[], nn.Module]) -> None:
    xs, ys, tasks = ALL
    found = measured(mr.Online(make().double(), lr=0.1, seed=7), xs, ys, tasks).products()
    learner = mr.Online(make().double(), lr=0.1, seed=7)
    assert torch.isnan(found[0]).all()
    for n in range(len(xs)):
        if n:
            drawn = Draws(7).integers(Purpose.ALIGNMENT, n, SAMPLES, n)
            grads = [gradient(learner, xs[i], ys[i], int(tasks[i])) for i in (n, *drawn)]
            expected = torch.stack([grads[0] @ grad for grad in grads[1:]])
            torch.testing.assert_close(found[n], expected, rtol=1e-10, atol=1e-12)
        learner.observe(xs[n], ys[n], int(tasks[n]))


LEARNERS: dict[str, Callable[[nn.Module], mr.Learner]] = {
    "online": lambda net: mr.Online(net, lr=0.1, seed=7),
    "mer": lambda net: mr.MER(net, memory=mr.Reservoir(9), lr=0.1, beta=0.3, gamma=0.8, s=2, k=4, seed=7),
}


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("make", [mlp, cnn, heads], ids=["mlp", "cnn", "heads"])
def test_after_learning_its_own_gradient_is_from_before_and_the_past_ones_are_from_after(
    make: Callable[[], nn.Module], name: str
) -> None:
    xs, ys, tasks = ALL
    alignment = measured(LEARNERS[name](make().double()), xs, ys, tasks, past="after")
    found = alignment.products()
    learner, moved = LEARNERS[name](make().double()), 0.0
    assert torch.isnan(found[0]).all()
    for n in range(len(xs)):
        own = gradient(learner, xs[n], ys[n], int(tasks[n]))
        drawn: list[int] = Draws(7).integers(Purpose.ALIGNMENT, n, SAMPLES, n).tolist() if n else []
        before = [own @ gradient(learner, xs[i], ys[i], int(tasks[i])) for i in drawn]
        learner.observe(xs[n], ys[n], int(tasks[n]))
        if n:
            expected = torch.stack([own @ gradient(learner, xs[i], ys[i], int(tasks[i])) for i in drawn])
            torch.testing.assert_close(found[n], expected, rtol=1e-10, atol=1e-12)
            moved = max(moved, float((torch.stack(before) - expected).abs().max()))
    assert moved > 1e-3  # it is not the same as before learning
    assert alignment.summary()["past"] == "after"
    assert torch.equal(found.isnan(), measured(LEARNERS[name](make().double()), xs, ys, tasks).products().isnan())


def smooth(outputs: Tensor, ys: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, ys, label_smoothing=0.1)


def test_a_loss_of_ones_own_is_compared_by_its_own_gradients() -> None:
    xs, ys, tasks = ALL
    alignment = measured(mr.Online(mlp().double(), lr=1e-9, loss=smooth), xs, ys, tasks, samples=1)
    learner = mr.Online(mlp().double(), loss=smooth)
    past = int(Draws(0).integers(Purpose.ALIGNMENT, 9, 1, 9)[0])
    expected = gradient(learner, xs[9], ys[9], 0) @ gradient(learner, xs[past], ys[past], 0)
    torch.testing.assert_close(alignment.products()[9, 0], expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("loss", [functional.mse_loss, functional.huber_loss, functional.l1_loss])
def test_regression_too(loss: Any) -> None:
    xs, ys = torch.rand(9, 4, dtype=torch.float64), torch.rand(9, 2, dtype=torch.float64)
    learner = mr.Online(mr.networks.mlp(4, (5,), 2).double(), lr=1e-12, regression=True, loss=loss)
    found = measured(learner, xs, ys, torch.zeros(9, dtype=torch.int64), samples=1).products()
    past = int(Draws(0).integers(Purpose.ALIGNMENT, 8, 1, 8)[0])
    expected = gradient(learner, xs[8], ys[8], 0) @ gradient(learner, xs[past], ys[past], 0)
    torch.testing.assert_close(found[8, 0], expected, rtol=1e-8, atol=1e-10)


def test_the_past_is_all_of_it_drawn_uniformly() -> None:
    """Inputs that are told apart by their product with themselves: which ones were drawn can be read off."""
    count = 400
    xs = torch.zeros(count, 2, dtype=torch.float64)
    xs[:, 0] = torch.arange(count)
    learner = mr.Online(nn.Linear(2, 1).double(), lr=1e-12, regression=True, loss=lambda outputs, _: outputs.sum())
    found = measured(learner, xs, torch.zeros(count, 1), torch.zeros(count, dtype=torch.int64)).products()
    n = torch.arange(1, count)[:, None]
    places = ((found[1:] - 1) / n).round()  # product = n * place + 1
    assert places.min() == 0
    assert (places < n).all()
    assert stats.kstest(((places + 0.5) / n).flatten().numpy(), "uniform").pvalue > 1e-3


# What it leaves alone


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("past", ["before", "after"])
def test_measuring_changes_nothing(past: Moment, name: str) -> None:
    xs, ys, tasks = ALL
    watched, plain = EVERY[name](), EVERY[name]()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    measured(watched, xs, ys, tasks, past=past)
    assert torch.equal(torch.get_rng_state(), before)
    plain.observe_many(xs, ys, tasks)
    assert_same_state(state(watched), state(plain))


def test_modes_and_grads_are_left_as_they_were() -> None:
    net = cnn()
    parts = list(net.children())
    parts[2].eval()
    inputs, ys, tasks = torch.rand(3, INPUTS), torch.tensor([0, 1, 2]), torch.zeros(3, dtype=torch.int64)
    flat_gradients(net, functional.cross_entropy, inputs, ys, tasks)
    assert [part.training for part in parts] == [True, True, False, True, True, True, True, True]
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("past", ["before", "after"])
def test_it_works_where_gradients_are_off(past: Moment) -> None:
    xs, ys, tasks = ALL
    expected = measured(EVERY["online-cnn"](), xs, ys, tasks, past=past).products()
    learner = EVERY["online-cnn"]()
    with torch.inference_mode():
        found = measured(learner, xs.clone(), ys.clone(), tasks, past=past).products()
    assert torch.equal(found[1:], expected[1:])


# Trouble


def test_an_example_that_was_undone_counts_once() -> None:
    xs, ys, tasks = ALL
    learner = EVERY["online"]()
    alignment = Alignment(learner, SAMPLES)
    incoming, table = learner.accept(xs, ys, tasks)
    for number, one in enumerate(incoming.pieces(1)):
        next(alignment.each(one))  # and then it is not learned
        assert len(alignment.products()) == number
        assert alignment.summary()["count"] == SAMPLES * max(number - 1, 0)
        next(alignment.each(one))
        learner.learn(one, table)
    expected = measured(EVERY["online"](), xs, ys, tasks)
    assert alignment.summary() == expected.summary()


def test_after_learning_an_example_that_was_undone_counts_once() -> None:
    xs, ys, tasks = ALL
    learner = EVERY["online"]()
    alignment = Alignment(learner, SAMPLES, "after")
    incoming, table = learner.accept(xs, ys, tasks)
    for number, one in enumerate(incoming.pieces(1)):
        next(alignment.each(one))  # and then it is not learned
        assert len(alignment.products()) == number
        for same in alignment.each(one):
            learner.learn(same, table)
    assert alignment.summary() == measured(EVERY["online"](), xs, ys, tasks, past="after").summary()


def test_products_that_are_not_finite_are_left_out_and_counted() -> None:
    xs, ys, tasks = torch.rand(20, INPUTS), ALL[1][:20], ALL[2][:20]
    xs[4:9] = 1e30
    alignment = measured(mr.Online(mlp(), lr=1e-30, engine="torch"), xs, ys, tasks, samples=5)
    finite = torch.isfinite(alignment.products()[1:])
    summary = alignment.summary()
    assert 0 < summary["not_finite"] == int((~finite).sum())
    assert summary["count"] == int(finite.sum()) == sum(summary["counts"])
    assert summary["mean"] == pytest.approx(alignment.products()[1:][finite].mean().item())
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_no_samples_are_refused() -> None:
    with pytest.raises(mr.InputError, match="alignment=-1: each example is compared with at least one"):
        Alignment(EVERY["online"](), -1)


def test_a_moment_that_does_not_exist_is_refused() -> None:
    with pytest.raises(mr.InputError, match="past='during': use 'before' or 'after'"):
        Alignment(EVERY["online"](), 1, "during")  # type: ignore[arg-type]


# The summary


def summary_of(products: Tensor, tasks: Tensor) -> dict[str, Any]:
    count, samples = products.shape
    learner = mr.Online(nn.Linear(1, 2))
    incoming, _ = learner.accept(torch.zeros(count, 1), torch.zeros(count, dtype=torch.int64), tasks)
    alignment = Alignment(learner, samples)
    alignment.remember(incoming, 0)
    alignment.restore(products)
    learner.seen = count
    return alignment.summary()


def test_the_summary_says_what_the_products_say() -> None:
    products = torch.randn(1000, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).pow(5)
    products[0] = math.nan
    summary = summary_of(products, torch.arange(1000) // 400)
    values = products[1:].numpy()
    assert (summary["samples"], summary["count"], summary["not_finite"]) == (4, 3996, 0)
    assert summary["mean"] == pytest.approx(values.mean())
    assert summary["changes"] == [400, 800]
    assert (summary["bounds"][0], summary["bounds"][-1], len(summary["bounds"])) == (1, 1000, alignments.SPANS + 1)
    lengths = {high - low for low, high in pairwise(summary["bounds"])}
    assert max(lengths) - min(lengths) <= 1
    for i, (low, high) in enumerate(pairwise(summary["bounds"])):
        some = values[low - 1 : high - 1]
        assert summary["means"][i] == pytest.approx(some.mean(), rel=1e-4)
        for q in alignments.QUANTILES:
            assert summary["quantiles"][str(q)][i] == pytest.approx(np.percentile(some, q), rel=1e-4)
    whole = np.concatenate([[-np.inf], EDGES, [np.inf]])
    np.testing.assert_array_equal(summary["counts"], np.histogram(values, whole)[0])
    assert len(json.dumps(summary)) < 8_000


def test_short_streams_have_short_summaries() -> None:
    nothing = summary_of(torch.full((1, 2), math.nan), torch.zeros(1, dtype=torch.int64))
    assert (nothing["mean"], nothing["count"], nothing["means"], nothing["bounds"]) == (None, 0, [], [1])
    two = summary_of(torch.tensor([[math.nan] * 2, [1.0, 3.0]]).double(), torch.zeros(2, dtype=torch.int64))
    assert (two["mean"], two["means"], two["quantiles"]["50"], two["bounds"]) == (2, [2], [2], [1, 2])


def test_a_span_without_finite_products_is_null() -> None:
    products = torch.tensor([[math.nan], [1.0], [math.inf], [3.0]]).double()
    summary = summary_of(products, torch.zeros(4, dtype=torch.int64))
    assert (summary["means"], summary["not_finite"]) == ([1, None, 3], 1)


def test_many_task_changes_are_not_listed() -> None:
    assert summary_of(torch.zeros(300, 1).double(), torch.arange(300) % 2)["changes"] == []


@pytest.mark.parametrize("past", ["before", "after"])
def test_the_history_grows(past: Moment, monkeypatch: pytest.MonkeyPatch) -> None:
    xs, ys, tasks = ALL
    expected = measured(EVERY["online"](), xs, ys, tasks, past=past).products()
    monkeypatch.setattr(alignments, "ROOM", 1)
    assert torch.equal(measured(EVERY["online"](), xs, ys, tasks, past=past).products()[1:], expected[1:])
