"""Algorithm 8, and DQN, equal the literal pseudocode on a toy environment; targets, terminals and bad input."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transcriptions
from torch import Tensor, nn
from toy_environment import Line, played

import metareplay as mr
from metareplay.engines.temporal_difference import TemporalDifference


def net(seed: int = 0) -> nn.Module:
    return mr.networks.mlp(3, (8,), 3, seed=seed).double()


class Literal:
    """The toy world with the interface that the transcription uses."""

    def __init__(self) -> None:
        self._line = Line()

    def reset(self) -> Tensor:
        return torch.from_numpy(self._line.reset()[0])

    def step(self, action: int) -> tuple[Tensor, float, bool, bool]:
        x, reward, final, cut_off, _ = self._line.step(action)
        return torch.from_numpy(x), reward, final, cut_off


def assert_same(agent: mr.QLearner, expected: tuple[transcriptions.Theta, list[transcriptions.Transition]]) -> None:
    theta, memory = expected
    for name, parameter in agent.model.named_parameters():
        torch.testing.assert_close(parameter.detach(), theta[name], rtol=1e-11, atol=1e-13)
    held = agent.memory.held()
    assert torch.equal(held["x"], torch.stack([s for s, *_ in memory]))
    assert torch.equal(held["next_x"], torch.stack([s for _, _, _, s, _ in memory]))
    assert held["action"].tolist() == [a for _, a, *_ in memory]
    assert held["reward"].tolist() == [r for _, _, r, *_ in memory]
    assert held["over"].tolist() == [final for *_, final in memory]


@pytest.mark.parametrize("size", [5, 30, 200])
@pytest.mark.parametrize(("s", "k"), [(1, 1), (1, 6), (3, 4)])
def test_algorithm_8(size: int, s: int, k: int) -> None:
    options: dict[str, Any] = {"beta": 0.6, "gamma": 0.3, "k": k, "discount": 0.9, "seed": 5}
    agent = mr.DQNMER(
        net(), memory=mr.Reservoir(size), lr=0.1, s=s, target_every=2, target_in="episodes", warmup=0,
        epsilon_start=0.8, epsilon_end=0.2, epsilon_frames=40, **options,
    )  # fmt: skip
    played(agent, 60)
    expected = transcriptions.dqn_mer(
        net(), Literal(), frame_limit=60, alpha=0.1, steps=s, e_q=2, size=size,
        epsilon=lambda frame: 0.8 - 0.6 * min(1, frame / 40), **options,
    )  # fmt: skip
    assert_same(agent, expected)


def test_dqn_takes_one_step_per_frame_on_the_mean_loss() -> None:
    agent = mr.DQN(
        net(), memory=mr.Reservoir(20), lr=0.2, k=5, discount=0.9, seed=3, target_every=1, target_in="episodes",
        warmup=0, epsilon_start=0.5, epsilon_end=0.5,
    )  # fmt: skip
    played(agent, 60)
    expected = transcriptions.dqn_mer(
        net(), Literal(), frame_limit=60, alpha=0.2, beta=1.0, gamma=1.0, steps=1, k=5, e_q=1, discount=0.9,
        epsilon=lambda _: 0.5, size=20, seed=3, together=True,
    )  # fmt: skip
    assert_same(agent, expected)


KINDS: dict[str, type[mr.DQN] | type[mr.DQNMER]] = {"DQN": mr.DQN, "DQNMER": mr.DQNMER}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "rmsprop"])
@pytest.mark.parametrize("double", [False, True])
def test_resuming_gives_the_same_bits(kind: str, optimizer: str, double: bool, tmp_path: Path) -> None:
    """The world's state is not part of an agent, so both go on in a new one."""

    options: dict[str, Any] = {"optimizer": optimizer, "double": double, "warmup": 3, "target_every": 7}

    def made() -> mr.QLearner:
        return KINDS[kind](net(), memory=mr.Reservoir(20), lr=0.05, k=5, **options)

    whole = played(played(made(), 30), 30)
    begun = played(made(), 30)
    begun.save(tmp_path / "agent.ckpt")
    ended = played(mr.load(tmp_path / "agent.ckpt", net(seed=9), kind=KINDS[kind]), 30)
    for one, other in zip(whole.model.parameters(), ended.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert (whole.seen, whole.episodes) == (ended.seen, ended.episodes)
    target, again = whole.temporal_difference.state(), ended.temporal_difference.state()
    assert all(torch.equal(target[name], again[name]) for name in target)


def test_the_target_is_the_target_network_s_and_has_no_gradient() -> None:
    model = net()
    objective = TemporalDifference(model, nn.functional.huber_loss, discount=0.9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    xs = torch.rand(4, 3, dtype=torch.float64)
    columns = mr.Columns(
        {
            "x": xs,
            "next_x": xs + 1,
            "action": torch.tensor([0, 1, 2, 0]),
            "reward": torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64),
            "over": torch.tensor([False, True, False, True]),
        }
    )
    found = objective.prepare(model, columns)["target"]
    expected = 0.9 * net()(xs + 1).max(dim=1).values
    assert torch.allclose(found, torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.where(columns["over"], 0, expected))
    objective.double = True
    chosen = model(xs + 1).argmax(dim=1, keepdim=True)
    other = torch.where(columns["over"], 0, 0.9 * net()(xs + 1).gather(1, chosen)[:, 0])
    assert torch.allclose(objective.prepare(model, columns)["target"], columns["reward"] + other)
    objective.refresh(model)
    assert all(map(torch.equal, objective.target.module.parameters(), model.parameters()))
    assert all(parameter.grad is None for parameter in objective.target.module.parameters())


def test_a_truncated_episode_still_expects_a_future() -> None:
    agents = [mr.DQN(net(), memory=mr.Recent(5), lr=0.1, warmup=0) for _ in range(3)]
    x, following = np.ones(3), np.full(3, 0.5)
    agents[0].observe(x, 0, 1.0, following, terminated=False)
    agents[1].observe(x, 0, 1.0, following, terminated=False, truncated=True)
    agents[2].observe(x, 0, 1.0, following, terminated=True)
    first, second, third = (agent.weights.theta for agent in agents)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
    assert [agent.episodes for agent in agents] == [0, 1, 1]


def test_warmup_only_remembers() -> None:
    agent = mr.DQN(net(), memory=mr.Recent(50), lr=0.1, warmup=10)
    start = agent.weights.theta.clone()
    assert torch.equal(played(agent, 10).weights.theta, start)
    assert len(agent.memory) == 10
    assert not torch.equal(played(agent, 1).weights.theta, start)


def test_target_network_is_renewed_by_frames_or_episodes() -> None:
    for unit, expected in (("frames", 8), ("episodes", None)):
        agent = mr.DQN(net(), memory=mr.Recent(50), lr=0.1, warmup=0, target_every=8, target_in=unit)  # type: ignore[arg-type]
        before = agent.temporal_difference.target.theta.clone()
        for frame in range(1, 12):
            agent.observe(np.ones(3), 0, 1.0, np.zeros(3), terminated=False)
            changed = not torch.equal(agent.temporal_difference.target.theta, before)
            assert changed == (expected is not None and frame >= expected)


def test_exploration_falls_in_a_straight_line() -> None:
    agent = mr.DQN(net(), memory=mr.Recent(500), epsilon_start=1.0, epsilon_end=0.2, epsilon_frames=40, warmup=500)
    assert agent.epsilon == 1.0
    assert len({played(agent, 1).epsilon for _ in range(20)}) == 20
    assert agent.epsilon == pytest.approx(0.6)
    played(agent, 100)
    assert agent.epsilon == pytest.approx(0.2)
    x = np.ones(3)
    assert agent.act(x) == agent.act(x)


def test_rewards_are_clipped_where_asked() -> None:
    agent = mr.DQN(net(), memory=mr.Recent(5), reward_clip=1.0)
    for reward in (-5.0, 0.5, 3.0):
        agent.observe(np.ones(3), 0, reward, np.ones(3), terminated=False)
    assert agent.memory.held()["reward"].tolist() == [-1.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.full(3, np.nan)}, "x of example 0 is not finite"),
        ({"next_x": np.full(3, np.inf)}, "is not finite"),
        ({"next_x": np.ones(4)}, "next_x has shape (4,)"),
        ({"next_x": np.ones(3, np.uint8)}, "next_x has shape (3,) and dtype torch.uint8"),
        ({"action": 3}, "action 3: the model's actions are 0 to 2"),
        ({"action": -1}, "action -1: the model's actions are 0 to 2"),
        ({"action": 0.5}, "action 0.5: the model's actions are 0 to 2"),
        ({"reward": float("nan")}, "reward nan: use a finite number"),
        ({"reward": "much"}, "reward 'much': use a finite number"),
        ({"reward": [1.0, 2.0]}, "use a finite number"),
        ({"x": np.ones((2, 3)), "next_x": np.ones((2, 3))}, "the model cannot take inputs of shape (1, 2, 3)"),
    ],
)
def test_bad_transitions_are_refused_before_anything_changes(change: dict[str, Any], message: str) -> None:
    agent = mr.DQNMER(net(), memory=mr.Reservoir(5), lr=0.1, warmup=0)
    good: dict[str, Any] = {"x": np.ones(3), "action": 1, "reward": 1.0, "next_x": np.zeros(3), "terminated": False}
    with pytest.raises(mr.InputError, match=re.escape(message)):
        agent.observe(**good | change)
    assert agent.seen == 0
    agent.observe(**good)
    assert agent.seen == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k=0"),
        ({"target_every": 0}, "target_every=0"),
        ({"target_in": "years"}, "target_in='years'"),
        ({"discount": 1.5}, "discount=1.5"),
        ({"epsilon_end": -0.1}, "epsilon_end=-0.1"),
        ({"epsilon_frames": 0}, "epsilon_frames=0"),
        ({"warmup": -1}, "warmup=-1"),
        ({"reward_clip": 0.0}, "reward_clip=0.0"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(mr.InputError, match=message):
        mr.DQN(net(), **options)


def test_a_transition_that_is_not_finite_is_undone_and_named() -> None:
    agent = mr.DQNMER(net(), memory=mr.Reservoir(5), lr=0.1, k=2, warmup=0, loss=nn.functional.mse_loss)
    agent.observe(np.ones(3), 0, 1.0, np.zeros(3), terminated=False)
    before = agent.weights.theta.clone()
    with pytest.raises(mr.NonFiniteError, match=r"example 1 of the stream \(action 2, reward 1e\+200\)"):
        agent.observe(np.ones(3), 2, 1e200, np.zeros(3), terminated=False)
    assert torch.equal(agent.weights.theta, before)
    assert agent.seen == 1


def test_memories_of_transitions_have_no_targets() -> None:
    agent = played(mr.DQN(net(), memory=mr.Recent(5)), 3)
    with pytest.raises(mr.InputError, match=r"use held\(\)"):
        agent.memory.examples()


def test_layers_cannot_change() -> None:
    agent = mr.DQN(net(), memory=mr.Recent(5))
    with pytest.raises(mr.InputError, match="the layers of a DQN's model cannot change"), agent.reshaping():
        pass


def test_no_discount_at_all_is_fine() -> None:
    agent = played(mr.DQN(net(), memory=mr.Recent(20), lr=0.1, discount=0.0, warmup=0), 10)
    assert torch.isfinite(agent.weights.theta).all()


def test_batches_that_need_more_memory_than_there_is_are_refused() -> None:
    with pytest.raises(mr.InputError, match=r"s times k=20000000000000 would need .* GiB of memory"):
        mr.DQNMER(mr.networks.mlp(2, (3,), 2), memory=mr.Recent(4), k=2, s=10**13)
    agent = mr.DQNMER(mr.networks.mlp(2, (3,), 2), memory=mr.Recent(4), k=2)
    for name in ("k", "s"):
        with pytest.raises(mr.InputError, match=r"would need .* GiB of memory"):
            setattr(agent, name, 10**14)
    assert (agent.k, agent.s) == (2, 1)
