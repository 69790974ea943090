"""Omniglot as a stream; all but one of the tests show small characters in its place."""

import importlib
import json
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_characters import CHARACTERS, DRAWINGS, instead_of_omniglot, small_characters

import metareplay as mr
from metareplay.data import Characters
from metareplay.data.dataset_files import complete, folders
from metareplay.data.omniglot import OMNIGLOT_NPZ
from metareplay.data.sources import OMNIGLOT
from metareplay.errors import InputError
from metareplay.streams import CHUNK, Chunk, Examples, Omniglot

module = importlib.import_module("metareplay.streams.omniglot")
TRAIN, TEST = 18, 2  # of 20 drawings
seeds = st.integers(0, 2**32 - 1)


def uneven() -> Characters:
    """Alphabets of 1, 5 and 16 characters, the last of which does not fit into one chunk."""
    pixels = np.random.default_rng(1).random((22, DRAWINGS, 105, 105)) < 0.3
    alphabet = np.repeat([0, 1, 2], [1, 5, 16])
    return Characters.from_pixels("uneven", pixels, alphabet, ("A", "B", "C"), [str(number) for number in range(22)])


UNEVEN = uneven()


def small(tasks: int = 3, seed: int = 0, **options: Any) -> Omniglot:
    return Omniglot(tasks, seed, **{"characters": small_characters()} | options)


def found(examples: Examples | Chunk, characters: Characters, resolution: int = 28) -> list[tuple[int, int]]:
    """The character and the number of the drawing that each input shows."""
    images = characters.images(resolution)
    places = {images[place].tobytes(): place for place in np.ndindex(images.shape[:2])}
    assert len(places) == images.shape[0] * images.shape[1]  # no two are the same
    return [places[x.numpy().tobytes()] for x in examples.xs]


def joined(chunks: list[Chunk]) -> Examples:
    return Examples(torch.cat([chunk.xs for chunk in chunks]), torch.cat([chunk.ys for chunk in chunks]))


# The split


@pytest.mark.parametrize("split", ["drawings", "drawers"])
@given(seed=seeds, share=st.floats(0.03, 0.97), shuffled=st.booleans())
def test_every_drawing_is_for_training_or_for_testing(split: Any, seed: int, share: float, shuffled: bool) -> None:
    order: Any = "shuffled" if shuffled else "given"
    stream = Omniglot(3, seed, characters=UNEVEN, split=split, test_share=share, order=order)
    tests = round(share * DRAWINGS)
    places = []
    for task in range(3):
        training, testing = (found(some, UNEVEN) for some in (stream.train(task), stream.test(task)))
        assert len(training) == stream.classes[task] * (DRAWINGS - tests)
        assert len(testing) == stream.classes[task] * tests
        places += training + testing
        of_each = {character: {n for c, n in testing if c == character} for character, _ in testing}
        assert all(len(numbers) == tests for numbers in of_each.values())
        if split == "drawers":
            assert len(set(map(frozenset, of_each.values()))) == 1
    assert sorted(places) == list(np.ndindex(22, DRAWINGS))  # disjoint and complete


@pytest.mark.parametrize("split", ["drawings", "drawers"])
def test_the_seed_alone_decides_the_split(split: Any) -> None:
    streams = [small(seed=seed, split=split) for seed in (5, 5, 6)]
    first, again, other = (found(stream.test(1), small_characters()) for stream in streams)
    assert first == again
    assert first != other
    one, same, another = (found(stream.train(1), small_characters()) for stream in streams)
    assert one == same
    assert one != another


def test_drawers_are_the_same_in_all_alphabets() -> None:
    stream = small(split="drawers", seed=3)
    numbers = {n for task in range(3) for _, n in found(stream.test(task), small_characters())}
    assert len(numbers) == TEST
    drawn = small(split="drawings", seed=3)
    assert len({n for task in range(3) for _, n in found(drawn.test(task), small_characters())}) > TEST


@given(seed=seeds)
def test_the_order_of_the_alphabets_does_not_change_the_split(seed: int) -> None:
    given_order, shuffled = (Omniglot(3, seed, characters=UNEVEN, order=order) for order in ("given", "shuffled"))
    sizes = given_order.classes
    assert sorted(shuffled.classes) == sorted(sizes) == [1, 5, 16]
    for task in range(3):
        same = sizes.index(shuffled.classes[task])
        assert torch.equal(shuffled.train(task).xs, given_order.train(same).xs)
        assert torch.equal(shuffled.test(task).ys, given_order.test(same).ys)


def test_shuffled_alphabets_come_in_an_order_of_the_seed() -> None:
    orders = {Omniglot(3, seed, characters=UNEVEN, order="shuffled").classes for seed in range(40)}
    assert len(orders) == 6
    assert (
        Omniglot(2, 7, characters=UNEVEN, order="shuffled").classes
        == (Omniglot(3, 7, characters=UNEVEN, order="shuffled").classes[:2])
    )


# The stream


def test_characters_come_one_after_another() -> None:
    stream = small()
    for task in range(3):
        training = stream.train(task)
        assert training.ys.tolist() == np.arange(CHARACTERS).repeat(TRAIN).tolist()
        places = found(training, small_characters())
        assert [character for character, _ in places] == (task * CHARACTERS + training.ys).tolist()
        numbers = np.array([number for _, number in places]).reshape(CHARACTERS, TRAIN)
        assert all(len(set(row)) == TRAIN for row in numbers.tolist())
        assert all(row != sorted(row) for row in numbers.tolist())  # each in an order of its own
        assert stream.test(task).ys.tolist() == np.arange(CHARACTERS).repeat(TEST).tolist()


def test_chunks_are_the_training_examples() -> None:
    stream = Omniglot(3, characters=UNEVEN)
    chunks = list(stream.chunks())
    assert [(chunk.task, len(chunk)) for chunk in chunks] == [(0, 18), (1, 90), (2, CHUNK), (2, 16 * 18 - CHUNK)]
    assert stream.total == 22 * TRAIN == sum(map(len, chunks))
    for task in range(3):
        rows = joined([chunk for chunk in chunks if chunk.task == task])
        assert torch.equal(rows.xs, stream.train(task).xs)
        assert torch.equal(rows.ys, stream.train(task).ys)


@given(start=st.integers(0, 22 * TRAIN))
def test_chunks_begin_anywhere(start: int) -> None:
    stream = Omniglot(3, characters=UNEVEN)
    chunks = list(stream.chunks(start))
    assert sum(map(len, chunks)) == stream.total - start
    if chunks:
        rows, everything = joined(chunks), joined(list(stream.chunks()))
        assert torch.equal(rows.xs, everything.xs[start:])
        assert torch.equal(rows.ys, everything.ys[start:])
        assert [c.task for c in chunks for _ in range(len(c))] == [0] * max(18 - start, 0) + [1] * min(
            90, max(108 - start, 0)
        ) + [2] * min(288, stream.total - start)


@pytest.mark.parametrize("resolution", [1, 14, 28, 105])
def test_inputs_are_bytes_of_one_channel(resolution: int) -> None:
    stream = small(resolution=resolution)
    for examples in (stream.train(0), stream.test(0), next(stream.chunks())):
        assert (examples.xs.dtype, examples.ys.dtype) == (torch.uint8, torch.int64)
        assert tuple(examples.xs.shape[1:]) == stream.shape == (1, resolution, resolution)


def test_binary_pixels_are_0_or_255() -> None:
    grey, binary = small().test(2).xs, small(pixels="binary").test(2).xs
    assert torch.equal(binary, (grey >= 128).to(torch.uint8) * 255)


@pytest.mark.parametrize(("examples", "shown"), [(1, 1), (18, 1), (19, 2), (72, 4), (73, 5), (90, 5), (1000, 5)])
def test_examples_are_whole_characters(examples: int, shown: int) -> None:
    stream, everything = (Omniglot(2, characters=UNEVEN, examples=some) for some in (examples, None))
    assert stream.classes == (1, shown)
    assert stream.total == TRAIN * (1 + shown)
    for some, all_of_them in ((stream.train(1), everything.train(1)), (stream.test(1), everything.test(1))):
        assert torch.equal(some.xs, all_of_them.xs[: len(some)])
        assert sorted(set(some.ys.tolist())) == list(range(shown))


def test_test_examples_are_drawn_from_all() -> None:
    stream, everything = (Omniglot(3, characters=UNEVEN, test_examples=some) for some in (6, None))
    assert [len(stream.test(task)) for task in range(3)] == [2, 6, 6]
    assert [len(everything.test(task)) for task in range(3)] == [2, 10, 32]
    some, all_of_them = (found(one.test(2), UNEVEN) for one in (stream, everything))
    assert set(some) < set(all_of_them)
    assert some == sorted(some)
    assert stream.test(2).ys.max() > 3  # not only the first characters
    assert torch.equal(stream.train(2).xs, everything.train(2).xs)


def test_labels_may_number_all_characters() -> None:
    for order in ("given", "shuffled"):
        stream = Omniglot(2, 1, characters=UNEVEN, labels="all", order=order)
        assert stream.classes == (22, 22)
        for task in range(2):
            for examples in (stream.train(task), stream.test(task)):
                assert examples.ys.tolist() == [character for character, _ in found(examples, UNEVEN)]


def test_a_head_per_task_learns_it() -> None:
    stream = small(tasks=2, resolution=15)
    body = torch.nn.Sequential(torch.nn.Flatten(), mr.networks.mlp(225, (), 16, seed=0))
    model = mr.networks.MultiHead(body, features=16, classes=stream.classes)
    record = mr.run(mr.ER(model, memory=mr.Reservoir(100), lr=0.1, k=10), stream)
    assert record.ra > 60
    assert record.stream == stream.settings()


def test_what_is_returned_can_be_changed_without_harm() -> None:
    stream = small()
    before = stream.test(0).xs.clone()
    stream.test(0).xs.zero_()
    next(stream.chunks()).xs.zero_()
    assert torch.equal(stream.test(0).xs, before)


# Options


def test_nothing_is_read_before_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Mock(return_value=small_characters())
    monkeypatch.setattr(module, "omniglot", reading)
    stream = Omniglot()
    assert (stream.tasks, stream.total, sum(stream.classes)) == (50, 1623 * TRAIN, 1623)
    assert Omniglot(labels="all").classes == (1623,) * 50
    assert stream.settings()["characters"] == "omniglot"
    assert sorted(Omniglot(order="shuffled").classes) == sorted(stream.classes)
    reading.assert_not_called()
    monkeypatch.setattr(module, "SIZES", (4, 4, 4))
    assert len(Omniglot(3).test(0)) == 4 * TEST
    reading.assert_called_once_with()


def test_small_characters_may_stand_in_for_omniglot(monkeypatch: pytest.MonkeyPatch) -> None:
    instead_of_omniglot(monkeypatch)
    assert torch.equal(Omniglot(3).train(2).xs, small().train(2).xs)
    instead_of_omniglot(monkeypatch, alphabets=50)
    assert Omniglot().classes == (4,) * 50


def test_settings_are_plain_json() -> None:
    stream = small(np.int64(2), 7, examples=np.int64(72), order="shuffled", resolution=np.int64(14), labels="all")  # type: ignore[arg-type]
    assert json.loads(json.dumps(stream.settings())) == {
        "stream": "Omniglot",
        "characters": "small",
        "tasks": 2,
        "seed": 7,
        "examples": 72,
        "test_examples": None,
        "order": "shuffled",
        "split": "drawings",
        "test_share": 0.1,
        "resolution": 14,
        "pixels": "grey",
        "labels": "all",
    }


def test_the_repr_shows_what_is_not_usual() -> None:
    assert repr(Omniglot()) == "Omniglot(tasks=50, seed=0)"
    shown = "Omniglot(tasks=3, seed=2, characters='small', split='drawers', pixels='binary')"
    assert repr(small(seed=2, split="drawers", pixels="binary")) == shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": 4}, "tasks=4: use a whole number from 1 to 3"),
        ({"tasks": 0}, "tasks=0: use a whole number from 1 to 3"),
        ({"tasks": 51, "characters": None}, "tasks=51: use a whole number from 1 to 50"),
        ({"seed": -1}, "seed=-1: use a whole number of at least 0"),
        ({"examples": 0}, "examples=0: use a whole number of at least 1"),
        ({"examples": 1.5}, "examples=1.5: use a whole number"),
        ({"test_examples": 0}, "test_examples=0: use a whole number of at least 1"),
        ({"order": "random"}, "order='random': use 'given' or 'shuffled'"),
        ({"split": "drawer"}, "split='drawer': use 'drawings' or 'drawers'"),
        ({"labels": "task"}, "labels='task': use 'alphabet' or 'all'"),
        ({"pixels": "rgb"}, "pixels='rgb': use 'grey' or 'binary'"),
        ({"resolution": 0}, "resolution=0: use a whole number from 1 to 105"),
        ({"test_share": 0}, "test_share=0: use a number between 0 and 1 that leaves some of each character's 20"),
        ({"test_share": 1}, "test_share=1: use a number"),
        ({"test_share": 0.01}, "test_share=0.01: use a number"),
        ({"test_share": float("nan")}, "test_share=nan: use a number"),
        ({"test_share": float("inf")}, "test_share=inf: use a number"),
        ({"test_share": "some"}, "test_share='some': use a number"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        small(**options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("task", [-1, 3, 0.5])
def test_a_task_that_is_not_there_is_refused(task: Any) -> None:
    for method in (small().test, small().train):
        with pytest.raises(InputError, match=f"task={task}: use a whole number from 0 to 2"):
            method(task)


def test_a_start_beyond_the_end_is_refused() -> None:
    with pytest.raises(InputError, match="start=217: use a whole number from 0 to 216"):
        next(small().chunks(217))


def test_omniglot_itself() -> None:
    """Needs the data, in the folder that METAREPLAY_DATA names or in the cache."""
    if not any(complete(folder, one) for folder in folders(OMNIGLOT) for one in (OMNIGLOT, OMNIGLOT_NPZ)):
        pytest.skip("Omniglot is not on this machine")
    stream = Omniglot()
    assert sum(len(chunk) for chunk in stream.chunks()) == stream.total == 29_214
    for task in range(50):
        assert stream.train(task).ys.max() + 1 == stream.classes[task]
        assert len(stream.test(task)) == TEST * stream.classes[task]
