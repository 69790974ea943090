"""Drawings read from folders, zips and npz files, and everything that can be wrong with them."""

import re
import sys
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_characters import DRAWINGS, NAMES, png, png_files, small_characters, small_npz, small_zips, write, zipped

from metareplay.data import Characters, character_files, read_characters
from metareplay.data.character_files import ARRAYS
from metareplay.errors import DataError

FILES = png_files(small_characters())
FIRST = next(iter(FILES))
DRAWING = small_characters().images(105)[0, 0]


def assert_small(found: Characters, name: str = "characters") -> None:
    expected = small_characters()
    np.testing.assert_array_equal(found.drawings, expected.drawings)
    np.testing.assert_array_equal(found.alphabet, expected.alphabet)
    assert (found.alphabet_names, found.character_names) == (expected.alphabet_names, expected.character_names)
    assert found.name == name


def test_zips_and_npz_give_the_same(tmp_path: Path) -> None:
    write(tmp_path, small_zips() | small_npz())
    assert_small(read_characters(*(tmp_path / file for file in small_zips())))
    assert_small(read_characters(str(tmp_path / "omniglot.npz"), name="mine"), "mine")


@pytest.mark.parametrize("above", ["", "images_background", "some/where"])
def test_a_folder_gives_the_same_as_a_zip(tmp_path: Path, above: str) -> None:
    files = {f"{above}/{path}": content for path, content in FILES.items()}
    write(tmp_path / "folder", {path.removeprefix("/"): content for path, content in files.items()})
    write(tmp_path, {"all.zip": zipped(files if above else FILES)})
    folder, archive = read_characters(tmp_path / "folder"), read_characters(tmp_path / "all.zip")
    assert folder.alphabet_names == archive.alphabet_names == tuple(sorted(NAMES))
    assert np.array_equal(folder.drawings, archive.drawings)
    rows = [small_characters().character_names.index(name) for name in folder.character_names]
    assert np.array_equal(folder.drawings, small_characters().drawings[rows])


def test_a_folder_with_both_parts_has_the_order_of_the_parts(tmp_path: Path) -> None:
    parts = {name: "images_evaluation" if name == NAMES[-1] else "images_background" for name in NAMES}
    write(tmp_path, {f"{parts[path.split('/')[0]]}/{path}": content for path, content in FILES.items()})
    assert_small(read_characters(tmp_path))


def test_what_is_no_drawing_is_left_alone(tmp_path: Path) -> None:
    more = {"README.md": b"", "__MACOSX/Zed/character01/._0001_01.png": b"", ".DS_Store": b"", "Zed/.hidden.png": b""}
    write(tmp_path, {"all.zip": zipped(FILES | more)})
    write(tmp_path / "folder", FILES | more)
    for path in (tmp_path / "all.zip", tmp_path / "folder"):
        assert len(read_characters(path).character_names) == len(small_characters().character_names)


def test_drawings_are_sorted_by_number(tmp_path: Path) -> None:
    dots = np.eye(105 * 105, dtype=np.uint8)[:12].reshape(12, 105, 105)
    write(tmp_path, {f"Greek/alpha/me_{number}.png": png(dots[number]) for number in range(12)})
    assert np.array_equal(read_characters(tmp_path).images(105)[0], dots * 255)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA"])
def test_png_files_may_have_any_colours(tmp_path: Path, mode: str) -> None:
    paths = [tmp_path / "Greek" / "alpha" / f"1_{number}.png" for number in (1, 2)]
    paths[0].parent.mkdir(parents=True)
    for path in paths:
        Image.fromarray(255 - DRAWING).convert(mode).save(path)
    assert np.array_equal(read_characters(tmp_path).images(105)[0, 0], DRAWING)


def changed(more: dict[str, bytes], *less: str) -> Callable[[], bytes]:
    kept = {path: content for path, content in FILES.items() if path not in less}
    return lambda: zipped(kept | more)


def large(width: int, height: int) -> bytes:
    file = BytesIO()
    Image.new("1", (width, height)).save(file, "PNG")
    return file.getvalue()


def damaged_member() -> bytes:
    """A zip with a wrong byte within its first file, which has been stored as it is."""
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for path, content in FILES.items():
            archive.writestr(path, content)
    data = bytearray(file.getvalue())
    data[30 + len(FIRST) + 60] ^= 1
    return bytes(data)


def encrypted() -> bytes:
    """A zip whose first file says that it needs a password."""
    data = bytearray(zipped(FILES))
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    return bytes(data)


BAD_ZIPS: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty file": (lambda: b"", "bad.zip is not a zip file, or is cut off .*download it again"),
    "not a zip": (lambda: b"<html>404</html>", "bad.zip is not a zip"),
    "truncated": (lambda: zipped(FILES)[:-3000], "bad.zip is not a zip file, or is cut off"),
    "damaged": (damaged_member, f"bad.zip: {re.escape(FIRST)} is damaged .*get the zip again"),
    "encrypted": (encrypted, f"bad.zip: {re.escape(FIRST)} is damaged .*password"),
    "nothing in it": (lambda: zipped({"README": b""}), "bad.zip has no drawings; it must hold <alphabet>/<character>/"),
    "leads up": (changed({"Zed/../../evil.png": b""}), "'Zed/../../evil.png' leads out of the zip"),
    "leads up, no drawing": (changed({"../evil.sh": b""}), "'../evil.sh' leads out of the zip"),
    "leads up by backslashes": (changed({"..\\evil.png": b""}), "leads out of the zip"),
    "absolute": (changed({"/etc/evil.png": b""}), "'/etc/evil.png' leads out of the zip"),
    "on a drive": (changed({"C:/evil.png": b""}), "'C:/evil.png' leads out of the zip"),
    "no folder": (changed({"0001_01.png": b""}), "0001_01.png has the wrong place or name; use <alphabet>/<character>"),
    "no number": (changed({"Zed/character01/a.png": b""}), "Zed/character01/a.png has the wrong place or name"),
    "twice": (changed({"Zed/character01/9_01.png": png(DRAWING)}), "9_01.png is the second drawing 1 of its character"),
    "a drawing less": (changed({}, FIRST), r"Nowhere_\(script\)/character01 has 19 drawings, but the others have 20"),
    "a drawing more": (changed({"Zed/character04/1_21.png": png(DRAWING)}), "Zed/character04 has 21 drawings, but"),
    "another size": (changed({FIRST: large(28, 28)}), "0001_01.png has 28x28 pixels; use drawings of 105x105"),
    "a bomb": (lambda: bomb(), "0001_01.png has 1000000x1000000 pixels"),
    "too many bytes": (changed({FIRST: b"\0" * 9_000_000}), "0001_01.png has more than 1048576 bytes"),
    "no png": (changed({FIRST: b"GIF89a" + bytes(99)}), "0001_01.png is not a PNG file; replace or remove it"),
    "a short png": (changed({FIRST: png(DRAWING)[:12]}), "0001_01.png is not a PNG file"),
    "half a png": (changed({FIRST: png(DRAWING)[:80]}), "0001_01.png is damaged"),
    "a png without pixels": (changed({FIRST: png(DRAWING)[:33]}), "0001_01.png is damaged"),
    "an alphabet twice": (
        lambda: zipped({f"{part}/{path}": content for part in "ab" for path, content in FILES.items()}),
        "two alphabets have the same name",
    ),
    "drawn once": (lambda: zipped({"Zed/a/1_1.png": png(DRAWING)}), "Zed/a has 1 drawings, but at least 2 are needed"),
}


def bomb() -> bytes:
    """A small file that says it has very many pixels."""
    data = png(DRAWING)
    return zipped(FILES | {FIRST: data[:16] + (1_000_000).to_bytes(4) * 2 + data[24:]})


@pytest.mark.parametrize(("made", "message"), BAD_ZIPS.values(), ids=BAD_ZIPS.keys())
def test_a_bad_zip_is_refused_in_one_line(tmp_path: Path, made: Callable[[], bytes], message: str) -> None:
    (tmp_path / "bad.zip").write_bytes(made())
    with pytest.raises(DataError, match=message) as error:
        read_characters(tmp_path / "bad.zip")
    assert str(error.value).startswith(str(tmp_path / "bad.zip"))
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.zip"]  # nothing has been extracted


def npz(**changes: object) -> bytes:
    with np.load(BytesIO(small_npz()["omniglot.npz"])) as arrays:
        given = dict(arrays) | changes
    file = BytesIO()
    np.savez(file, **{name: value for name, value in given.items() if value is not None})
    return file.getvalue()


def one_array() -> bytes:
    file = BytesIO()
    np.save(file, np.zeros(3))
    return file.getvalue()


def packed_zeros() -> bytes:
    """An archive of a megabyte that says that it holds two gigabytes of drawings, and does."""
    file, zeros = BytesIO(), bytes(1 << 20)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ARRAYS:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                member.write(zeros)
    content = bytearray(file.getvalue())
    at = content.find(b"PK\1\2")
    content[at + 24 : at + 28] = (0x7FFFFFFF).to_bytes(4, "little")  # the size once it is unpacked
    return bytes(content)


def long_header() -> bytes:
    """An array whose header says that it has a million million drawings."""
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in ARRAYS:
            header = BytesIO()
            shape = {"descr": "|u1", "fortran_order": False, "shape": (10**12, 1379)}
            np.lib.format.write_array_header_1_0(header, shape)
            archive.writestr(f"{name}.npy", header.getvalue())
    return file.getvalue()


BAD_NPZ: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "is not an npz file with images105, .*get it again"),
    "a bomb": (packed_zeros, "it holds more than 1073741824 bytes"),
    "a long header": (long_header, "an array that is not as long as its header says"),
    "truncated": (lambda: npz()[:-2000], "is not an npz file with images105"),
    "an npy file": (one_array, "is not an npz file with images105"),
    "a pickle": (lambda: npz(alphabet_names=np.array([object()])), "is not an npz file"),
    "without names": (lambda: npz(character_names=None), "is not an npz file .*character_names"),
    "other pixels": (lambda: npz(images105=np.zeros((240, 98), np.uint8)), "have shapes"),
    "too few": (lambda: npz(images105=np.zeros((239, 1379), np.uint8)), "239 drawings cannot be shared evenly by 12"),
    "too few names": (lambda: npz(alphabet_names=np.array(["Zed"])), "alphabet_names has 1 names; give 3"),
}


@pytest.mark.parametrize(("made", "message"), BAD_NPZ.values(), ids=BAD_NPZ.keys())
def test_a_bad_npz_is_refused_in_one_line(tmp_path: Path, made: Callable[[], bytes], message: str) -> None:
    (tmp_path / "bad.npz").write_bytes(made())
    with pytest.raises(DataError, match=f"bad.npz.*{message}") as error:
        read_characters(tmp_path / "bad.npz")
    assert "\n" not in str(error.value)


def test_parts_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    few = {f"Greek/alpha/1_{number}.png": png(DRAWING) for number in range(1, DRAWINGS)}
    write(tmp_path, small_zips() | {"few.zip": zipped(few)})
    first, second = (tmp_path / file for file in small_zips())
    with pytest.raises(DataError, match=r"the alphabet Nowhere_\(script\) appears 2 times"):
        read_characters(first, second, first)
    with pytest.raises(
        DataError, match=r"the same number of drawings, but there are 20 in .*background.zip, 19 in .*few"
    ):
        read_characters(first, tmp_path / "few.zip")


def test_nothing_to_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing to read; give a folder, a zip or an npz file"):
        read_characters()
    with pytest.raises(DataError, match=r"cannot read .*nowhere.zip: No such file.*; give a folder, a zip or"):
        read_characters(tmp_path / "nowhere.zip")
    with pytest.raises(DataError, match="has no drawings"):
        read_characters(tmp_path)


def test_without_pillow_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, small_zips() | small_npz())
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(DataError, match=re.escape("need Pillow to be read: pip install 'metareplay[omniglot]'")):
        read_characters(tmp_path / "images_background.zip")
    assert_small(read_characters(tmp_path / "omniglot.npz"))


def test_a_folder_may_have_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(character_files, "LARGEST", 100)
    write(tmp_path, FILES)
    with pytest.raises(DataError, match="has more than 100 bytes"):
        read_characters(tmp_path)
