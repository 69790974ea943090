"""Text in several languages, as bytes: from folders of files, or made up."""

import gzip
import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import numpy as np
import torch
from torch import Tensor

from metareplay._core.checks import (
    check_count,
    check_room,
    instance,
    line,
    memory_of_this_machine,
    place_of,
    several,
    shown,
    whole,
)
from metareplay._core.draws import Draws
from metareplay.errors import DataError, InputError
from metareplay.networks.initial import checked_seed

HELD_OUT: Final = 20  # one file out of this many is for testing
LEAST: Final = 100  # bytes of a made-up text


@final
@dataclass(frozen=True)
class Language:
    """Hold the text of one language.

    Args:
        name: What it is called.
        train: The bytes to learn.
        test: Bytes that are never learned.
    """

    name: str
    train: Tensor
    test: Tensor

    def __post_init__(self) -> None:
        """Refuse what is no text."""
        line("name", self.name)
        for name in ("train", "test"):
            value = instance(name, getattr(self, name), Tensor, "the bytes of a text, as a tensor of uint8")
            if value.dtype != torch.uint8 or value.dim() != 1:
                raise InputError(
                    f"{name} is {value.dtype} of shape {tuple(value.shape)}: use uint8 with one byte per entry"
                )

    def check_length(self, length: int) -> None:
        """Raise InputError if the texts are too short for a row.

        Args:
            length: How many bytes a row has.
        """
        if min(len(self.train), len(self.test)) < length:
            raise InputError(
                f"{self.name} has {len(self.train)} bytes to learn and {len(self.test)} to test, and a row has "
                f"{length}: use a shorter context, or more text"
            )

    def rows(self, count: int, length: int, seed: Sequence[int]) -> Tensor:
        """Return rows of bytes from random places of the text to learn.

        Args:
            count: How many rows.
            length: How many bytes per row.
            seed: Whole numbers that decide the places.
        """
        count, length = self._checked(count, length, len(self.train))
        seeds = [checked_seed(one) for one in several("seed", seed, "a list of whole numbers")]
        starts = np.random.default_rng(seeds).integers(len(self.train) - length + 1, size=count)
        return self.train[torch.from_numpy(starts[:, None] + np.arange(length))]

    def test_rows(self, count: int, length: int) -> Tensor:
        """Return rows from evenly spaced places of the test text.

        Args:
            count: The largest number of rows.
            length: How many bytes per row.
        """
        count, length = self._checked(count, length, len(self.test))
        starts = np.unique(np.linspace(0, len(self.test) - length, count).astype(np.int64))
        return self.test[torch.from_numpy(starts[:, None] + np.arange(length))]

    def _checked(self, count: int, length: int, size: int) -> tuple[int, int]:
        """Return how many rows of which length; raise InputError if a text of this size does not have them."""
        count, length = whole("count", count), whole("length", length)
        if count < 0:
            raise InputError(f"count={shown(count)}: use a number of rows, 0 or more")
        check_count("length", length, "a row has at least one byte")
        if length > size:
            raise InputError(f"length={shown(length)}: {self.name} has {size} bytes; use a shorter length")
        check_room("count", count, 8 * count * length)
        return count, length

    def fingerprint(self) -> str:
        """Return a hash of the text."""
        return hashlib.sha256(self.train.numpy().tobytes() + b"|" + self.test.numpy().tobytes()).hexdigest()[:16]


def read_languages(folders: Sequence[str | Path], length: int = 513) -> list[Language]:
    """Read one language from each of some folders, with all files inside; those that end with .gz are unpacked.

    One file of twenty is kept for testing; of a single file, its last twentieth. Links are not followed.

    Args:
        folders: The folders, in the order in which the languages are learned. They give the languages their names.
        length: How many bytes a row has. Each language must have enough of them.
    """
    check_count("length", length, "a row has one byte at least")
    found = []
    for folder in several("folders", folders, "a list of folders"):
        place = place_of("folder", folder)
        files = sorted(file for file in place.rglob("*") if file.is_file() and not file.is_symlink())
        if not files:
            raise DataError(f"there are no files in {place}: give folders with text, one for each language")
        texts = [_text(file) for file in files]
        if len(texts) == 1:
            cut = len(texts[0]) - len(texts[0]) // HELD_OUT
            train, test = texts[0][:cut], texts[0][cut:]
        else:
            spared = set(range(HELD_OUT - 1, len(texts), HELD_OUT)) or {len(texts) - 1}
            train = b"\n".join(text for i, text in enumerate(texts) if i not in spared)
            test = b"\n".join(text for i, text in enumerate(texts) if i in spared)
        if min(len(train), len(test)) < length:
            raise DataError(
                f"{place} has too little text, {len(train)} bytes to learn and {len(test)} to test: add some"
            )
        found.append(Language(place.name, _bytes(train), _bytes(test)))
    if len({language.name for language in found}) != len(found):
        raise InputError("two folders have the same name: rename one, so that tables can tell the languages apart")
    return found


def made_up(count: int = 4, size: int = 40_000, seed: int = 0) -> list[Language]:
    """Make up languages, each with an alphabet of its own that overlaps with others, and with a few hundred words.

    Args:
        count: How many languages.
        size: How many bytes of text each has.
        seed: Decides the words and the texts.
    """
    check_count("count", count, "there is one language at least")
    if whole("size", size) < LEAST:
        raise InputError(f"size={shown(size)}: use at least {LEAST} bytes")
    check_room("size", size, whole("size", size) * whole("count", count) * 8)
    seed = Draws(seed).seed
    found = []
    for number in range(count):
        random = np.random.default_rng([seed, number])
        letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)[random.permutation(26)[:12]]
        words = [bytes(random.choice(letters, size=random.integers(2, 8)).tolist()) for _ in range(200)]
        often = 1 / np.arange(1, len(words) + 1)
        drawn = random.choice(len(words), size=size // 3, p=often / often.sum())
        text = b" ".join(words[i] for i in drawn)[:size]
        cut = size - size // 10
        found.append(Language(f"language {number + 1}", _bytes(text[:cut]), _bytes(text[cut:])))
    return found


def _text(file: Path) -> bytes:
    try:
        if file.suffix != ".gz":
            return file.read_bytes()
        most = memory_of_this_machine() // 8
        with gzip.open(file) as packed:
            text = packed.read(most + 1)
        if len(text) > most:
            raise DataError(f"{file} holds more than {most} bytes: unpack it, or remove it")
        return text
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"cannot read {file}: {' '.join(str(error).split())}; remove it, or get it again") from error


def _bytes(text: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(text, np.uint8).copy())
