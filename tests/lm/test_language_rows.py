"""Rows of bytes of a language: wrong numbers are refused by one line."""

from typing import Any

import pytest

from metareplay import InputError
from metareplay.lm import made_up

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"count": -1}, "count=-1: use a number of rows, 0 or more"),
    ({"count": 10**15}, "count=1000000000000000 would need"),
    ({"length": None}, "length=None: use a whole number"),
    ({"length": 0}, "length=0: a row has at least one byte"),
    ({"length": 10**6}, "length=1000000: language 1 has .* bytes; use a shorter length"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_rows_that_a_text_does_not_have_are_refused(wrong: dict[str, Any], message: str) -> None:
    [language] = made_up(1, 400)
    with pytest.raises(InputError, match=message):
        language.test_rows(**{"count": 2, "length": 5, **wrong})
    with pytest.raises(InputError, match=message):
        language.rows(**{"count": 2, "length": 5, "seed": [1], **wrong})


def test_rows_need_seeds() -> None:
    [language] = made_up(1, 400)
    for wrong in (3, "a", [-1], [None]):
        with pytest.raises(InputError, match="seed="):
            language.rows(2, 5, wrong)  # type: ignore[arg-type]
    assert language.rows(0, 5, [1]).shape == (0, 5)
