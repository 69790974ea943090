"""Scores, compared with definitions written down plainly."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import metareplay as mr
from metareplay.experiments.scores import ClassScores, ErrorScores

outcomes = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from("abc"), st.floats(0.01, 1)), min_size=1, max_size=40
)


def plain(rows: list[tuple[str, str, float]], weights: list[float]) -> dict[str, float | None]:
    """Accuracy, kappa and log loss of (predicted, label, probability), by their definitions."""
    total = sum(weights)
    agree = sum(w for w, (guess, label, _) in zip(weights, rows, strict=True) if guess == label) / total
    chance = 0.0
    for one in "abc":
        guessed = sum(w for w, (guess, _, _) in zip(weights, rows, strict=True) if guess == one)
        true = sum(w for w, (_, label, _) in zip(weights, rows, strict=True) if label == one)
        chance += guessed * true / total**2
    loss = -sum(w * math.log(p) for w, (_, _, p) in zip(weights, rows, strict=True)) / total
    kappa = (agree - chance) / (1 - chance) if chance < 1 - 1e-12 else None
    return {"accuracy": 100 * agree, "kappa": kappa, "log_loss": loss}


def close(found: float | None, expected: float | None) -> bool:
    return found == expected if found is None or expected is None else found == pytest.approx(expected, abs=1e-9)


@given(outcomes, st.integers(1, 12), st.integers(1, 9))
def test_labels_are_scored_by_the_definitions(rows: list[tuple[str, str, float]], window: int, every: int) -> None:
    scores = ClassScores(window, 0.9)
    for number, (guess, label, chance) in enumerate(rows, 1):
        scores.add(guess, label, chance)
        if number % every == 0:
            scores.close_point()
    scores.close_point()
    for at, count in enumerate(scores.points["examples"]):
        assert count is not None
        seen = rows[: int(count)]
        horizons = {
            "": (seen, [1.0] * len(seen)),
            "window_": (seen[-window:], [1.0] * min(window, len(seen))),
            "faded_": (seen, [0.9 ** (len(seen) - 1 - n) for n in range(len(seen))]),
        }
        for horizon, (some, weights) in horizons.items():
            for name, expected in plain(some, weights).items():
                found = scores.points[horizon + name][at]
                assert close(found, expected) or (name == "kappa" and found is None), (horizon, name)
    for one in scores.by_class():
        of_class = [guess for guess, label, _ in rows if label == one["label"]]
        assert one["examples"] == len(of_class)
        if of_class:
            assert one["recall"] == pytest.approx(100 * of_class.count(one["label"]) / len(of_class))


def test_an_example_without_any_prediction_is_wrong() -> None:
    scores = ClassScores(5, 0.9)
    scores.add(None, None, 0.0, known=False)
    scores.close_point()
    assert scores.points["accuracy"] == [0.0]
    assert scores.points["log_loss"] == [pytest.approx(-math.log(1e-15))]


@given(outcomes, st.integers(0, 40))
def test_saved_and_restored_scores_go_on_the_same(rows: list[tuple[str, str, float]], when: int) -> None:
    def add(scores: ClassScores, some: list[tuple[str, str, float]]) -> None:
        for row in some:
            scores.add(*row)
            if scores.count % 7 == 0:
                scores.close_point()

    whole, first, second = (ClassScores(5, 0.9) for _ in range(3))
    add(whole, rows)
    add(first, rows[:when])
    second.restore(*first.state())
    add(second, rows[when:])
    for scores in (whole, second):
        scores.close_point()
    assert whole.points == second.points
    assert whole.by_class() == second.by_class()


def test_errors_of_real_targets() -> None:
    scores = ErrorScores(2, 0.5)
    for predicted, target in ((0.0, 1.0), (0.0, 2.0), (0.0, 4.0)):
        scores.add(torch.tensor([predicted, predicted]), torch.tensor([target, -target]))
    scores.close_point()
    assert scores.points["mae"] == [pytest.approx(7 / 3)]
    assert scores.points["rmse"] == [pytest.approx(math.sqrt(7))]
    assert scores.points["window_mae"] == [3.0]
    assert scores.points["faded_mae"] == [pytest.approx((0.25 + 1 + 4) / 1.75)]


def test_a_damaged_state_is_refused() -> None:
    scores = ErrorScores(2, 0.5)
    scores.add(torch.zeros(1), torch.ones(1))
    state, tensors = scores.state()
    wrong: dict[str, Any] = tensors | {"whole": torch.zeros(1, 2, dtype=torch.float64)}
    with pytest.raises(mr.InputError, match="another shape"):
        scores.restore(state, wrong)
