"""What holds for every stream of images."""

import json
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from metareplay.data import Bytes, Images
from metareplay.errors import InputError
from metareplay.streams import CHUNK, ManyPermutations, Permutations, Rotations, Stream
from metareplay.streams import images as image_streams
from metareplay.streams.images import ImageStream, Map

STREAMS = [ManyPermutations, Permutations, Rotations]

rng = np.random.default_rng(0)
IMAGES = Images(
    "noise",
    rng.integers(0, 256, (600, 28, 28), np.uint8),
    rng.integers(0, 10, 600, np.uint8),
    rng.integers(0, 256, (50, 28, 28), np.uint8),
    rng.integers(0, 10, 50, np.uint8),
)

every_stream = pytest.mark.parametrize("kind", STREAMS)


def rows(stream: ImageStream, start: int = 0) -> tuple[Bytes, NDArray[np.int64], list[int]]:
    """The training examples as one table, with the task of each."""
    chunks = list(stream.chunks(start))
    xs = np.concatenate([chunk.xs.numpy() for chunk in chunks])
    ys = np.concatenate([chunk.ys.numpy() for chunk in chunks])
    return xs, ys, [chunk.task for chunk in chunks for _ in range(len(chunk))]


@every_stream
def test_chunks_give_every_task_its_examples_in_order(kind: type[ImageStream]) -> None:
    stream = kind(3, 300, images=IMAGES)
    assert [(chunk.task, len(chunk)) for chunk in stream.chunks()] == [
        (task, size) for task in range(3) for size in (CHUNK, 300 - CHUNK)
    ]
    xs, ys, tasks = rows(stream)
    assert (xs.shape, xs.dtype.name, ys.shape, ys.dtype.name) == ((900, 784), "uint8", (900,), "int64")
    assert stream.total == len(tasks) == 900


@every_stream
def test_the_training_examples_of_a_task_are_those_of_its_chunks(kind: type[ImageStream]) -> None:
    stream = kind(3, 300, images=IMAGES)
    for task in range(3):
        found, collected = stream.train(task), Stream.train(stream, task)
        assert torch.equal(found.xs, collected.xs)
        assert torch.equal(found.ys, collected.ys)


@every_stream
def test_examples_are_training_images_with_their_pixels_moved(kind: type[ImageStream]) -> None:
    stream = kind(2, 600, images=IMAGES)
    xs, ys, _ = rows(stream)
    for task in range(2):
        pixels = stream.pixel_map(task)
        moved = np.where(pixels < 0, np.uint8(0), IMAGES.train_xs.reshape(600, 784)[:, np.maximum(pixels, 0)])
        places = {row.tobytes(): place for place, row in enumerate(moved)}
        order = [places[row.tobytes()] for row in xs[600 * task :][:600]]
        assert sorted(order) == list(range(600))  # each image once
        assert order != list(range(600))
        assert ys[600 * task :][:600].tolist() == IMAGES.train_ys[order].tolist()


@every_stream
def test_tasks_draw_different_images(kind: type[ImageStream]) -> None:
    _, ys, _ = rows(kind(2, 100, images=IMAGES))
    assert ys[:100].tolist() != ys[100:].tolist()


@every_stream
def test_a_stream_is_a_function_of_its_seed(kind: type[ImageStream]) -> None:
    first, again, other = (rows(kind(2, 20, seed, images=IMAGES)) for seed in (5, 5, 6))
    assert np.array_equal(first[0], again[0])
    assert np.array_equal(first[1], again[1])
    assert not np.array_equal(first[0], other[0])


@every_stream
@settings(max_examples=20)
@given(start=st.integers(0, 900))
def test_chunks_begin_anywhere(kind: type[ImageStream], start: int) -> None:
    stream = kind(3, 300, images=IMAGES)
    chunks = list(stream.chunks(start))
    assert sum(len(chunk) for chunk in chunks) == 900 - start
    if start < 900:
        (xs, ys, tasks), (all_xs, all_ys, all_tasks) = rows(stream, start), rows(stream)
        assert np.array_equal(xs, all_xs[start:])
        assert np.array_equal(ys, all_ys[start:])
        assert tasks == all_tasks[start:]


@every_stream
def test_chunks_do_not_make_the_tasks_before(kind: type[ImageStream], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    pixel_map = kind.pixel_map

    def noted(self: ImageStream, task: int) -> Map:
        made.append(task)
        return pixel_map(self, task)

    monkeypatch.setattr(kind, "pixel_map", noted)
    list(kind(5, 10, images=IMAGES).chunks(35))
    assert made == [3, 4]


@every_stream
def test_test_sets_show_the_first_test_images_as_the_task_does(kind: type[ImageStream]) -> None:
    all_of_them = kind(2, 1, images=IMAGES).test(1)
    assert (all_of_them.xs.shape, all_of_them.xs.dtype) == ((50, 784), torch.uint8)
    assert all_of_them.ys.tolist() == IMAGES.test_ys.tolist()
    some = kind(2, 1, images=IMAGES, test_examples=7, shape=(1, 28, 28)).test(1)
    assert torch.equal(some.xs, all_of_them.xs[:7].view(7, 1, 28, 28))
    assert torch.equal(some.ys, all_of_them.ys[:7])


@every_stream
def test_the_images_stay_as_they_are(kind: type[ImageStream]) -> None:
    before = IMAGES.train_xs.copy(), IMAGES.test_xs.copy()
    stream = kind(2, 30, images=IMAGES)
    next(stream.chunks()).xs.zero_()
    stream.test(0).xs.zero_()
    np.testing.assert_array_equal(IMAGES.train_xs, before[0])
    np.testing.assert_array_equal(IMAGES.test_xs, before[1])


@every_stream
def test_inputs_have_the_shape_asked_for(kind: type[ImageStream]) -> None:
    flat, _, _ = rows(kind(1, 5, images=IMAGES))
    square, _, _ = rows(kind(1, 5, images=IMAGES, shape=(28, 28)))
    assert np.array_equal(square, flat.reshape(5, 28, 28))


@every_stream
def test_mnist_is_read_only_when_needed(kind: type[ImageStream], monkeypatch: pytest.MonkeyPatch) -> None:
    mnist = Mock(return_value=IMAGES)
    monkeypatch.setattr(image_streams, "mnist", mnist)
    stream = kind(2, 5)
    assert stream.settings()["images"] == "mnist"
    mnist.assert_not_called()
    assert len(stream.test(0)) == 50
    mnist.assert_called_once_with()


@every_stream
def test_settings_are_plain_json(kind: type[ImageStream]) -> None:
    stream = kind(np.int64(3), 7, seed=2, images=IMAGES, shape=(28, 28), test_examples=5)  # type: ignore[arg-type]
    assert json.loads(json.dumps(stream.settings())) == {
        "stream": kind.__name__,
        "images": "noise",
        "tasks": 3,
        "examples": 7,
        "seed": 2,
        "shape": [28, 28],
        "test_examples": 5,
    }


@every_stream
def test_a_stream_shows_its_size_its_seed_and_what_is_not_the_default(kind: type[ImageStream]) -> None:
    assert repr(kind(np.int64(3), 7, seed=2)) == f"{kind.__name__}(tasks=3, examples=7, seed=2)"  # type: ignore[arg-type]
    stream = kind(3, 7, images=IMAGES, shape=(28, 28), test_examples=5)
    options = "images='noise', shape=(28, 28), test_examples=5"
    assert repr(stream) == f"{kind.__name__}(tasks=3, examples=7, seed=0, {options})"
    assert repr(next(stream.chunks())) == "Chunk(xs=uint8 of shape (7, 28, 28), ys=int64 of shape (7,), task=0)"
    assert repr(stream.test(0)) == "Examples(xs=uint8 of shape (5, 28, 28), ys=int64 of shape (5,))"


@every_stream
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": 0}, "tasks=0: use a whole number of at least 1"),
        ({"tasks": 2.5}, "tasks=2.5: use a whole number of at least 1"),
        ({"examples": 0}, "examples=0: use a whole number from 1 to 600"),
        ({"examples": 601}, "examples=601: use a whole number from 1 to 600"),
        ({"examples": 60_001, "images": None}, "from 1 to 60000"),
        ({"seed": -1}, "seed=-1: use a whole number of at least 0"),
        ({"test_examples": 0}, "test_examples=0: use a whole number from 1 to 50"),
        ({"test_examples": 51}, "test_examples=51: use a whole number from 1 to 50"),
        ({"shape": (28, 27)}, "784 pixels"),
        ({"shape": ()}, "784 pixels"),
        ({"shape": (-28, -28)}, "784 pixels"),
        ({"shape": 784}, "784 pixels"),
    ],
)
def test_options_that_cannot_be_met_are_refused(kind: type[ImageStream], options: dict[str, Any], message: str) -> None:
    usual: dict[str, Any] = {"tasks": 2, "examples": 5, "images": IMAGES}
    with pytest.raises(InputError, match=message):
        kind(**usual | options)


@every_stream
def test_places_outside_the_stream_are_refused(kind: type[ImageStream]) -> None:
    stream = kind(2, 5, images=IMAGES)
    for start in (-1, 11):
        with pytest.raises(InputError, match=f"start={start}: use a whole number from 0 to 10"):
            next(stream.chunks(start))
    for task in (-1, 2):
        with pytest.raises(InputError, match=f"task={task}: use a whole number from 0 to 1"):
            stream.test(task)
