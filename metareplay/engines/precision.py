"""Full float32 on a GPU: torch lets convolutions lose 13 of 23 bits (tf32) unless told otherwise."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_lock = threading.Lock()
Settings = list[tuple[Any, str, Any]]  # an object, the name of its setting, a value
_inside: list[Settings] = []  # one for each thread inside; together, what the last one puts back


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Arithmetic in float32 proper, by algorithms that give the same numbers every time; afterwards as before.

    The settings are those of the whole process, so the last thread that leaves puts them back.
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
    """Change what has to be changed; what it was."""
    before = []
    for holder, name, value in _wanted():
        if getattr(holder, name) != value:
            before.append((holder, name, getattr(holder, name)))
            setattr(holder, name, value)
    return before


def _wanted() -> Settings:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    same = [(cudnn, "deterministic", True), (cudnn, "benchmark", False)]
    if not hasattr(cudnn, "conv"):  # torch before 2.9
        return [(cudnn, "allow_tf32", False), (matmul, "allow_tf32", False), *same]
    parts = [cudnn.conv, cudnn.rnn, *([] if _by_old_name(matmul) else [matmul])]
    exact = [(part, "fp32_precision", "ieee") for part in parts if part.fp32_precision == "tf32"]
    return [*exact, *([(matmul, "allow_tf32", False)] if _by_old_name(matmul) else []), *same]


def _by_old_name(matmul: Any) -> bool:
    """Whether the setting can be read by its old name: torch refuses that once it was changed by the new one."""
    try:
        return matmul.allow_tf32 is not None
    except RuntimeError:
        return False
