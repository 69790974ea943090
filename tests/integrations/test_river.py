"""Learners as models of river: river's own checks, features and labels that come and go, wrong input."""

from typing import Any

import pytest
from river import checks, datasets, evaluate, metrics, preprocessing

import metareplay as mr
from metareplay.errors import InputError
from metareplay.integrations.river import RiverClassifier, RiverRegressor

MODELS = [RiverClassifier(seed=1), RiverRegressor(seed=1)]


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=["classifier", "regressor"])
def test_rivers_own_checks(model: Any) -> None:
    checks.check_estimator(model)


def test_a_stream_of_river_is_learned() -> None:
    model = preprocessing.StandardScaler() | RiverClassifier(seed=0)
    score = evaluate.progressive_val_score(datasets.Phishing().take(600), model, metrics.Accuracy())
    assert score.get() > 0.8


def test_labels_and_features_come_and_go() -> None:
    model = RiverClassifier()
    assert model.predict_proba_one({"a": 1.0}) == {}
    assert model.predict_one({"a": 1.0}) is None
    model.learn_one({"a": 1.0}, "x")
    model.learn_one({"b": 1.0, "a": 0.0}, ("y", 2))
    assert set(model.predict_proba_one({"c": 3.0})) == {"x", ("y", 2)}  # a feature that was never learned is left out


def test_it_learns_what_the_learner_alone_learns() -> None:
    def maker(inputs: int, seed: int) -> mr.Learner:
        return mr.Online(mr.networks.mlp(inputs, (), 2, seed=seed), lr=0.1)

    model = RiverClassifier(maker, features=2)
    alone = mr.Online(mr.networks.mlp(2, (), 2, seed=0), lr=0.1)
    for number in range(20):
        model.learn_one({"first": number / 20, "second": 1.0}, number % 2)
        alone.observe([number / 20, 1.0], number % 2)
    expected = alone.predict_proba([[0.3, 1.0]])[0].tolist()
    assert model.predict_proba_one({"second": 1.0, "first": 0.3}) == pytest.approx(dict(enumerate(expected)))


def test_wrong_input_is_one_line_and_changes_nothing() -> None:
    model = RiverRegressor(features=2)
    model.learn_one({"a": 1.0}, 2.0)
    before = model.predict_one({"a": 1.0})
    with pytest.raises(InputError, match="feature 'b' is 'red': use numbers"):
        model.learn_one({"a": 1.0, "b": "red"}, 2.0)
    with pytest.raises(InputError, match="feature 'c' is one more than the 2 there is room for"):
        model.learn_one({"a": 1.0, "b": 1.0, "c": 1.0}, 2.0)
    assert model.predict_one({"a": 1.0, "b": 7.0}) == before
