"""Gradient Episodic Memory (Lopez-Paz and Ranzato, 2017), one example at a time as in Riemer et al. (2019)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metareplay._core.checks import check_strength, instance
from metareplay._core.columns import Columns
from metareplay._core.interrupts import let_through
from metareplay._core.table import Table
from metareplay.engines.engine import Outcome
from metareplay.engines.torch_engine import few_threads
from metareplay.learners.learner import Learner
from metareplay.memories.memory import Memory
from metareplay.memories.ring import Ring

Reals = NDArray[np.float64]


@final
@dataclass(eq=False, repr=False, kw_only=True)
class GEM(Learner):
    """Step along the gradient closest to the example's own that does not raise the loss on any past task's memory.

    Args:
        model: Any torch module; it always holds the current weights.
        memory: With `Ring(M, tasks)` there is a constraint for each past task; with `Reservoir(M)`, the paper's
            ablation, one for everything held.
        lr: alpha, the SGD rate.
        strength: Memory strength: the least weight of a violated task's gradient in the step.
        seed: Decides every draw.
        loss: The loss of (outputs, targets), a mean over the batch. None for cross-entropy, or squared error if
            `regression` is set.
        regression: Whether targets are real numbers; `predict` then gives the outputs themselves.
        clip: Scale any gradient with a larger norm down to this norm. None, as in the paper, turns clipping off.
        engine: What does the arithmetic: "torch", "cpu" (compiled), "cuda" (graphs), or "auto" for the fastest of these
            that supports the model.
        classes: What the labels are: None for the numbers of the model's outputs, a list of labels, or "grow" for ones
            that are not known in advance; see `Learner`.
        head: With classes="grow", the name of the linear layer that grows; None to find it.
    """

    memory: Memory = field(default_factory=lambda: Ring(500, tasks=20))
    lr: float = 0.01
    strength: float = 0.0

    def __post_init__(self) -> None:
        check_strength(self.strength)
        instance("memory", self.memory, Memory, "a memory, for instance Ring(500, tasks=20)")
        super().__post_init__()
        self.memory.claim()

    def learn(self, incoming: Columns, table: Table) -> None:
        """Take one projected step per example."""
        for example in incoming.pieces(1):
            table.bring(example)
            self.memory.coming(example)
            slots = self.memory.place(self.draws, example.task_ids())
            undo = self.chosen_engine.remember()
            try:
                let_through()
                self._step(int(example["task"][0]), table)
                outcome = Outcome(int(self.chosen_engine.healthy()))
            except BaseException as error:
                outcome = Outcome(0, error)
            if not outcome.learned:
                undo()
            self.finish(replace(outcome, undo=undo), slots, example, table)

    def _step(self, task: int, table: Table) -> None:
        """Take the step theta <- theta - lr * projected gradient."""
        groups = [np.array([table.capacity]), *self.memory.groups(task)]
        gradients = self.chosen_engine.gradients(table, groups, self.objective, self.seen)
        products = gradients.products()
        with few_threads(self.weights):
            shares = project(products, self.strength)
        if self.clip is not None:
            shares *= self.clip / max(self.clip, max(0.0, float(shares @ products.cpu() @ shares)) ** 0.5)
        gradients.descend(self.lr * shares)

    @property
    def own_memory(self) -> Memory:
        """The learner's memory (M)."""
        return self.memory

    @classmethod
    def work_per_example(cls, settings: Mapping[str, Any]) -> float:
        """Estimate the cost: fixed costs, one gradient per past task, one pass over the memory."""
        memory: Mapping[str, Any] = settings["memory"]
        return float(300 + 25 * memory.get("tasks", 1) + memory["capacity"] / 20)


def project(products: Tensor, strength: float = 0.0) -> Tensor:
    """Return how much of each gradient is in GEM's step: 1 of the example's own, g, and v_t of each past task's, G_t.

    v = 0 if G g >= 0, else v >= strength that minimises |g + G' v|; at strength 0 that is the vector closest to g with
    G (g + G' v) >= 0 (the dual of GEM's quadratic program). After the shift u = v - strength it is a non-negative
    least-squares problem in as many unknowns as there are tasks, solved by an active set; rank-deficient, duplicate and
    zero rows do no harm. Gradients that are not finite give NaN.

    Args:
        products: The inner products of the rows of (g; G), in float64; nothing else is needed.
        strength: The least v_t where a constraint is violated.

    >>> g, G = torch.tensor([1.0, -1.0]).double(), torch.tensor([[0.0, 2.0]]).double()
    >>> rows = torch.cat([g[None], G])
    >>> project(rows @ rows.T) @ rows
    tensor([1., 0.], dtype=torch.float64)
    """
    rows = products.cpu().numpy()
    shares = np.zeros(len(rows))
    shares[0] = 1.0
    dots, among = rows[0, 1:], rows[1:, 1:]
    if not np.isfinite(rows).all():
        shares[:] = np.nan
    elif (dots < 0).any():
        shares[1:] = strength + _dual(among, dots + strength * among.sum(1))
    return torch.from_numpy(shares)


def _dual(products: Reals, dots: Reals) -> Reals:
    """Find u >= 0 that minimises |g + G' u|, from G G' and G g.

    With rows scaled to length 1 and G G' = V diag(w) V' the objective is |R u + c|^2 + constant, R = w^(1/2) V' and
    c = w^(-1/2) V' G g.
    """
    from scipy.optimize import lsq_linear, nnls  # here, because it takes long to import

    norms = np.sqrt(products.diagonal())
    there = norms > 0
    norms = norms[there]
    scaled = torch.from_numpy(products[there][:, there] / norms[:, np.newaxis] / norms)
    values, vectors = (part.numpy() for part in torch.linalg.eigh(scaled))  # numpy's starts threads of its own
    kept = values > 1e-12 * len(values)
    roots, directions = np.sqrt(values[kept]), vectors[:, kept].T
    r = roots[:, np.newaxis] * directions
    c = directions @ (dots[there] / norms) / roots
    scale = float(np.abs(c).max(initial=0.0))
    u = np.zeros(len(dots))
    if scale > 0:
        try:
            found, _ = nnls(r, -c / scale)
        except RuntimeError:  # it went round in circles; this one cannot
            found = lsq_linear(r, -c / scale, bounds=(0, np.inf)).x
        u[there] = found * scale / norms
    return u
