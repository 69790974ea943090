"""Omniglot (Lake, Salakhutdinov and Tenenbaum, 2015): handwritten characters of 50 alphabets."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from threading import Lock

import numpy as np

from metareplay._core.files import write_atomically
from metareplay.data.character_files import joined, read_npz, read_zip, write_npz
from metareplay.data.characters import Characters
from metareplay.data.dataset_files import cache_folder, complete, disk, folders, verified
from metareplay.data.download import fetch
from metareplay.data.sources import OMNIGLOT, Source
from metareplay.errors import DataError, MetareplayError

OMNIGLOT_NPZ = Source(  # all of Omniglot in one file
    "omniglot", {"omniglot.npz": "ca9ca3236bb1508c2e221e384111936ec3d1105b2a0779a073ec89e16e70b38a"}
)
DRAWINGS = 20  # of each character
ALPHABETS = {  # the number of characters of each alphabet: 30 of the background set, then 20 of the evaluation set
    "Alphabet_of_the_Magi": 20,
    "Anglo-Saxon_Futhorc": 29,
    "Arcadian": 26,
    "Armenian": 41,
    "Asomtavruli_(Georgian)": 40,
    "Balinese": 24,
    "Bengali": 46,
    "Blackfoot_(Canadian_Aboriginal_Syllabics)": 14,
    "Braille": 26,
    "Burmese_(Myanmar)": 34,
    "Cyrillic": 33,
    "Early_Aramaic": 22,
    "Futurama": 26,
    "Grantha": 43,
    "Greek": 24,
    "Gujarati": 48,
    "Hebrew": 22,
    "Inuktitut_(Canadian_Aboriginal_Syllabics)": 16,
    "Japanese_(hiragana)": 52,
    "Japanese_(katakana)": 47,
    "Korean": 40,
    "Latin": 26,
    "Malay_(Jawi_-_Arabic)": 40,
    "Mkhedruli_(Georgian)": 41,
    "N_Ko": 33,
    "Ojibwe_(Canadian_Aboriginal_Syllabics)": 14,
    "Sanskrit": 42,
    "Syriac_(Estrangelo)": 23,
    "Tagalog": 17,
    "Tifinagh": 55,
    "Angelic": 20,
    "Atemayar_Qelisayer": 26,
    "Atlantean": 26,
    "Aurek-Besh": 26,
    "Avesta": 26,
    "Ge_ez": 26,
    "Glagolitic": 45,
    "Gurmukhi": 45,
    "Kannada": 41,
    "Keble": 26,
    "Malayalam": 47,
    "Manipuri": 40,
    "Mongolian": 30,
    "Old_Church_Slavonic_(Cyrillic)": 45,
    "Oriya": 46,
    "Sylheti": 28,
    "Syriac_(Serto)": 23,
    "Tengwar": 25,
    "Tibetan": 42,
    "ULOG": 26,
}

_FORMAT = "1"  # of decoded.npz; to be changed with what is in it or how it is made


def omniglot() -> Characters:
    """Return Omniglot, 1623 characters of 50 alphabets with 20 drawings of each, downloading it if necessary.

    The alphabets of the background set come first, then those of the evaluation set, each set sorted by name.
    """
    with _loading:
        if OMNIGLOT.name not in _kept:
            _kept[OMNIGLOT.name] = load_alphabets(OMNIGLOT, OMNIGLOT_NPZ, ALPHABETS)
        return _kept[OMNIGLOT.name]


_loading = Lock()  # so that threads share one copy
_kept: dict[str, Characters] = {}  # what has been read, by name


def keep(characters: Characters) -> None:
    """Use these characters from now on when the dataset of their name is asked for, unless it has been read before."""
    with _loading:
        _kept.setdefault(characters.name, characters)


def load_alphabets(zips: Source, npz: Source, alphabets: Mapping[str, int]) -> Characters:
    """Read a dataset of characters from $METAREPLAY_DATA or the cache; download it if it is in neither.

    Args:
        zips: The dataset as zips of PNG files.
        npz: The same dataset as one npz file, which is used where it is found.
        alphabets: The number of characters that each alphabet must have, by name and in order.
    """
    with disk("read the data in METAREPLAY_DATA or the cache", "check the permissions"):
        places = [(folder, source) for folder in folders(zips) for source in (npz, zips) if complete(folder, source)]
    folder, source = places[0] if places else (fetch(zips), zips)
    if source is npz:
        [file] = npz.files
        found = joined([read_npz(verified(folder, file, npz), str(folder / file))], npz.name)
    else:
        found = _decoded_once(folder, zips)
    _check(found, alphabets, folder)
    return found


def _decoded_once(folder: Path, zips: Source) -> Characters:
    """Return what the zips hold, and keep it in the cache, since decoding tens of thousands of PNG files takes time."""
    contents = {file: verified(folder, file, zips) for file in zips.files}
    kept = cache_folder() / zips.name / "decoded.npz"
    made_from = (_FORMAT, *zips.files.values())
    with suppress(OSError, DataError, KeyError):
        data = kept.read_bytes()
        found = joined([read_npz(data, str(kept))], zips.name)
        with np.load(BytesIO(data), allow_pickle=False) as arrays:
            if tuple(arrays["made_from"]) == made_from and tuple(arrays["sha256"]) == (_sha256(found),):
                return found
    found = joined([read_zip(data, str(folder / file)) for file, data in contents.items()], zips.name)
    with suppress(MetareplayError), write_atomically(kept) as file:  # do without it where we may not write
        write_npz(file, found, made_from=made_from, sha256=(_sha256(found),))
    return found


def _sha256(characters: Characters) -> str:
    """Return a checksum of drawings, alphabets and names."""
    names = "\n".join((*characters.alphabet_names, *characters.character_names))
    digest = hashlib.sha256(characters.drawings.tobytes())
    digest.update(characters.alphabet.astype(np.int64).tobytes() + names.encode())
    return digest.hexdigest()


def _check(found: Characters, alphabets: Mapping[str, int], folder: Path) -> None:
    """Refuse data with too few or too many alphabets, characters or drawings."""
    for wrong in _faults(found, alphabets):
        raise DataError(
            f"{folder}: {wrong}; delete the files of {found.name} there and run `metareplay data fetch {found.name}`"
        )


def _faults(found: Characters, alphabets: Mapping[str, int]) -> Iterator[str]:
    """Yield how the data differ from what they should be."""
    sizes = dict(zip(found.alphabet_names, found.sizes, strict=True))
    for alphabet, size in alphabets.items():
        if alphabet not in sizes:
            yield f"the alphabet {alphabet} is missing"
        elif sizes[alphabet] != size:
            yield f"the alphabet {alphabet} has {sizes[alphabet]} characters instead of {size}"
    for alphabet in sizes.keys() - alphabets.keys():
        yield f"the alphabet {alphabet} is unknown"
    if list(sizes) != list(alphabets):
        yield "the alphabets are in another order"
    if (drawings := found.drawings.shape[1]) != DRAWINGS:
        yield f"each character has {drawings} drawings instead of {DRAWINGS}"
