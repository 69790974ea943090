"""Triton's decorator, with a type."""

from collections.abc import Callable
from functools import partial
from typing import Any

import triton


def jit(function: Callable[..., Any]) -> Any:
    """Compile a function for the GPU when it is launched."""
    return triton.jit(function)


def jit_for_any(*numbers: str) -> Callable[[Callable[..., Any]], Any]:
    """The same, and once for all values of these arguments: otherwise multiples of 16 are compiled for apart."""
    return partial(triton.jit, do_not_specialize=list(numbers))
