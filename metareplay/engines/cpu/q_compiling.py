"""How the functions of deep Q-learning are compiled."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from metareplay._core.numba_private import cached_njit, source_stamp

Function = TypeVar("Function", bound=Callable[..., Any])

# Without fastmath every number is rounded as it is written here, in whatever function the code is used.
OPTIONS: dict[str, Any] = {"error_model": "numpy", "nogil": True}
FILES = ("simd.py", "layout.py", "products.py", "q_compiling.py", "convolutions.py", "q_steps.py")
STAMP = source_stamp(Path(__file__).parent, FILES)  # the files that decide the machine code


def compiled(function: Function) -> Function:
    """Compile a function for this CPU when it is first called, without the GIL, and keep the result on disk.

    Nothing may be allocated inside.

    Args:
        function: The function, written in the part of Python that numba compiles.
    """
    return cast(Function, cached_njit(function, OPTIONS, STAMP))


def inlined(function: Function) -> Function:
    """Compile a function into its callers: passing a whole net would take longer than the work itself.

    Args:
        function: The function, written in the part of Python that numba compiles.
    """
    return cast(Function, cached_njit(function, OPTIONS | {"forceinline": True}, STAMP))
