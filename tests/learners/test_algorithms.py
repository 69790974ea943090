"""Algorithms 1 to 7 equal the literal pseudocode, on shared draws."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import transcriptions
from torch import Tensor, nn

import metareplay as mr
from metareplay.memories import Sampler

Data = tuple[Tensor, Tensor, Tensor]
Net = Callable[[], nn.Module]


def listed(data: Data) -> transcriptions.Stored:
    return [(x, int(y), int(t)) for x, y, t in zip(*data, strict=True)]


def assert_same(learner: mr.Learner, expected: tuple[transcriptions.Theta, transcriptions.Stored]) -> None:
    theta, memory = expected
    for name, parameter in learner.model.named_parameters():
        torch.testing.assert_close(parameter.detach(), theta[name], rtol=1e-12, atol=1e-14)
    assert learner.own_memory is not None
    held = learner.own_memory.examples()
    assert torch.equal(held.xs, torch.stack([x for x, _, _ in memory]))
    assert held.ys.tolist() == [y for _, y, _ in memory]


CASES = list(product([1, 3], [1, 4, 30], [5, 20, 100]))  # s, k, memory size


@pytest.mark.parametrize(("s", "k", "size"), CASES)
def test_algorithm_1(small_net: Net, small_data: Data, s: int, k: int, size: int) -> None:
    options = {"beta": 0.3, "gamma": 0.7, "s": s, "k": k, "seed": 5}
    learner = mr.MER(small_net(), memory=mr.Reservoir(size), lr=0.2, **options)  # type: ignore[arg-type]
    learner.observe_many(*small_data)
    assert_same(learner, transcriptions.mer(small_net(), listed(small_data), alpha=0.2, size=size, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(("s", "k", "size"), CASES)
@pytest.mark.parametrize(
    ("kind", "transcription"),
    [
        (mr.MEROneBigBatch, transcriptions.mer_one_big_batch),
        (mr.MERCurrentRate, transcriptions.mer_current_rate),
    ],
)
def test_algorithms_6_and_7(
    small_net: Net, small_data: Data, kind: Any, transcription: Any, s: int, k: int, size: int
) -> None:
    options = {"gamma": 0.4, "s": s, "k": k, "seed": 5}
    learner = kind(small_net(), memory=mr.Reservoir(size), lr=0.2, **options)
    learner.observe_many(*small_data)
    assert_same(learner, transcription(small_net(), listed(small_data), alpha=0.2, size=size, **options))


@pytest.mark.parametrize(("k", "size"), list(product([1, 4, 30], [5, 20, 100])))
@pytest.mark.parametrize(("kind", "transcription"), [(mr.ER, transcriptions.er), (mr.ERTasks, transcriptions.er_tasks)])
def test_algorithms_4_and_5(small_net: Net, small_data: Data, kind: Any, transcription: Any, k: int, size: int) -> None:
    learner = kind(small_net(), memory=mr.Reservoir(size), lr=0.2, k=k, seed=9)
    learner.observe_many(*small_data)
    assert_same(learner, transcription(small_net(), listed(small_data), alpha=0.2, k=k, size=size, seed=9))


def test_algorithm_2(small_net: Net, small_data: Data) -> None:
    learner = mr.Reptile(small_net(), lr=0.2, beta=0.4, s=3, k=5, seed=2)
    learner.train(small_data[0], small_data[1], updates=4)
    learner.train(small_data[0], small_data[1], updates=3)
    theta = transcriptions.reptile(small_net(), listed(small_data), alpha=0.2, beta=0.4, s=3, k=5, updates=7, seed=2)
    for name, parameter in learner.model.named_parameters():
        torch.testing.assert_close(parameter.detach(), theta[name], rtol=1e-12, atol=1e-14)


def test_float32_agrees_with_the_pseudocode_up_to_rounding(small_net: Net, small_data: Data) -> None:
    data = (small_data[0].float(), *small_data[1:])
    learner = mr.MER(small_net().float(), memory=mr.Reservoir(20), lr=0.2, beta=0.3, s=3, k=4, seed=5)
    learner.observe_many(*data)
    theta, _ = transcriptions.mer(
        small_net().float(), listed(data), alpha=0.2, beta=0.3, gamma=1.0, s=3, k=4, size=20, seed=5
    )
    for name, parameter in learner.model.named_parameters():
        torch.testing.assert_close(parameter.detach(), theta[name], rtol=1e-4, atol=1e-5)


def test_mer_without_reptile_is_plain_sgd_over_the_same_rows(small_net: Net, small_data: Data) -> None:
    options = {"s": 2, "k": 4, "seed": 5}
    learner = mr.MER(small_net(), memory=mr.Reservoir(10), lr=0.2, beta=1.0, gamma=1.0, **options)  # type: ignore[arg-type]
    drawing = mr.MER(small_net(), memory=mr.Reservoir(10), lr=0.2, beta=1.0, gamma=1.0, **options)  # type: ignore[arg-type]
    plain = small_net()
    rows_before: dict[int, tuple[Tensor, Tensor]] = {}
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.2)
    xs, ys, _ = small_data
    for i in range(len(xs)):
        with Sampler(drawing.memory, drawing.draws, drawing.seen, np.array([-1])) as memory:
            plan = drawing.plan(memory)
        learner.observe(xs[i], int(ys[i]))
        drawing.observe(xs[i], int(ys[i]))
        assert learner.table is not None
        for row in plan.rows:
            optimizer.zero_grad()
            # the table's memory slots may just have been overwritten by example i: read rows from before that
            x, y = (xs[i], ys[i]) if row == plan.incoming else rows_before[int(row)]
            nn.functional.cross_entropy(plain(x[None]), y[None]).backward()
            optimizer.step()
        held = learner.table.gather(torch.arange(10))
        rows_before = {slot: (held["x"][slot], held["y"][slot]) for slot in range(10)}
    for ours, theirs in zip(learner.model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_mer_differs_from_one_batched_step(small_net: Net, small_data: Data) -> None:
    """The slip of other implementations: one step on a batch in place of k steps makes MER plain replay."""
    mer = mr.MER(small_net(), memory=mr.Reservoir(20), lr=0.2, beta=0.5, s=1, k=4, seed=5)
    er = mr.ER(small_net(), memory=mr.Reservoir(20), lr=0.1, k=4, seed=5)
    for learner in (mer, er):
        learner.observe_many(*small_data[:2])
    difference = (mer.weights.theta - er.weights.theta).abs().max()
    assert difference > 1e-2


@pytest.mark.parametrize(
    "wrong",
    [
        {"beta": 0.0},
        {"beta": 1.1},
        {"gamma": -0.1},
        {"gamma": 2.0},
        {"s": 0},
        {"k": 0},
        {"lr": 0.0},
        {"lr": np.nan},
        {"clip": 0.0},
    ],
)
def test_settings_outside_their_range_are_refused(small_net: Net, wrong: dict[str, float]) -> None:
    with pytest.raises(mr.InputError, match=next(iter(wrong))):
        mr.MER(small_net(), memory=mr.Reservoir(5), **wrong)  # type: ignore[arg-type]
