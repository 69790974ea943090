import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import TensorDataset

from metareplay.errors import InputError
from metareplay.streams import CHUNK, Chunk, OwnStream

XS = torch.arange(12.0).view(6, 2)
YS = torch.tensor([0, 1, 2, 0, 1, 2])
TASKS = [0, 0, 1, 1, 1, 0]
PAIR = (XS[:2], YS[:2])


def items(xs: Tensor, ys: Tensor, tasks: list[int] | None) -> Iterator[tuple[object, ...]]:
    for i, x in enumerate(xs):
        yield (x, int(ys[i])) if tasks is None else (x, int(ys[i]), tasks[i])


def every_way(xs: Tensor, ys: Tensor, tasks: list[int] | None) -> list[OwnStream]:
    """The same examples as tensors, arrays, a dataset and a generator."""
    return [
        OwnStream.from_tensors(xs, ys, tasks),
        OwnStream.from_tensors(xs.numpy(), ys.numpy(), None if tasks is None else np.array(tasks)),
        OwnStream.from_dataset(TensorDataset(xs, ys), tasks),
        OwnStream.from_iterable(items(xs, ys, tasks)),
    ]


def table(chunks: Iterator[Chunk]) -> list[tuple[list[float], int, int]]:
    return [(x, y, chunk.task) for chunk in chunks for x, y in zip(chunk.xs.tolist(), chunk.ys.tolist(), strict=True)]


@pytest.mark.parametrize("way", range(4))
def test_the_training_examples_of_a_task_are_collected_from_the_chunks(way: int) -> None:
    found = every_way(XS, YS, TASKS)[way].train(0)
    assert torch.equal(found.xs, XS[[0, 1, 5]])
    assert found.ys.tolist() == [0, 1, 2]
    with pytest.raises(InputError, match="task 7 has no training examples in this stream"):
        every_way(XS, YS, TASKS)[way].train(7)


@pytest.mark.parametrize("way", range(4))
def test_chunks_follow_the_examples_and_end_with_a_task(way: int) -> None:
    chunks = list(every_way(XS, YS, TASKS)[way].chunks())
    assert [(chunk.task, chunk.ys.tolist()) for chunk in chunks] == [(0, [0, 1]), (1, [2, 0, 1]), (0, [2])]
    assert torch.equal(torch.cat([chunk.xs for chunk in chunks]), XS)
    assert all(chunk.ys.dtype == torch.int64 for chunk in chunks)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 2 * CHUNK)), min_size=1, max_size=4), st.data())
def test_chunks_begin_anywhere(runs: list[tuple[int, int]], data: st.DataObject) -> None:
    tasks = [task for task, length in runs for _ in range(length)]
    total = len(tasks)
    start = data.draw(st.integers(0, total))
    xs, ys = torch.arange(float(total)).view(-1, 1), torch.arange(total) % 10
    expected = [([float(i)], i % 10, tasks[i]) for i in range(start, total)]
    for stream in every_way(xs, ys, tasks):
        chunks = list(stream.chunks(start))
        assert table(iter(chunks)) == expected
        assert all(0 < len(chunk) <= CHUNK for chunk in chunks)


@pytest.mark.parametrize("way", range(4))
def test_without_task_ids_there_is_one_task(way: int) -> None:
    stream = every_way(XS, YS, None)[way]
    assert [(chunk.task, len(chunk)) for chunk in stream.chunks()] == [(0, 6)]
    assert stream.total == (None if way == 3 else 6)
    known = {"stream": "OwnStream", "tasks": 0, "total": stream.total}
    assert json.loads(json.dumps(stream.settings())).items() >= known.items()


@pytest.mark.parametrize("way", range(4))
def test_a_stream_shows_how_many_examples_and_tasks_it_has(way: int) -> None:
    assert repr(every_way(XS, YS, None)[way]) == f"OwnStream(examples={'unknown' if way == 3 else 6}, tasks=0)"


def test_settings_tell_other_examples_apart() -> None:
    one, same, other = (OwnStream.from_tensors(xs, YS) for xs in (XS, XS.clone(), XS + 1))
    assert one.settings() == same.settings() != other.settings()


@pytest.mark.parametrize("way", range(4))
def test_an_empty_stream_says_so_when_read(way: int) -> None:
    stream = every_way(XS[:0], YS[:0], [])[way]
    with pytest.raises(InputError, match="the stream is empty"):
        next(stream.chunks())


@pytest.mark.parametrize("way", range(4))
def test_a_start_outside_the_stream_is_refused(way: int) -> None:
    for start, message in ((7, "use start <= 6"), (-1, "at least 0")):
        with pytest.raises(InputError, match=message):
            next(every_way(XS, YS, None)[way].chunks(start))
    assert list(every_way(XS, YS, None)[way].chunks(6)) == []


def test_a_generator_is_read_no_further_than_needed() -> None:
    read: list[int] = []

    def endless() -> Iterator[tuple[Tensor, int]]:
        while True:
            read.append(0)
            yield XS[0], 1

    assert len(next(OwnStream.from_iterable(endless()).chunks())) == CHUNK
    assert len(read) == CHUNK


def test_dataset_items_are_asked_for_when_needed() -> None:
    class Counted:
        asked: tuple[int, ...] = ()

        def __len__(self) -> int:
            return 10 * CHUNK

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            self.asked += (index,)
            return XS[0], 0

    dataset = Counted()
    next(OwnStream.from_dataset(dataset).chunks(5 * CHUNK))
    assert dataset.asked == tuple(range(5 * CHUNK, 6 * CHUNK))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.float64, torch.int64])
def test_inputs_keep_their_type(dtype: torch.dtype) -> None:
    for stream in every_way(XS.to(dtype), YS.to(torch.uint8), None):
        [chunk] = stream.chunks()
        assert (chunk.xs.dtype, chunk.ys.dtype) == (dtype, torch.int64)


def test_arrays_may_be_read_only_or_reversed() -> None:
    xs = np.arange(12.0).reshape(6, 2)[::-1]
    xs.flags.writeable = False
    [chunk] = OwnStream.from_tensors(xs, [0, 1, 2, 0, 1, 2]).chunks()
    np.testing.assert_array_equal(chunk.xs, xs)


def test_targets_may_be_numbers_or_vectors() -> None:
    [chunk] = OwnStream.from_tensors(XS, torch.rand(6, 3)).chunks()
    assert (chunk.ys.shape, chunk.ys.dtype) == ((6, 3), torch.float32)
    [chunk] = OwnStream.from_iterable([(x, 0.5) for x in XS]).chunks()
    assert (chunk.ys.shape, chunk.ys.dtype) == ((6,), torch.float32)
    [chunk] = OwnStream.from_iterable([(x.numpy(), np.int32(2), torch.tensor(4)) for x in XS]).chunks()
    assert (chunk.ys.tolist(), chunk.ys.dtype, chunk.task) == ([2] * 6, torch.int64, 4)


@pytest.mark.parametrize("test", [PAIR, [PAIR], list(PAIR), TensorDataset(*PAIR), (PAIR[0].numpy(), PAIR[1].numpy())])
def test_one_task_has_one_test_set(test: Any) -> None:
    for stream in (
        OwnStream.from_tensors(XS, YS, test=test),
        OwnStream.from_dataset(TensorDataset(XS, YS), test=test),
        OwnStream.from_iterable(items(XS, YS, None), test=test),
    ):
        assert stream.tasks == 1
        assert torch.equal(stream.test(0).xs, XS[:2])
        assert stream.test(0).ys.tolist() == [0, 1]


def test_each_task_has_its_test_set() -> None:
    stream = OwnStream.from_tensors(XS, YS, TASKS, test=[PAIR, TensorDataset(XS[3:], YS[3:])])
    assert stream.tasks == 2
    assert torch.equal(stream.test(1).xs, XS[3:])
    for task in (-1, 2):
        with pytest.raises(InputError, match=f"task {task} has no test set"):
            stream.test(task)


def test_no_test_set_was_given() -> None:
    with pytest.raises(InputError, match="task 0 has no test set; give one with test="):
        OwnStream.from_tensors(XS, YS).test(0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ys": YS[:5]}, "one row of each per example"),
        ({"xs": torch.tensor(1.0)}, "one row of each per example"),
        ({"xs": "six rows"}, "a str cannot become a tensor"),
        ({"tasks": [0, 1]}, "one task id for each of the 6 examples"),
        ({"tasks": [TASKS]}, "one task id for each of the 6 examples"),
        ({"tasks": [0.0] * 6}, "number the tasks 0, 1, 2"),
        ({"tasks": [0, -1, 0, 0, 0, 0]}, "task -1: number the tasks 0, 1, 2"),
        ({"tasks": TASKS, "test": PAIR}, "task 1 has no test set .number of test sets: 1."),
        ({"test": [PAIR, PAIR]}, "2 test sets but no task ids"),
        ({"test": [(XS, YS[:2])]}, "one row of each per example"),
        ({"test": (XS, YS, YS)}, "a test set is a tuple of 3; give a pair"),
        ({"test": XS}, "a test set is a Tensor; give a pair"),
        ({"test": (XS[:0], YS[:0])}, "a test set is empty"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        OwnStream.from_tensors(**{"xs": XS, "ys": YS} | arguments)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (XS, "example 1 is a Tensor; give"),
        ((XS[0],), "example 1 is a tuple of 1; give"),
        ({"x": 1, "y": 2}, "example 1 is a dict; give"),
        ((XS, 0), r"example 1: x is float32 of shape \(6, 2\), but float32 of shape \(2,\) in example 0"),
        ((XS[0].double(), 0), "example 1: x is float64"),
        ((XS[0], 0.5), "example 1: y is float32"),
        ((None, 0), "a NoneType cannot become a tensor"),
    ],
)
def test_items_that_are_not_pairs_are_refused(item: Any, message: str) -> None:
    examples = [(XS[0], 0), item]
    for stream in (OwnStream.from_dataset(examples), OwnStream.from_iterable(iter(examples))):
        with pytest.raises(InputError, match=message):
            list(stream.chunks())


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("one", "example 1: task 'one': number"),
        (0.5, "task 0.5: number"),
        (-1, "task -1: number"),
        (1, "number of test sets: 1"),
    ],
)
def test_task_ids_of_items_are_checked(task: Any, message: str) -> None:
    stream = OwnStream.from_iterable([(XS[0], 0, 0), (XS[1], 1, task)], test=PAIR)
    with pytest.raises(InputError, match=message):
        list(stream.chunks())


def test_a_dataset_gives_task_ids_apart() -> None:
    with pytest.raises(InputError, match=r"example 0 is a tuple of 3; give \(x, y\)"):
        next(OwnStream.from_dataset([(XS[0], 0, 1)]).chunks())


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(InputError, match=r"use OwnStream\.from_iterable"):
        OwnStream.from_dataset(items(XS, YS, None))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="an int cannot be iterated over"):
        OwnStream.from_iterable(5)  # type: ignore[arg-type]
