"""Small learners of every kind, on every engine that a machine without a GPU has, and what they learn from."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import metareplay as mr

INPUTS, CLASSES, TASKS, EXAMPLES, SIDE = 6, 4, 3, 24, 12


def mlp() -> nn.Module:
    """Make a small network that the compiled engine can train."""
    return mr.networks.mlp(INPUTS, (8, 5), CLASSES, seed=1)


def cnn(actions: int = CLASSES) -> nn.Module:
    """Make a small network for stacks of two pictures that the compiled engine can train.

    Args:
        actions: How many values it gives.
    """
    layers = nn.Conv2d(2, 4, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 5 * 5, 8), nn.ReLU(), nn.Linear(8, actions)
    return mr.networks.glorot(nn.Sequential(*layers), seed=1)


Make = Callable[[], mr.Learner]


def _mer(**options: Any) -> mr.MER:
    return mr.MER(mlp(), memory=mr.Reservoir(9), beta=0.3, gamma=0.8, s=2, k=4, seed=7, **options)


def _dropout() -> nn.Module:
    """Make a small network that only torch can train, with randomness of its own."""
    return nn.Sequential(mlp(), nn.Tanh(), nn.Dropout(0.2), mr.networks.mlp(CLASSES, (), CLASSES, seed=2))


SUBJECTS: dict[str, Make] = {
    "online": lambda: mr.Online(mlp(), lr=0.1, seed=7),
    "online, torch": lambda: mr.Online(mlp(), lr=0.1, seed=7, engine="torch"),
    "independent": lambda: mr.Independent(
        mr.networks.separate_mlps(INPUTS, (9,), CLASSES, tasks=TASKS, seed=1), lr=0.1, start="clone"
    ),
    "task input": lambda: mr.TaskInput(mr.networks.task_input_mlp(INPUTS, (8,), CLASSES, tasks=TASKS, seed=1), lr=0.1),
    "ewc": lambda: mr.EWC(mlp(), lr=0.1, strength=5.0, fisher_examples=4, seed=7),
    "ewc, torch": lambda: mr.EWC(mlp(), lr=0.1, strength=5.0, fisher_examples=4, seed=7, engine="torch"),
    "gem": lambda: mr.GEM(mlp(), memory=mr.Ring(9, TASKS), lr=0.1, seed=7),
    "gem, torch": lambda: mr.GEM(mlp(), memory=mr.Ring(9, TASKS), lr=0.1, seed=7, engine="torch"),
    "er": lambda: mr.ER(mlp(), memory=mr.Reservoir(9), lr=0.1, k=5, seed=7),
    "er, adam": lambda: mr.ER(mlp(), memory=mr.Reservoir(9), lr=0.01, k=5, optimizer="adam", seed=7),
    "er, rmsprop": lambda: mr.ER(mlp(), memory=mr.Recent(9), lr=0.01, k=5, optimizer="rmsprop", seed=7),
    "er with tasks": lambda: mr.ERTasks(mlp(), memory=mr.Ring(9, TASKS), lr=0.1, k=5, seed=7),
    "er, growing": lambda: mr.ER(
        mr.networks.mlp(INPUTS, (8, 5), 1, seed=1), memory=mr.Balanced(9), lr=0.1, k=5, seed=7, classes="grow"
    ),
    "mer": _mer,
    "mer, torch": lambda: _mer(engine="torch"),
    "mer, dropout": lambda: mr.MER(_dropout(), memory=mr.Reservoir(9), beta=0.3, s=2, k=4, seed=7),
    "mer, clipped": lambda: _mer(clip=0.3),
    "mer, one big batch": lambda: mr.MEROneBigBatch(mlp(), memory=mr.Reservoir(9), gamma=0.3, s=2, k=4, seed=7),
    "mer, current rate": lambda: mr.MERCurrentRate(mlp(), memory=mr.Reservoir(9), gamma=0.3, s=3, k=4, seed=7),
}


Agent = Callable[[], mr.QLearner]

AGENTS: dict[str, Agent] = {
    "dqn": lambda: mr.DQN(mlp(), memory=mr.Recent(9), k=4, warmup=3, target_every=5, optimizer="adam", lr=0.01, seed=7),
    "dqn, torch": lambda: mr.DQN(mlp(), memory=mr.Recent(9), k=4, warmup=3, target_every=5, seed=7, engine="torch"),
    "dqn-mer": lambda: mr.DQNMER(mlp(), memory=mr.Reservoir(9), k=4, warmup=3, target_every=2, target_in="episodes"),
    "dqn, pictures": lambda: mr.DQN(
        cnn(), memory=mr.Recent(9), k=4, warmup=3, target_every=5, optimizer="adam", lr=0.01, seed=7
    ),
    "dqn, pictures, torch": lambda: mr.DQN(
        cnn(), memory=mr.Recent(9), k=4, warmup=3, target_every=5, optimizer="adam", lr=0.01, seed=7, engine="torch"
    ),
    "dqn-mer, pictures": lambda: mr.DQNMER(
        cnn(), memory=mr.Reservoir(9), k=4, warmup=3, target_every=2, target_in="episodes"
    ),
}


def play(agent: mr.QLearner, end: int) -> None:
    """Let an agent observe the transitions up to a number, from the one that it has not seen yet."""
    _, ys, _ = examples()
    xs = pictures() if any(isinstance(layer, nn.Conv2d) for layer in agent.model.modules()) else examples()[0] / 255
    for number in range(agent.seen, end):
        over = number % 4 == 3
        agent.observe(xs[number], int(ys[number]), float(ys[number]) - 1, xs[(number + 1) % EXAMPLES], over)


@cache
def pictures() -> Tensor:
    """Return uint8 observations of a game: each is a stack of two pictures, and the next one drops the older one."""
    generator = torch.Generator().manual_seed(12)
    shown = torch.randint(256, (EXAMPLES + 1, SIDE, SIDE), generator=generator, dtype=torch.uint8)
    return torch.stack([shown[:-1], shown[1:]], dim=1)


@cache
def examples() -> tuple[Tensor, Tensor, Tensor]:
    """Return uint8 inputs, labels and task ids: three tasks, one after the other."""
    generator = torch.Generator().manual_seed(11)
    xs = torch.randint(256, (EXAMPLES, INPUTS), generator=generator, dtype=torch.uint8)
    ys = torch.randint(CLASSES, (EXAMPLES,), generator=generator)
    return xs, ys, torch.arange(EXAMPLES) * TASKS // EXAMPLES


def stream() -> mr.OwnStream:
    """Return the examples as a stream with a test set for each task."""
    xs, ys, tasks = examples()
    return mr.OwnStream.from_tensors(
        xs, ys, tasks.tolist(), test=[(xs[tasks == t], ys[tasks == t]) for t in range(TASKS)]
    )


def state(learner: mr.TableLearner) -> dict[str, Any]:
    """Return everything that must be the same, bit for bit, as bytes and plain values."""
    kept: dict[str, Tensor] = dict(learner.model.state_dict())
    kept |= {f"private/{name}": value for name, value in learner.private_state().items()}
    kept |= {f"engine/{name}": value for name, value in learner.chosen_engine.state().items()}
    kept |= {f"objective/{name}": value for name, value in learner.objective.state().items()}
    found: dict[str, Any] = {name: value.detach().numpy().tobytes() for name, value in kept.items()}
    memory = learner.own_memory
    if memory is not None:
        held = memory.held().items() if len(memory) else ()
        found |= {f"held/{name}": values.numpy().tobytes() for name, values in held}
        found |= {"filled": memory.filled.tolist(), "seen_of": sorted(memory.seen_of.items()), "offered": memory.seen}
        found["rows"] = memory.row_of.tolist()
    return found | {"seen": learner.seen, "labels": learner.written_labels()}


def differences(one: dict[str, Any], other: dict[str, Any]) -> str | None:
    """Return the names of what differs; None if nothing does."""
    names = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    return f"{', '.join(names)} differ" if names else None
