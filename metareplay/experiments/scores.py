"""Scores of predictions made before learning: over the whole stream, over a window, and faded."""

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metareplay._core.checks import real
from metareplay._core.plain_labels import read, readable, written
from metareplay.errors import InputError

Reals = NDArray[np.float64]
Outcome = tuple[float, float, float]  # three numbers that describe how one example was predicted
LEAST = 1e-15  # the least probability that log loss takes the logarithm of
HORIZONS = ("", "window_", "faded_")  # what the names of scores begin with


class Scores(ABC):
    """Score predictions, and note all scores at some points of a stream.

    Sums are kept as a matrix with three columns, whose first row is about all examples.

    Args:
        window: How many of the latest examples a windowed score is over.
        fading: What an example's weight in a faded score is multiplied by with each example that follows it.

    Attributes:
        points: The scores at each point by name, and the number of examples then.
        count: How many examples have been scored.
    """

    def __init__(self, window: int, fading: float) -> None:
        self.window, self.fading = window, fading
        self.points: dict[str, list[float | None]] = {"examples": []}
        self.count = 0
        self._since: list[Outcome] = []  # since the last point
        self._latest = np.zeros((0, 3))  # before that, at most as many as the window has
        self._whole, self._faded = np.zeros((1, 3)), np.zeros((1, 3))  # sums at the last point

    @abstractmethod
    def _sums(self, outcomes: Reals, weights: Reals) -> Reals:
        """Return the weighted sums from which scores are computed."""

    @abstractmethod
    def _scores(self, sums: Reals) -> dict[str, float | None]:
        """Return the scores by name, given the sums."""

    @final
    def close_point(self) -> None:
        """Note all scores as they are now, unless that has been done."""
        if not self._since:
            return
        outcomes = np.array(self._since, np.float64)
        fading = self.fading ** np.arange(len(outcomes) - 1, -1, -1.0)
        self._whole = _added(self._whole, self._sums(outcomes, np.ones(len(outcomes))))
        self._faded = _added(self._faded * self.fading ** len(outcomes), self._sums(outcomes, fading))
        self._latest = np.concatenate([self._latest, outcomes])[-self.window :]
        self._since = []
        self.points["examples"].append(self.count)
        for horizon, sums in self._horizons().items():
            for name, value in self._scores(sums).items():
                self.points.setdefault(horizon + name, []).append(value)

    @final
    def _horizons(self) -> dict[str, Reals]:
        """Return the sums at the last point: of all examples, of the window, and faded."""
        windowed = self._sums(self._latest, np.ones(len(self._latest)))
        return dict(zip(HORIZONS, (self._whole, windowed, self._faded), strict=True))

    def by_class(self) -> list[dict[str, Any]]:
        """Return the scores of each class at the last point as plain JSON values; an empty list without classes."""
        return []

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return everything that is known, as plain JSON values and as tensors."""
        since = np.array(self._since, np.float64).reshape(-1, 3)
        arrays = {"since": since, "latest": self._latest, "whole": self._whole, "faded": self._faded}
        tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
        return {"points": self.points, "count": self.count}, tensors

    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Take over what `state` returned; raise InputError, or what Python raises, if it is anything else.

        Args:
            state: The JSON values.
            tensors: The tensors.
        """
        arrays = {name: tensors[name].numpy() for name in ("since", "latest", "whole", "faded")}
        if any(array.shape[1:] != (3,) or array.dtype != np.float64 for array in arrays.values()):
            raise InputError("the scores have another shape")
        self.points = {str(name): [*map(_score, values)] for name, values in state["points"].items()}
        self.count = int(state["count"])
        self._since = [(a, b, c) for a, b, c in arrays["since"].tolist()]
        self._latest, self._whole, self._faded = arrays["latest"], arrays["whole"], arrays["faded"]


def _score(value: float | None) -> float | None:
    """Return a score that is restored; raise InputError for what is none."""
    if value is not None:
        real("score", value)
    return value


@final
class ClassScores(Scores):
    """Score labels: accuracy in percent, Cohen's kappa, and log loss in nats; recall and precision of each class.

    Kappa is how much better the predictions are than labels drawn at random in the same proportions. A label that the
    learner had never seen has no probability, and counts with -log of 1e-15.

    Args:
        window: How many of the latest examples a windowed score is over.
        fading: What an example's weight in a faded score is multiplied by with each example that follows it.

    >>> scores = ClassScores(window=2, fading=0.9)
    >>> for predicted, label in (("cat", "cat"), ("cat", "dog"), ("dog", "dog"), ("dog", "dog")):
    ...     scores.add(predicted, label, 0.8)
    >>> scores.close_point()
    >>> scores.points["accuracy"], scores.points["kappa"], scores.points["window_accuracy"]
    ([75.0], [0.5], [100.0])
    >>> [(one["label"], one["examples"], one["recall"]) for one in scores.by_class()]
    [('cat', 1, 100.0), ('dog', 3, 66.66666666666667)]
    """

    def __init__(self, window: int, fading: float) -> None:
        super().__init__(window, fading)
        self._numbers: dict[Hashable, int] = {}

    def add(self, predicted: Hashable, label: Hashable, probability: float, known: bool = True) -> None:
        """Add one example.

        Args:
            predicted: The label that was predicted.
            label: The true label.
            probability: The probability that was predicted for the true label.
            known: Whether any label was predicted at all.
        """
        guess = self._number(predicted) if known else -1
        self._since.append((self._number(label), guess, -math.log(max(probability, LEAST))))
        self.count += 1

    def _number(self, label: Hashable) -> int:
        return self._numbers.setdefault(label, len(self._numbers))

    def _sums(self, outcomes: Reals, weights: Reals) -> Reals:
        """Count examples, right ones and their log loss; below, for each class: true, predicted, and both at once."""
        labels, guesses = outcomes[:, 0].astype(np.int64), outcomes[:, 1].astype(np.int64)
        size, right, guessed = len(self._numbers), labels == guesses, guesses >= 0
        first = [weights.sum(), weights[right].sum(), weights @ outcomes[:, 2]]
        true = np.bincount(labels, weights, size)
        predicted = np.bincount(guesses[guessed], weights[guessed], size)
        both = np.bincount(labels[right], weights[right], size)
        return np.vstack([first, np.stack([true, predicted, both], axis=1)])

    def _scores(self, sums: Reals) -> dict[str, float | None]:
        """Return accuracy, kappa and log loss."""
        count, right, loss = sums[0].tolist()
        chance = float(sums[1:, 0] @ sums[1:, 1]) / count**2
        kappa = _share(right / count - chance, 1 - chance)
        return {"accuracy": 100 * right / count, "kappa": kappa, "log_loss": loss / count}

    def by_class(self) -> list[dict[str, Any]]:
        """Return how often each class came, with recall and precision in percent, over all three horizons."""
        found = [{"label": label} for label in readable(self._numbers)]
        for horizon, sums in self._horizons().items():
            for one, (true, predicted, both) in zip(found, _padded(sums, 1 + len(found))[1:].tolist(), strict=True):
                one[f"{horizon}examples"] = round(true) if horizon != "faded_" else true
                one[f"{horizon}recall"] = _share(100 * both, true)
                one[f"{horizon}precision"] = _share(100 * both, predicted)
        return found

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return everything that is known, with the labels."""
        state, tensors = super().state()
        return state | {"labels": written(self._numbers)}, tensors

    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Take over what `state` returned."""
        labels = read(state["labels"])
        super().restore(state, tensors)
        self._numbers = {label: number for number, label in enumerate(labels)}


@final
class ErrorScores(Scores):
    """Score real numbers: mean absolute error (MAE), and the root of the mean squared error (RMSE).

    Args:
        window: How many of the latest examples a windowed score is over.
        fading: What an example's weight in a faded score is multiplied by with each example that follows it.

    >>> scores = ErrorScores(window=1, fading=0.5)
    >>> scores.add(torch.tensor([1.0]), torch.tensor([1.0]))
    >>> scores.add(torch.tensor([1.0]), torch.tensor([3.0]))
    >>> scores.close_point()
    >>> [scores.points[f"{horizon}mae"][0] for horizon in HORIZONS]
    [1.0, 2.0, 1.3333333333333333]
    """

    def add(self, predicted: Tensor, target: Tensor) -> None:
        """Add one example; of several outputs the errors are averaged.

        Args:
            predicted: The values that were predicted.
            target: The true values, in the same shape.
        """
        error = (predicted.double() - target.double()).abs()
        self._since.append((1.0, float(error.mean()), float(error.square().mean())))
        self.count += 1

    def _sums(self, outcomes: Reals, weights: Reals) -> Reals:
        """Count examples, and add up absolute and squared errors."""
        return (weights @ outcomes).reshape(1, 3)

    def _scores(self, sums: Reals) -> dict[str, float | None]:
        """Return MAE and RMSE."""
        count, absolute, squared = sums[0].tolist()
        return {"mae": absolute / count, "rmse": math.sqrt(squared / count)}


def _padded(sums: Reals, rows: int) -> Reals:
    """Add rows of zeros for classes that had not come yet."""
    return np.vstack([sums, np.zeros((rows - len(sums), 3))])


def _added(one: Reals, other: Reals) -> Reals:
    """Add two sums, of which the first may have fewer classes."""
    return _padded(one, len(other)) + other


def _share(part: float, whole: float) -> float | None:
    """Return a quotient as a plain number; None if there is nothing to divide by."""
    return float(part / whole) if whole > 0 else None
