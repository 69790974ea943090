"""Settings in a few words, and what the settings of different seeds have in common."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from metareplay._core.rows import plain_text
from metareplay.experiments.folder import NAMES

NOT_TOLD: Final = {"seed", "engine", "memory", "loss", "regression", "classes", "head"}  # told elsewhere, or rarely set


def without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return a dictionary without some of its entries.

    Args:
        values: The dictionary.
        names: The names of the entries to leave out.
    """
    return {name: value for name, value in values.items() if name not in names}


def identity(*parts: Any) -> str:
    """Return plain JSON values as one text that is the same for equal values.

    Args:
        parts: The values.
    """
    return json.dumps(parts, sort_keys=True)


def shown_name(kind: str) -> str:
    """Return the name of a class as the command line has it; a user's own class keeps its name.

    Args:
        kind: The name of the class.
    """
    return NAMES.get(kind, kind)


def options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a learner that are set, without its memory and its seed.

    Args:
        settings: All settings.
    """
    return {name: value for name, value in settings.items() if name not in NOT_TOLD and value is not None}


def memory_of(settings: Mapping[str, Any]) -> tuple[int | None, str]:
    """Return the capacity and the kind of a learner's memory; None and nothing if it has none.

    Args:
        settings: All settings.
    """
    memory = settings.get("memory")
    if not isinstance(memory, dict):
        return None, ""
    capacity = memory.get("capacity")
    return (int(capacity) if capacity is not None else None), str(memory.get("kind", "own")).lower()


def told(values: Mapping[str, Any]) -> str:
    """Return settings in a few words.

    Args:
        values: The settings.

    >>> told({"lr": 0.1, "shape": [784], "clip": None})
    'lr 0.1, shape 784'
    """
    return ", ".join(f"{name} {_word(value)}" for name, value in values.items() if value is not None)


def all_of(values: Iterable[str]) -> str:
    """Return different texts in one line.

    Args:
        values: The texts.
    """
    return ", ".join(sorted({value for value in values if value}))


def versions_of(records: Sequence[Mapping[str, str]]) -> str:
    """Return the versions behind some runs in one line.

    Args:
        records: The versions of each run.
    """
    names = dict.fromkeys(name for one in records for name in one)
    found = {name: all_of(str(one.get(name, "")) for one in records) for name in names}
    return "; ".join(f"{name} {value}" for name, value in found.items() if value)


def _word(value: Any) -> str:
    if isinstance(value, dict):
        return f"({told(value)})"
    if isinstance(value, list):
        return " ".join(map(_word, value))
    return plain_text(value)
