"""Pictures for people: GIF files, folders of PNG files, and coloured half blocks for a terminal."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from metareplay._core.files import write_atomically
from metareplay.errors import InputError, MetareplayError, PicturesMissingError

Picture = NDArray[np.uint8]  # of shape (height, width, 3): red, green, blue
Add = Callable[[Picture], None]  # adds a picture to a file or a folder
Colours = Literal["24-bit", "256"]

# A GIF counts time in hundredths of a second. The games run at 30 frames per second, so 3 is the nearest whole number:
# 33 pictures per second, a tenth faster than the game.
GIF_DELAY: Final = 3
PNG_NAME: Final = "frame-{:06d}.png"  # the first one has the number 1


def save_pictures(path: Path) -> AbstractContextManager[Add]:
    """Return a context in which pictures can be added to a GIF or to a folder of PNG files.

    The path is checked at once, but nothing is written before the context is entered.

    Args:
        path: A name that ends in .gif for a GIF, which is replaced if it exists; otherwise an empty or new folder, for
            PNG files.
    """
    if not _is_installed("PIL"):
        raise PicturesMissingError("GIF and PNG files need Pillow: pip install 'metareplay[rl]'")
    try:
        return _checked(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}; choose another place") from error


@contextmanager
def gif_file(path: Path) -> Iterator[Add]:
    """Open a GIF for writing; it takes its name once it is complete, and no file is left if no picture was added.

    Every picture is encoded as soon as it is added, so that a long GIF needs no more memory than a short one.

    Args:
        path: The file.
    """
    from PIL import Image
    from PIL.GifImagePlugin import getdata, getheader  # here, because Pillow is an extra

    before: Picture | None = None
    with suppress(_NoPicturesError), write_atomically(path) as file:

        def add(picture: Picture) -> None:
            """Write the part of a picture that differs from the one before, with its own table of colours."""
            nonlocal before
            left, top, right, bottom = _difference(before, picture)
            part = Image.fromarray(picture[top:bottom, left:right]).convert("P", palette=Image.Palette.ADAPTIVE)
            if before is None:
                file.writelines(getheader(part, info={"loop": 0, "duration": 10 * GIF_DELAY})[0])
            file.writelines(getdata(part, (left, top), duration=10 * GIF_DELAY, include_color_table=True))
            before = picture.copy()

        yield add
        if before is None:
            raise _NoPicturesError
        file.write(b";")


@contextmanager
def png_folder(folder: Path) -> Iterator[Add]:
    """Make a folder and write every picture that is added into a PNG file of its own: frame-000001.png and so on.

    Args:
        folder: The folder.
    """
    from PIL import Image

    count = 0

    def add(picture: Picture) -> None:
        """Write a picture into the next file."""
        nonlocal count
        count += 1
        Image.fromarray(picture).save(folder / PNG_NAME.format(count))

    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield add
    except OSError as error:
        raise MetareplayError(
            f"cannot write {folder}: {error.strerror or error}; free some space or choose another place"
        ) from error


def fitting(size: tuple[int, int], lines: int, columns: int) -> tuple[int, int]:
    """Return the height and width at which a picture of half blocks fits into a terminal.

    A picture is enlarged in whole steps only, so that its edges stay sharp; it is made smaller by any factor.

    >>> fitting((64, 64), lines=22, columns=80), fitting((64, 64), lines=70, columns=200)
    ((44, 44), (128, 128))

    Args:
        size: The height and width of the picture.
        lines: The number of lines that are free.
        columns: The number of columns.
    """
    height, width = size
    times = min(2 * lines / height, columns / width)
    times = float(int(times)) if times >= 1 else times
    return max(2, int(height * times) // 2 * 2), max(1, int(width * times))


def half_blocks(picture: Picture, colours: Colours = "24-bit") -> list[str]:
    """Return a picture as lines of text for a terminal: each character shows two pixels, one above the other.

    >>> half_blocks(np.array([[[255, 0, 0]], [[0, 0, 255]]], np.uint8))
    ['\\x1b[38;2;255;0;0;48;2;0;0;255m▀\\x1b[0m']

    Args:
        picture: The picture. If its height is odd, the background of the terminal takes the place of the missing row.
        colours: "24-bit" for exact colours, "256" for terminals that have no more.
    """
    lines = []
    for row in range(0, len(picture), 2):
        pair = np.concatenate(list(picture[row : row + 2]), axis=1)  # of shape (width, 3), or 6 for two rows
        changes = np.flatnonzero((pair[1:] != pair[:-1]).any(1)) + 1
        runs = pairwise([0, *changes.tolist(), len(pair)])
        text = "".join(f"\x1b[{_codes(pair[start].tolist(), colours)}m{'▀' * (stop - start)}" for start, stop in runs)
        lines.append(f"{text}\x1b[0m")
    return lines


class _NoPicturesError(Exception):
    """Raised inside `gif_file` to give up a file that would have no pictures."""


def _is_installed(package: str) -> bool:
    """Return whether a package can be imported."""
    try:
        return find_spec(package) is not None
    except ValueError:  # it stands as None in sys.modules: importing it has been blocked
        return False


def _checked(path: Path) -> AbstractContextManager[Add]:
    """Return what writes to a path, or refuse a path that is something else already."""
    above = next((parent for parent in path.parents if parent.exists()), Path())
    if not above.is_dir():
        raise InputError(f"cannot write {path}: {above} is a file; choose another place")
    if path.suffix.lower() == ".gif":
        if path.is_dir():
            raise InputError(f"{path} is a folder; give the name of a file")
        if path.exists() and not _is_gif(path):
            raise InputError(f"{path} exists and is not a GIF; choose another name")
        return gif_file(path)
    if path.is_dir():
        if any(path.iterdir()):
            raise InputError(f"the folder {path} is not empty; give a new or an empty one")
    elif path.exists():
        raise InputError(f"{path} is a file; give a folder, or a name that ends in .gif")
    elif path.suffix:
        raise InputError(f"{path}: give a name that ends in .gif, or a folder, whose name has no dot in it")
    return png_folder(path)


def _is_gif(path: Path) -> bool:
    """Return whether a file is a GIF, or empty."""
    with path.open("rb") as file:
        return file.read(4) in (b"GIF8", b"")


def _difference(before: Picture | None, picture: Picture) -> tuple[int, int, int, int]:
    """Return the left, upper, right and lower edge of the box that has changed; a corner if nothing has."""
    if before is None:
        return 0, 0, picture.shape[1], picture.shape[0]
    changed = (before != picture).any(2)
    rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
    if not len(rows):
        return 0, 0, 1, 1
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def _codes(pixels: list[int], colours: Colours) -> str:
    """Return the codes that make the upper half of a block the first pixel and the lower half the second, if any."""
    codes = [f"38;{_colour(pixels[:3], colours)}", f"48;{_colour(pixels[3:], colours)}" if pixels[3:] else "49"]
    return ";".join(codes)


def _colour(pixel: list[int], colours: Colours) -> str:
    """Return the code of a colour; 256 colours are a cube of 6x6x6, behind the first 16."""
    red, green, blue = pixel
    if colours == "24-bit":
        return f"2;{red};{green};{blue}"
    return f"5;{16 + 36 * round(red / 51) + 6 * round(green / 51) + round(blue / 51)}"
