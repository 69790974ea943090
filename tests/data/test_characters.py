"""Characters as arrays, and their images."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_characters import small_characters

from metareplay.data import Bytes, Characters
from metareplay.data.characters import ink_coverage
from metareplay.errors import DataError, InputError

rng = np.random.default_rng(0)
GOOD: dict[str, Any] = {
    "drawings": rng.integers(0, 256, (3, 2, 1379), np.uint8),
    "alphabet": np.array([0, 0, 1]),
    "alphabet_names": ("Greek", "Latin"),
    "character_names": ("alpha", "beta", "a"),
}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"drawings": GOOD["drawings"].tolist()}, "drawings is a list"),
        ({"drawings": GOOD["drawings"].astype(int)}, "drawings is int64 of shape .*give uint8"),
        ({"drawings": GOOD["drawings"][:, :, :98]}, r"drawings is uint8 of shape \(3, 2, 98\)"),
        ({"drawings": GOOD["drawings"][0]}, r"drawings is uint8 of shape \(2, 1379\)"),
        ({"drawings": GOOD["drawings"][:, :1]}, "with two drawings"),
        ({"drawings": GOOD["drawings"][:0], "alphabet": GOOD["alphabet"][:0]}, "at least one character"),
        ({"alphabet": [0, 0, 1]}, "alphabet is a list"),
        ({"alphabet": np.array([0, 1])}, "for each of 3 characters"),
        ({"alphabet": np.array([0.0, 0.0, 1.0])}, "alphabet is float64"),
        ({"alphabet": np.array([0, 1, 0])}, "one alphabet after another"),
        ({"alphabet": np.array([0, 0, 2])}, "one alphabet after another"),
        ({"alphabet": np.array([1, 1, 2])}, "one alphabet after another"),
        ({"alphabet_names": ("Greek",)}, "alphabet_names has 1 names; give 2"),
        ({"character_names": ("alpha", "beta")}, "character_names has 2 names; give 3"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"mine: .*{message}") as error:
        Characters("mine", **GOOD | changed)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("pixels", [[1], np.zeros((3, 2, 28, 28)), np.zeros((3, 105, 105))])
def test_pixels_of_another_shape_are_refused(pixels: Any) -> None:
    with pytest.raises(DataError, match=r"mine: pixels is .*105, 105"):
        Characters.from_pixels("mine", pixels, [0, 0, 1], ("Greek", "Latin"), ("alpha", "beta", "a"))


@pytest.mark.parametrize("name", [3, None, b"mine", "a\nb", "a\n"])
def test_names_that_are_no_text_of_one_line_are_refused(name: Any) -> None:
    pixels = np.zeros((3, 2, 105, 105), bool)
    with pytest.raises(InputError, match="name="):
        Characters.from_pixels(name, pixels, [0, 0, 1], ["Greek", "Latin"], ["alpha", "beta", "a"])
    with pytest.raises(InputError, match="name="):
        dataclasses.replace(small_characters(), name=name)


def test_pixels_come_back() -> None:
    pixels = rng.random((3, 2, 105, 105)) < 0.5
    made = Characters.from_pixels("mine", pixels, [0, 0, 1], ["Greek", "Latin"], ["alpha", "beta", "a"])
    assert made.sizes == (2, 1)
    for kind in ("grey", "binary"):
        assert np.array_equal(made.images(105, kind), pixels * 255)
    assert repr(made) == "Characters(name='mine', alphabets=2, characters=3, drawings=2)"


@pytest.mark.parametrize("resolution", [0, 106, -1, 28.0, "28", None, True])
def test_resolutions_that_are_none_are_refused(resolution: Any) -> None:
    with pytest.raises(InputError, match=r"resolution=.*: use a whole number from 1 to 105"):
        small_characters().images(resolution)


def test_kinds_of_pixels_that_are_none_are_refused() -> None:
    with pytest.raises(InputError, match="pixels='colour': use 'grey' or 'binary'"):
        small_characters().images(28, "colour")  # type: ignore[arg-type]


@pytest.mark.parametrize("resolution", [1, 7, 28])
def test_binary_images_are_half_covered(resolution: int) -> None:
    grey, binary = (small_characters().images(resolution, kind) for kind in ("grey", "binary"))
    assert grey.shape == binary.shape == (12, 20, resolution, resolution)
    assert np.array_equal(binary, np.where(grey >= 128, 255, 0))
    assert binary.dtype == np.uint8


def test_images_are_made_once_and_cannot_be_changed() -> None:
    images = small_characters().images(14)
    assert small_characters().images(14) is images
    assert not images.flags.writeable


def slow_coverage(bits: Bytes, resolution: int) -> Bytes:
    """Each pixel cut into resolution x resolution parts, and these added up in squares of 105 x 105."""
    sums = bits.astype(np.int64)
    for axis in (1, 2):
        parts = np.moveaxis(sums, axis, 0).repeat(resolution, axis=0)
        sums = np.moveaxis(parts.reshape(resolution, 105, *parts.shape[1:]).sum(1), 0, axis)
    return np.floor(sums * 255 / 105**2 + 0.5).astype(np.uint8)


@given(
    resolution=st.one_of(st.sampled_from([1, 2, 15, 28, 32, 35, 104, 105]), st.integers(1, 105)),
    seed=st.integers(0, 2**32 - 1),
    ink=st.floats(0, 1),
)
def test_coverage_is_the_exact_average_over_each_area(resolution: int, seed: int, ink: float) -> None:
    bits = (np.random.default_rng(seed).random((2, 105, 105)) < ink).astype(np.uint8)
    found = ink_coverage(bits, resolution)
    assert (found.dtype.name, found.shape) == ("uint8", (2, resolution, resolution))
    assert np.array_equal(found, slow_coverage(bits, resolution))
    share = found.mean((1, 2), dtype=float) / 255
    assert np.allclose(share, bits.mean((1, 2)), rtol=0, atol=0.5 / 255)  # all the ink is there, up to rounding


@pytest.mark.parametrize("resolution", [1, 28, 64, 105])
def test_paper_is_0_and_ink_is_255(resolution: int) -> None:
    bits = np.stack([np.zeros((105, 105), np.uint8), np.ones((105, 105), np.uint8)])
    assert np.array_equal(ink_coverage(bits, resolution), np.full((2, resolution, resolution), [[[0]], [[255]]]))
