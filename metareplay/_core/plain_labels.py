"""Labels as Python values, and as plain JSON values in files."""

import math
from collections.abc import Hashable, Iterable
from typing import Any

from metareplay._core.checks import described, shown
from metareplay.errors import CheckpointError, InputError


def labels_in(ys: object, name: str = "y") -> list[Hashable]:
    """Return labels as a list of Python values, or raise InputError.

    Args:
        ys: A tensor, an array, a list, or anything else that can be iterated over.
        name: What to call them in a message.
    """
    listed = ys.tolist() if hasattr(ys, "tolist") else ys
    if isinstance(listed, str | bytes) or not isinstance(listed, Iterable):
        raise InputError(f"{name} is {described(ys)}: give a list with one label for each example")
    found = [one.tolist() if hasattr(one, "dtype") else one for one in listed]  # of NumPy or torch
    for label in found:
        try:
            hash(label)
        except TypeError as error:
            raise InputError(f"a label is {described(label)}, which cannot be hashed: use text, or a number") from error
        if isinstance(label, float) and math.isnan(label):
            raise InputError("a label is NaN, which equals no label: leave the example out, or name the class")
    return found


def written(labels: Iterable[Hashable]) -> list[Any]:
    """Return labels as plain JSON values, or raise InputError; a tuple becomes a list, which no label is.

    Args:
        labels: The labels.
    """
    found = list(labels)
    for label in found:
        if not _is_plain(label):
            raise InputError(
                f"the label {shown(label)} cannot be written to a file: use text, numbers, True, False, None, or tuples"
            )
    return found


def readable(labels: Iterable[object]) -> list[Any]:
    """Return labels as plain JSON values, for a record; what JSON does not have is described.

    Args:
        labels: The labels.
    """
    return [label if _is_plain(label) else shown(label) for label in labels]


def read(saved: object) -> list[Hashable]:
    """Return labels that `written` wrote; raise CheckpointError for anything else.

    Args:
        saved: The labels as plain JSON values.
    """
    try:
        found = labels_in(with_tuples(saved))
        if not isinstance(saved, list) or len(set(found)) < len(found):
            raise InputError("a label is there twice")
    except InputError as error:
        raise CheckpointError(f"the labels are damaged ({error}): use an earlier checkpoint") from error
    return found


def with_tuples(values: Any) -> Any:
    """Return the same values with a tuple for every list among the labels.

    Args:
        values: A list of labels, or anything else.
    """
    listed = values.tolist() if hasattr(values, "tolist") else values
    return [_tuple(one) for one in listed] if isinstance(listed, list | tuple) else listed


def _tuple(label: Any) -> Any:
    return tuple(map(_tuple, label)) if isinstance(label, list | tuple) else label


def _is_plain(label: object) -> bool:
    if isinstance(label, tuple):
        return all(map(_is_plain, label))
    return label is None or type(label) in (bool, int, float, str)
