"""Transfer and interference, example by example: dot products of loss gradients (Table 4 of Riemer et al., 2019)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal, final, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from metareplay._core.checks import check_count
from metareplay._core.columns import Columns
from metareplay._core.draws import Purpose, below
from metareplay.engines.chain import Chain, LossKind, dot_products
from metareplay.engines.inputs import as_input
from metareplay.engines.modes import evaluating
from metareplay.engines.objective import Loss, forward
from metareplay.engines.torch_engine import few_threads, own_randomness
from metareplay.errors import InputError
from metareplay.learners.learner import Learner
from metareplay.learners.losses import default_loss

Moment = Literal["before", "after"]

SPANS: Final = 60  # parts of the stream that are summarised separately
QUANTILES: Final = (5, 25, 50, 75, 95)  # percent
BLOCK: Final = 16  # examples whose inputs are prepared at a time
ROOM: Final = 1024  # examples that the history holds at first
COURSE: Final = 200  # examples that a point of the course is about
CHANGES: Final = 200  # the summary lists changes of the task only if there are at most this many
_SIZES = 10 ** (np.arange(-18, 13) / 3)  # 1e-6 to 1e4, three per decade
EDGES: Final = np.concatenate([-_SIZES[::-1], _SIZES])  # between the histogram's bins; the outer two are open


@final
class Alignment:
    """Compare each incoming example's gradient with those of some past examples, drawn with replacement.

    They are drawn from everything seen so far, whatever the learner's memory holds. A product above 0 means transfer (a
    step on one of the two examples also lowers the loss of the other), one below 0 means interference. Each gradient is
    that of one example's own loss, in evaluation mode. The learner is not changed.

    Args:
        learner: The learner whose gradients are compared.
        samples: How many past examples each one is compared with.
        past: When the gradients of the past examples are taken: "before" or "after" the incoming example is learned.
            Its own gradient is always taken before.

    >>> import torch, metareplay as mr
    >>> learner = mr.Online(mr.networks.mlp(4, (8,), 3), lr=0.1)
    >>> alignment = Alignment(learner, samples=5)
    >>> examples, table = learner.accept(torch.eye(4), [0, 1, 2, 0])
    >>> for one in alignment.each(examples):
    ...     learner.learn(one, table)
    >>> alignment.summary()["count"]  # the first example has no past
    15
    """

    def __init__(self, learner: Learner, samples: int = 5, past: Moment = "before") -> None:
        check_count("alignment", samples, "each example is compared with at least one from the past")
        if past not in get_args(Moment):
            raise InputError(f"past={past!r}: use 'before' or 'after'")
        if learner.classes == "grow":
            raise InputError("alignment compares gradients of one model, and this one grows: leave classes='grow' out")
        self.learner, self.samples, self.past = learner, samples, past
        self._loss = learner.loss or default_loss(learner.regression)
        self._chain, self._kind = Chain.of(learner.model), LossKind.of(self._loss)
        if (self._kind is LossKind.CROSS_ENTROPY) == learner.regression:
            self._kind = None  # the targets are of another kind
        self._products: list[list[float]] = []  # one list per example; NaN for the first, which has no past
        self._course: list[tuple[int, float]] = []
        self._history: Columns | None = None  # every example in the row of its number, then room for more

    def each(self, incoming: Columns) -> Iterator[Columns]:
        """Go through the examples one by one; each must be learned before the next one is asked for.

        Args:
            incoming: The next examples of the stream.
        """
        first = self.learner.seen
        history = self.remember(incoming, first)
        numbers = np.arange(first, first + len(incoming))[:, np.newaxis]
        fractions = self.learner.draws.fractions(Purpose.ALIGNMENT, first, len(incoming), self.samples)
        rows = torch.from_numpy(
            np.hstack([numbers, below(fractions, numbers)])
        )  # its own number, then those of some past examples
        for some in rows.split(BLOCK):
            there = some.to(history["x"].device)
            inputs, device = as_input(history["x"][there], self.learner.weights), self.learner.weights.device
            ys, tasks = history["y"][there].to(device), history["task"][some]
            for i, number in enumerate(some[:, 0].tolist()):
                one = history.part(number, number + 1)
                if number == 0:
                    self._products[0:] = [[math.nan] * self.samples]
                    yield one
                    continue
                own = self._gradients(inputs[i, :1], ys[i, :1], tasks[i, :1]) if self.past == "after" else None
                if own is not None:
                    yield one
                everything = self._gradients(inputs[i], ys[i], tasks[i])
                self._products[number:] = [everything.dots(own or everything)]
                if own is None:
                    yield one

    def _gradients(self, inputs: Tensor, ys: Tensor, tasks: Tensor) -> "_Gradients":
        """Compute the gradient of each example's own loss at the current weights."""
        learner = self.learner
        with few_threads(learner.weights):
            usual = ys.dim() == (1 if self._kind is LossKind.CROSS_ENTROPY else 2)  # a user's own loss may have others
            if usual and self._chain is not None and self._kind is not None and self._chain.takes(inputs.shape[1:]):
                return _Gradients(factors=self._chain.factors(inputs, ys, self._kind))
            return _Gradients(flat=flat_gradients(learner.model, self._loss, inputs, ys, tasks))

    def remember(self, incoming: Columns, first: int) -> Columns:
        """Add examples to the history; return the whole history.

        Args:
            incoming: The examples.
            first: The number of the first of them in the stream.
        """
        end, history = first + len(incoming), self._history
        if history is None or end > len(history):
            history = self._history = _grown(history, max(ROOM, 2 * end), incoming)
        for name, values in incoming.items():
            history[name][first:end] = values
        return history

    def products(self) -> Tensor:
        """Return the dot products of each learned example, one example per row; NaN for the first example."""
        return torch.tensor(self._products[: self.learner.seen], dtype=torch.float64).reshape(-1, self.samples)

    def restore(self, products: Tensor) -> None:
        """Restore what `products` returned; the examples must be remembered again.

        Args:
            products: What `products` returned.
        """
        self._products = products.tolist()
        self._course = []

    def course(self) -> list[tuple[int, float]]:
        """Return the mean product of each 200 examples so far, with the number of examples learned by then."""
        while (end := COURSE * (len(self._course) + 1)) <= self.learner.seen:
            found = np.array(self._products[end - COURSE : end])
            finite = found[np.isfinite(found)]
            self._course.append((end, float(finite.mean()) if len(finite) else math.nan))
        return [point for point in self._course if not math.isnan(point[1])]

    def summary(self) -> dict[str, Any]:
        """Summarise mean and distribution, over the whole run and over time, as plain JSON values.

        None stands for a mean or quantile of no values.

        `bounds`, `means` and `quantiles`: span i of the stream has the examples bounds[i] to bounds[i + 1] - 1.
        `edges` and `counts`: a histogram, in which bin i ends at edges[i] and the last bin has no end.
        `changes`: the examples with which another task began, if there are at most 200.
        """
        found = self.products()[1:].numpy()
        finite = found[np.isfinite(found)]
        bounds = np.linspace(1, 1 + len(found), min(SPANS, len(found)) + 1).astype(np.int64).tolist()
        spans = [_of(found[low - 1 : high - 1]) for low, high in pairwise(bounds)]
        tasks = torch.zeros(0) if self._history is None else self._history["task"][: self.learner.seen]
        changes = (torch.diff(tasks) != 0).nonzero().flatten().add(1).tolist()
        when = {} if self.past == "before" else {"past": self.past}
        return {
            "samples": self.samples,
            **when,
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


@final
@dataclass(frozen=True)
class _Gradients:
    """Hold the gradients of some examples: as factors of the layers of an MLP, or as flat vectors."""

    factors: list[tuple[Tensor, Tensor]] | None = None
    flat: Tensor | None = None

    def dots(self, own: "_Gradients") -> list[float]:
        """Multiply the gradient of the first example of `own` with all of ours except the first."""
        if self.factors is not None and own.factors is not None:
            found = dot_products(own.factors, self.factors)[1:]
        elif self.flat is not None and own.flat is not None:
            found = torch.stack([own.flat[0] @ other for other in self.flat[1:]])
        else:
            raise TypeError("factors and flat vectors cannot be multiplied")
        values: list[float] = found.tolist()
        return values


def flat_gradients(model: nn.Module, loss: Loss, inputs: Tensor, ys: Tensor, tasks: Tensor) -> Tensor:
    """Return the gradient of each example's own loss, flat, one per row, for any module and any loss.

    The parameters' own `grad` is not changed. A gradient is zero where a parameter does not affect the loss.

    Args:
        model: The module.
        loss: The loss of (outputs, targets).
        inputs: A batch of inputs as the model takes them.
        ys: Their targets.
        tasks: Their tasks.
    """
    trained, found = [p for p in model.parameters() if p.requires_grad], []
    with torch.inference_mode(False), torch.enable_grad(), evaluating(model), own_randomness(inputs.device):
        inputs, ys = inputs.clone(), ys.clone()  # the originals may have been made in inference mode
        for i in range(len(ys)):
            one = loss(forward(model, inputs[i : i + 1], tasks[i : i + 1]), ys[i : i + 1])
            parts = torch.autograd.grad(one, trained, materialize_grads=True)
            found.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(found)


def _grown(history: Columns | None, size: int, like: Columns) -> Columns:
    """Make room for `size` examples and copy the past ones into it."""
    with torch.inference_mode(False):
        grown = Columns(
            {
                name: torch.empty((size, *values.shape[1:]), dtype=values.dtype, device=values.device)
                for name, values in like.items()
            }
        )
    if history is not None:
        for name, values in history.items():
            grown[name][: len(values)] = values
    return grown


def _of(products: NDArray[np.float64]) -> list[float | None]:
    """Return mean and quantiles of the finite products."""
    finite = products[np.isfinite(products)]
    if not len(finite):
        return [None] * (1 + len(QUANTILES))
    return [_short(value) for value in (finite.mean().item(), *np.percentile(finite, QUANTILES).tolist())]


def _short(value: float) -> float:
    """Round to five digits, which are enough for a picture."""
    return float(f"{value:.5g}")
