"""Learners as estimators of scikit-learn, with `partial_fit`; `pip install 'metareplay[scikit-learn]'`.

>>> import numpy as np
>>> from metareplay.integrations.scikit_learn import PartialFitClassifier
>>> xs = np.random.default_rng(0).normal(size=(200, 4))
>>> classifier = PartialFitClassifier(random_state=0).fit(xs[:150], np.where(xs[:150, 0] > 0, "up", "down"))
>>> bool(classifier.score(xs[150:], np.where(xs[150:, 0] > 0, "up", "down")) > 0.8)
True
"""

from collections.abc import Callable
from typing import Any, Final, Self, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from metareplay._core.checks import check_count, shown
from metareplay.errors import InputError
from metareplay.integrations.makers import Maker, made, mer_classifier, mer_regressor
from metareplay.learners import Learner

BLOCK: Final = 64  # rows that are predicted at a time


class _PartialFit(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Learn by `partial_fit`, one example after the other; `fit` does the same in several shuffled passes."""

    learner_: Learner

    def __init__(self, maker: Maker | None = None, passes: int = 10, random_state: Any = None) -> None:
        self.maker, self.passes, self.random_state = maker, passes, random_state

    def _make(self, inputs: int, *, regression: bool) -> int:
        """Make the learner; return the seed."""
        given = self.random_state
        try:
            seed = int(given if isinstance(given, int) else check_random_state(given).randint(2**31))
        except ValueError as error:
            raise InputError(f"random_state={shown(given)}: use a whole number, a RandomState, or None") from error
        usual = mer_regressor if regression else mer_classifier
        maker = usual if self.maker is None else self.maker
        learner = made(maker, inputs, seed, regression=regression)
        if not regression and learner.labels is None:
            raise InputError('maker returned a learner for numbered classes: use classes="grow"')
        self.learner_ = learner
        return seed

    def _in_passes(self, xs: NDArray[np.float32], ys: NDArray[Any], seed: int) -> None:
        """Learn all examples several times, each time in another order."""
        check_count("passes", self.passes, "fit goes through the examples once at least")
        order = np.random.default_rng(seed)
        for _ in range(self.passes):
            shuffled = order.permutation(len(xs))
            self.learner_.observe_many(xs[shuffled], ys[shuffled])

    def _inputs(self, X: ArrayLike) -> NDArray[np.float32]:  # noqa: N803  # scikit-learn's name
        """Return the examples to predict."""
        check_is_fitted(self)
        return validate_data(self, X, dtype=np.float32, reset=False)  # type: ignore[no-any-return]


def _in_blocks(predict: Callable[[NDArray[np.float32]], torch.Tensor], xs: NDArray[np.float32]) -> NDArray[np.float64]:
    """Predict blocks of one size, so that a row gives the same bits whatever rows come with it."""
    rows = np.concatenate([xs, np.zeros((-len(xs) % BLOCK, xs.shape[1]), np.float32)])
    found = torch.cat([predict(rows[start : start + BLOCK]) for start in range(0, len(rows), BLOCK)])
    return found[: len(xs)].double().numpy()


@final
class PartialFitClassifier(ClassifierMixin, _PartialFit):  # type: ignore[misc]
    """Classify by a learner. Classes need not be known in advance, also not by `partial_fit`.

    Args:
        maker: Makes the learner from the number of inputs and a seed. It must have the option `classes="grow"`. None
            for `makers.mer_classifier`.
        passes: How often `fit` goes through the examples; `partial_fit` does so once.
        random_state: Decides the first weights, every draw, and the order in `fit`.

    Attributes:
        learner_: The learner.
        classes_: The classes so far, sorted.
    """

    classes_: NDArray[Any]

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:  # noqa: N803
        """Forget what was learned, and learn from all examples, several times.

        Args:
            X: The examples, one per row.
            y: Their labels.
        """
        xs, ys = self._checked(X, y, reset=True)
        seed = self._make(xs.shape[1], regression=False)
        self.classes_ = np.unique(ys)
        self._in_passes(xs, ys, seed)
        return self

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:  # noqa: N803
        """Learn from some more examples.

        Args:
            X: The examples, one per row.
            y: Their labels.
            classes: All labels that may come, which other estimators need in the first call; not needed here.
        """
        begins = not hasattr(self, "learner_")
        xs, ys = self._checked(X, y, reset=begins)
        if begins:
            self._make(xs.shape[1], regression=False)
            self.classes_ = np.unique(ys if classes is None else np.asarray(classes))
        self.learner_.observe_many(xs, ys)
        self.classes_ = np.union1d(self.classes_, ys)
        return self

    def _checked(self, X: ArrayLike, y: ArrayLike, *, reset: bool) -> tuple[NDArray[np.float32], NDArray[Any]]:  # noqa: N803
        xs, ys = validate_data(self, X, y, dtype=np.float32, reset=reset)
        check_classification_targets(ys)
        return xs, ys

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:  # noqa: N803
        """Return the probabilities of `classes_`, one row per example; of classes that never came they are 0.

        Args:
            X: The examples, one per row.
        """
        xs = self._inputs(X)
        found = _in_blocks(self.learner_.predict_proba, xs)
        probabilities = np.zeros((len(found), len(self.classes_)))
        known = np.array(self.learner_.labels, dtype=self.classes_.dtype)
        probabilities[:, np.searchsorted(self.classes_, known)] = found / found.sum(axis=1, keepdims=True)
        return probabilities

    def predict(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803
        """Return the most probable class of each example.

        Args:
            X: The examples, one per row.
        """
        found = self.predict_proba(X)
        classes: NDArray[Any] = self.classes_[found.argmax(axis=1)]
        return classes


@final
class PartialFitRegressor(RegressorMixin, _PartialFit):  # type: ignore[misc]
    """Predict numbers by a learner.

    Args:
        maker: Makes the learner from the number of inputs and a seed. It must have the option `regression=True`. None
            for `makers.mer_regressor`.
        passes: How often `fit` goes through the examples; `partial_fit` does so once.
        random_state: Decides the first weights, every draw, and the order in `fit`.

    Attributes:
        learner_: The learner.
    """

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:  # noqa: N803
        """Forget what was learned, and learn from all examples, several times.

        Args:
            X: The examples, one per row.
            y: The numbers to predict.
        """
        xs, ys = validate_data(self, X, y, dtype=np.float32, y_numeric=True)
        self._in_passes(xs, _column(ys), self._make(xs.shape[1], regression=True))
        return self

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Self:  # noqa: N803
        """Learn from some more examples.

        Args:
            X: The examples, one per row.
            y: The numbers to predict.
        """
        begins = not hasattr(self, "learner_")
        xs, ys = validate_data(self, X, y, dtype=np.float32, y_numeric=True, reset=begins)
        if begins:
            self._make(xs.shape[1], regression=True)
        self.learner_.observe_many(xs, _column(ys))
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:  # noqa: N803
        """Return a number for each example.

        Args:
            X: The examples, one per row.
        """
        xs = self._inputs(X)
        return _in_blocks(self.learner_.predict, xs).reshape(len(xs))


def _column(ys: NDArray[Any]) -> NDArray[np.float32]:
    """Return targets in the shape of the outputs."""
    return ys.astype(np.float32).reshape(-1, 1)
