import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import metareplay as mr
from metareplay._core.draws import Draws, Purpose


@given(
    seed=st.integers(0, 2**64 - 1), example=st.integers(0, 2**40), count=st.integers(0, 50), high=st.integers(1, 2**40)
)
def test_draws_are_in_range_and_depend_only_on_what_they_are_for(
    seed: int, example: int, count: int, high: int
) -> None:
    drawn = Draws(seed).integers(Purpose.REPLAY, example, count, high)
    assert len(drawn) == count
    assert all(0 <= value < high for value in drawn)
    assert np.array_equal(drawn, Draws(seed).integers(Purpose.REPLAY, example, count, high))
    longer = Draws(seed).integers(Purpose.REPLAY, example, count + 3, high)
    assert np.array_equal(drawn, longer[:count])


@given(seed=st.integers(0, 1000), first=st.integers(0, 1000), cut=st.integers(0, 20))
def test_one_draw_for_each_example_however_they_are_chunked(seed: int, first: int, cut: int) -> None:
    highs = np.arange(1, 21)
    whole = Draws(seed).each(Purpose.KEEP, first, highs)
    parts = [
        Draws(seed).each(Purpose.KEEP, first, highs[:cut]),
        Draws(seed).each(Purpose.KEEP, first + cut, highs[cut:]),
    ]
    assert np.array_equal(whole, np.concatenate(parts))
    singles = [Draws(seed).integers(Purpose.KEEP, first + i, 1, int(high))[0] for i, high in enumerate(highs)]
    assert np.array_equal(whole, singles)


@pytest.mark.parametrize("high", [2, 7, 100])
@pytest.mark.parametrize("along", ["draws", "examples", "seeds"])
def test_uniform_along_every_direction(high: int, along: str) -> None:
    count = 20_000
    if along == "draws":
        values = Draws(3).integers(Purpose.REPLAY, 9, count, high)
    elif along == "examples":
        values = Draws(3).each(Purpose.KEEP, 0, np.full(count, high))
    else:
        values = np.array([Draws(seed).integers(Purpose.REPLAY, 9, 1, high)[0] for seed in range(count // 4)])
    assert stats.chisquare(np.bincount(values, minlength=high)).pvalue > 1e-4


def test_purposes_examples_and_seeds_are_independent() -> None:
    one = Draws(0).integers(Purpose.REPLAY, 0, 5000, 10)
    others = [
        Draws(0).integers(Purpose.PLACE, 0, 5000, 10),
        Draws(0).integers(Purpose.REPLAY, 1, 5000, 10),
        Draws(1).integers(Purpose.REPLAY, 0, 5000, 10),
        np.roll(one, 1),
    ]
    for other in others:
        table = np.histogram2d(one, other, bins=10)[0]
        assert stats.chi2_contingency(table).pvalue > 1e-4


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_out_of_range_are_refused(seed: int) -> None:
    with pytest.raises(mr.InputError, match="seed"):
        Draws(seed)
