"""Tensors and plain JSON values in one safe file.

The file is a NumPy archive (a zip of plain arrays, each with its checksum) with one JSON text inside it. Nothing is
pickled, and the file is written whole or not at all.
"""

import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metareplay._core.files import write_atomically
from metareplay._version import __version__
from metareplay.errors import CheckpointError

FORMAT = 1


def write_archive(path: Path, about: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write an archive, whole or not at all.

    Args:
        path: The file to write.
        about: Plain JSON values.
        tensors: Tensors of any dtype, by name.
    """
    dtypes = {name: str(value.dtype) for name, value in tensors.items()}
    text = json.dumps({"format": FORMAT, "metareplay": __version__, **about, "dtypes": dtypes})
    arrays = {name: _array(value) for name, value in tensors.items()}
    with write_atomically(path) as file:
        np.savez(file, allow_pickle=False, about=np.array(text), **arrays)


def read_archive(path: Path, needed: tuple[str, ...] = ()) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read a file that `write_archive` wrote; raise CheckpointError if it is anything else.

    Args:
        path: The file to read.
        needed: Names of JSON values that must be there.

    Returns:
        The JSON values, and the tensors.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        about = json.loads(str(arrays.pop("about")))
        version = about["format"]
    except FileNotFoundError as error:
        raise CheckpointError(f"no checkpoint at {path}: check the path") from error
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise CheckpointError(f"{path} is damaged or not a metareplay checkpoint: use an earlier one") from error
    if version != FORMAT:
        made_by = about.get("metareplay")
        raise CheckpointError(
            f"{path} has format {version}, made by metareplay {made_by}; this version reads format {FORMAT}"
        )
    missing = [name for name in (*needed, "dtypes") if name not in about]
    missing += [name for name in about.get("dtypes", ()) if name not in arrays]
    if missing:
        raise CheckpointError(f"{path} is damaged ({missing[0]} is missing): use an earlier one")
    return about, {name: _tensor(arrays[name], dtype) for name, dtype in about["dtypes"].items()}


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, under their names without the prefix."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _array(value: Tensor) -> NDArray[Any]:
    """Convert to NumPy; bfloat16, which NumPy does not have, is stored as its bits."""
    value = value.detach().cpu().contiguous()
    return (value.view(torch.int16) if value.dtype == torch.bfloat16 else value).numpy()


def _tensor(array: NDArray[Any], dtype: str) -> Tensor:
    value = torch.from_numpy(array)
    return value.view(torch.bfloat16) if dtype == "torch.bfloat16" else value
