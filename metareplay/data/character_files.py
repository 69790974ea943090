"""Read drawings of characters from folders or zips of PNG files, as Omniglot comes, or from an npz file."""

import re
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path, PurePath, PureWindowsPath
from typing import Any, BinaryIO

import numpy as np

from metareplay._core.archive import read_member
from metareplay._core.checks import place_of, text
from metareplay.data.characters import PACKED, SIDE, Characters
from metareplay.data.dataset_files import Bytes, disk
from metareplay.errors import DataError

LARGEST_NPZ = 1 << 30  # bytes of all drawings; Omniglot's are 45 million
LARGEST = 1 << 20  # bytes of a PNG file; Omniglot's have about 200
ARRAYS = ("images105", "character_alphabet", "alphabet_names", "character_names")  # what an npz file must hold
_NOT_A_ZIP = (OSError, EOFError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error)  # of a damaged file


def read_characters(*paths: str | Path, name: str = "characters") -> Characters:
    """Read drawings of your own from folders, zips or npz files; several of them are put one after another.

    A folder or a zip holds `<alphabet>/<character>/<anything>_<number>.png`, at any depth, as Omniglot's do: black ink
    on white paper, 105x105 pixels, the same number of drawings of each character. Alphabets and characters are sorted
    by name, drawings by number. Reading PNG files needs Pillow: `pip install 'metareplay[omniglot]'`.

    Args:
        paths: The folders, zips or npz files. An npz file has the arrays `images105` (the bits of each drawing, 1 for
            ink, packed by `np.packbits`; all drawings of the first character come first), `character_alphabet` (the
            number of each character's alphabet), `alphabet_names` and `character_names`.
        name: A name for the data, which appears in records and messages.
    """
    parts = []
    text("name", name)
    for path in (place_of("path", one) for one in paths):
        if path.is_dir():
            parts.append(_decoded(_files(path), str(path)))
            continue
        with disk(f"read {path}", "give a folder, a zip or an npz file"):
            data = path.read_bytes()
        parts.append(read_npz(data, str(path)) if path.suffix == ".npz" else read_zip(data, str(path)))
    return joined(parts, name)


def joined(parts: Sequence[Characters], name: str) -> Characters:
    """Put the alphabets of several datasets one after another.

    Args:
        parts: The datasets.
        name: The name of all of them together.
    """
    if not parts:
        raise DataError(f"{name}: there is nothing to read; give a folder, a zip or an npz file")
    alphabets = [alphabet for part in parts for alphabet in part.alphabet_names]
    for alphabet, times in Counter(alphabets).items():
        if times > 1:
            raise DataError(f"{name}: the alphabet {alphabet} appears {times} times; rename or remove one of them")
    counts = {part.name: part.drawings.shape[1] for part in parts}
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{count} in {origin}" for origin, count in counts.items())
        raise DataError(f"{name}: each character must have the same number of drawings, but there are {shown}")
    numbers = np.cumsum([0, *(len(part.alphabet_names) for part in parts)])
    return Characters(
        name,
        np.concatenate([part.drawings for part in parts]),
        np.concatenate([part.alphabet + first for part, first in zip(parts, numbers, strict=False)]),
        tuple(alphabets),
        tuple(character for part in parts for character in part.character_names),
    )


def read_zip(data: bytes, origin: str) -> Characters:
    """Read all PNG files of a zip in memory; nothing is extracted.

    Args:
        data: The content of the zip.
        origin: Its path, for messages.
    """
    try:
        archive = zipfile.ZipFile(BytesIO(data))
    except _NOT_A_ZIP as error:
        raise DataError(f"{origin} is not a zip file, or is cut off ({error}); download it again") from error
    with archive:
        return _decoded(_members(archive, origin), origin)


def read_npz(data: bytes, origin: str) -> Characters:
    """Read an npz file.

    Args:
        data: The content of the file.
        origin: Its path, for messages, which also becomes the name of the characters.
    """
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            members = [archive.getinfo(f"{name}.npy") for name in ARRAYS]
            if sum(one.file_size for one in members) > LARGEST_NPZ:
                raise ValueError(f"it holds more than {LARGEST_NPZ} bytes")
            bits, alphabet, *names = (read_member(archive, one) for one in members)
    except (*_NOT_A_ZIP, KeyError, AttributeError, TypeError) as error:
        shown = str(error).partition("\n")[0]
        raise DataError(f"{origin} is not an npz file with {', '.join(ARRAYS)} ({shown}); get it again") from error
    if bits.ndim != 2 or bits.shape[1] != PACKED or alphabet.ndim != 1 or not len(alphabet):
        raise DataError(f"{origin}: images105 and character_alphabet have shapes {bits.shape} and {alphabet.shape}")
    if alphabet.dtype.kind not in "iu" or any(some.ndim != 1 for some in names):
        raise DataError(
            f"{origin}: character_alphabet must be whole numbers and the names one-dimensional; get the file again"
        )
    if len(bits) % len(alphabet):
        raise DataError(f"{origin}: {len(bits)} drawings cannot be shared evenly by {len(alphabet)} characters")
    drawings = bits.reshape(len(alphabet), -1, PACKED)
    alphabets, characters = (tuple(str(one) for one in some) for some in names)
    return Characters(origin, drawings, alphabet.astype(np.int64), alphabets, characters)


def write_npz(file: BinaryIO, characters: Characters, **more: Any) -> None:
    """Write characters as an npz file that `read_npz` reads.

    Args:
        file: Where to write.
        characters: What to write.
        more: Further arrays to keep in the file, by name.
    """
    arrays: dict[str, Any] = {
        "images105": characters.drawings.reshape(-1, PACKED),
        "character_alphabet": characters.alphabet,
        "alphabet_names": np.array(characters.alphabet_names),
        "character_names": np.array(characters.character_names),
    }
    np.savez_compressed(file, **arrays, **more)


def _files(folder: Path) -> Iterator[tuple[PurePath, bytes]]:
    """Yield the PNG files of a folder with their paths within it."""
    for path in folder.glob("**/*.png"):
        within = path.relative_to(folder)
        if _counts(within):
            with disk(f"read {path}", "check the permissions"), path.open("rb") as file:
                yield within, file.read(LARGEST + 1)


def _members(archive: zipfile.ZipFile, origin: str) -> Iterator[tuple[PurePath, bytes]]:
    """Yield the PNG files of a zip with their paths within it, having looked at all names first."""
    wanted = []
    for member in archive.infolist():
        path = PureWindowsPath(member.filename)  # knows both separators, and drives
        if path.anchor or ".." in path.parts:
            raise DataError(f"{origin}: the name {member.filename!r} leads out of the zip; download the original zip")
        if not member.is_dir() and path.suffix == ".png" and _counts(path):
            wanted.append((path, member))
    for path, member in wanted:
        try:
            with archive.open(member) as file:
                data = file.read(LARGEST + 1)
        except _NOT_A_ZIP as error:
            raise DataError(f"{origin}: {member.filename} is damaged ({error}); get the zip again") from error
        yield path, data


def _counts(path: PurePath) -> bool:
    """Return False for what systems leave behind: hidden files, and a folder of macOS."""
    return not any(part.startswith(".") or part == "__MACOSX" for part in path.parts)


def _decoded(files: Iterable[tuple[PurePath, bytes]], origin: str) -> Characters:
    """Return the characters that PNG files show, given the path and the content of each file."""
    try:
        from PIL.Image import open as open_image  # here, because Pillow is an extra
    except ImportError as error:
        raise DataError(
            f"the PNG files of {origin} need Pillow to be read: pip install 'metareplay[omniglot]'"
        ) from error
    found: dict[tuple[str, ...], dict[int, Bytes]] = {}  # for each character, as its folders name it, its drawings
    for path, data in files:
        shown = f"{origin}: {path.as_posix()}"
        number = re.search(r"_(\d+)\.png$", path.name)
        if len(path.parts) < 3 or number is None:
            raise DataError(f"{shown} has the wrong place or name; use <alphabet>/<character>/0001_01.png")
        drawings = found.setdefault(path.parts[:-1], {})
        if int(number[1]) in drawings:
            raise DataError(f"{shown} is the second drawing {int(number[1])} of its character; remove one of them")
        drawings[int(number[1])] = _bits(data, shown, open_image)
    if not found:
        raise DataError(f"{origin} has no drawings; it must hold <alphabet>/<character>/0001_01.png and so on")
    _check_counts(found, origin)
    alphabets = sorted({folders[:-1] for folders in found})
    if len({alphabet[-1] for alphabet in alphabets}) < len(alphabets):
        raise DataError(f"{origin}: two alphabets have the same name; rename or remove one of them")
    characters = sorted(found)
    return Characters(
        origin,
        np.array([[bits for _, bits in sorted(found[character].items())] for character in characters]),
        np.array([alphabets.index(character[:-1]) for character in characters]),
        tuple(alphabet[-1] for alphabet in alphabets),
        tuple("/".join(character[-2:]) for character in characters),
    )


def _check_counts(found: dict[tuple[str, ...], dict[int, Bytes]], origin: str) -> None:
    """Refuse characters that were not drawn as often as the others."""
    usual, _ = Counter(map(len, found.values())).most_common(1)[0]
    for folders, drawings in sorted(found.items()):
        if len(drawings) != usual or usual < 2:
            wanted = f"the others have {usual}" if usual > 1 else "at least 2 are needed"
            raise DataError(
                f"{origin}: {'/'.join(folders)} has {len(drawings)} drawings, but {wanted}; add or remove some, or get "
                f"{origin} again"
            )


def _bits(data: bytes, shown: str, open_image: Callable[..., Any]) -> Bytes:
    """Return the packed bits of a PNG file, 1 where it is dark; `open_image` is Pillow's."""
    if len(data) > LARGEST:
        raise DataError(f"{shown} has more than {LARGEST} bytes, which no drawing needs; replace or remove it")
    if not data.startswith(b"\x89PNG\r\n\x1a\n") or len(data) < 24:
        raise DataError(f"{shown} is not a PNG file; replace or remove it")
    width, height = struct.unpack(">II", data[16:24])  # looked at before Pillow reserves memory for as many pixels
    if (width, height) != (SIDE, SIDE):
        raise DataError(f"{shown} has {width}x{height} pixels; use drawings of {SIDE}x{SIDE}")
    try:
        with open_image(BytesIO(data), formats=["PNG"]) as image:
            grey = np.asarray(image.convert("L"))
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error) as error:
        raise DataError(f"{shown} is damaged ({error}); replace or remove it") from error
    return np.packbits(grey < 128)
