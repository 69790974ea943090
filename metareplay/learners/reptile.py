"""Reptile for stationary data: Algorithm 2 of Riemer et al. (2019), after Nichol et al. (2018)."""

from dataclasses import dataclass
from typing import final

import numpy as np

from metareplay._core.checks import check_count, check_share
from metareplay._core.draws import Purpose
from metareplay._core.interrupts import HeldBack
from metareplay._core.plan import Plan, Rates
from metareplay._core.table import Table, TensorStorage
from metareplay.errors import InputError, NonFiniteError
from metareplay.learners.input_checks import Array, Tasks, as_tensor
from metareplay.learners.predictor import Predictor


@final
@dataclass(eq=False, repr=False, kw_only=True)
class Reptile(Predictor):
    """Learn a fixed dataset: s batches of k, an SGD step each, then theta <- theta_0 + beta (theta_s - theta_0).

    Args:
        model: Any torch module; it always holds the current weights.
        lr: alpha, the SGD rate.
        beta: Reptile rate: how far to go along the s steps, 0 < beta <= 1.
        s: Batches per update.
        k: Examples per batch.
        seed: Decides every draw.
        loss: The loss of (outputs, targets), a mean over the batch. None for cross-entropy, or squared error if
            `regression` is set.
        regression: Whether targets are real numbers; `predict` then gives the outputs themselves.
        clip: Scale any gradient with a larger norm down to this norm. None, as in the paper, turns clipping off.
        engine: What does the arithmetic: "torch", "cpu" (compiled), "cuda" (graphs), or "auto" for the fastest of these
            that supports the model.

    >>> import torch, metareplay as mr
    >>> learner = mr.Reptile(mr.networks.mlp(4, (8,), 3), lr=0.1, beta=0.5, s=3, k=5)
    >>> learner.train(torch.rand(20, 4), torch.arange(20) % 3, updates=10)
    >>> learner.updates
    10
    """

    lr: float = 0.1
    beta: float = 0.1
    s: int = 10
    k: int = 10

    def __post_init__(self) -> None:
        check_share("beta", self.beta)
        check_count("s", self.s, "an update draws at least one batch")
        check_count("k", self.k, "a batch holds at least one example")
        super().__post_init__()
        self.updates = 0  # meta-updates made so far

    def train(self, xs: Array, ys: Array, updates: int, task: Tasks = None) -> None:
        """Make meta-updates on a dataset.

        Args:
            xs: The inputs.
            ys: Their labels, or targets.
            updates: How many meta-updates to make.
            task: One task id, or one for each example, for models with several heads.
        """
        check_count("updates", updates, "train makes at least one update")
        xs = as_tensor("x", xs)
        if xs.shape[:1] == (0,):
            raise InputError("the dataset is empty: give at least one example")
        data = self._check(xs, ys, task, needs_tasks=False)
        table = Table(0, len(data), data, TensorStorage(self.weights.device))
        table.bring(data)
        for _ in range(updates):
            with HeldBack():
                self._update(table, len(data))

    def _update(self, table: Table, count: int) -> None:
        """Make one meta-update on a table of this many examples."""
        rows = self.draws.integers(Purpose.REPLAY, self.updates, self.s * self.k, high=count)
        plan = Plan(
            rows=rows,
            ends=np.arange(self.s + 1, dtype=np.int64) * self.k,
            s=self.s,
            slots=np.array([-1]),
            rates=Rates(memory=self.lr, current=self.lr, across=self.beta),
            first=self.updates,
            incoming=count,
            together=True,
        )
        outcome = self.chosen_engine.execute(plan, table, self.objective)
        if outcome.error is not None:
            raise outcome.error
        if not outcome.learned:
            raise NonFiniteError(
                f"update {self.updates} made the weights not finite and was undone: use a smaller lr or set clip"
            )
        self.updates += 1
