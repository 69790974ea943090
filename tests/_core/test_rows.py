import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metareplay.errors import InputError
from metareplay.experiments import Rows

values = st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans(), st.text(max_size=3))
rows = st.lists(st.dictionaries(st.sampled_from("abc"), values), max_size=8)


@given(rows)
def test_rows_come_back_as_they_were_given(given_rows: list[dict[str, object]]) -> None:
    table = Rows(given_rows)
    assert len(table) == len(given_rows)
    assert list(table) == given_rows


def test_columns_have_the_narrowest_kind() -> None:
    table = Rows([{"k": 1, "lr": 1, "name": "x", "flag": True}, {"k": 2, "lr": 0.5, "beta": 3, "flag": False}])
    assert table["k"].dtype == np.int64
    assert table["lr"].dtype == table["beta"].dtype == np.float64
    assert table["flag"].dtype == np.bool_
    assert table["name"].tolist() == ["x", None]
    assert math.isnan(table["beta"][0])


def test_rows_are_chosen_and_sorted() -> None:
    table = Rows({"k": k, "lr": lr, **({"ra": k * lr} if k > 1 else {})} for k in (1, 2, 3) for lr in (0.1, 0.3))
    assert [row["k"] for row in table.where(lr=0.3, k=[2, 3])] == [2, 3]
    assert len(table.where(lr=0.2)) == 0
    assert [row.get("ra") for row in table.sort("ra")][:2] == [3 * 0.3, 2 * 0.3]
    assert [row["k"] for row in table.sort("ra", descending=False)][-2:] == [1, 1]
    with pytest.raises(InputError, match="no column 'beta'; the columns are k, lr, ra"):
        table.where(beta=1)


def test_it_shows_what_differs() -> None:
    table = Rows([{"learner": "mer", "lr": number / 10, "ra": 80.123456} for number in range(12)])
    lines = repr(table).splitlines()
    assert lines[0].split() == ["lr"]
    assert lines[2].split() == ["0.1"]
    assert lines[-2:] == ["... 12 rows in all", "in all rows: learner=mer, ra=80.123"]
    assert repr(Rows([])) == ""
    assert repr(Rows([{"k": 2}])).split() == ["k", "2"]


def test_pandas_is_asked_for_only_when_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(InputError, match="pip install pandas"):
        Rows([{"k": 1}]).to_pandas()
