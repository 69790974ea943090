"""One small instance of every learner, for the checks that all of them must pass."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import metareplay as mr

TASKS, CLASSES, INPUTS = 3, 4, 6
Make = Callable[..., mr.Learner]


def mlp() -> nn.Module:
    return mr.networks.mlp(INPUTS, (8, 5), CLASSES, seed=1)


def cnn() -> nn.Module:
    """A net with everything that is awkward: convolution, BatchNorm statistics, dropout, a frozen layer."""
    net = nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)),
        nn.Conv2d(1, 4, 2),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(8, 6),
        nn.Linear(6, CLASSES),
    )
    mr.networks.glorot(net, seed=3)
    net[6].requires_grad_(False)
    return net


def heads() -> nn.Module:
    return mr.networks.MultiHead(mr.networks.mlp(INPUTS, (8,), 7, seed=1), 7, (CLASSES, CLASSES, CLASSES + 1), seed=2)


def separate() -> mr.networks.Separate:
    return mr.networks.separate_mlps(INPUTS, (12, 9), CLASSES, TASKS, seed=4)


def task_inputs() -> mr.networks.TaskInputs:
    return mr.networks.task_input_mlp(INPUTS, (8, 5), CLASSES, TASKS, seed=4)


def reservoir() -> mr.Reservoir:
    return mr.Reservoir(9)


EVERY: dict[str, Make] = {
    "online": lambda **o: mr.Online(mlp(), lr=0.1, seed=7, **o),
    "online-cnn": lambda **o: mr.Online(cnn(), lr=0.1, seed=7, **o),
    "online-steps": lambda **o: mr.Online(mlp(), lr=0.1, steps=3, seed=7, **o),
    "independent": lambda **o: mr.Independent(separate(), lr=0.1, seed=7, **o),
    "independent-clone": lambda **o: mr.Independent(separate(), lr=0.1, start="clone", seed=7, **o),
    "task-input": lambda **o: mr.TaskInput(task_inputs(), lr=0.1, seed=7, **o),
    "ewc": lambda **o: mr.EWC(mlp(), lr=0.1, strength=5.0, fisher_examples=4, seed=7, **o),
    "ewc-mean-square": lambda **o: mr.EWC(mlp(), lr=0.1, strength=5.0, fisher="mean-square", seed=7, **o),
    "ewc-steps": lambda **o: mr.EWC(mlp(), lr=0.1, strength=5.0, fisher_examples=4, steps=3, seed=7, **o),
    "gem": lambda **o: mr.GEM(mlp(), memory=mr.Ring(9, TASKS), lr=0.1, strength=0.5, seed=7, **o),
    "gem-reservoir": lambda **o: mr.GEM(mlp(), memory=reservoir(), lr=0.1, seed=7, **o),
    "er": lambda **o: mr.ER(mlp(), memory=reservoir(), lr=0.1, k=5, seed=7, **o),
    "er-adam": lambda **o: mr.ER(mlp(), memory=reservoir(), lr=0.01, k=5, optimizer="adam", seed=7, **o),
    "er-rmsprop": lambda **o: mr.ER(mlp(), memory=reservoir(), lr=0.01, k=5, optimizer="rmsprop", seed=7, **o),
    "er-recent": lambda **o: mr.ER(mlp(), memory=mr.Recent(9), lr=0.1, k=5, seed=7, **o),
    "er-heads": lambda **o: mr.ER(heads(), memory=reservoir(), lr=0.1, k=5, seed=7, **o),
    "er-cnn": lambda **o: mr.ER(cnn(), memory=reservoir(), lr=0.1, k=5, seed=7, **o),
    "er-tasks": lambda **o: mr.ERTasks(mlp(), memory=reservoir(), lr=0.1, k=5, seed=7, **o),
    "er-tasks-ring": lambda **o: mr.ERTasks(
        mlp(), memory=mr.Ring(9, TASKS), lr=0.1, k=5, optimizer="adam", seed=7, **o
    ),
    "er-tasks-heads": lambda **o: mr.ERTasks(heads(), memory=reservoir(), lr=0.1, k=5, seed=7, **o),
    "mer": lambda **o: mr.MER(mlp(), memory=reservoir(), lr=0.1, beta=0.3, gamma=0.8, s=2, k=4, seed=7, **o),
    "mer-official": lambda **o: mr.MER(mlp(), memory=mr.Reservoir(9, rule="official"), beta=0.3, s=2, k=4, seed=7, **o),
    "mer-cnn": lambda **o: mr.MER(cnn(), memory=reservoir(), lr=0.1, beta=0.3, s=2, k=4, clip=1.0, seed=7, **o),
    "mer-heads": lambda **o: mr.MER(heads(), memory=reservoir(), lr=0.1, beta=0.3, s=2, k=4, seed=7, **o),
    "online-torch": lambda **o: mr.Online(mlp(), lr=0.1, seed=7, engine="torch", **o),
    "ewc-torch": lambda **o: mr.EWC(mlp(), lr=0.1, strength=5.0, fisher_examples=4, seed=7, engine="torch", **o),
    "gem-torch": lambda **o: mr.GEM(mlp(), memory=mr.Ring(9, TASKS), lr=0.1, seed=7, engine="torch", **o),
    "er-torch": lambda **o: mr.ER(mlp(), memory=reservoir(), lr=0.1, k=5, seed=7, engine="torch", **o),
    "mer-torch": lambda **o: mr.MER(mlp(), memory=reservoir(), beta=0.3, s=2, k=4, seed=7, engine="torch", **o),
    "mer-clip": lambda **o: mr.MER(mlp(), memory=reservoir(), beta=0.3, s=2, k=4, clip=0.3, seed=7, **o),
    "mer-one-big-batch": lambda **o: mr.MEROneBigBatch(mlp(), memory=reservoir(), gamma=0.3, s=2, k=4, seed=7, **o),
    "mer-current-rate": lambda **o: mr.MERCurrentRate(mlp(), memory=reservoir(), gamma=0.3, s=3, k=4, seed=7, **o),
}


def examples(count: int = 30) -> tuple[Tensor, Tensor, Tensor]:
    """uint8 inputs, labels, task ids: three tasks one after the other."""
    generator = torch.Generator().manual_seed(11)
    xs = torch.randint(256, (count, INPUTS), generator=generator, dtype=torch.uint8)
    return xs, torch.randint(CLASSES, (count,), generator=generator), torch.arange(count) * TASKS // count


def state(learner: mr.Learner) -> dict[str, Tensor]:
    """Everything that must be the same, bit for bit."""
    kept = dict(learner.model.state_dict())
    kept |= {f"private/{name}": value for name, value in learner.private_state().items()}
    kept |= {f"engine/{name}": value for name, value in learner.chosen_engine.state().items()}
    kept["seen"] = torch.tensor(learner.seen)
    if learner.own_memory is not None and len(learner.own_memory):
        held = learner.own_memory.examples()
        kept |= {"held xs": held.xs, "held ys": held.ys, "held tasks": torch.tensor(learner.own_memory.tasks())}
        kept["filled"] = torch.tensor(learner.own_memory.filled)
    return {name: value.clone() for name, value in kept.items()}


def assert_same_state(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name
