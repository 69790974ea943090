"""Deep Q-learning on the graph engine without a GPU: the torch engine's weights, graphs that see the target network."""

from typing import Any

import numpy as np
import pytest
import torch
from no_graphs import Rerun
from toy_environment import played

import metareplay as mr
from metareplay.engines.cuda.engine import CudaEngine
from metareplay.engines.temporal_difference import TemporalDifference
from metareplay.engines.torch_engine import TorchEngine

KINDS: dict[str, type[mr.DQN] | type[mr.DQNMER]] = {"DQN": mr.DQN, "DQNMER": mr.DQNMER}


def agent(kind: str = "DQNMER", graphs: bool = False, **options: Any) -> mr.QLearner:
    chosen: dict[str, Any] = {"lr": 0.1, "k": 5, "warmup": 3, "target_every": 9, "discount": 0.9, "engine": "torch"}
    chosen |= {"epsilon_start": 0.6, "epsilon_end": 0.2, "memory": mr.Reservoir(30)}
    chosen |= {"s": 2, "beta": 0.7, "gamma": 0.5} if kind == "DQNMER" else {}
    made = KINDS[kind](mr.networks.mlp(3, (8,), 3, seed=2).double(), **chosen | options)
    if graphs:
        assert isinstance(made.chosen_engine, TorchEngine)
        made.chosen_engine = CudaEngine(made.chosen_engine, Rerun(), fewer_kernels=False)
    return made


def recorder(learner: mr.QLearner) -> Rerun:
    assert isinstance(learner.chosen_engine, CudaEngine)
    found = learner.chosen_engine._recorder
    assert isinstance(found, Rerun)
    return found


def assert_same(one: mr.QLearner, other: mr.QLearner) -> None:
    torch.testing.assert_close(one.weights.theta, other.weights.theta)
    torch.testing.assert_close(one.temporal_difference.target.theta, other.temporal_difference.target.theta)
    assert (one.seen, one.episodes) == (other.seen, other.episodes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [{}, {"double": True}, {"clip": 0.05}, {"target_in": "episodes", "target_every": 2}])
def test_graphs_give_the_torch_engine_s_weights(kind: str, change: dict[str, Any]) -> None:
    plain, graphs = played(agent(kind, **change), 70), played(agent(kind, graphs=True, **change), 70)
    assert graphs.chosen_engine.name == "cuda"
    assert recorder(graphs).replayed > 50
    assert_same(plain, graphs)
    begun = agent(kind).weights.theta
    assert not torch.allclose(plain.weights.theta, begun)


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_an_optimizer_with_moments_is_captured(optimizer: str) -> None:
    plain, graphs = (played(agent(optimizer=optimizer, lr=1e-3, graphs=g), 30) for g in (False, True))
    assert graphs.chosen_engine.name == "cuda"
    assert_same(plain, graphs)
    moments, ours = plain.chosen_engine.state(), graphs.chosen_engine.state()
    assert moments.keys() == ours.keys() != set()
    for name in moments:
        torch.testing.assert_close(moments[name], ours[name])


@pytest.mark.parametrize("kind", KINDS)
def test_a_refreshed_target_network_is_seen_by_graphs_that_were_made_before(kind: str) -> None:
    """A graph reads from fixed places, so its tensors must stay where they are."""
    graphs, plain = agent(kind, graphs=True, target_every=10_000), agent(kind, target_every=10_000)
    for one in (graphs, plain):
        played(one, 40)
    target = graphs.temporal_difference.target
    places = [tensor.data_ptr() for tensor in (target.theta, *target.module.state_dict().values())]
    before, recorded = target.theta.clone(), recorder(graphs).recorded
    for one in (graphs, plain):
        one.temporal_difference.refresh(one.model)
        played(one, 20)
    assert not torch.equal(target.theta, before)
    assert recorder(graphs).recorded == recorded  # nothing was recorded anew
    assert_same(plain, graphs)
    state = {name: value.clone() + 0.1 for name, value in graphs.temporal_difference.state().items()}
    for one in (graphs, plain):
        one.temporal_difference.restore(state)
        played(one, 20)
    assert [tensor.data_ptr() for tensor in (target.theta, *target.module.state_dict().values())] == places
    assert_same(plain, graphs)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_targets_are_prepared_once_per_batch(kind: str, graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, sizes = agent(kind, graphs), []
    prepare = TemporalDifference.prepare

    def note(self: TemporalDifference, model: Any, examples: Any) -> Any:
        assert not torch.is_grad_enabled()
        sizes.append(len(examples["x"]))
        return prepare(self, model, examples)

    played(learner, 20)
    monkeypatch.setattr(TemporalDifference, "prepare", note)
    played(learner, 7)
    assert sizes == [5] * 7 * (2 if kind == "DQNMER" else 1)


@pytest.mark.parametrize("graphs", [False, True])
def test_a_very_long_batch_is_prepared_once_too(graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With double DQN the model chooses by its weights before the batch, also after 128 steps."""
    learner = agent(graphs=graphs, k=150, s=1, lr=0.01, memory=mr.Recent(160), warmup=160, double=True)
    played(learner, 161)
    sizes, prepare = [], TemporalDifference.prepare

    def note(self: TemporalDifference, model: Any, examples: Any) -> Any:
        sizes.append(len(examples["x"]))
        return prepare(self, model, examples)

    monkeypatch.setattr(TemporalDifference, "prepare", note)
    played(learner, 4)
    assert sizes == [150] * 4
    expected = agent(k=150, s=1, lr=0.01, memory=mr.Recent(160), warmup=160, double=True)
    assert_same(played(played(expected, 161), 4), learner)


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_that_is_not_finite_is_undone(kind: str) -> None:
    learner = played(agent(kind, graphs=True, loss=torch.nn.functional.mse_loss, lr=0.01), 30)
    before, target = learner.weights.theta.clone(), learner.temporal_difference.target.theta.clone()
    with pytest.raises(mr.NonFiniteError, match="example 30"):
        learner.observe(np.ones(3), 1, 1e200, np.zeros(3), terminated=False)
    assert torch.equal(learner.weights.theta, before)
    assert torch.equal(learner.temporal_difference.target.theta, target)
    played(learner, 5)


def test_only_objectives_that_say_so_prepare_and_penalise() -> None:
    objective = agent().temporal_difference
    assert objective.prepares
    assert not objective.penalises
    online = mr.Online(mr.networks.mlp(3, (8,), 3))
    assert not online.objective.prepares
    assert not online.objective.penalises
