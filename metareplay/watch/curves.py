"""What a finished run measured, as the same curves that it had while it was running."""

from collections.abc import Iterable
from typing import Any

from metareplay.watch.plain import number

Curve = list[tuple[int | float, int | float]]


def curves_of(record: dict[str, Any]) -> dict[str, Curve]:
    """Return the curves of a record; none if it is broken, or of a kind that is not known.

    Args:
        record: The record as plain JSON values.
    """
    try:
        kind = record.get("kind", "run")
        found = _of_game(record) if kind == "game" else _of_scores(record) if kind == "prequential" else _of_run(record)
    except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError):
        return {}
    return {name: curve for name, curve in found.items() if curve}


def _of_run(record: dict[str, Any]) -> dict[str, Curve]:
    """Return the accuracy of each task; tasks are taken for equally long."""
    rows = record["accuracy"]
    each = record["examples"] / (len(rows) - 1)
    at = [round(row * each) for row in range(len(rows))]
    curves = {f"accuracy of task {task + 1}": _points(at, [row[task] for row in rows]) for task in range(len(rows[0]))}
    alignment = record.get("alignment")
    if alignment:
        curves["gradient alignment"] = _points(alignment["bounds"][1:], alignment["means"])
    return curves


def _of_scores(record: dict[str, Any]) -> dict[str, Curve]:
    """Return every score of a prequential run."""
    points = record["points"]
    names = [name for name in points if name != "examples"]
    return {f"prequential {name.replace('_', ' ')}": _points(points["examples"], points[name]) for name in names}


def _of_game(record: dict[str, Any]) -> dict[str, Curve]:
    """Return the mean score of each task."""
    scores = record["scores"]
    return {
        f"score of task {task + 1}": _points(record["frames"], [sum(one[task]) / len(one[task]) for one in scores])
        for task in range(len(scores[0]))
    }


def _points(at: Iterable[Any], values: Iterable[Any]) -> Curve:
    """Return the points whose place and value are known."""
    pairs = ((number(x), number(y)) for x, y in zip(at, values, strict=True))
    return [(x, y) for x, y in pairs if x is not None and y is not None]
