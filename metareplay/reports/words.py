"""Settings in a few words, and what the settings of different seeds have in common."""

import json
import re
from collections import Counter
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


def parts_of(model: str) -> Counter[str]:
    """Count the parts of a module whatever their order: with shuffled tasks, the seed decides the order of heads.

    Args:
        model: The module in one line.

    >>> sorted(parts_of("Heads( (0-1): 2 x Linear(4, 9) (2): Linear(4, 2) ) with first weights by hand").items())
    [('Heads(', 1), ('Linear(4, 2)', 1), ('Linear(4, 9)', 2), ('with first weights by hand', 1)]
    """
    counts = Counter[str]()
    for part in re.split(r"\([\w-]+\): | \)", model):
        found = re.fullmatch(r"(\d{1,6}) x (.*)", part.strip())
        counts[found[2] if found else part.strip()] += int(found[1]) if found else 1
    return counts


def network_words(model: str) -> dict[str, str]:
    """Return by which words networks can be told apart: the kinds of their layers, and how the first weights are drawn.

    Args:
        model: The module in one line.

    >>> told(network_words("Net( (0): Linear(4, 9) (1): ReLU() ) with first weights by hand"))
    'Linear, Net, ReLU, first weights by hand'
    """
    layers = dict.fromkeys(sorted(set(re.findall(r"\b([A-Z]\w*)\(", model))), "")
    _, _, how = model.partition(" with first weights ")
    return layers | ({"first weights": how} if how else {})


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
    return ", ".join(f"{name} {_word(value)}".strip() for name, value in values.items() if value is not None)


def moment(date: object) -> str:
    """Return a date and time as people write it, to the minute.

    Args:
        date: The date and time as a record has it.

    >>> moment("2026-01-02T03:04:05+00:00")
    '2026-01-02 03:04'
    """
    return str(date)[:16].replace("T", " ")


def distinct(names: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return names; where several settings share one, what differs between them is added.

    Args:
        names: The name of each setting.
        settings: The options of each setting.

    >>> distinct(["er", "mer", "mer"], [{"k": 5}, {"k": 5, "s": 2}, {"k": 6, "s": 2}])
    ['er', 'mer (k 5)', 'mer (k 6)']
    """
    alike: dict[str, list[Mapping[str, Any]]] = {}
    for name, values in zip(names, settings, strict=True):
        alike.setdefault(name, []).append(values)
    varied = {name: _varied(some) for name, some in alike.items()}
    found, times = list[str](), Counter[str]()
    for name, values in zip(names, settings, strict=True):
        what = told({field: values.get(field) for field in varied[name]})
        longer = f"{name} ({what})" if what else name
        times[longer] += 1
        found.append(f"{longer} #{times[longer]}" if times[longer] > 1 else longer)
    return found


def varied_options(settings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return of each learner's options those that not all of them share.

    Args:
        settings: All settings of each learner.
    """
    given = [options(one) for one in settings]
    names = _varied(given)
    return [{name: one[name] for name in names if name in one} for one in given]


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


def _varied(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the options that differ."""
    fields = dict.fromkeys(field for one in settings for field in one)
    return [field for field in fields if len({str(one.get(field)) for one in settings}) > 1]


def _word(value: Any) -> str:
    if isinstance(value, dict):
        return f"({told(value)})"
    if isinstance(value, list):
        return " ".join(map(_word, value))
    return plain_text(value)
