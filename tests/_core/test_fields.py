"""Fields of dataclasses are brought into the types of their annotations, or refused."""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest

from metareplay import InputError
from metareplay._core.fields import check_fields


@dataclass(frozen=True)
class Settings:
    """Have a field of each kind."""

    count: int = 1
    rate: float = 0.5
    fast: bool = False
    name: str = "x"
    most: int | None = None
    order: Literal["up", "down"] = "up"
    options: dict[str, Any] = field(default_factory=dict)
    hidden: tuple[int, ...] = (3,)
    other: object = None

    def __post_init__(self) -> None:
        """Check."""
        check_fields(self)


def test_numbers_of_other_libraries_become_pythons_own() -> None:
    made = Settings(count=np.int64(3), rate=np.float32(0.5), fast=np.True_, most=True, hidden=[np.int64(2), 4])  # type: ignore[arg-type]
    assert [type(one) for one in (made.count, made.rate, made.fast, made.most)] == [int, float, bool, int]
    assert (made.hidden, made.most) == ((2, 4), 1)


def test_none_is_kept_where_it_is_allowed() -> None:
    assert Settings(most=None).most is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"count": 1.5}, "count=1.5: use a whole number"),
        ({"rate": "fast"}, "rate='fast': use a number"),
        ({"fast": 2}, "fast=2: use True or False"),
        ({"name": b"x"}, "name=b'x': use a text"),
        ({"most": "x"}, "most='x': use a whole number"),
        ({"order": np.zeros(2)}, r"order=array\(\[0., 0.\]\): use 'up' or 'down'"),
        ({"options": [1]}, r"options=\[1\]: use a dictionary"),
        ({"options": {1: 2}}, r"options=\{1: 2\}: use a dictionary"),
        ({"hidden": 3}, "hidden=3: use a list of whole numbers"),
    ],
)
def test_what_has_another_type_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        Settings(**given)
