"""Streams in parts: examples that are held out, and the first tasks of a stream."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_characters import small_characters
from small_runs import mer, rotations, small_images

import metareplay as mr
from metareplay.errors import InputError
from metareplay.streams import Chunk, FirstTasks, HeldOut, Stream


def numbered(sizes: list[int]) -> mr.OwnStream:
    """Tasks of these sizes, each example labelled with its number in the stream."""
    total = sum(sizes)
    tasks = [task for task, size in enumerate(sizes) for _ in range(size)]
    test = [(torch.zeros(1, 2), torch.tensor([0]))] * len(sizes)
    return mr.OwnStream.from_tensors(torch.rand(total, 2), torch.arange(total), tasks=tasks, test=test)


def labels(chunks: list[Chunk]) -> list[int]:
    return [label for chunk in chunks for label in chunk.ys.tolist()]


@given(st.lists(st.integers(2, 40), min_size=1, max_size=4), st.floats(0.01, 0.99), st.data())
def test_every_example_is_learned_or_held_out(sizes: list[int], share: float, data: st.DataObject) -> None:
    stream = HeldOut(numbered(sizes), share)
    learned = labels(list(stream.chunks()))
    held_out = [label for task in range(len(sizes)) for label in stream.validation(task).ys.tolist()]
    assert sorted(learned + held_out) == list(range(sum(sizes)))
    assert stream.total == len(learned)
    for task, size in enumerate(sizes):
        assert len(stream.train(task)) == stream.sizes()[task]
        assert len(stream.validation(task)) == min(max(1, round(share * size)), size - 1)
    start = data.draw(st.integers(0, stream.total))
    assert labels(list(stream.chunks(start))) == learned[start:]


def test_what_is_held_out_is_spread_over_the_task() -> None:
    """Omniglot shows one character after another; of each one, some drawings are held out and most are learned."""
    stream = HeldOut(mr.Omniglot(2, characters=small_characters()), 0.1)
    learned, held_out = stream.train(0).ys, stream.validation(0).ys
    assert set(held_out.tolist()) == set(learned.tolist())
    every = HeldOut(mr.Rotations(2, 100, images=small_images()), 0.1)
    whole = every.stream.train(1)
    assert torch.equal(every.validation(1).xs, whole.xs[9::10])


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, "0.1", True, None])
def test_a_share_is_between_0_and_1(share: float) -> None:
    with pytest.raises(InputError, match=r"held_out=.*between 0 and 1"):
        HeldOut(rotations(), share)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: mr.OwnStream.from_tensors(torch.zeros(3, 2), torch.arange(3)), "has no tasks"),
        (lambda: mr.OwnStream.from_iterable([], test=(torch.zeros(1, 2), torch.zeros(1))), "length of this stream"),
    ],
)
def test_streams_without_a_part_to_hold_out_are_refused(make: Callable[[], Stream], says: str) -> None:
    with pytest.raises(InputError, match=says):
        HeldOut(make())
    with pytest.raises(InputError, match="at least 2"):
        HeldOut(numbered([3, 1])).sizes()
    with pytest.raises(InputError, match=r"streams\.HeldOut"):
        rotations().validation(0)


def test_the_first_tasks_are_those_of_the_whole_stream() -> None:
    whole = rotations()
    part = FirstTasks(whole, 2)
    assert (part.tasks, part.total, part.sizes()) == (2, 40, [20, 20])
    assert labels(list(part.chunks(5))) == labels(list(whole.chunks(5)))[:35]
    assert torch.equal(part.test(1).xs, whole.test(1).xs)
    assert torch.equal(part.train(1).xs, whole.train(1).xs)
    assert not torch.equal(part.test(1).xs, rotations(tasks=2).test(1).xs)  # whose angles are others
    for wrong in (0, 4):
        with pytest.raises(InputError, match="first_tasks"):
            FirstTasks(whole, wrong)
    with pytest.raises(InputError, match="task=2"):
        part.test(2)


def test_a_run_measures_what_was_held_out() -> None:
    learner = mer()
    record = mr.run(learner, HeldOut(rotations(), 0.2))
    assert record.examples == 3 * 16
    assert record.held_out is not None
    stream = HeldOut(rotations(), 0.2)
    right = [100 * (learner.predict(v.xs) == v.ys).double().mean().item() for v in map(stream.validation, range(3))]
    assert record.held_out == pytest.approx(right)
    assert record.va == pytest.approx(sum(right) / 3)
    assert mr.Record.from_json(record.to_json()) == record
    assert record.key != mr.run(mer(), rotations()).key
    both = mr.run(mer(), HeldOut(FirstTasks(rotations(), 2), 0.2))
    assert both.held_out is not None
    assert len(both.held_out) == 2
    swapped = mr.run(mer(), FirstTasks(HeldOut(rotations(), 0.2), 2))
    assert swapped.held_out == both.held_out
