"""Deep Q-learning on a real GPU: the weights of float64 on the CPU by graphs, the same bits alone and beside others."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

import metareplay as mr
from gpu_tests.test_lockstep import ENGINES, NEAR, in_threads
from metareplay.engines.choose import EngineName
from metareplay.environments import CatcherEnv
from metareplay.rl import Evaluation, GameRecord, train

FRAMES, ACTIONS, SIZE = 40, 3, 36
Transition = tuple[Tensor, int, float, Tensor, bool]
Make = Callable[..., mr.QLearner]

NETS: dict[str, Callable[[], nn.Module]] = {
    "cnn": partial(mr.networks.nature_cnn, 1, actions=ACTIONS, size=SIZE),
    "mlp": partial(mr.networks.mlp, 4, (64, 64), ACTIONS, seed=1),
}


def options(engine: EngineName, seed: int) -> dict[str, Any]:
    return {
        "memory": mr.Reservoir(25), "lr": 0.02, "k": 6, "warmup": 4, "target_every": 7, "seed": seed, "engine": engine
    }  # fmt: skip


AGENTS: dict[str, Make] = {
    "dqn": lambda net, engine, seed=0: mr.DQN(net, **options(engine, seed)),
    "dqn-double": lambda net, engine, seed=0: mr.DQN(net, double=True, **options(engine, seed)),
    "dqn-mer": lambda net, engine, seed=0: mr.DQNMER(net, beta=0.8, gamma=0.5, s=2, **options(engine, seed)),
    "dqn-mer-clip": lambda net, engine, seed=0: mr.DQNMER(net, clip=0.5, **options(engine, seed)),
}


def transitions(net: str, seed: int = 0) -> list[Transition]:
    """Drawn at random, so that they do not depend on what an agent would do."""
    generator = torch.Generator().manual_seed(seed)
    if net == "cnn":
        seen = torch.randint(256, (FRAMES + 1, 4, SIZE, SIZE), generator=generator, dtype=torch.uint8)
    else:
        seen = torch.rand(FRAMES + 1, 4, generator=generator)
    actions = torch.randint(ACTIONS, (FRAMES,), generator=generator).tolist()
    rewards = torch.randn(FRAMES, generator=generator).tolist()
    return [(seen[i], actions[i], rewards[i], seen[i + 1], i % 9 == 8) for i in range(FRAMES)]


def taught(agent: mr.QLearner, given: list[Transition]) -> mr.QLearner:
    for one in given:
        agent.observe(*one)
    return agent


def from_float64(ours: mr.QLearner, net: str, make: Make, given: list[Transition]) -> float:
    """Return how far an agent's weights are from those of float64 on the CPU, as a share of the way that they went.

    The exact result jumps where two actions are nearly worth the same to double DQN, or a ReLU is nearly 0. So several
    runs begin with first weights that differ by 1e-7, and the nearest counts.

    Args:
        ours: The agent, taught.
        net: The name of its network.
        make: Makes the agent.
        given: What it was taught.
    """
    theta, found = ours.weights.theta.cpu().double(), []
    for seed in range(8):
        exact = make(NETS[net]().double(), "torch")
        start, generator = exact.weights.theta.clone(), torch.Generator().manual_seed(seed)
        if seed:
            exact.weights.theta.mul_(1 + 1e-7 * torch.randn(len(start), generator=generator, dtype=torch.float64))
            exact.temporal_difference.refresh(exact.model)
        wanted = taught(exact, given).weights.theta
        found.append(float((theta - wanted).norm() / (wanted - start).norm()))
        if found[-1] < NEAR:
            break
    return min(found)


def same(one: mr.QLearner, other: mr.QLearner) -> bool:
    """Return whether two agents have the same weights and target networks, bit for bit."""
    targets = one.temporal_difference.target.theta, other.temporal_difference.target.theta
    return torch.equal(one.weights.theta, other.weights.theta) and torch.equal(*targets)


def test_every_agent_by_graphs_as_float64_on_the_cpu() -> str:
    worst = 0.0
    for net, (name, make) in product(NETS, AGENTS.items()):
        ours = taught(make(NETS[net]().cuda(), "cuda"), transitions(net))
        assert ours.chosen_engine.name == "cuda", f"{net} {name}: {ours.chosen_engine.name}"
        found = from_float64(ours, net, make, transitions(net))
        assert found < NEAR, f"{net} {name} {found}"
        worst = max(worst, found)
    return f"distance at most {worst:.1e} of the way"


def test_five_in_threads_are_the_same_bits_as_alone() -> None:
    for net, name in product(NETS, ("dqn", "dqn-mer")):
        make, given = AGENTS[name], [transitions(net, seed) for seed in range(5)]
        alone = [taught(make(NETS[net]().cuda(), "cuda", seed), given[seed]) for seed in range(5)]
        beside = [make(NETS[net]().cuda(), "cuda", seed) for seed in range(5)]
        in_threads([partial(taught, one, of_seed) for one, of_seed in zip(beside, given, strict=True)])
        assert all(one.chosen_engine.name == "cuda" for one in (*alone, *beside))
        assert all(same(one, other) for one, other in zip(alone, beside, strict=True)), f"{net} {name}"


def test_adam_by_graphs_is_torch_s() -> str:
    adam = {"optimizer": "adam", "lr": 1e-3}
    agents = [
        taught(mr.DQN(NETS["mlp"]().cuda(), **options(engine, 0) | adam), transitions("mlp")) for engine in ENGINES
    ]
    assert agents[1].chosen_engine.name == "cuda", agents[1].chosen_engine.name
    plain, graphs = (agent.weights.theta for agent in agents)
    found = float((plain - graphs).norm() / plain.norm())
    assert found < 1e-3, found
    return f"relative distance {found:.1e}"


def test_catcher_from_pictures_ends_with_the_same_record_again() -> None:
    def trained() -> GameRecord:
        agent = mr.DQNMER(NETS["cnn"]().cuda(), **options("cuda", 0) | {"epsilon_frames": 50})
        exam = Evaluation([partial(CatcherEnv, size=SIZE)], episodes=2, cap=30, every=60)
        return train(agent, CatcherEnv(size=SIZE), 120, evaluation=exam)

    one, other = trained(), trained()
    assert one.engine == "cuda", one.engine
    assert (one.weights, one.scores, one.episodes) == (other.weights, other.scores, other.episodes)
