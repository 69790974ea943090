"""Reptile for stationary data: Algorithm 2 of Riemer et al. (2019), after Nichol et al. (2018)."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from metareplay._core.checks import check_count, check_share
from metareplay._core.draws import Purpose
from metareplay._core.plan import Plan, Rates
from metareplay._core.table import Table
from metareplay.errors import InputError, NonFiniteError
from metareplay.learners.predictor import Array, Predictor, Tasks


@final
@dataclass(eq=False, repr=False, kw_only=True)
class Reptile(Predictor):
    """s batches of k drawn from a dataset, an SGD step each, then theta <- theta_0 + beta (theta_s - theta_0).

    >>> import torch, metareplay as mr
    >>> learner = mr.Reptile(mr.networks.mlp(4, (8,), 3), lr=0.1, beta=0.5, s=3, k=5)
    >>> learner.train(torch.rand(20, 4), torch.arange(20) % 3, updates=10)
    >>> learner.updates
    10
    """

    together: ClassVar[bool] = True

    lr: float = 0.1  # alpha, the SGD rate
    beta: float = 0.1  # Reptile rate
    s: int = 10  # batches in an update
    k: int = 10  # examples in a batch

    def __post_init__(self) -> None:
        check_share("beta", self.beta)
        check_count("s", self.s, "an update draws at least one batch")
        check_count("k", self.k, "a batch holds at least one example")
        super().__post_init__()
        self.updates = 0  # meta-updates made so far

    def train(self, xs: Array, ys: Array, updates: int, task: Tasks = None) -> None:
        """Make so many meta-updates on this dataset."""
        check_count("updates", updates, "train makes at least one update")
        if len(xs) == 0:
            raise InputError("the dataset is empty: give at least one example")
        data = self._check(xs, ys, task, needs_tasks=False)
        table = Table(0, len(data), data.xs, data.ys, self.weights.device)
        table.bring(data.xs, data.ys, data.tasks)
        for _ in range(updates):
            rows = self.draws.integers(Purpose.REPLAY, self.updates, self.s * self.k, high=len(data))
            plan = Plan(
                rows=rows,
                ends=np.arange(self.s + 1, dtype=np.int64) * self.k,
                s=self.s,
                slots=np.array([-1]),
                rates=Rates(memory=self.lr, current=self.lr, across=self.beta),
                first=self.updates,
                incoming=len(data),
                together=True,
            )
            outcome = self.compute.execute(plan, table)
            if outcome.error is not None:
                raise outcome.error
            if not outcome.learned:
                raise NonFiniteError(
                    f"update {self.updates} made the weights not finite and was undone: use a smaller lr or set clip"
                )
            self.updates += 1
