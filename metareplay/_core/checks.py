"""Checks of options, which are made once, with errors that say what to do."""

import math
import operator

from metareplay.errors import InputError


def whole(name: str, value: object) -> int:
    """Return a whole number as Python's int, whatever library it comes from."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise InputError(f"{name}={value!r}: use a whole number") from error


def real(name: str, value: object) -> float:
    """Return a number as Python's float, whatever library it comes from."""
    try:
        return float(value if not isinstance(value, str) else "not a number")  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}={value!r}: use a number") from error


def check_rate(name: str, value: float) -> None:
    """Raise InputError for a learning rate that is not a positive number."""
    if not (math.isfinite(real(name, value)) and value > 0):
        raise InputError(f"{name}={value}: use a positive number")


def check_share(name: str, value: float) -> None:
    """Raise InputError for a Reptile rate outside 0 < rate <= 1: it is the share of the way from old to new weights."""
    if not 0 < real(name, value) <= 1:
        raise InputError(f"{name}={value}: a Reptile rate goes part of the way or all of it; use 0 < {name} <= 1")


def check_strength(value: float) -> None:
    """Raise InputError for a strength (the weight of a term in a sum) that is negative or not a number."""
    if not 0 <= real("strength", value) < math.inf:
        raise InputError(f"strength={value}: use a number of at least 0")


def check_count(name: str, value: int, meaning: str) -> None:
    """Raise InputError for a number of things that is not a whole number of at least one."""
    if whole(name, value) < 1:
        raise InputError(f"{name}={value}: {meaning}; use {name} >= 1")
