"""Tensors and plain JSON values in one safe file.

The file is a NumPy archive (a zip of plain arrays) with one JSON text inside it and a seal over all of its bytes.
Nothing is pickled, and the file is written whole or not at all. A reader trusts nothing that the file says: sizes are
compared with the size of the file before any memory is allocated.
"""

import errno
import json
import logging
import math
import os
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metareplay._core.checks import shortened, shown
from metareplay._core.files import write_atomically
from metareplay._core.interrupts import HeldBack
from metareplay._core.seal import ZIP_COMMENT, SealingWriter, check_zip
from metareplay._version import __version__
from metareplay.errors import CheckpointError

FORMAT = 1
logger = logging.getLogger("metareplay")


def write_archive(path: Path, about: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write an archive, whole or not at all.

    Args:
        path: The file to write.
        about: Plain JSON values.
        tensors: Tensors of any dtype, by name.
    """
    dtypes = {name: str(value.dtype) for name, value in tensors.items()}
    text = json.dumps({"format": FORMAT, "metareplay": __version__, **about, "dtypes": dtypes})
    write_arrays(path, {"about": np.array(text)} | {name: _array(value) for name, value in tensors.items()})


def read_archive(path: Path, needed: tuple[str, ...] = ()) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read a file that `write_archive` wrote; raise CheckpointError if it is anything else.

    Args:
        path: The file to read.
        needed: Names of JSON values that must be there.

    Returns:
        The JSON values, and the tensors.
    """
    damaged = f"{path} is damaged or not a metareplay checkpoint: use an earlier one, or start again (--fresh)"
    try:
        arrays = read_arrays(path, "checkpoint", damaged)
        about = json.loads(str(arrays.pop("about")))
        version, made_by = about["format"], about.get("metareplay")
    except CheckpointError:
        raise
    except Exception as error:  # a text of any kind, nested as deeply as a stranger likes
        raise CheckpointError(damaged) from error
    if version != FORMAT:
        there = f"format {shown(version)}, made by metareplay {shortened(str(made_by))}"
        raise CheckpointError(f"{path} has {there}; this version reads format {FORMAT}")
    dtypes = about.get("dtypes")
    missing = [name for name in (*needed, "dtypes") if name not in about]
    missing += [name for name in dtypes if name not in arrays] if isinstance(dtypes, dict) else []
    if missing:
        raise CheckpointError(f"{path} is damaged ({missing[0]} is missing): use an earlier one")
    try:
        return about, {name: _tensor(arrays[name], dtype) for name, dtype in dtypes.items()}
    except Exception as error:
        raise CheckpointError(damaged) from error


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays as a sealed NumPy archive, which `numpy.load` can read, whole or not at all.

    Args:
        path: The file to write.
        arrays: The arrays by name.
    """
    with HeldBack(), write_atomically(path) as file:  # zipfile does not survive an interrupt
        writer = SealingWriter(file)
        with zipfile.ZipFile(writer, "w") as archive:  # type: ignore[call-overload]
            archive.comment = ZIP_COMMENT
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
        writer.seal()


def read_arrays(path: Path, what: str, damaged: str) -> dict[str, NDArray[Any]]:
    """Read what `write_arrays` wrote; raise CheckpointError if it is anything else.

    Args:
        path: The file to read.
        what: What it should be, for messages.
        damaged: The message for a damaged file.

    Returns:
        The arrays by name.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116
            raise CheckpointError(damaged)
        with path.open("rb") as file:
            sealed = check_zip(file)
            with zipfile.ZipFile(file) as archive:
                found = _members(archive, os.fstat(file.fileno()).st_size)
    except FileNotFoundError as error:
        raise CheckpointError(f"no {what} at {path}: check the path") from error
    except CheckpointError:
        raise
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP):
            raise CheckpointError(f"cannot read {path}: {error.strerror}; check path and permissions") from error
        raise CheckpointError(damaged) from error
    except Exception as error:  # zipfile and NumPy raise almost anything on what is not theirs
        raise CheckpointError(damaged) from error
    if not sealed:
        logger.warning("%s carries no checksum: it was written by an earlier version", path)
    return found


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, under their names without the prefix."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _members(archive: zipfile.ZipFile, size: int) -> dict[str, NDArray[Any]]:
    """Read all arrays of an archive, after comparing the sizes that it declares with the size of the file."""
    members = archive.infolist()
    check_sizes(archive, size)
    if len({one.filename for one in members}) < len(members):
        raise ValueError("two arrays of one name")
    return {one.filename.removesuffix(".npy"): read_member(archive, one) for one in members}


def check_sizes(archive: zipfile.ZipFile, size: int) -> None:
    """Raise ValueError if what an archive holds is compressed, or is said to be larger than its file.

    Args:
        archive: The archive.
        size: The size of its file.
    """
    members = archive.infolist()
    if sum(one.file_size for one in members) > size or any(one.compress_type != zipfile.ZIP_STORED for one in members):
        raise ValueError("more content than the file has room for")


def read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    """Read one array to the end of its member, where zip's own checksum is compared.

    Raise ValueError if it is not as long as its header says, before memory is allocated for it.

    Args:
        archive: The archive.
        info: The member.
    """
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
        if dtype.hasobject or math.prod(shape) * dtype.itemsize != info.file_size - member.tell():
            raise ValueError("an array that is not as long as its header says")
    with archive.open(info) as member:
        array = np.lib.format.read_array(member, allow_pickle=False)
        if member.read(1):
            raise ValueError("something after the array")
    found: NDArray[Any] = array
    return found


def _array(value: Tensor) -> NDArray[Any]:
    """Convert to NumPy; bfloat16, which NumPy does not have, is stored as its bits."""
    value = value.detach().cpu().contiguous()
    return (value.view(torch.int16) if value.dtype == torch.bfloat16 else value).numpy()


def _tensor(array: NDArray[Any], dtype: str) -> Tensor:
    """Convert from NumPy; raise ValueError if the array does not have the dtype that the file says."""
    value = torch.from_numpy(array)
    value = value.view(torch.bfloat16) if dtype == "torch.bfloat16" else value
    if str(value.dtype) != dtype:
        raise ValueError(f"{value.dtype} instead of {dtype}")
    return value
