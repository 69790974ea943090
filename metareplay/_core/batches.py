"""Batches of rows as training loops have them: dictionaries, tuples, lists or single tensors of one length."""

from collections.abc import Mapping, MutableMapping, Sequence
from copy import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metareplay._core.checks import described
from metareplay.errors import InputError

Array = Tensor | NDArray[Any]
Batch = Array | Sequence[Array] | Mapping[str, Array]


def columns_of(batch: Any) -> tuple[str, dict[str, Tensor]]:
    """Return the kind of a batch, and its parts by name; raise InputError for what is not a batch of rows.

    Args:
        batch: A dictionary, a tuple or a list of tensors or arrays with the same first dimension, or a single one.

    >>> columns_of((torch.zeros(2, 3), torch.ones(2)))[0]
    'tuple'
    """
    if isinstance(batch, Mapping):
        kind, parts = "dict", {str(name): value for name, value in batch.items()}
        if len(parts) < len(batch):
            raise InputError(f"two parts of a batch have the same name ({', '.join(map(repr, batch))}): rename one")
    elif isinstance(batch, (Tensor, np.ndarray)):
        kind, parts = "tensor", {"0": batch}
    elif isinstance(batch, (list, tuple)):
        kind, parts = "tuple", {str(i): value for i, value in enumerate(batch)}
    else:
        raise InputError(f"a batch is {described(batch)}: give a dictionary, a tuple or a single tensor")
    found = {}
    for name, value in parts.items():
        found[name] = _tensor(name, value)
        if found[name].dim() < 1:
            raise InputError(f"part {name!r} of a batch has no first dimension: give a batch of rows")
    lengths = {name: len(value) for name, value in found.items()}
    if len(set(lengths.values())) != 1:
        told = ", ".join(f"{name} {length}" for name, length in lengths.items()) or "no parts"
        raise InputError(f"the parts of a batch must have one length, and these have: {told}")
    return kind, found


def _tensor(name: str, value: Any) -> Tensor:
    """Return a part of a batch as a tensor whose rows can be copied."""
    if isinstance(value, Tensor):
        kinds = {"nested": value.is_nested, "quantized": value.is_quantized, "meta": value.is_meta}
        if any(kinds.values()) or value.layout != torch.strided:
            what = next((kind for kind, is_so in kinds.items() if is_so), "sparse")
            raise InputError(f"part {name!r} of a batch is a {what} tensor: give dense ones, padded to one length")
        return value.detach().resolve_conj().resolve_neg()
    if not isinstance(value, np.ndarray):
        raise InputError(f"part {name!r} of a batch is {described(value)}: give tensors or arrays")
    try:
        return torch.as_tensor(np.asarray(value, order="C"))  # torch knows no negative strides
    except (TypeError, ValueError) as error:
        raise InputError(f"part {name!r} of a batch has dtype {value.dtype}: use numbers that torch knows") from error


def batch_of(kind: str, columns: Mapping[str, Tensor]) -> Any:
    """Return parts as a batch of a kind; this is the inverse of `columns_of`.

    Args:
        kind: "dict", "tuple" or "tensor".
        columns: The parts by name.
    """
    if kind == "dict":
        return dict(columns)
    return columns["0"] if kind == "tensor" else tuple(columns[str(i)] for i in range(len(columns)))


def batch_like(batch: Any, columns: Mapping[str, Tensor]) -> Any:
    """Return parts as a batch of the same class as another one, such as a named tuple or a tokenizer's BatchEncoding.

    Args:
        batch: The other batch, which `columns_of` takes.
        columns: The parts, in the order of that batch.
    """
    parts = list(columns.values())
    if isinstance(batch, Mapping):
        found = dict(zip(batch, parts, strict=True))
        if type(batch) is dict or not isinstance(batch, MutableMapping):
            return found
        made = copy(batch)
        made.update(found)
        return made
    if isinstance(batch, (list, tuple)):
        return type(batch)(*parts) if hasattr(batch, "_fields") else parts if isinstance(batch, list) else tuple(parts)
    return parts[0]
