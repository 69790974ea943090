"""What users ask of a memory: which examples to remove, and how often each is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metareplay._core.checks import answer, described, function, several, shown, whole
from metareplay._core.columns import Columns
from metareplay._core.draws import Ints
from metareplay.errors import InputError

if TYPE_CHECKING:
    from metareplay.memories.memory import Memory


def slots_to_remove(
    memory: Memory, where: Callable[[Columns], Any] | None, numbers: Iterable[int] | None, older_than: int | None
) -> Ints:
    """Return the slots of the examples that `Memory.remove` is asked to remove.

    Args:
        memory: The memory.
        where: A condition on the columns of examples.
        numbers: Numbers of examples in the stream.
        older_than: How many of the last examples are to stay.
    """
    if where is None and numbers is None and older_than is None:
        raise InputError("nothing says what to remove: give where=..., numbers=... or older_than=...")
    wanted = None if numbers is None else _whole_numbers(numbers)
    oldest = None if older_than is None else memory.seen - whole("older_than", older_than)
    gone = [np.zeros(0, np.int64)]
    for slots, held in memory.pieces():
        of_slots, chosen = memory.numbers_of(slots), np.zeros(len(slots), np.bool_)
        if wanted is not None:
            chosen |= np.isin(of_slots, wanted)
        if oldest is not None:
            chosen |= (of_slots >= 0) & (of_slots < oldest)
        if where is not None:
            chosen |= _mask(function("where", where), held)
        gone.append(slots[chosen])
    return np.concatenate(gone)


def weights_of(memory: Memory, weights: Any) -> NDArray[np.float64]:
    """Return the weight of each slot, 1 for those that hold nothing, as `Memory.weigh` is asked to set them.

    Args:
        memory: The memory.
        weights: A weight for each example held, in slot order, or a function of examples.
    """
    given = [answer("weights", weights, held) for _, held in memory.pieces()] if callable(weights) else [weights]
    try:
        found = np.concatenate([np.asarray(torch.as_tensor(one).cpu(), np.float64) for one in given])
    except Exception as error:
        raise InputError(f"weights={shown(weights)}: give one number for each example") from error
    if found.shape != (len(memory),) or not np.isfinite(found).all() or (found < 0).any() or not found.any():
        raise InputError(
            f"weights of shape {found.shape} for {len(memory)} examples: give each a weight of at least 0, not all 0"
        )
    made = np.ones(memory.capacity)
    made[np.sort(memory.filled)] = found
    return made


def _whole_numbers(numbers: object) -> Ints:
    """Return numbers of examples; those that no example can have stand for none."""
    found = (whole("numbers", one) for one in several("numbers", numbers, "a list of whole numbers"))
    return np.array([one for one in found if 0 <= one < 2**63], np.int64)


def _mask(where: Callable[[Columns], Any], held: Columns) -> NDArray[np.bool_]:
    """Ask for each of some examples whether a condition of the user's holds."""
    told = answer("where", where, held)
    try:
        mask = np.asarray(told.cpu() if isinstance(told, Tensor) else told)
    except Exception as error:
        raise InputError(f"where returned {described(told)}: return True or False for each example") from error
    if mask.dtype != np.bool_ or mask.shape != (len(held),):
        raise InputError(
            f"where returned {mask.dtype} of shape {mask.shape} for {len(held)} examples: return True or False for each"
        )
    return mask
