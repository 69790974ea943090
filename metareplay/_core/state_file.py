"""States of torch, such as those of models and optimizers, in a file with a checksum over all of it.

The file begins with a line that has the SHA-256 hash of everything after it; then comes what `torch.save` writes. It is
read with `weights_only`, so that no code is run, and only if all that it holds is as large as it is in the file.
"""

import hashlib
import io
import logging
import zipfile
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, cast, final

import torch

from metareplay._core.archive import check_sizes
from metareplay._core.files import read_file, write_atomically
from metareplay.errors import CheckpointError

logger = logging.getLogger("metareplay")

START: Final = b"metareplay state, sha256 "
LINE: Final = len(START) + 64 + 1


@final
class _HashingWriter:
    """Write to a file and hash what is written.

    Args:
        file: The file.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.hash = file, hashlib.sha256()

    def write(self, content: Any) -> int:
        """Write some bytes. There is no `seek`, so that everything is written once and in order."""
        self.hash.update(content)
        return self._file.write(content)

    def flush(self) -> None:
        """Do nothing: the file is flushed by who opened it."""


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Write a state, whole or not at all.

    Args:
        path: The file.
        state: Tensors and plain values, nested in any way that torch can read with `weights_only`.
    """
    with write_atomically(path) as file:
        file.write(START + b"0" * 64 + b"\n")
        writer = _HashingWriter(file)
        torch.save(state, cast(IO[bytes], writer))  # which calls write and flush only
        file.seek(0)
        file.write(START + writer.hash.hexdigest().encode() + b"\n")


def read_state(path: Path, device: str = "cpu") -> dict[str, Any]:
    """Read what `write_state` wrote; raise CheckpointError if it is damaged or anything else.

    Args:
        path: The file.
        device: Where tensors are put.
    """
    damaged = f"{path} is damaged or not a checkpoint: delete its folder, and start again"
    try:
        content = read_file(path)
        if content.startswith(b"PK"):
            logger.warning("%s carries no checksum: it was written by an earlier version", path)
            line = b""
        else:
            line = content[:LINE]
            if line != START + hashlib.sha256(content[LINE:]).hexdigest().encode() + b"\n":
                raise CheckpointError(damaged)
        archive = io.BytesIO(content[len(line) :])
        with zipfile.ZipFile(archive) as members:  # torch also reads other files, and believes the sizes in them
            check_sizes(members, len(content))
        archive.seek(0)
        found = torch.load(archive, map_location=device, weights_only=True)
    except CheckpointError:
        raise
    except Exception as error:  # torch raises almost anything on what is not its own
        raise CheckpointError(damaged) from error
    if not isinstance(found, dict):
        raise CheckpointError(damaged)
    return found
