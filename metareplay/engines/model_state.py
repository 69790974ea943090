"""What a model computes with besides its weights: plain attributes, modes, hooks and the parts that it is made of."""

import sys
from argparse import Namespace
from enum import Enum
from types import SimpleNamespace
from typing import Any, final

import torch
from torch import nn

PLAIN = (bool, int, float, complex, str, bytes, type(None), Enum, torch.dtype)
TORCHS_OWN = frozenset(vars(nn.Module()))  # attributes
OF_THESE = ("_modules", "_buffers", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
NOT_FOLLOWED = sys.stdlib_module_names | {"torch", "numpy", "metareplay"}  # objects of classes from these packages
DEPTH = 6  # of containers and objects inside each other, at most


@final
class ModelState:
    """Remember what a module computes with besides its parameters, and tell whether it is still the same.

    Tensors that are attributes do not count: a forward pass may keep its results.

    Args:
        module: The module as it is now.

    >>> model = nn.Dropout(0.5)
    >>> state = ModelState(model)
    >>> state.changed()
    False
    >>> model.p = 0.2
    >>> state.changed()
    True
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._note()

    def _note(self) -> None:
        self._values, self._held = _read(self._module)
        self._copies = [_copy(one) for one in self._held]

    def changed(self) -> bool:
        """Return whether the module is another than it was; it takes a few microseconds if nothing was touched.

        Modes count as they are when the module learns: a module in evaluation mode is then woken with all its parts.
        """
        try:
            if self._held == self._copies:
                return False
        except Exception:  # tensors, for instance, cannot be compared; then a closer look is needed
            pass
        if _read(self._module)[0] != self._values:
            return True
        self._note()  # so that the next look is a short one
        return False


def _read(module: nn.Module) -> tuple[list[object], list[Any]]:
    """Return what a module computes with, as values that can be compared, and the containers that hold it."""
    values, held = list[object](), list[Any]()
    for part in module.modules():
        attributes = vars(part)
        held.append(attributes)
        values.append(part.training or not module.training)
        for name, given in attributes.items():
            if (name not in TORCHS_OWN or name in OF_THESE) and (value := _value(given, held, DEPTH)) is not None:
                values.append((name, value))
    return values, held


def _value(given: object, held: list[Any], depth: int) -> object:
    """Return a value in a form that can be compared; None if it does not count."""
    if isinstance(given, PLAIN):
        return repr(given)
    if callable(given):
        return id(given)
    if depth == 0:
        return None
    if isinstance(given, dict):
        held.append(given)
        found = [(repr(key), _value(value, held, depth - 1)) for key, value in given.items()]
        return [(key, value) for key, value in found if value is not None]
    if isinstance(given, list | tuple):
        held.extend([given] if isinstance(given, list) else [])
        return [_value(one, held, depth - 1) for one in given]
    if isinstance(given, set | frozenset):
        held.append(given)
        return sorted(map(repr, given))
    followed = type(given).__module__.partition(".")[0] not in NOT_FOLLOWED
    if hasattr(given, "__dict__") and (followed or isinstance(given, SimpleNamespace | Namespace)):
        return _value(vars(given), held, depth - 1)
    return None


def _copy(container: Any) -> Any:
    """Return a copy of a container, whose values are the very same objects."""
    kinds: tuple[type[Any], ...] = (dict, list, set, frozenset)
    return next(kind(container) for kind in kinds if isinstance(container, kind))
