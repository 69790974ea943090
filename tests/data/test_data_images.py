"""Datasets read from disk."""

import gzip
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_dataset import ARRAYS, FILES, TOY, assert_toy, empty_cache, write

from metareplay import data
from metareplay.data import Images, Source, load
from metareplay.data.sources import FASHION_MNIST, MNIST, SOURCES, TEST_XS, TRAIN_XS, TRAIN_YS
from metareplay.errors import DataError


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    return empty_cache(monkeypatch, tmp_path)


XS, YS = ARRAYS[TRAIN_XS], ARRAYS[TRAIN_YS]


@pytest.mark.parametrize(
    ("xs", "ys", "message"),
    [
        (XS.astype(np.float32), YS, "uint8"),
        (XS, YS.astype(np.int64), "uint8"),
        (XS.tolist(), YS, "uint8"),
        (XS.reshape(5, 784), YS, r"\(n, 28, 28\)"),
        (XS[:0], YS[:0], "n >= 1"),
        (XS, YS[:4], "a label for each of 5"),
        (XS, YS.reshape(5, 1), "a label for each of 5"),
    ],
)
def test_images_that_do_not_fit_are_refused(xs: Any, ys: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"train_.*{message}"):
        Images("mine", xs, ys, XS, YS)
    with pytest.raises(DataError, match=f"test_.*{message}"):
        Images("mine", XS, YS, xs, ys)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("place", ["given/toy", "given", "cache/metareplay/toy", "system"])
def test_load_finds_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str, packed: bool) -> None:
    (tmp_path / "given").mkdir()
    monkeypatch.setenv("METAREPLAY_DATA", str(tmp_path / "given"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write(tmp_path / place, FILES, packed)
    assert_toy(load(replace(TOY, folders=[str(tmp_path / "system")])))


def test_load_uses_the_given_folder_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path) -> None:
    write(cache / "toy", dict.fromkeys(FILES, b"damaged"))
    write(tmp_path / "given" / "toy", FILES)
    monkeypatch.setenv("METAREPLAY_DATA", str(tmp_path / "given"))
    assert_toy(load(TOY))


def test_load_leaves_another_dataset_in_the_given_folder_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path
) -> None:
    others = {file: content + b"!" for file, content in FILES.items()}
    other = Source("other", {file: hashlib.sha256(content).hexdigest() for file, content in others.items()})
    monkeypatch.setitem(SOURCES, "other", other)
    monkeypatch.setenv("METAREPLAY_DATA", str(tmp_path / "given"))
    write(tmp_path / "given", others)
    write(cache / "toy", FILES)
    assert_toy(load(TOY))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("content", [b"", b"\x1f\x8b", gzip.compress(FILES[TEST_XS])[:-9], FILES[TEST_XS] + b"\0"])
def test_load_refuses_a_damaged_file(cache: Path, packed: bool, content: bytes) -> None:
    write(cache / "toy", FILES)
    damaged = cache / "toy" / f"{TEST_XS}{'.gz' if packed else ''}"
    (cache / "toy" / TEST_XS).unlink()
    damaged.write_bytes(content)
    with pytest.raises(DataError, match=f"{damaged} is damaged.*delete it and run `metareplay data fetch toy`"):
        load(TOY)


@pytest.mark.parametrize("content", [b"", b"\0\0\x08", b"\0\0\x08\x03\0\0", b"\0\0\x08\x01\0\0\0\x05", b"\0\0\x0d\x01"])
def test_load_refuses_what_is_not_idx(cache: Path, content: bytes) -> None:
    write(cache / "toy", FILES | {TEST_XS: content})
    source = replace(TOY, files={**TOY.files, TEST_XS: hashlib.sha256(content).hexdigest()})
    with pytest.raises(DataError, match="not an IDX file"):
        load(source)


def test_load_says_what_to_do_when_there_is_nothing(cache: Path) -> None:
    with pytest.raises(DataError, match=f"`metareplay data fetch toy`.* put {TRAIN_XS}.*METAREPLAY_DATA") as error:
        load(TOY)
    assert "\n" not in str(error.value)
    assert not (cache / "toy").exists()


def test_load_refuses_a_given_folder_that_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("METAREPLAY_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="nowhere is not a folder"):
        load(TOY)


@pytest.mark.parametrize(("read", "source"), [(data.mnist, MNIST), (data.fashion_mnist, FASHION_MNIST)])
def test_known_datasets_are_looked_for_and_checked(read: Any, source: Source, cache: Path) -> None:
    write(cache / source.name, FILES)
    with pytest.raises(DataError, match=f"not {source.name}'s"):
        read()
    assert list(source.files) == list(FILES)
    assert all(len(sha256) == 64 for sha256 in source.files.values())
    assert all(mirror.startswith("https://") for mirror in source.mirrors)


def test_a_dataset_is_shown_in_one_short_line() -> None:
    assert repr(TOY) == "Source(name='toy')"
    assert repr(Images("mine", XS, YS, XS[:3], YS[:3])) == "Images(name='mine', train=5, test=3)"
