"""The types of the options of a class, and the check that a value has its type."""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from metareplay._core.checks import choice, flag, real, whole

MAYBE = float | None


def option_types(kind: Any) -> Mapping[str, Any]:
    """Return the type of each option of a class, even where annotations are written as text.

    Args:
        kind: A dataclass.
    """
    return _option_types(kind)


@cache
def _option_types(kind: type[Any]) -> Mapping[str, Any]:
    """Return what `option_types` returns: asking takes as long as the rest of finding a run's key."""
    try:
        known = get_type_hints(kind)
    except NameError:  # a name that only type checkers import
        known = {}
    return MappingProxyType({option.name: known.get(option.name, option.type) for option in fields(kind)})


def checked(name: str, kind: Any, value: Any) -> Any:
    """Return an option's value in the type that it should have, or raise InputError.

    Args:
        name: The option.
        kind: The type that it should have.
        value: What was given for it.
    """
    if kind is int:
        return whole(name, value)
    if kind is bool:
        return flag(name, value)
    if kind is float or (kind == MAYBE and value is not None):
        return real(name, value)
    if get_origin(kind) is Literal and name != "engine":
        return choice(name, value, get_args(kind))
    return value
