"""Checks of the fields of dataclasses by their annotations."""

from collections.abc import Callable
from dataclasses import fields
from functools import cache, partial
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from metareplay._core.checks import choice, flag, mapping, real, text, whole, whole_numbers

Check = Callable[[str, Any], Any]  # returns a value in the type that it should have, or raises InputError


def check_fields(made: Any) -> None:
    """Bring every field of a frozen dataclass into the type of its annotation, or raise InputError.

    Numbers, texts, flags, words (Literal), dictionaries and lists of whole numbers are checked, also where None is
    allowed; fields of other types are left to the class itself, and so is `engine`.

    Args:
        made: The object, in its `__post_init__`.
    """
    of_class: Any = type(made)
    for name, check in _checks(of_class):
        object.__setattr__(made, name, check(name, getattr(made, name)))


@cache
def _checks(kind: type[Any]) -> tuple[tuple[str, Check], ...]:
    """Return how to check each field of a class: finding out takes far longer than checking."""
    known = get_type_hints(kind)
    names = [one.name for one in fields(kind) if one.init and one.name != "engine"]
    found = [(name, _check_for(known[name])) for name in names]
    return tuple((name, check) for name, check in found if check is not None)


def _check_for(kind: Any) -> Check | None:
    """Return how to check a value that should have a type; None if it is left to the class."""
    if get_origin(kind) in (UnionType, Union) and type(None) in get_args(kind):
        others = [one for one in get_args(kind) if one is not type(None)]
        check = _check_for(others[0]) if len(others) == 1 else None
        return None if check is None else partial(_unless_none, check)
    simple: dict[Any, Check] = {int: whole, bool: flag, float: real, str: text, tuple[int, ...]: whole_numbers}
    if kind in simple:
        return simple[kind]
    if get_origin(kind) is Literal:
        return partial(_word, get_args(kind))
    return mapping if get_origin(kind) is dict else None


def _unless_none(check: Check, name: str, value: Any) -> Any:
    return None if value is None else check(name, value)


def _word(words: tuple[Any, ...], name: str, value: Any) -> Any:
    return choice(name, value, words)
