import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hypothesis_numpy

from metareplay.errors import InputError
from metareplay.experiments.metrics import Accuracies, Matrix, Metrics, needed

percent = st.floats(0, 100)


@st.composite
def matrices(draw: st.DrawFn) -> Matrix:
    tasks = draw(st.integers(1, 6))
    return draw(hypothesis_numpy.arrays(np.float64, (tasks + 1, tasks), elements=percent))


WORKED = {
    "one task": ([[10], [90]], Metrics(ra=90, la=90, bti=0, fti=0)),
    "nothing learned": ([[10, 10], [10, 10], [10, 10]], Metrics(ra=10, la=10, bti=0, fti=0)),
    "forgotten": ([[10, 10], [90, 10], [10, 90]], Metrics(ra=50, la=90, bti=-40, fti=0)),
    "transferred forwards": ([[10, 20], [80, 60], [80, 80]], Metrics(ra=80, la=80, bti=0, fti=20)),
    "improved backwards": ([[0, 0], [50, 0], [70, 60]], Metrics(ra=65, la=55, bti=10, fti=0)),
    "three tasks": (
        # at first, then after each task; learned: 60, 70, 80; just before: 10, 40, 50; at the end: 30, 50, 80
        [[10, 10, 20], [60, 40, 1], [2, 70, 50], [30, 50, 80]],
        Metrics(ra=160 / 3, la=70, bti=(-30 - 20 + 0) / 3, fti=(0 + 30 + 30) / 3),
    ),
    "four tasks": (
        [[5, 10, 15, 20], [45, 12, 0, 0], [0, 55, 14, 0], [0, 0, 65, 26], [25, 35, 45, 75]],
        Metrics(ra=45, la=60, bti=(-20 - 20 - 20 + 0) / 4, fti=(0 + 2 - 1 + 6) / 4),
    ),
}


@pytest.mark.parametrize(("rows", "expected"), WORKED.values(), ids=WORKED.keys())
def test_metrics_equal_those_worked_by_hand(rows: list[list[float]], expected: Metrics) -> None:
    found = Metrics.of(np.array(rows, np.float64))
    assert (found.ra, found.la, found.bti, found.fti) == pytest.approx(
        (expected.ra, expected.la, expected.bti, expected.fti), abs=1e-12
    )


@given(accuracy=matrices())
def test_retained_is_learned_plus_backward(accuracy: Matrix) -> None:
    found = Metrics.of(accuracy)
    assert found.ra == pytest.approx(found.la + found.bti, abs=1e-9)


@given(accuracy=matrices())
def test_needed_names_everything_the_metrics_use(accuracy: Matrix) -> None:
    whole = Metrics.of(accuracy)
    accuracy[~needed(accuracy.shape[1])] = np.nan
    assert Metrics.of(accuracy) == whole


@given(accuracy=matrices(), place=st.data())
def test_needed_names_nothing_else(accuracy: Matrix, place: st.DataObject) -> None:
    rows = np.argwhere(needed(accuracy.shape[1])).tolist()
    row, column = place.draw(st.sampled_from(rows))
    accuracy[row, column] = np.nan
    found = Metrics.of(accuracy)
    assert np.isnan([found.ra, found.la, found.bti, found.fti]).any()


def test_needed_of_no_tasks_is_empty() -> None:
    assert needed(0).shape == (1, 0)


def test_needed_grows_with_the_tasks_not_with_their_square() -> None:
    assert needed(1).sum() == 2
    assert needed(20).sum() == 20 + 20 + 19 + 19  # first and last row, before and after each task; two counted twice


@pytest.mark.parametrize("shape", [(0,), (3,), (1, 0), (2, 2), (2, 3), (4, 2), (3, 2, 1)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"use \(T \+ 1, T\)"):
        Metrics.of(np.zeros(shape))


# Filling in a matrix


@pytest.mark.parametrize("tasks", [1, 2, 3, 5])
@pytest.mark.parametrize("full", [False, True])
def test_row_by_row_what_is_wanted_is_filled_in_once(tasks: int, full: bool) -> None:
    measured = Accuracies(tasks, full)
    for row in range(tasks + 1):
        for task in measured.missing(row):
            measured.values[row, task] = 10 * row + task
        assert measured.missing(row) == []
    wanted = np.ones_like(needed(tasks)) if full else needed(tasks)
    np.testing.assert_array_equal(~np.isnan(measured.values), wanted)
    assert measured.more_than_needed == (full and tasks > 2)  # of up to two tasks the metrics need everything


def test_what_was_measured_comes_back_from_json_bit_for_bit() -> None:
    measured = Accuracies(3, full_matrix=False)
    measured.values[0, 1], measured.values[3, 2] = 100 / 3, 2 / 3
    again = Accuracies(3, full_matrix=False)
    again.restore(json.loads(json.dumps(measured.to_json(), allow_nan=False)))
    np.testing.assert_array_equal(again.values, measured.values)
    assert again.missing(0) == [0, 2]


def test_of_no_tasks_nothing_is_measured() -> None:
    measured = Accuracies(0, full_matrix=True)
    assert (measured.values.shape, measured.missing(0), measured.more_than_needed) == ((1, 0), [], False)
    measured.restore(json.loads(json.dumps(measured.to_json())))
    assert measured.values.shape == (1, 0)


def test_rows_of_another_shape_are_not_taken_back() -> None:
    with pytest.raises(ValueError, match="reshape"):
        Accuracies(2, full_matrix=False).restore([[1.0], [2.0]])
