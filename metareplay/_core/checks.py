"""Checks of what users give, in one place: every wrong value is refused by one line that says what to give instead."""

import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from metareplay.errors import InputError, MetareplayError

Kind = TypeVar("Kind")
LONGEST_NAME = 255  # bytes of the name of a file or folder, on all usual file systems
LONGEST = 60  # characters of a value to show in a message
CGROUP = Path("/sys/fs/cgroup/memory.max")  # how much memory a container may use


def shown(value: object) -> str:
    """Return a value as a message shows it: in one line, and not too long.

    >>> shown("a\\nb"), shown(10**99)[-9:]
    ("'a\\\\nb'", '000000...')
    """
    try:
        text = repr(value)
    except Exception:  # a number of too many digits, or an object that cannot describe itself
        text = described(value)
    return shortened(text)


def shortened(text: str) -> str:
    """Return a text, such as a name from a file, as a message shows it: in one line, and not too long.

    >>> shortened("a\\nb"), shortened("x" * 99)[-9:]
    ('a b', 'xxxxxx...')
    """
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def whole(name: str, value: object) -> int:
    """Return a whole number as Python's int, whatever library it comes from."""
    try:
        return int(operator.index(value))  # type: ignore[arg-type]
    except Exception as error:
        raise InputError(f"{name}={shown(value)}: use a whole number") from error


def real(name: str, value: object) -> float:
    """Return a number as Python's float, whatever library it comes from."""
    try:
        return float(value if not isinstance(value, (str, bytes)) else "not a number")  # type: ignore[arg-type]
    except Exception as error:
        raise InputError(f"{name}={shown(value)}: use a number") from error


def instance(name: str, value: Kind, kind: type[Any], wanted: str) -> Kind:
    """Return a value if it is of a class; otherwise raise InputError.

    Args:
        name: What the value is called.
        value: The value.
        kind: The class.
        wanted: What to use instead, such as "a Memory, for instance Reservoir(500)".
    """
    if not isinstance(value, kind):
        raise InputError(f"{name} is {described(value)}: use {wanted}")
    return value


def described(value: object) -> str:
    """Say of which class a value is, with its article.

    >>> described(3), described(None), described([])
    ('an int', 'None', 'a list')
    """
    if value is None:
        return "None"
    kind = type(value).__name__
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"


def text(name: str, value: object) -> str:
    """Return a text; otherwise raise InputError."""
    if not isinstance(value, str):
        raise InputError(f"{name}={shown(value)}: use a text")
    return value


def line(name: str, value: object) -> str:
    """Return a text of one line, such as a name that appears in messages; otherwise raise InputError."""
    found = text(name, value)
    if "".join(found.splitlines()) != found:
        raise InputError(f"{name}={shown(value)}: use a text of one line")
    return found


def mapping(name: str, value: object) -> dict[str, Any]:
    """Return a dictionary whose keys are texts, such as options by name; otherwise raise InputError."""
    if not isinstance(value, Mapping) or not all(isinstance(one, str) for one in value):
        raise InputError(f"{name}={shown(value)}: use a dictionary, such as {{'lr': 0.1}}")
    return dict(value)


def flag(name: str, value: object) -> bool:
    """Return True or False as Python's bool, even if it comes from NumPy or torch, or is 0 or 1."""
    try:
        number = value.item() if hasattr(value, "item") else value
        if isinstance(number, int) and number in (0, 1):
            return bool(number)
    except Exception as error:  # an array of several values
        raise InputError(f"{name}={shown(value)}: use True or False") from error
    raise InputError(f"{name}={shown(value)}: use True or False")


def function(name: str, value: object) -> Callable[..., Any]:
    """Return something that can be called; otherwise raise InputError."""
    if not callable(value):
        raise InputError(f"{name}={shown(value)}: use a function")
    return value


def answer(name: str, asked: Callable[..., Kind], *given: object) -> Kind:
    """Call a function of the user's; an error that it raises becomes an InputError of one line.

    Args:
        name: What the function is called.
        asked: The function.
        given: What it is given.

    >>> answer("where", len, [1, 2])
    2
    """
    try:
        return asked(*given)
    except MetareplayError:
        raise
    except Exception as error:
        said = next(iter(str(error).strip().splitlines()), "")
        raise InputError(f"{name} failed ({type(error).__name__}: {said[:200]}): check the function") from error


def several(name: str, values: object, wanted: str) -> list[Any]:
    """Return what can be iterated over as a list; otherwise raise InputError, also for a text.

    Args:
        name: What the values are called.
        values: The values.
        wanted: What to use instead, such as "a list of whole numbers".
    """
    try:
        if isinstance(values, Iterable) and not isinstance(values, (str, bytes)):
            return list(values)
    except Exception as error:  # torch's single numbers say that they can be iterated over
        raise InputError(f"{name}={shown(values)}: use {wanted}") from error
    raise InputError(f"{name}={shown(values)}: use {wanted}")


def choice(name: str, value: object, known: Sequence[str], otherwise: str = "") -> str:
    """Return one of several words; otherwise raise InputError.

    Args:
        name: What the value is called.
        value: The value.
        known: The words.
        otherwise: What else can be used, for the message.
    """
    if not isinstance(value, str) or value not in known:
        words = [*map(repr, known), *([otherwise] if otherwise else [])]
        wanted = " or ".join(words) if len(words) == 2 else f"one of {', '.join(words[:-1])}, or {words[-1]}"
        raise InputError(f"{name}={shown(value)}: use {wanted}")
    return value


def whole_numbers(name: str, values: object) -> tuple[int, ...]:
    """Return several whole numbers of at least one, such as the widths of layers."""
    found = tuple(whole(name, value) for value in several(name, values, "a list of whole numbers"))
    if min(found, default=1) < 1:
        raise InputError(f"{name}={shown(values)}: each must be at least one unit; use whole numbers of at least 1")
    return found


def path_of(name: str, value: object) -> Path:
    """Return a path, or raise InputError for what cannot be one."""
    try:
        path = Path(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise InputError(f"{name} is {described(value)}: use a path") from error
    if not str(path).isprintable():
        raise InputError(f"{name}={shown(str(path))}: use a path without line breaks and control characters")
    return path


def place_of(name: str, value: object) -> Path:
    """Return a path like `path_of`, or raise InputError if no file system takes its names."""
    path = path_of(name, value)
    if max((len(os.fsencode(part)) for part in path.parts), default=0) > LONGEST_NAME:
        raise InputError(f"{name}={shown(str(path))}: File name too long; use at most {LONGEST_NAME} bytes")
    return path


def check_rate(name: str, value: float) -> None:
    """Raise InputError for a learning rate that is not a positive number."""
    if not (math.isfinite(real(name, value)) and real(name, value) > 0):
        raise InputError(f"{name}={shown(value)}: use a positive number")


def check_share(name: str, value: float) -> None:
    """Raise InputError for a Reptile rate outside 0 < rate <= 1: it is the share of the way from old to new weights."""
    if not 0 < real(name, value) <= 1:
        raise InputError(
            f"{name}={shown(value)}: a Reptile rate goes part of the way or all of it; use 0 < {name} <= 1"
        )


def check_strength(value: float) -> None:
    """Raise InputError for a strength (the weight of a term in a sum) that is negative or not a number."""
    if not 0 <= real("strength", value) < math.inf:
        raise InputError(f"strength={shown(value)}: use a number of at least 0")


def check_count(name: str, value: int, meaning: str) -> None:
    """Raise InputError for a number of things that is not a whole number of at least one."""
    if whole(name, value) < 1:
        raise InputError(f"{name}={shown(value)}: {meaning}; use {name} >= 1")


def check_room(name: str, value: object, size: int) -> None:
    """Raise InputError for a number that would need more memory than this machine has.

    Args:
        name: The option.
        value: What was given for it.
        size: How many bytes it would need, at least.
    """
    most = memory_of_this_machine()
    if size > most:
        needed = f"{size / 2**30:.0f}" if size < 2**70 else "far more than a million"
        raise InputError(
            f"{name}={shown(value)} would need {needed} GiB of memory, and this machine has {most / 2**30:.0f}: use "
            f"less"
        )


@cache
def memory_of_this_machine() -> int:
    """Return how many bytes of memory this machine has, or the container that we are in."""
    try:
        most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows does not say
        most = 2**46
    try:
        return min(most, int(CGROUP.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit
        return most
