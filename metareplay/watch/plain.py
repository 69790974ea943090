"""Plain values from files that anybody may have written: what is not as it should be becomes None, or is cut off."""

import json
from pathlib import Path
from typing import Any, Final

LARGEST: Final = 4_000_000  # bytes of a file that is read
LONGEST: Final = 500_000  # characters of a text, and entries of a list
DEEPEST: Final = 8  # lists in lists


def read_document(path: Path) -> dict[str, Any] | None:
    """Read a JSON document; None if it cannot be read, or is anything else, such as a pipe, which might never end.

    Args:
        path: The file.
    """
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        found = json.loads(content) if len(content) <= LARGEST else None
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def plain(value: object, depth: int = 0) -> Any:
    """Return a value that JSON can write, without numbers that are not finite, and without what is nested too deeply.

    Args:
        value: Anything.
        depth: How deep it is nested in something else.

    >>> plain({"a": [1, float("nan"), "x"], "b": object()})
    {'a': [1, None, 'x'], 'b': None}
    """
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (int, float)):
        return number(value)
    if isinstance(value, str):
        return text(value, LONGEST)
    if depth > DEEPEST:
        return None
    if isinstance(value, (list, tuple)):
        return [plain(one, depth + 1) for one in value[:LONGEST]]
    if isinstance(value, dict):
        return {text(name): plain(one, depth + 1) for name, one in value.items()}
    return None


def number(value: object) -> int | float | None:
    """Return a finite number of a size that a browser can hold; None for anything else.

    Args:
        value: Anything.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if -1e300 < value < 1e300 else None  # False for NaN, too


def text(value: object, longest: int = 300) -> str:
    """Return a text that is not too long, and that can be written as UTF-8.

    Args:
        value: Anything; what is no text becomes one.
        longest: How many characters are kept.
    """
    found = value if isinstance(value, str) else "" if value is None else str(value)
    return found[:longest].encode(errors="replace").decode()
