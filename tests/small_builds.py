"""A function that builds small runs, which any process can import."""

from small_runs import HELD, rotations

import metareplay as mr


def build(seed: int, lr: float, k: int = 2) -> tuple[mr.Learner, mr.Stream]:
    model = mr.networks.mlp(784, (8,), 10, seed=seed)
    return mr.ER(model, memory=mr.Reservoir(HELD), lr=lr, k=k, seed=seed), rotations(seed)
