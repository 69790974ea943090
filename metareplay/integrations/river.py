"""Learners as models of river, which learn from one dictionary at a time; `pip install 'metareplay[river]'`.

>>> from river import datasets, evaluate, metrics
>>> from metareplay.integrations.river import RiverClassifier
>>> evaluate.progressive_val_score(datasets.Phishing().take(200), RiverClassifier(), metrics.Accuracy()).get() > 0.7
True
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray
from river import base

from metareplay._core.checks import check_count, check_room, instance, real, shown, whole
from metareplay.errors import InputError
from metareplay.integrations.makers import HIDDEN, Maker, made, mer_classifier, mer_regressor
from metareplay.learners import Learner

LEAST: Final = 16  # places for features, if the user does not say how many there will be


class _Model:
    """Turn dictionaries into rows: each feature has a place of its own, and one that is missing is 0."""

    maker: Maker | None
    features: int | None
    seed: int

    def _begin(self) -> None:
        self._places: dict[Any, int] = {}
        self._width = 0
        self._learner: Learner | None = None

    def _learned(self, x: dict[Any, Any], *, regression: bool) -> tuple[Learner, NDArray[np.float32]]:
        """Give new features a place, in an order that does not depend on the dictionary's; return learner and row."""
        instance("x", x, Mapping, "a dictionary of features")
        if self.features is not None:
            check_count("features", self.features, "an example has one feature at least")
            check_room("features", self.features, 4 * HIDDEN[0] * whole("features", self.features))
        width = self._width or whole("features", self.features or max(LEAST, 2 * len(x)))
        new = sorted((name for name in x if name not in self._places), key=repr)
        if len(self._places) + len(new) > width:
            raise InputError(
                f"feature {shown(new[-1])} is one more than the {width} there is room for: use features=..."
            )
        places = self._places | {name: len(self._places) + number for number, name in enumerate(new)}
        row = _row(x, places, width)
        usual = mer_regressor if regression else mer_classifier
        maker = usual if self.maker is None else self.maker
        learner = self._learner or made(maker, width, self.seed, regression=regression)
        self._places, self._width, self._learner = places, width, learner
        return learner, row


def _row(x: dict[Any, Any], places: dict[Any, int], width: int) -> NDArray[np.float32]:
    """Return an example as a row; features without a place are left out."""
    instance("x", x, Mapping, "a dictionary of features")
    row = np.zeros(width, np.float32)
    for name, value in x.items():
        place = places.get(name)
        if place is not None:
            try:
                row[place] = value
            except (OverflowError, TypeError, ValueError, RuntimeError):
                raise InputError(
                    f"feature {shown(name)} is {shown(value)}: use numbers, for example by river's "
                    f"preprocessing.OneHotEncoder"
                ) from None
    return row


@final
class RiverClassifier(_Model, base.Classifier):
    """Classify examples of river by a learner; labels may be anything that can be hashed, and appear at any time.

    Args:
        maker: Makes the learner from the number of inputs and a seed. It should have the option `classes="grow"`. None
            for `makers.mer_classifier`.
        features: How many features there may be. None: twice as many as the first example has, at least 16.
        seed: Decides the first weights and every draw.
    """

    def __init__(self, maker: Maker | None = None, features: int | None = None, seed: int = 0) -> None:
        self.maker, self.features, self.seed = maker, features, seed
        self._begin()

    @property
    def _multiclass(self) -> bool:
        return True

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"seed": 1}

    def learn_one(self, x: dict[Any, Any], y: Any) -> None:
        """Learn from one example.

        Args:
            x: The features by name.
            y: The label.
        """
        learner, row = self._learned(x, regression=False)
        learner.observe(row, y)

    def predict_proba_one(self, x: dict[Any, Any], **kwargs: Any) -> dict[Any, float]:
        """Return the probability of each label that is known so far.

        Args:
            x: The features by name.
            kwargs: Not used; river has it for other models.
        """
        del kwargs
        if self._learner is None or not self._learner.seen:
            return {}
        found = self._learner.predict_proba(_row(x, self._places, self._width)[None])[0].double()
        labels: Iterable[Any] = range(len(found)) if self._learner.labels is None else self._learner.labels
        return dict(zip(labels, (found / found.sum()).tolist(), strict=True))


@final
class RiverRegressor(_Model, base.Regressor):
    """Predict numbers for examples of river by a learner.

    Args:
        maker: Makes the learner from the number of inputs and a seed. It must have the option `regression=True`. None
            for `makers.mer_regressor`.
        features: How many features there may be. None: twice as many as the first example has, at least 16.
        seed: Decides the first weights and every draw.
    """

    def __init__(self, maker: Maker | None = None, features: int | None = None, seed: int = 0) -> None:
        self.maker, self.features, self.seed = maker, features, seed
        self._begin()

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"seed": 1}

    def learn_one(self, x: dict[Any, Any], y: base.typing.RegTarget) -> None:
        """Learn from one example.

        Args:
            x: The features by name.
            y: The number to predict.
        """
        learner, row = self._learned(x, regression=True)
        learner.observe(row, [real("y", y)])

    def predict_one(self, x: dict[Any, Any]) -> base.typing.RegTarget:
        """Return what is predicted; 0 before anything was learned.

        Args:
            x: The features by name.
        """
        if self._learner is None or not self._learner.seen:
            return 0.0
        return float(self._learner.predict(_row(x, self._places, self._width)[None]).reshape(-1)[0])
