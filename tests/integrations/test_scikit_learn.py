"""Learners as estimators of scikit-learn: its own checks, partial_fit with new classes, pipelines."""

from typing import Any

import numpy as np
from sklearn.datasets import make_classification, make_regression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import metareplay as mr
from metareplay.integrations.scikit_learn import PartialFitClassifier, PartialFitRegressor


@parametrize_with_checks([PartialFitClassifier(random_state=0), PartialFitRegressor(random_state=0)])  # type: ignore[untyped-decorator]
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def test_a_pipeline_learns() -> None:
    xs, ys = make_classification(400, 8, n_informative=4, random_state=0)
    model = make_pipeline(StandardScaler(), PartialFitClassifier(random_state=0)).fit(xs[:300], ys[:300])
    assert model.score(xs[300:], ys[300:]) > 0.8
    xs, ys = make_regression(400, 5, random_state=0)
    regressor = PartialFitRegressor(random_state=0).fit(xs[:300], ys[:300] / ys.std())
    assert regressor.score(xs[300:], ys[300:] / ys.std()) > 0.8


def test_partial_fit_takes_new_classes() -> None:
    xs = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    ys = np.array(["one", "two", "three"])[np.arange(60) // 20]
    model = PartialFitClassifier(random_state=3)
    for start in range(0, 60, 10):
        model.partial_fit(xs[start : start + 10], ys[start : start + 10])
    assert model.classes_.tolist() == ["one", "three", "two"]
    assert isinstance(model.learner_, mr.MER)
    assert model.learner_.seen == 60
    assert model.learner_.labels == ("one", "two", "three")
    expected = model.learner_.predict_proba(xs)[:, [0, 2, 1]].numpy()
    np.testing.assert_allclose(model.predict_proba(xs), expected, rtol=1e-5, atol=1e-6)


def test_classes_that_never_came_have_no_probability() -> None:
    model = PartialFitClassifier(random_state=0).partial_fit([[1.0]], [2], classes=[1, 2, 3])
    assert model.predict_proba([[1.0]]).tolist() == [[0.0, 1.0, 0.0]]
    assert model.predict([[5.0]]).tolist() == [2]
