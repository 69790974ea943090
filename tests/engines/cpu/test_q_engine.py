"""The compiled engine for deep Q-learning lands on torch's weights, and leaves to torch what it cannot do."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from q_agents import EXPLORES, KINDS, RATES, agents, distance
from torch import nn
from toy_environment import Line
from toy_environment import played as played_on

import metareplay as mr
from metareplay.engines.choose import EngineName
from metareplay.engines.cpu.q_engine import FEW, CpuQEngine


def net(hidden: tuple[int, ...] = (20, 16), seed: int = 0) -> nn.Module:
    return mr.networks.mlp(3, hidden, 3, seed=seed)


def played(agent: mr.QLearner, frames: int, dtype: Any = np.float32) -> mr.QLearner:
    """Let an agent play and learn, from a new episode on."""
    return played_on(agent, frames, Line(dtype))


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    kind, options = draw(agents(20))
    hidden = tuple(draw(st.lists(st.integers(1, 40), max_size=3)))
    return {"kind": kind, "options": options, "hidden": hidden, "capacity": draw(st.integers(1, 30))}


@settings(max_examples=25)
@given(case=cases())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_same_weights_as_torch(dtype: torch.dtype, case: dict[str, Any]) -> None:
    def agent(engine: EngineName, model: nn.Module) -> mr.QLearner:
        memory = mr.Reservoir(case["capacity"])
        return KINDS[case["kind"]](model, memory=memory, engine=engine, **EXPLORES, **case["options"])

    by_kernel = played(agent("cpu", net(case["hidden"])), 25)
    by_torch = played(agent("torch", net(case["hidden"]).to(dtype)), 25, np.dtype(str(dtype).split(".")[1]))
    assert [one.chosen_engine.name for one in (by_kernel, by_torch)] == ["cpu", "torch"]
    assert distance(by_torch, by_kernel) < 5e-5
    for name, value in by_torch.chosen_engine.state().items():
        found = by_kernel.chosen_engine.state()[name]
        assert found.shape == value.shape
        torch.testing.assert_close(found.to(dtype) if name != "step" else found, value, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", RATES)
@pytest.mark.parametrize(("first", "then"), [("torch", "cpu"), ("cpu", "torch"), ("cpu", "cpu")])
def test_checkpoints_move_between_engines(
    kind: str, optimizer: str, first: EngineName, then: EngineName, tmp_path: Path
) -> None:
    def made(engine: EngineName) -> mr.QLearner:
        options: dict[str, Any] = {"optimizer": optimizer, "lr": RATES[optimizer], "k": 5, "warmup": 3, **EXPLORES}
        return KINDS[kind](net(), memory=mr.Reservoir(20), target_every=7, engine=engine, **options)

    whole = played(played(made(first), 20), 20)
    begun = played(made(first), 20)
    begun.save(tmp_path / "agent.ckpt")
    ended = mr.load(tmp_path / "agent.ckpt", net(seed=9), kind=KINDS[kind], engine=then)
    played(ended, 20)
    assert ended.chosen_engine.name == then
    assert distance(whole, ended) < 1e-5 if first != then else torch.equal(whole.weights.theta, ended.weights.theta)
    before, after = whole.chosen_engine.state(), ended.chosen_engine.state()
    assert {name: (v.shape, v.dtype) for name, v in before.items()} == {n: (v.shape, v.dtype) for n, v in after.items()}


@pytest.mark.parametrize(
    ("options", "model", "missing"),
    [
        ({"optimizer": "rmsprop"}, net(), "SGD, or Adam with torch's defaults"),
        ({"loss": nn.functional.mse_loss}, net(), "Huber's loss"),
        ({}, net().double(), "float32 weights on the CPU"),
        ({}, nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)), "a chain of Linear and ReLU layers"),
    ],
)
def test_what_it_cannot_do_is_torch_s(options: dict[str, Any], model: nn.Module, missing: str) -> None:
    assert mr.DQN(model, **options).chosen_engine.name == "torch"
    with pytest.raises(mr.InputError, match=re.escape(f"engine 'cpu' needs {missing}")):
        mr.DQN(model, engine="cpu", **options)


@pytest.mark.parametrize("dtype", [np.float64, np.uint8, np.int64])
def test_other_inputs_are_torch_s(dtype: Any) -> None:
    model = nn.Sequential(nn.Embedding(3, 1), nn.Flatten(), nn.Linear(3, 3)) if dtype is np.int64 else net()
    agent = mr.DQN(model, memory=mr.Recent(5), warmup=0)
    for _ in range(3):
        agent.observe(np.ones(3, dtype), agent.act(np.ones(3, dtype)), 1.0, np.zeros(3, dtype), terminated=False)
    reason = "" if dtype is np.int64 else " (the compiled engine needs float32 vectors as inputs)"
    assert agent.chosen_engine.name == "torch" + reason
    assert agent.seen == 3


def test_inputs_of_several_dimensions_are_flattened() -> None:
    agents = [mr.DQN(net(), memory=mr.Recent(5), warmup=0), mr.DQN(nn.Sequential(nn.Flatten(), net()), warmup=0)]
    x, following = np.array([[0.5], [1.0], [0.0]], np.float32), np.ones((3, 1), np.float32)
    agents[0].observe(x[:, 0], 1, 1.0, following[:, 0], terminated=False)
    agents[1].observe(x, 1, 1.0, following, terminated=False)
    assert torch.equal(*(agent.weights.theta for agent in agents))
    assert [agent.chosen_engine.name for agent in agents] == ["cpu", "cpu"]


@pytest.mark.parametrize("optimizer", RATES)
def test_a_transition_that_is_not_finite_is_undone_and_named(optimizer: Any) -> None:
    agent = mr.DQNMER(net(), memory=mr.Reservoir(5), lr=RATES[optimizer], k=2, warmup=0, optimizer=optimizer)
    x = np.ones(3, np.float32)
    huge = np.full(3, 3e38, np.float32)
    with pytest.raises(mr.NonFiniteError, match=r"example 0 of the stream \(action 2, reward 1\)"):
        agent.observe(huge, 2, 1.0, x, terminated=False)
    assert agent.chosen_engine.state() == {}
    agent.observe(x, 0, 1.0, x, terminated=False)
    before = {"theta": agent.weights.theta.clone(), **agent.chosen_engine.state()}
    before = {name: value.clone() for name, value in before.items()}
    with pytest.raises(mr.NonFiniteError, match=r"example 1 of the stream"):
        agent.observe(huge, 2, 1.0, x, terminated=False)
    after = {"theta": agent.weights.theta, **agent.chosen_engine.state()}
    assert all(torch.equal(before[name], after[name]) for name in before)
    agent.observe(x, 0, 1.0, x, terminated=False)
    assert agent.seen == 2
    assert agent.chosen_engine.healthy()


def test_outputs_are_the_model_s() -> None:
    agent = mr.DQN(net())
    assert isinstance(agent.chosen_engine, CpuQEngine)
    for count in (0, 1, FEW, FEW + 1):
        xs = torch.rand(count, 3)
        torch.testing.assert_close(agent.outputs(xs), agent.model(xs).detach(), rtol=1e-5, atol=1e-6)


def test_gradients_are_torch_s() -> None:
    agents = [played(mr.DQN(net(), memory=mr.Recent(9), warmup=99, engine=engine), 9) for engine in ("cpu", "torch")]
    found = []
    for agent in agents:
        assert agent.table is not None
        groups = [np.array([0, 1]), np.array([2])]
        found.append(agent.chosen_engine.gradients(agent.table, groups, agent.objective, 0).each())
    assert torch.equal(*found)


def test_weights_are_remembered() -> None:
    agent = played(mr.DQN(net(), memory=mr.Recent(9), warmup=0, lr=1e-3, optimizer="adam"), 5)
    undo, before = agent.chosen_engine.remember(), agent.weights.theta.clone()
    moment = agent.chosen_engine.state()["exp_avg"].clone()
    played(agent, 5)
    assert not torch.equal(agent.weights.theta, before)
    undo()
    assert torch.equal(agent.weights.theta, before)
    assert torch.equal(agent.chosen_engine.state()["exp_avg"], moment)
