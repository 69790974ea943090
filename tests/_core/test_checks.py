from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from metareplay._core import checks
from metareplay._core.checks import check_room, flag, path_of, real, shown, whole, whole_numbers
from metareplay.errors import InputError


class Odd:
    """Something that is no number and no flag, and looks the same in every process."""

    def __repr__(self) -> str:
        return "Odd()"


def refused(message: str, check: Any, *given: Any) -> None:
    with pytest.raises(InputError, match=message) as caught:
        check(*given)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 300


@given(value=st.integers())
def test_whole_numbers_of_any_library(value: int) -> None:
    assert whole("n", value) == value
    if abs(value) < 2**63:
        assert whole("n", np.int64(value)) == value


NOT_WHOLE: list[Any] = [None, "3", 1.5, 2.0, 1j, [], np.zeros(2), torch.zeros(2), Odd()]


@pytest.mark.parametrize("value", NOT_WHOLE, ids=repr)
def test_anything_else_is_no_whole_number(value: object) -> None:
    refused("n=.*: use a whole number", whole, "n", value)


@pytest.mark.parametrize("value", [None, "3", b"3", 1j, [], np.zeros(2), 10**400, Odd()], ids=lambda v: shown(v))
def test_what_is_no_number(value: object) -> None:
    refused("n=.*: use a number", real, "n", value)


@pytest.mark.parametrize("value", [True, False, np.True_, np.array([False]), torch.tensor(True), 1, 0])
def test_flags(value: Any) -> None:
    assert flag("n", value) is bool(value)


@pytest.mark.parametrize("value", [None, "x", 2, 1.0, [], np.zeros(2), torch.tensor([True, False])], ids=repr)
def test_what_is_no_flag(value: object) -> None:
    refused("n=.*: use True or False", flag, "n", value)


@pytest.mark.parametrize("value", [3, "abc", None, torch.tensor(1), [1.5], ["a"], [0], [-1]], ids=repr)
def test_what_is_no_list_of_whole_numbers(value: object) -> None:
    refused("n=.*: .*whole number", whole_numbers, "n", value)


def test_lists_of_whole_numbers() -> None:
    assert whole_numbers("n", ()) == ()
    assert whole_numbers("n", np.array([3, 4])) == (3, 4)


@pytest.mark.parametrize("value", [None, 3, b"x", [], "a\nb", "\0"], ids=repr)
def test_what_is_no_path(value: object) -> None:
    refused("p.*: use a path", path_of, "p", value)


@pytest.mark.parametrize("size", [10**9, 10**20, 10**400])
def test_more_than_the_machine_has_is_refused(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "memory_of_this_machine", lambda: 2**29)
    check_room("n", size, 2**29)
    refused(r"n=1000.* would need .* GiB of memory, and this machine has 0: use less", check_room, "n", size, size)


class Shy:
    def __repr__(self) -> str:
        raise RuntimeError


@given(value=st.text() | st.binary() | st.integers() | st.lists(st.text()))
def test_what_is_shown_is_one_short_line(value: object) -> None:
    assert len(shown(value).splitlines()) <= 1
    assert len(shown(value)) <= checks.LONGEST


def test_what_cannot_describe_itself_is_shown_by_its_class() -> None:
    assert shown(Shy()) == "a Shy"
    assert shown(10**5000) == "an int"
