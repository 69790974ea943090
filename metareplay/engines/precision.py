"""Full float32 precision on a GPU. By default torch's convolutions use tf32, which drops 13 of 23 bits."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_lock = threading.Lock()
Settings = list[tuple[Any, str, Any]]  # an object, the name of its setting, a value
_inside: list[Settings] = []  # one entry per thread inside; together they hold what the last one has to restore


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Compute in full float32 inside this context, with algorithms that give the same numbers every time.

    torch's settings apply to the whole process, so the last thread that leaves restores them.

    Args:
        device: The device that computes; nothing is changed unless it is a GPU.
    """
    if device.type != "cuda":
        yield
        return
    with _lock:
        _inside.append([] if _inside else _change())
    try:
        yield
    finally:
        with _lock:
            before = _inside.pop(0)
            if _inside:
                _inside[0] += before
            for holder, name, value in [] if _inside else before:
                setattr(holder, name, value)


def _change() -> Settings:
    """Apply the settings and return the previous values."""
    before = []
    for holder, name, value in _wanted():
        if getattr(holder, name) != value:
            before.append((holder, name, getattr(holder, name)))
            setattr(holder, name, value)
    return before


def _wanted() -> Settings:
    """Return the settings for full precision, under the names that they have in this version of torch."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    same = [(cudnn, "deterministic", True), (cudnn, "benchmark", False)]
    if not hasattr(cudnn, "conv"):  # torch before 2.9
        return [(cudnn, "allow_tf32", False), (matmul, "allow_tf32", False), *same]
    parts = [cudnn.conv, cudnn.rnn, *([] if _by_old_name(matmul) else [matmul])]
    exact = [(part, "fp32_precision", "ieee") for part in parts if part.fp32_precision == "tf32"]
    return [*exact, *([(matmul, "allow_tf32", False)] if _by_old_name(matmul) else []), *same]


def _by_old_name(matmul: Any) -> bool:
    """Return True if the setting can be read by its old name, which torch refuses once it was set by its new name."""
    try:
        return matmul.allow_tf32 is not None
    except RuntimeError:
        return False
