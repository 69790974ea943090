"""Checks of the fields of dataclasses by their annotations."""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from types import MappingProxyType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from metareplay._core.checks import choice, flag, mapping, real, text, whole, whole_numbers


def check_fields(made: Any) -> None:
    """Bring every field of a frozen dataclass into the type of its annotation, or raise InputError.

    Numbers, texts, flags, words (Literal), dictionaries and lists of whole numbers are checked, also where None is
    allowed; fields of other types are left to the class itself, and so is `engine`.

    Args:
        made: The object, in its `__post_init__`.
    """
    of_class: Any = type(made)
    for name, kind in _types(of_class).items():
        if name != "engine":
            object.__setattr__(made, name, _fitting(name, kind, getattr(made, name)))


@cache
def _types(kind: type[Any]) -> Mapping[str, Any]:
    known = get_type_hints(kind)
    return MappingProxyType({one.name: known[one.name] for one in fields(kind) if one.init})


def _fitting(name: str, kind: Any, value: Any) -> Any:
    """Return a value in the type that it should have, or raise InputError."""
    if get_origin(kind) in (UnionType, Union) and type(None) in get_args(kind):
        if value is None:
            return None
        kind, *others = (one for one in get_args(kind) if one is not type(None))
        if others:
            return value
    simple = {int: whole, bool: flag, float: real, str: text}
    if kind in simple:
        return simple[kind](name, value)
    if get_origin(kind) is Literal:
        return choice(name, value, get_args(kind))
    if get_origin(kind) is dict:
        return mapping(name, value)
    if kind == tuple[int, ...]:
        return whole_numbers(name, value)
    return value
