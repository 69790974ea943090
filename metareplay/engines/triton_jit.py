"""Triton's decorator, with a type."""

from collections.abc import Callable
from typing import Any

import triton


def jit(function: Callable[..., Any]) -> Any:
    """Compile a function for the GPU when it is launched."""
    return triton.jit(function)
