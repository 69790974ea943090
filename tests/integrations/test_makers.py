"""Functions that make a learner once the number of inputs is known."""

from typing import Any

import pytest
from torch import nn

import metareplay as mr
from metareplay.errors import InputError
from metareplay.integrations.makers import made, mer_classifier, mer_regressor


@pytest.mark.parametrize(("maker", "regression"), [(mer_classifier, False), (mer_regressor, True)])
def test_defaults(maker: Any, regression: bool) -> None:
    learner = made(maker, 3, 5, regression=regression)
    assert (learner.seed, learner.regression) == (5, regression)
    learner.observe([1.0, 2.0, 3.0], [4.0] if regression else "four")
    with pytest.raises(InputError, match=f"use regression={not regression}"):
        made(maker, 3, 5, regression=not regression)


@pytest.mark.parametrize(
    ("maker", "message"),
    [(3, "maker=3: use a function"), (lambda *_: nn.Linear(2, 2), "maker returned a Linear: it must return a learner")],
)
def test_what_does_not_make_a_learner_is_refused(maker: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        made(maker, 2, 0, regression=False)


def test_any_learner_will_do() -> None:
    learner = made(lambda inputs, seed: mr.Online(nn.Linear(inputs, 2), seed=seed), 2, 9, regression=False)
    assert isinstance(learner, mr.Online)
