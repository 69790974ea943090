"""Triton's `jit` with types, which Triton's own lacks."""

from collections.abc import Callable
from functools import partial
from typing import Any

import triton


def jit(function: Callable[..., Any]) -> Any:
    """Compile a function for the GPU when it is first launched."""
    return triton.jit(function)


def jit_for_any(*numbers: str) -> Callable[[Callable[..., Any]], Any]:
    """Compile like `jit`, without specialising on these arguments.

    Otherwise Triton compiles the function again for values that are 1 or a multiple of 16.

    Args:
        numbers: The names of whole-number arguments.
    """
    return partial(triton.jit, do_not_specialize=list(numbers))
