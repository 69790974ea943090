"""Handwritten characters of several alphabets, each drawn by several people."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from numbers import Integral
from threading import Lock
from typing import Any, Literal, final, get_args

import numpy as np
from numpy.typing import NDArray

from metareplay._core.checks import choice, described, line, shown
from metareplay.data.dataset_files import Bytes
from metareplay.errors import DataError, InputError

SIDE = 105  # pixels
PACKED = -(-SIDE * SIDE // 8)  # bytes that hold the bits of one drawing

Pixels = Literal["grey", "binary"]

_BLOCK = 200  # drawings that are unpacked at a time, so that they stay in the processor's cache
_making = Lock()  # so that threads share one copy of the images


@final
@dataclass(frozen=True, eq=False, repr=False)
class Characters:
    """Hold black and white drawings of 105x105 pixels, the same number of each character: `omniglot()`, or your own.

    >>> pixels = np.zeros((3, 2, 105, 105), bool)  # three characters, each drawn twice
    >>> Characters.from_pixels("blank", pixels, [0, 0, 1], ("Greek", "Latin"), ("alpha", "beta", "a"))
    Characters(name='blank', alphabets=2, characters=3, drawings=2)

    Args:
        name: A name for the data, which appears in records and messages.
        drawings: The bits of the drawings, 1 for ink, as `np.packbits` packs the 11,025 pixels of each: uint8 of shape
            (characters, drawings of each character, 1379). `images` returns pixels.
        alphabet: The number of each character's alphabet: 0, 0, ..., 1, 1, ..., in ascending order.
        alphabet_names: The name of each alphabet.
        character_names: The name of each character.
    """

    name: str
    drawings: Bytes
    alphabet: NDArray[np.int64]
    alphabet_names: tuple[str, ...]
    character_names: tuple[str, ...]
    _images: dict[tuple[int, str], Bytes] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Refuse arrays that do not fit together."""
        line("name", self.name)
        bits, alphabet = self.drawings, self.alphabet
        if not isinstance(bits, np.ndarray) or bits.dtype != np.uint8 or bits.ndim != 3 or bits.shape[2] != PACKED:
            raise DataError(f"{self.name}: drawings is {_form(bits)}; give uint8 of shape (characters, n, {PACKED})")
        if len(bits) < 1 or bits.shape[1] < 2:
            raise DataError(f"{self.name}: drawings is {_form(bits)}; give at least one character with two drawings")
        if not isinstance(alphabet, np.ndarray) or alphabet.shape != (len(bits),) or alphabet.dtype.kind not in "iu":
            raise DataError(
                f"{self.name}: alphabet is {_form(alphabet)}; give a number for each of {len(bits)} characters"
            )
        if alphabet[0] != 0 or not np.isin(np.diff(alphabet), (0, 1)).all():
            raise DataError(f"{self.name}: alphabet must count 0, ..., 1, ..., one alphabet after another")
        for what, names, count in (
            ("alphabet_names", self.alphabet_names, int(alphabet[-1]) + 1),
            ("character_names", self.character_names, len(bits)),
        ):
            if not isinstance(names, (list, tuple)) or not all(isinstance(one, str) for one in names):
                raise DataError(f"{self.name}: {what} is {described(names)}; give a tuple of texts")
            if len(names) != count:
                raise DataError(f"{self.name}: {what} has {len(names)} names; give {count}")

    @classmethod
    def from_pixels(
        cls,
        name: str,
        pixels: NDArray[Any],
        alphabet: Sequence[int] | NDArray[np.integer],
        alphabet_names: Sequence[str],
        character_names: Sequence[str],
    ) -> "Characters":
        """Pack pixels that you have as an array.

        Args:
            name: A name for the data.
            pixels: Zero for paper and anything else for ink, of shape (characters, drawings of each, 105, 105).
            alphabet: The number of each character's alphabet: 0, 0, ..., 1, 1, ..., in ascending order.
            alphabet_names: The name of each alphabet.
            character_names: The name of each character.
        """
        line("name", name)
        if not isinstance(pixels, np.ndarray) or pixels.ndim != 4 or pixels.shape[2:] != (SIDE, SIDE):
            raise DataError(
                f"{name}: pixels is {_form(pixels)}; give an array of shape (characters, n, {SIDE}, {SIDE})"
            )
        packed = np.packbits(pixels.reshape(*pixels.shape[:2], SIDE * SIDE) != 0, axis=2)
        return cls(name, packed, np.asarray(alphabet), tuple(alphabet_names), tuple(character_names))

    def __repr__(self) -> str:
        """Show the name and the numbers of alphabets, characters and drawings of each character."""
        characters, drawings, _ = self.drawings.shape
        alphabets = len(self.alphabet_names)
        return f"Characters(name={self.name!r}, {alphabets=}, {characters=}, {drawings=})"

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of characters of each alphabet."""
        return tuple(np.bincount(self.alphabet).tolist())

    def images(self, resolution: int = 28, pixels: Pixels = "grey") -> Bytes:
        """Return all drawings as images; they are made once and then kept, so the array is read-only.

        Args:
            resolution: The number of pixels on each side, from 1 to 105; with 105 the pixels are the original ones.
            pixels: "grey" for the share of each pixel's area that is covered with ink, from 0 to 255; "binary" for 255
                where that is 128 or more and for 0 elsewhere.

        Returns:
            The images, uint8 of shape (characters, drawings of each character, resolution, resolution).
        """
        check_resolution(resolution)
        check_pixels(pixels)
        with _making:
            if (resolution, pixels) not in self._images:
                made = self._grey(resolution)
                if pixels == "binary" and resolution != SIDE:
                    made = (made >= 128).astype(np.uint8) * np.uint8(255)
                made.flags.writeable = False
                self._images[resolution, pixels] = made
            return self._images[resolution, pixels]

    def _grey(self, resolution: int) -> Bytes:
        """Return the grey images, made block by block to save memory and time."""
        bits = self.drawings.reshape(-1, PACKED)
        made = np.empty((len(bits), resolution, resolution), np.uint8)
        for low in range(0, len(bits), _BLOCK):
            block = np.unpackbits(bits[low : low + _BLOCK], axis=1, count=SIDE * SIDE).reshape(-1, SIDE, SIDE)
            made[low : low + _BLOCK] = ink_coverage(block, resolution)
        return made.reshape(*self.drawings.shape[:2], resolution, resolution)


def check_resolution(resolution: int) -> None:
    """Refuse a resolution that images cannot have.

    Args:
        resolution: The number of pixels on each side.
    """
    if isinstance(resolution, bool) or not isinstance(resolution, Integral) or not 1 <= resolution <= SIDE:
        raise InputError(f"resolution={shown(resolution)}: use a whole number from 1 to {SIDE}")


def check_pixels(pixels: str) -> None:
    """Refuse a kind of pixels that images cannot have.

    Args:
        pixels: The kind of pixels.
    """
    choice("pixels", pixels, get_args(Pixels))


def ink_coverage(bits: Bytes, resolution: int) -> Bytes:
    """Return the share of each pixel's area that is covered with ink, exactly, rounded to one of 0 to 255.

    Args:
        bits: Drawings of 105x105 pixels, 1 for ink and 0 for paper, of shape (n, 105, 105).
        resolution: The number of pixels on each side of the images.
    """
    if resolution == SIDE:
        return bits * np.uint8(255)
    overlaps = _overlaps(resolution)
    across = bits.reshape(-1, SIDE).astype(np.float32) @ overlaps.T
    areas = overlaps @ across.reshape(-1, SIDE, resolution)  # whole numbers up to 105 * 105, exact in float32
    return np.rint(areas * np.float32(255 / SIDE**2)).astype(np.uint8)  # never at a half: 34 areas = 735 (2 n + 1)


@cache
def _overlaps(resolution: int) -> NDArray[np.float32]:
    """Return how far each of the new pixels overlaps each of the 105 old ones along one side.

    The unit is 1 / resolution of an old pixel, so that everything is a whole number: a new pixel is 105 units long, an
    old one has `resolution` units.
    """
    new, old = np.arange(resolution + 1)[:, None] * SIDE, np.arange(SIDE + 1) * resolution
    low, high = np.maximum(new[:-1], old[:-1]), np.minimum(new[1:], old[1:])
    overlaps: NDArray[np.float32] = np.maximum(high - low, 0).astype(np.float32)
    return overlaps


def _form(array: object) -> str:
    """Return the type and shape of an array as a short text."""
    return f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else f"a {type(array).__name__}"
