"""Omniglot found, verified and read; all but one of the tests read small characters in its place."""

import importlib
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from small_characters import (
    CHARACTERS,
    DRAWINGS,
    NAMES,
    png_files,
    small_characters,
    small_npz,
    small_zips,
    source,
    write,
    zipped,
)
from toy_dataset import empty_cache

from metareplay import data
from metareplay.data import Characters
from metareplay.data.dataset_files import complete, folders
from metareplay.data.omniglot import ALPHABETS, OMNIGLOT_NPZ, load_alphabets
from metareplay.data.sources import OMNIGLOT, TEST_YS
from metareplay.errors import DataError

module = importlib.import_module("metareplay.data.omniglot")
SMALL = dict.fromkeys(NAMES, CHARACTERS)
ZIPS, NPZ = source(small_zips()), source(small_npz())


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    return empty_cache(monkeypatch, tmp_path / "cache")


@pytest.fixture
def decoding(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Counts how often a zip is decoded."""
    counting = Mock(side_effect=module.read_zip)
    monkeypatch.setattr(module, "read_zip", counting)
    return counting


def load() -> Characters:
    return load_alphabets(ZIPS, NPZ, SMALL)


def assert_small(found: Characters) -> None:
    expected = small_characters()
    np.testing.assert_array_equal(found.drawings, expected.drawings)
    np.testing.assert_array_equal(found.alphabet, expected.alphabet)
    assert (found.alphabet_names, found.character_names) == (expected.alphabet_names, expected.character_names)
    assert found.name == "omniglot"


@pytest.mark.parametrize("files", [small_zips(), small_npz()], ids=["zips", "npz"])
@pytest.mark.parametrize("place", ["given/omniglot", "given", "cache/metareplay/omniglot"])
def test_both_forms_are_found_in_every_place(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, files: dict[str, bytes]
) -> None:
    del cache
    (tmp_path / "given").mkdir()
    monkeypatch.setenv("METAREPLAY_DATA", str(tmp_path / "given"))
    write(tmp_path / place, files)
    assert_small(load())


def test_the_given_folder_may_hold_mnist_too(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files have other names, so there can be no mistake."""
    del cache
    monkeypatch.setenv("METAREPLAY_DATA", str(tmp_path))
    write(tmp_path, small_npz() | {TEST_YS: b"of some dataset"})
    assert_small(load())


def test_zips_are_decoded_once(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoding: Mock) -> None:
    monkeypatch.setenv("METAREPLAY_DATA", str(tmp_path / "given"))
    write(tmp_path / "given", small_zips())
    for _ in range(3):
        assert_small(load())
    assert decoding.call_count == 2  # each of the two zips once
    assert [path.name for path in (cache / "omniglot").iterdir()] == ["decoded.npz"]
    assert {path.name for path in (tmp_path / "given").iterdir()} == set(small_zips())


@pytest.mark.parametrize("damage", ["truncated", "empty", "changed", "of others", "a folder", "of an old format"])
def test_what_was_decoded_is_made_again_if_it_is_not_right(
    cache: Path, decoding: Mock, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    write(cache / "omniglot", small_zips())
    kept = cache / "omniglot" / "decoded.npz"
    if damage == "of others":
        others = small_zips() | {"images_evaluation.zip": zipped({"Alef/a/1_1.png": b"", "Alef/a/1_2.png": b""})}
        with np.load(decoded(kept)) as arrays:
            given = dict(arrays)
        given["made_from"][-1] = source(others).files["images_evaluation.zip"]
        np.savez(kept, **given)
    elif damage == "changed":
        with np.load(decoded(kept)) as arrays:
            given = dict(arrays)
        given["images105"][7, 70] ^= 1
        np.savez(kept, **given)
    elif damage == "a folder":
        kept.mkdir()
    elif damage == "of an old format":
        decoded(kept)
        monkeypatch.setattr(module, "_FORMAT", "another")
    else:
        content = decoded(kept).read_bytes()
        kept.write_bytes(content[:-1000] if damage == "truncated" else b"")
    decoding.reset_mock()
    for _ in range(2):
        assert_small(load())
    assert decoding.call_count == (4 if damage == "a folder" else 2)  # a folder stays where it is


def decoded(kept: Path) -> Path:
    """Read the zips, and return the path of what is kept of them."""
    load()
    assert kept.is_file()
    return kept


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoding: Mock
) -> None:
    empty_cache(monkeypatch, tmp_path / "file" / "cache")
    (tmp_path / "file").touch()
    monkeypatch.setenv("METAREPLAY_DATA", str(tmp_path / "given"))
    write(tmp_path / "given", small_zips())
    for _ in range(2):
        assert_small(load())
    assert decoding.call_count == 4


@pytest.mark.parametrize("file", ["images_background.zip", "images_evaluation.zip", "omniglot.npz"])
@pytest.mark.parametrize("keep", [0, -100, None])
def test_a_file_with_a_wrong_checksum_is_refused(cache: Path, file: str, keep: int | None) -> None:
    files = small_npz() if file == "omniglot.npz" else small_zips()
    write(cache / "omniglot", files)
    damaged = cache / "omniglot" / file
    damaged.write_bytes(files[file][:keep] + (b"!" if keep is None else b""))
    with pytest.raises(DataError, match=f"{damaged} is damaged .*delete it and run `metareplay data fetch omniglot`"):
        load()


FILES = png_files(small_characters())


@pytest.mark.parametrize(
    ("left", "message"),
    [
        ({path: c for path, c in FILES.items() if not path.startswith("Zed")}, "the alphabet Zed is missing"),
        (
            {path: c for path, c in FILES.items() if not path.startswith("Zed/character02")},
            "the alphabet Zed has 3 characters instead of 4",
        ),
        (
            FILES | {f"New/a/1_{n}.png": c for n, c in enumerate(list(FILES.values())[:20])},
            "the alphabet New is unknown",
        ),
        ({path: c for path, c in FILES.items() if not path.endswith("_07.png")}, "has 19 drawings instead of 20"),
        (FILES, "the alphabets are in another order"),
    ],
)
def test_data_with_something_missing_are_refused(cache: Path, left: dict[str, bytes], message: str) -> None:
    files = {"all.zip": zipped(left)}
    write(cache / "omniglot", files)
    expected = rf"{cache / 'omniglot'}: .*{message}; delete the files of omniglot there and run `metareplay data fetch"
    alphabets = SMALL if left is FILES else {name: SMALL[name] for name in sorted(SMALL)}
    with pytest.raises(DataError, match=expected) as error:
        load_alphabets(source(files), NPZ, alphabets)
    assert "\n" not in str(error.value)


def test_nothing_found_and_nothing_to_download_is_one_line(cache: Path) -> None:
    with pytest.raises(
        DataError, match=r"`metareplay data fetch omniglot`.*put images_background.zip, images_eval.*DATA"
    ):
        load()
    assert not (cache / "omniglot").exists()


def test_omniglot_is_what_it_is_known_to_be() -> None:
    assert (len(ALPHABETS), sum(ALPHABETS.values())) == (50, 1623)
    names = list(ALPHABETS)
    assert names == sorted(names[:30]) + sorted(names[30:])
    assert sum(list(ALPHABETS.values())[:30]) == 964
    assert (min(ALPHABETS.values()), max(ALPHABETS.values())) == (14, 55)
    assert DRAWINGS == module.DRAWINGS
    for one in (OMNIGLOT, OMNIGLOT_NPZ):
        assert one.name == "omniglot"
        assert all(len(sha256) == 64 for sha256 in one.files.values())
    assert list(OMNIGLOT.files) == list(small_zips())
    assert all(mirror.startswith("https://") for mirror in OMNIGLOT.mirrors)


@pytest.mark.parametrize("file", [*OMNIGLOT.files, "omniglot.npz"])
def test_omniglots_files_must_be_the_original_ones(cache: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    monkeypatch.setattr(module, "_kept", {})  # whatever was read before
    write(cache / "omniglot", small_zips() if file in OMNIGLOT.files else small_npz())
    with pytest.raises(DataError, match="not omniglot's"):
        data.omniglot()


def test_omniglot_itself() -> None:
    """Needs the data, in the folder that METAREPLAY_DATA names or in the cache."""
    if not any(complete(folder, one) for folder in folders(OMNIGLOT) for one in (OMNIGLOT, OMNIGLOT_NPZ)):
        pytest.skip("Omniglot is not on this machine")
    found = data.omniglot()
    assert (found.drawings.shape, found.name) == ((1623, 20, 1379), "omniglot")
    assert found.sizes == tuple(ALPHABETS.values())
    assert found.alphabet_names == tuple(ALPHABETS)
    assert found.character_names[:2] == ("Alphabet_of_the_Magi/character01", "Alphabet_of_the_Magi/character02")
    assert data.omniglot() is found
    assert 0.02 < found.images(28).mean() / 255 < 0.2
    assert found.images(28, "binary").any((2, 3)).all()  # none is blank
    assert np.array_equal(*found.drawings[found.character_names.index("Braille/character01")][[2, 18]])  # a known quirk
    for folder in folders(OMNIGLOT):
        if complete(folder, OMNIGLOT_NPZ):
            with np.load(folder / "omniglot.npz") as arrays:
                assert np.array_equal(found.images(28).reshape(-1, 28, 28), arrays["grey28"])
            break
