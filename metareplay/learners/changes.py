"""Options that may change while a learner learns: they are checked as when it was made, and take effect at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from metareplay._core.checks import check_count, check_rate, check_share
from metareplay.errors import InputError


def _check_clip(name: str, value: Any) -> None:
    if value is not None:
        check_rate(name, value)


def _check_number(name: str, value: Any) -> None:
    check_count(name, value, "each example is learned with at least one")


CHANGEABLE: Mapping[str, Callable[[str, Any], None]] = MappingProxyType(
    {
        "lr": check_rate,
        "clip": _check_clip,
        "beta": check_share,
        "gamma": check_share,
        "s": _check_number,
        "k": _check_number,
        "steps": _check_number,
    }
)


def options_of(kind: Any) -> frozenset[str]:
    """Return the names of the options that a learner has from our classes; those of a user's own class are the user's.

    Args:
        kind: The learner's class.
    """
    return _options_of(kind)


@cache
def _options_of(kind: type[Any]) -> frozenset[str]:
    ours = [base for base in kind.__mro__ if is_dataclass(base) and base.__module__.startswith("metareplay.")]
    return frozenset(option.name for base in ours for option in fields(base) if option.init)


def check_change(name: str, value: Any) -> None:
    """Raise InputError for an option that is fixed, or for a value that it cannot have.

    Args:
        name: The option.
        value: The new value, in the type that the option has.
    """
    if name not in CHANGEABLE:
        load = "" if name in ("model", "memory") else f", or save this one and use load(path, model, {name}=...)"
        raise InputError(
            f"{name} cannot change once the learner is made, only {', '.join(CHANGEABLE)} can: make a new one{load}"
        )
    CHANGEABLE[name](name, value)
