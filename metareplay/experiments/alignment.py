"""Transfer and interference, example by example: dot products of loss gradients (Table 4 of Riemer et al., 2019)."""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from metareplay._core.checks import check_count
from metareplay._core.draws import Purpose, below
from metareplay.engines.chain import Chain, LossKind
from metareplay.engines.inputs import as_input
from metareplay.engines.torch_engine import Loss, evaluating, few_threads, forward, own_randomness
from metareplay.learners.learner import Learner
from metareplay.learners.predictor import Incoming, default_loss

SPANS: Final = 60  # parts of the stream that the summary tells apart
QUANTILES: Final = (5, 25, 50, 75, 95)  # percent
BLOCK: Final = 16  # examples whose inputs are made ready at a time
ROOM: Final = 1024  # examples that the history holds at first
CHANGES: Final = 200  # of the task that the summary names; of more, none
_SIZES = 10 ** (np.arange(-18, 13) / 3)  # 1e-6 to 1e4, three a decade
EDGES: Final = np.concatenate([-_SIZES[::-1], _SIZES])  # between the histogram's bins; the outer two are open


@final
class Alignment:
    """Compares each incoming example's gradient with those of `samples` past ones, drawn with replacement.

    The past is everything seen, whatever the learner's memory holds. A product above 0 is transfer (a step on one of
    the two examples also lowers the loss of the other), below 0 interference. Gradients are of each example's loss at
    the current weights, in evaluation mode. The learner is not changed.

    >>> import torch, metareplay as mr
    >>> learner = mr.Online(mr.networks.mlp(4, (8,), 3), lr=0.1)
    >>> alignment = Alignment(learner, samples=5)
    >>> examples, table = learner.accept(torch.eye(4), [0, 1, 2, 0])
    >>> for one in alignment.each(examples):
    ...     learner.learn(one, table)
    >>> alignment.summary()["count"]  # the first example has no past
    15
    """

    def __init__(self, learner: Learner, samples: int = 5) -> None:
        check_count("alignment", samples, "each example is compared with at least one from the past")
        self.learner, self.samples = learner, samples
        self._loss = learner.loss or default_loss(learner.regression)
        self._chain, self._kind = Chain.of(learner.model), LossKind.of(self._loss)
        if (self._kind is LossKind.CROSS_ENTROPY) == learner.regression:
            self._kind = None  # targets of another sort
        self._products: list[list[float]] = []  # of each example; NaN for the first, which has no past
        self._past: Incoming | None = None  # every example at its number, then room for more

    def each(self, incoming: Incoming) -> Iterator[Incoming]:
        """The examples one by one, each compared before it is handed out to be learned."""
        first = self.learner.seen
        past = self.remember(incoming, first)
        numbers = np.arange(first, first + len(incoming))[:, np.newaxis]
        fractions = self.learner.draws.fractions(Purpose.ALIGNMENT, first, len(incoming), self.samples)
        rows = torch.from_numpy(np.hstack([numbers, below(fractions, numbers)]))  # itself, then some of the past
        for some in rows.split(BLOCK):
            there = some.to(past.xs.device)
            inputs, ys = as_input(past.xs[there], self.learner.weights), past.ys[there].to(self.learner.weights.device)
            tasks = past.tasks[some]
            for i, number in enumerate(some[:, 0].tolist()):
                found = self._compare(inputs[i], ys[i], tasks[i]) if number else [math.nan] * self.samples
                self._products[number:] = [found]
                yield Incoming(*(part[number : number + 1] for part in (past.xs, past.ys, past.tasks)))

    def _compare(self, inputs: Tensor, ys: Tensor, tasks: Tensor) -> list[float]:
        """The products of the first with the others, at the current weights."""
        learner = self.learner
        with few_threads(learner.weights):
            if self._chain is not None and self._kind is not None and self._chain.takes(inputs.shape[1:]):
                found = self._chain.products(inputs, ys, self._kind)
            else:
                found = gradient_products(learner.model, self._loss, inputs, ys, tasks)
        values: list[float] = found.tolist()
        return values

    def remember(self, incoming: Incoming, first: int) -> Incoming:
        """Put examples into the history, where they are numbered from `first` on; the whole history."""
        end, past = first + len(incoming), self._past
        if past is None or end > len(past):
            past = self._past = _grown(past, max(ROOM, 2 * end), incoming)
        past.xs[first:end], past.ys[first:end], past.tasks[first:end] = incoming.xs, incoming.ys, incoming.tasks
        return past

    def products(self) -> Tensor:
        """The products with each learned example, one example a row; NaN for the first."""
        return torch.tensor(self._products[: self.learner.seen], dtype=torch.float64).reshape(-1, self.samples)

    def restore(self, products: Tensor) -> None:
        """Take back what `products` gave; the examples must be remembered again."""
        self._products = products.tolist()

    def summary(self) -> dict[str, Any]:
        """Mean and distribution, over the whole run and over time, as plain JSON values; None: nothing to tell.

        `bounds`, `means` and `quantiles`: span i of the stream is its examples bounds[i] to bounds[i + 1] - 1.
        `edges` and `counts`: a histogram; bin i ends at edges[i], the last one has no end.
        `changes`: the examples with which another task began, if there are at most 200.
        """
        found = self.products()[1:].numpy()
        finite = found[np.isfinite(found)]
        bounds = np.linspace(1, 1 + len(found), min(SPANS, len(found)) + 1).astype(np.int64).tolist()
        spans = [_of(found[low - 1 : high - 1]) for low, high in pairwise(bounds)]
        tasks = torch.zeros(0) if self._past is None else self._past.tasks[: self.learner.seen]
        changes = (torch.diff(tasks) != 0).nonzero().flatten().add(1).tolist()
        return {
            "samples": self.samples,
            "mean": finite.mean().item() if len(finite) else None,
            "count": len(finite),
            "not_finite": found.size - len(finite),
            "bounds": bounds,
            "means": [span[0] for span in spans],
            "quantiles": {str(q): [span[1 + i] for span in spans] for i, q in enumerate(QUANTILES)},
            "edges": [_short(edge) for edge in EDGES.tolist()],
            "counts": np.bincount(EDGES.searchsorted(finite), minlength=len(EDGES) + 1).tolist(),
            "changes": changes if len(changes) <= CHANGES else [],
        }


def gradient_products(model: nn.Module, loss: Loss, inputs: Tensor, ys: Tensor, tasks: Tensor) -> Tensor:
    """The dot product of the gradient of the first input's loss with that of every other's: any module, any loss."""
    with torch.inference_mode(False), torch.enable_grad(), evaluating(model), own_randomness(inputs.device):
        inputs, ys = inputs.clone(), ys.clone()  # which inference mode may have made
        first, *others = (
            _gradient(model, loss, inputs[i : i + 1], ys[i : i + 1], tasks[i : i + 1]) for i in range(len(ys))
        )
    return torch.stack([first @ other for other in others])


def _gradient(model: nn.Module, loss: Loss, inputs: Tensor, ys: Tensor, tasks: Tensor) -> Tensor:
    """One flat vector, the parameters' own `grad` left alone; zero where a parameter has no part in the loss."""
    trained = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(loss(forward(model, inputs, tasks), ys), trained, materialize_grads=True)
    return torch.cat([part.flatten() for part in found])


def _grown(past: Incoming | None, size: int, like: Incoming) -> Incoming:
    """Room for so many examples, the past ones in it."""
    with torch.inference_mode(False):
        parts = [
            torch.empty((size, *part.shape[1:]), dtype=part.dtype, device=part.device)
            for part in (like.xs, like.ys, like.tasks)
        ]
    if past is not None:
        for part, old in zip(parts, (past.xs, past.ys, past.tasks), strict=True):
            part[: len(old)] = old
    return Incoming(*parts)


def _of(products: NDArray[np.float64]) -> list[float | None]:
    """Mean and quantiles of the finite ones."""
    finite = products[np.isfinite(products)]
    if not len(finite):
        return [None] * (1 + len(QUANTILES))
    return [_short(value) for value in (finite.mean().item(), *np.percentile(finite, QUANTILES).tolist())]


def _short(value: float) -> float:
    """Five digits are enough for a picture."""
    return float(f"{value:.5g}")
