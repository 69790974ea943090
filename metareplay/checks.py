"""Options checked once, with an error that says what to do."""

import math

from metareplay.errors import InputError


def check_rate(name: str, value: float) -> None:
    """A learning rate: any positive number."""
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name}={value}: use a positive number")


def check_share(name: str, value: float) -> None:
    """A Reptile rate: how far to go from the old weights to the new ones."""
    if not 0 < value <= 1:
        raise InputError(f"{name}={value}: a Reptile rate goes part of the way or all of it; use 0 < {name} <= 1")


def check_count(name: str, value: int, meaning: str) -> None:
    """A number of things, at least one."""
    if value < 1:
        raise InputError(f"{name}={value}: {meaning}; use {name} >= 1")
