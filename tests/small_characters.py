"""Made-up characters in the place of Omniglot: as arrays, as zips of PNG files and as an npz file."""

import hashlib
import sys
import zipfile
from functools import cache
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from metareplay.data import Bytes, Characters, Source
from metareplay.data.character_files import write_npz

CHARACTERS, DRAWINGS = 4, 20  # of each alphabet, of each character
NAMES = ("Nowhere_(script)", "Zed", "Alef")  # Alef is in the second zip, so it comes last although A comes before N


@cache
def small_characters(alphabets: int = 3) -> Characters:
    """Alphabets of four characters that a small net can learn to tell apart: spots, with noise on every drawing."""
    rng = np.random.default_rng(5)
    spots = rng.random((alphabets * CHARACTERS, 1, 15, 15)) < 0.2
    noise = rng.integers(0, 256, (alphabets * CHARACTERS, DRAWINGS, 105, 105), np.uint8) < 5
    names = NAMES if alphabets == len(NAMES) else [f"alphabet{number}" for number in range(alphabets)]
    return Characters.from_pixels(
        "small",
        spots.repeat(7, axis=2).repeat(7, axis=3) ^ noise,
        np.arange(alphabets).repeat(CHARACTERS),
        names,
        [f"{name}/character{number:02}" for name in names for number in range(1, CHARACTERS + 1)],
    )


def instead_of_omniglot(monkeypatch: pytest.MonkeyPatch, alphabets: int = 3) -> None:
    """Let every stream that would read Omniglot get this many small alphabets; a stream has 50 tasks by default."""
    module = sys.modules["metareplay.streams.omniglot"]
    monkeypatch.setattr(module, "omniglot", lambda: small_characters(alphabets))
    monkeypatch.setattr(module, "SIZES", small_characters(alphabets).sizes)


def png(ink: Bytes) -> bytes:
    """A drawing as a PNG file like Omniglot's: one bit per pixel, 0 where there is ink."""
    file = BytesIO()
    Image.fromarray(ink == 0).save(file, "PNG")
    return file.getvalue()


def png_files(characters: Characters) -> dict[str, bytes]:
    """All drawings as PNG files, by paths like Omniglot's: <alphabet>/<character>/<number>_<drawing>.png."""
    images = characters.images(105)
    return {
        f"{name}/{number:04}_{drawing:02}.png": png(image)
        for number, (name, drawings) in enumerate(zip(characters.character_names, images, strict=True), 1)
        for drawing, image in enumerate(drawings, 1)
    }


def zipped(files: dict[str, bytes]) -> bytes:
    """A zip of these files."""
    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return file.getvalue()


@cache
def small_zips() -> dict[str, bytes]:
    """The small characters in two zips like Omniglot's: two alphabets in one, the third in the other."""
    files = png_files(small_characters())
    parts = {"images_background": NAMES[:2], "images_evaluation": NAMES[2:]}
    return {
        f"{part}.zip": zipped({f"{part}/{path}": files[path] for path in reversed(files) if path.startswith(names)})
        for part, names in parts.items()
    }


@cache
def small_npz() -> dict[str, bytes]:
    """The small characters as an npz file."""
    file = BytesIO()
    write_npz(file, small_characters())
    return {"omniglot.npz": file.getvalue()}


def source(files: dict[str, bytes], name: str = "omniglot") -> Source:
    """A dataset of these files with their checksums."""
    sums = {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}
    return Source(name, sums, gzipped=False)


def write(folder: Path, files: dict[str, bytes]) -> None:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
