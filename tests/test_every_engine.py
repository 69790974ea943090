"""Every faster engine draws the same rows and lands on the same weights as the torch engine."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import metareplay as mr
from metareplay.engines.choose import EngineName

TASKS = 3
BOTH: tuple[EngineName, ...] = ("torch", "cpu")
Learners = Callable[..., mr.Learner]

REPLAYING: dict[str, Learners] = {
    "mer": lambda net, memory, o: mr.MER(net, memory=memory, beta=o["beta"], gamma=o["gamma"], s=o["s"], **o["rest"]),
    "mer-one-big-batch": lambda net, memory, o: mr.MEROneBigBatch(
        net, memory=memory, gamma=o["gamma"], s=o["s"], **o["rest"]
    ),
    "mer-current-rate": lambda net, memory, o: mr.MERCurrentRate(
        net, memory=memory, gamma=o["gamma"], s=o["s"], **o["rest"]
    ),
    "er": lambda net, memory, o: mr.ER(net, memory=memory, **o["rest"]),
    "er-tasks": lambda net, memory, o: mr.ERTasks(net, memory=memory, **o["rest"]),
}


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "hidden": tuple(draw(st.lists(st.integers(1, 40), max_size=3))),
        "inputs": draw(st.integers(1, 40)),
        "outputs": draw(st.integers(1, 20)),
        "capacity": draw(st.integers(1, 30)),
        "zeros": draw(st.sampled_from([0.0, 0.5, 0.9, 1.0])),
        "images": draw(st.booleans()),
        "seed": draw(st.integers(0, 1000)),
        "beta": draw(st.sampled_from([0.01, 0.3, 1.0])),
        "gamma": draw(st.sampled_from([0.3, 1.0])),
        "s": draw(st.integers(1, 3)),
        "rest": {
            "k": draw(st.integers(1, 20)),
            "lr": draw(st.sampled_from([0.01, 0.1])),
            "clip": draw(st.sampled_from([None, 0.05, 10.0])),
        },
    }


def data(case: dict[str, Any], count: int = 25) -> tuple[Tensor, Tensor, Tensor]:
    rng = np.random.default_rng(case["seed"])
    xs = rng.random((count, case["inputs"])) * (rng.random((count, case["inputs"])) >= case["zeros"])
    made = torch.from_numpy((255 * xs).astype(np.uint8)) if case["images"] else torch.from_numpy(xs)
    return made, torch.from_numpy(rng.integers(0, case["outputs"], count)), torch.arange(count) * TASKS // count


def distance(one: mr.Learner, other: mr.Learner) -> float:
    return float((one.weights.theta - other.weights.theta).norm() / one.weights.theta.norm())


def both(make: Callable[[EngineName], mr.Learner], given: tuple[Tensor, ...]) -> tuple[mr.Learner, mr.Learner]:
    learners = make("torch"), make("cpu")
    for learner in learners:
        for part in (slice(0, 7), slice(7, None)):
            learner.observe_many(*(values[part] for values in given))
    assert [learner.chosen_engine.name for learner in learners] == ["torch", "cpu"]
    return learners


TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}
DTYPES = [torch.float64, pytest.param(torch.float32, marks=pytest.mark.slow)]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("make", REPLAYING.values(), ids=REPLAYING.keys())
@given(case=cases())
@settings(max_examples=25)
def test_replay(make: Learners, dtype: torch.dtype, case: dict[str, Any]) -> None:
    def learner(engine: EngineName) -> mr.Learner:
        net = mr.networks.mlp(case["inputs"], case["hidden"], case["outputs"], seed=case["seed"]).to(dtype)
        rest = case["rest"] | {"engine": engine, "seed": case["seed"]}
        return make(net, mr.Reservoir(case["capacity"]), case | {"rest": rest})

    one, other = both(learner, data(case))
    assert distance(one, other) < TOLERANCE[dtype]


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
@pytest.mark.parametrize("kind", [mr.ER, mr.ERTasks])
@given(case=cases())
@settings(max_examples=15)
def test_optimizers(kind: type[mr.ER | mr.ERTasks], optimizer: Any, case: dict[str, Any]) -> None:
    """In float64: they divide by the size of gradients, so where these are rounding errors so are the steps."""

    def learner(engine: EngineName) -> mr.Learner:
        net = mr.networks.mlp(case["inputs"], case["hidden"], case["outputs"], seed=case["seed"]).double()
        memory = mr.Reservoir(case["capacity"])
        return kind(net, memory=memory, optimizer=optimizer, seed=case["seed"], engine=engine, **case["rest"])

    one, other = both(learner, data(case))
    assert distance(one, other) < 1e-6


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(case=cases(), strength=st.sampled_from([0.0, 3.0]))
@settings(max_examples=25)
def test_online_ewc_and_gem(dtype: torch.dtype, case: dict[str, Any], strength: float) -> None:
    def net() -> nn.Module:
        return mr.networks.mlp(case["inputs"], case["hidden"], case["outputs"], seed=case["seed"]).to(dtype)

    lr, clip = case["rest"]["lr"], case["rest"]["clip"]
    kinds: list[Callable[[EngineName], mr.Learner]] = [
        lambda engine: mr.Online(net(), lr=lr, clip=clip, engine=engine),
        lambda engine: mr.Online(net(), lr=lr, clip=clip, steps=12, engine=engine),
        lambda engine: mr.EWC(net(), lr=lr, clip=clip, strength=strength, fisher_examples=4, engine=engine),
        lambda engine: mr.GEM(net(), lr=lr, clip=clip, strength=strength, memory=mr.Ring(12, TASKS), engine=engine),
    ]
    for kind in kinds:
        one, other = both(kind, data(case))
        assert distance(one, other) < 10 * TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(case=cases())
@settings(max_examples=25)
def test_models_with_a_part_for_each_task(dtype: torch.dtype, case: dict[str, Any]) -> None:
    sizes, seed = (case["inputs"], case["hidden"] or (5,), case["outputs"]), case["seed"]

    def heads() -> nn.Module:
        body = mr.networks.mlp(case["inputs"], (), 7, seed=seed).append(nn.ReLU())
        return mr.networks.MultiHead(body, 7, [case["outputs"], case["outputs"] + 2, case["outputs"]], seed=seed)

    def separate() -> mr.networks.Separate:
        return mr.networks.separate_mlps(*sizes, TASKS, seed=seed).to(dtype)

    lr, clip = case["rest"]["lr"], case["rest"]["clip"]
    kinds: list[Callable[[EngineName], mr.Learner]] = [
        lambda engine: mr.Independent(separate(), lr=lr, clip=clip, engine=engine),
        lambda engine: mr.Independent(separate(), lr=lr, start="clone", engine=engine),
        lambda engine: mr.TaskInput(mr.networks.task_input_mlp(*sizes, TASKS, seed=seed).to(dtype), engine=engine),
        lambda engine: mr.Online(heads().to(dtype), lr=lr, clip=clip, engine=engine),
    ]
    for kind in kinds:
        one, other = both(kind, data(case))
        assert distance(one, other) < TOLERANCE[dtype]


def test_batches_over_several_tasks_parts_go_to_torch() -> None:
    xs, ys, tasks = torch.rand(30, 6), torch.arange(30) % 4, torch.arange(30) // 10
    learners = [
        mr.MER(mr.networks.separate_mlps(6, (12,), 4, TASKS), memory=mr.Reservoir(9), s=2, k=4, engine=engine)
        for engine in BOTH
    ]
    for learner in learners:
        learner.observe_many(xs, ys, tasks)
    assert [learner.chosen_engine.name for learner in learners] == ["torch", "torch"]
    torch.testing.assert_close(learners[0].weights.theta, learners[1].weights.theta)


@pytest.mark.parametrize("loss", [functional.mse_loss, functional.huber_loss, nn.MSELoss(), nn.HuberLoss()])
@given(case=cases())
@settings(max_examples=10)
def test_regression(loss: Any, case: dict[str, Any]) -> None:
    xs, _, tasks = data(case | {"images": False})
    ys = 3 * torch.from_numpy(np.random.default_rng(1).standard_normal((len(xs), case["outputs"])))

    def learner(engine: EngineName) -> mr.Learner:
        net = mr.networks.mlp(case["inputs"], case["hidden"], case["outputs"], seed=case["seed"]).double()
        memory = mr.Reservoir(case["capacity"])
        return mr.MER(net, memory=memory, lr=0.01, beta=0.3, s=2, k=4, loss=loss, regression=True, engine=engine)

    one, other = both(learner, (xs, ys, tasks))
    assert distance(one, other) < 1e-12


def test_reptile() -> None:
    xs, ys = torch.rand(30, 6), torch.arange(30) % 3
    learners = [mr.Reptile(mr.networks.mlp(6, (8,), 3), lr=0.2, beta=0.4, s=3, k=5, engine=engine) for engine in BOTH]
    for learner in learners:
        learner.train(xs, ys, updates=8)
    assert [learner.chosen_engine.name for learner in learners] == ["torch", "cpu"]
    torch.testing.assert_close(learners[0].weights.theta, learners[1].weights.theta)
