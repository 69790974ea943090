"""Everything here relies on names that numba keeps private; no other module of the package uses such a name.

A later numba may rename them. Nothing breaks then, and results stay the same, bit for bit: without `_nrt` the kernels
count references and take about twice as long, without `_source_stamp` they are compiled anew by every process, and
without `_tm_features` they do not use AVX-512's compress instruction. The first two are logged as warnings. Without
`entry_point` a call on a single example takes 7 us longer. (Without `_version`, machine code on disk that was made
before a class of the kernels was renamed has to be deleted by hand.)

Checked by `tests/_core/test_numba_private.py` and the tests of the CPU engine with numba 0.60.0 (the oldest that the
package allows), 0.65.1 and 0.68.1.
"""

import hashlib
import logging
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit, typeof
from numba.core import cpu

logger = logging.getLogger("metareplay")


def cached_njit(function: Callable[..., Any], options: dict[str, Any], stamp: str) -> Any:
    """Compile a function on its first call and keep the machine code on disk for as long as the stamp stays the same.

    By itself numba discards what is on disk only when the file of the function that is called has changed, not when
    the file of a function that it calls has.

    Args:
        function: The Python function.
        options: The options for `njit`, in addition to those set here.
        stamp: A word that changes when any of the sources changes.
    """
    options = options | _no_reference_counts()
    made: Any = njit(cache=True, **options)(function)
    file: Any = getattr(getattr(made, "_cache", None), "_cache_file", None)
    if hasattr(file, "_source_stamp"):
        file._source_stamp = stamp
        if hasattr(file, "_version"):  # looked at before anything is unpickled, which fails if a class was renamed
            file._version = f"{file._version} {stamp}"
        return made
    _warn("this version of numba has no _source_stamp: compiled code is made anew by every process")
    return njit(**options)(function)


def entry_point(function: Callable[..., Any], *arguments: Any) -> Callable[..., Any] | None:
    """Return the machine code for arguments of these types, which can be called without looking at the types again.

    Whoever calls it must give arguments of exactly these types: nothing checks them.

    Args:
        function: What `cached_njit` returned.
        arguments: Some arguments.

    Returns:
        None if the function has not been compiled for these types yet, or numba does not say where the code is.
    """
    overloads: Any = getattr(function, "overloads", {})
    found = overloads.get(tuple(map(typeof, arguments)))
    code: Callable[..., Any] | None = getattr(found, "entry_point", None)
    return code


def source_stamp(folder: Path, names: Sequence[str]) -> str:
    """Return a word that changes when this file changes, or any file that compiled functions come from.

    Args:
        folder: Where these files are.
        names: Their names.
    """
    files = (Path(__file__), *(folder / name for name in names))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def has_avx512(context: Any) -> bool:
    """Return whether numba compiles for a CPU with AVX-512; False where numba does not say.

    Args:
        context: The target context that numba passes to the code generator of an intrinsic.
    """
    return "+avx512f" in getattr(context.codegen(), "_tm_features", "")


def _no_reference_counts() -> dict[str, Any]:
    """Return the option that leaves out reference counting: the kernels allocate nothing, so there is nothing to count.

    It halves the time of a step.
    """
    if hasattr(getattr(cpu, "CPUTargetOptions", None), "_nrt"):
        return {"_nrt": False}
    _warn("this version of numba has no option _nrt: compiled code counts references and is slower")
    return {}


@cache
def _warn(remark: str) -> None:
    """Log a warning, once."""
    logger.warning(remark)
