import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from metareplay.data import Images
from metareplay.streams import Rotations
from metareplay.streams.rotations import rotation

SEVEN = np.zeros((28, 28), np.uint8)
SEVEN[4, 8:20] = 1  # the bar, from left to right
SEVEN[5:24, 19] = 2  # the stem, down its right end

FULL = np.random.default_rng(0).integers(1, 256, (28, 28), np.uint8)  # without a black pixel


def turned(image: NDArray[np.uint8], angle: float) -> NDArray[np.uint8]:
    pixels = rotation(angle)
    return np.where(pixels < 0, 0, image.ravel()[np.maximum(pixels, 0)]).astype(np.uint8).reshape(28, 28)


def test_no_angle_changes_nothing() -> None:
    np.testing.assert_array_equal(turned(SEVEN, 0), SEVEN)


def test_a_quarter_turn_is_counterclockwise() -> None:
    expected = np.zeros((28, 28), np.uint8)
    expected[8:20, 4] = 1  # the bar, up the left side
    expected[8, 5:24] = 2  # the stem, to the right from its upper end
    np.testing.assert_array_equal(turned(SEVEN, 90), expected)


def test_a_half_turn_is_upside_down() -> None:
    expected = np.zeros((28, 28), np.uint8)
    expected[23, 8:20] = 1
    expected[4:23, 8] = 2
    np.testing.assert_array_equal(turned(SEVEN, 180), expected)


def test_half_a_quarter_turn_leaves_the_corners_black() -> None:
    image = turned(FULL, 45)
    assert [image[y, x] for y in (0, 27) for x in (0, 27)] == [0, 0, 0, 0]
    assert image[14, 14] > 0


def agrees_with_pillow(angle: float) -> bool:
    return np.array_equal(turned(FULL, angle), np.asarray(Image.fromarray(FULL).rotate(angle)))


@settings(max_examples=1000)
@given(st.floats(0, 180) | st.floats(-1000, 1000))
@example(-1e-20)
@example(180.00000000000003)
def test_every_angle_is_as_in_pillow(angle: float) -> None:
    assert agrees_with_pillow(angle)


@pytest.mark.parametrize("quarter", [0, 90, 180, 270, 360])
def test_angles_near_a_quarter_turn_are_as_in_pillow(quarter: int) -> None:
    near = [10.0**-places for places in range(18)]
    assert all(agrees_with_pillow(quarter + sign * step) for step in [0.0, *near] for sign in (1, -1))


def test_a_grid_of_angles_is_as_in_pillow() -> None:
    assert all(agrees_with_pillow(angle) for angle in np.linspace(0, 180, 3001).tolist())


@given(tasks=st.integers(1, 50), seed=st.integers(0, 2**40))
def test_each_task_has_its_share_of_the_half_turn(tasks: int, seed: int) -> None:
    stream = Rotations(tasks, seed=seed)
    for task in range(tasks):
        assert 180 * task / tasks <= stream.angle(task) <= 180 * (task + 1) / tasks
    assert stream.angle(0) != Rotations(tasks, seed=seed + 1).angle(0)


def test_a_task_turns_all_its_images_by_its_angle() -> None:
    ys = np.array([7, 1], np.uint8)
    xs = np.stack([SEVEN, FULL])
    stream = Rotations(4, 2, images=Images("two", xs, ys, xs, ys), shape=(28, 28))
    for chunk in stream.chunks():
        pillow = {
            y: np.asarray(Image.fromarray(x).rotate(stream.angle(chunk.task)))
            for x, y in zip(xs, ys.tolist(), strict=True)
        }
        for examples in (chunk, stream.test(chunk.task)):
            assert sorted(examples.ys.tolist()) == [1, 7]
            for x, y in zip(examples.xs.numpy(), examples.ys.tolist(), strict=True):
                np.testing.assert_array_equal(x, pillow[y])
