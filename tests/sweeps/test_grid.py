from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metareplay import Grid, InputError

lists = st.dictionaries(
    st.sampled_from(["lr", "k", "s"]), st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True)
)


@given(lists)
def test_every_combination_comes_once_and_the_last_field_changes_fastest(values: dict[str, list[int]]) -> None:
    grid = Grid(values)
    found = list(grid)
    assert len(found) == len(grid) == grid.whole
    assert len({tuple(one.items()) for one in found}) == len(found)
    places = [[values[name].index(one[name]) for name in values] for one in found]
    assert places == sorted(places)
    assert grid.fields == [name for name in values if len(values[name]) > 1]


@given(lists, st.data())
def test_a_random_sample_has_no_repetition_and_can_be_extended(
    values: dict[str, list[int]], data: st.DataObject
) -> None:
    grid = Grid(values)
    count, seed = data.draw(st.integers(1, len(grid))), data.draw(st.integers(0, 3))
    small, every = list(grid.random(count, seed)), list(grid)
    assert len(small) == len(grid.random(count, seed)) == count
    assert [one for one in every if one in small] == small  # in the order of the grid
    more = list(grid.random(len(grid), seed))
    assert more == every
    if count < len(grid):
        assert all(one in list(grid.random(count + 1, seed)) for one in small)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"lr": []}, r"lr=\[\] in the grid: give at least one value"),
        ({"lr": 0.1}, r"lr=0.1 in the grid: give a list of values, such as \[0.1\]"),
        ({"optimizer": "adam"}, r"optimizer='adam' in the grid: give a list"),
        ({"k": [3, 5, 3]}, "k in the grid has the value 3 twice"),
        ([0.1], "a grid is a list: give a dictionary of lists"),
    ],
)
def test_bad_grids_are_refused_with_the_name_of_the_field(values: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Grid(values)


def test_samples_have_a_size_that_fits() -> None:
    for wrong in (0, 3):
        with pytest.raises(InputError, match=f"sample of {wrong} settings: the grid has 2"):
            Grid({"k": [1, 2]}).random(wrong)


def test_numbers_of_numpy_become_plain() -> None:
    [one] = Grid({"k": np.arange(3, 4), "lr": [np.float32(0.5)]})
    assert (type(one["k"]), type(one["lr"])) == (int, float)
