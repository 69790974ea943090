"""Stacks of pictures: the values of plain tensors, every picture once, and no picture that nobody needs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import metareplay as mr
from metareplay._core.stacks import Pictures, StackColumn, StackStorage, Unpacked, is_stack, packed
from metareplay._core.table import TensorColumn, TensorStorage

CPU, ROWS, DEPTH = torch.device("cpu"), 6, 3
LIKE = torch.zeros((1, DEPTH, 2, 2), dtype=torch.uint8)


def stack(*shades: int) -> Tensor:
    """A stack of plain pictures, one for each shade."""
    return torch.tensor(shades, dtype=torch.uint8)[:, None, None].expand(-1, 2, 2).clone()


def pictures_of(*columns: StackColumn) -> int:
    """How many pictures the columns share."""
    assert len({id(column.pictures) for column in columns}) == 1
    return len(columns[0].pictures)


Work = tuple[str, int, Any]  # "write" or "copy", the row, and what to write or the row to copy
writes = st.tuples(
    st.just("write"), st.integers(0, ROWS - 1), st.lists(st.integers(0, 9), min_size=DEPTH, max_size=DEPTH)
)
copies = st.tuples(st.just("copy"), st.integers(0, ROWS - 1), st.integers(0, ROWS - 1))


@given(st.lists(st.tuples(st.sampled_from(["x", "next_x"]), st.one_of(writes, copies)), max_size=60))
def test_values_are_those_of_tensors_and_each_picture_is_kept_once(works: list[tuple[str, Work]]) -> None:
    storage = StackStorage(CPU)
    ours = {name: storage.column(name, ROWS, LIKE) for name in ("x", "next_x")}
    plain = {name: TensorColumn(ROWS, LIKE, CPU) for name in ours}
    written: dict[str, set[int]] = {name: set() for name in ours}
    for name, (what, row, value) in works:
        to = torch.tensor([row])
        if what == "write":
            ours[name].write(to, stack(*value)[None])
            plain[name].write(to, stack(*value)[None])
            written[name].add(row)
        elif value in written[name]:
            ours[name].copy(to, torch.tensor([value]))
            plain[name].copy(to, torch.tensor([value]))
            written[name].add(row)
    different = set()
    for name, column in ours.items():
        rows = torch.tensor(sorted(written[name]), dtype=torch.int64)
        assert torch.equal(column.gather(rows), plain[name].gather(rows))
        different |= set(plain[name].gather(rows)[:, :, 0, 0].flatten().tolist())
    columns = [column for column in ours.values() if isinstance(column, StackColumn)]
    assert pictures_of(*columns) == len(different)


def test_there_is_room_for_stacks_that_share_nothing() -> None:
    storage = StackStorage(CPU)
    columns = [storage.column(name, ROWS, LIKE) for name in ("x", "next_x")]
    for turn in range(3):
        for row in range(ROWS):
            first = (turn * ROWS + row) * (DEPTH + 1)
            shades = [shade % 251 for shade in range(first, first + DEPTH + 1)]
            columns[0].write(torch.tensor([row]), stack(*shades[:-1])[None])
            columns[1].write(torch.tensor([row]), stack(*shades[1:])[None])
            assert columns[1].gather(torch.tensor([row]))[0, :, 0, 0].tolist() == shades[1:]


def test_pictures_that_do_not_slide_are_kept_as_tensors() -> None:
    """Such as one picture in colours, whose three channels have nothing in common with those of the next."""
    one = agent(None)
    generator = np.random.default_rng(0)
    for _ in range(60):
        x, following = generator.integers(0, 255, (2, DEPTH, 2, 2), dtype=np.uint8)
        one.observe(x, 0, 1.0, following, False)
    assert one.table is not None
    assert isinstance(one.table.column("x"), TensorColumn)


def test_stacks_that_stop_sharing_still_have_room() -> None:
    one = played(agent(None), range(3))
    generator = np.random.default_rng(0)
    for _ in range(80):
        x, following = generator.integers(0, 255, (2, DEPTH, 2, 2), dtype=np.uint8)
        one.observe(x, 0, 1.0, following, False)
    assert one.table is not None
    column = one.table.column("x")
    assert isinstance(column, StackColumn)
    assert len(column.pictures) <= 21 * 2 * DEPTH


def test_a_copy_onto_itself_loses_nothing() -> None:
    column = StackColumn(2, LIKE, Pictures(9, LIKE[0], CPU))
    column.write(torch.tensor([0]), stack(1, 2, 3)[None])
    column.copy(torch.tensor([0]), torch.tensor([0]))
    assert column.gather(torch.tensor([0]))[0, :, 0, 0].tolist() == [1, 2, 3]
    assert len(column.pictures) == 3


def test_other_columns_are_tensors() -> None:
    storage = StackStorage(CPU)
    assert isinstance(storage.column("reward", 3, torch.zeros(1)), TensorColumn)
    assert isinstance(storage.column("x", 3, torch.zeros(1, 4)), TensorColumn)
    assert isinstance(storage.column("x", 3, LIKE), StackColumn)
    assert is_stack(LIKE)
    assert not is_stack(LIKE.float())
    assert not is_stack(LIKE[:, :1])
    assert not is_stack(LIKE[0])


def test_in_a_file_every_picture_stands_once() -> None:
    storage = StackStorage(CPU)
    columns = {name: storage.column(name, 3, LIKE) for name in ("x", "next_x")}
    columns["reward"] = storage.column("reward", 3, torch.zeros(1))
    for row in range(3):
        columns["x"].write(torch.tensor([row]), stack(row, row + 1, row + 2)[None])
        columns["next_x"].write(torch.tensor([row]), stack(row + 1, row + 2, row + 3)[None])
        columns["reward"].write(torch.tensor([row]), torch.tensor([float(row)]))
    found = packed(columns, torch.arange(3))
    assert len(found["pictures"]) == 6
    read = Unpacked(found)
    assert (len(read), sorted(read.names)) == (3, ["next_x", "reward", "x"])
    for name, column in columns.items():
        assert torch.equal(read.values(name, 1, 3), column.gather(torch.tensor([1, 2])))


def agent(storage: TensorStorage | None) -> mr.DQN:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(DEPTH * 4, 8), nn.ReLU(), nn.Linear(8, 2))
    memory = mr.Reservoir(20, storage=storage)
    return mr.DQN(model, memory=memory, lr=0.05, k=4, warmup=2, target_every=5)


def played(one: mr.DQN, frames: range) -> mr.DQN:
    """Let pictures go by, as many as there are frames, whatever the agent does."""
    for frame in frames:
        x, following = (
            np.stack([np.full((2, 2), (frame + shift + depth) % 256, np.uint8) for depth in range(DEPTH)])
            for shift in (0, 1)
        )
        one.observe(x, one.act(x), float(frame % 3), following, frame % 7 == 6)
    return one


def assert_same_memory(one: mr.DQN, other: mr.DQN) -> None:
    ours, theirs = dict(one.memory.held().items()), dict(other.memory.held().items())
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


def test_an_agent_learns_the_same_and_needs_less_room() -> None:
    ours, plain = played(agent(None), range(60)), played(agent(TensorStorage(CPU)), range(60))
    assert torch.equal(ours.weights.theta, plain.weights.theta)
    assert_same_memory(ours, plain)
    assert ours.table is not None
    column = ours.table.column("x")
    assert isinstance(column, StackColumn)
    assert len(column.pictures) <= 21 * (DEPTH + 1)


@pytest.mark.parametrize("frames", [1, 15, 45])
def test_a_saved_agent_goes_on_bit_for_bit(frames: int, tmp_path: Path) -> None:
    whole = played(agent(None), range(60))
    played(agent(None), range(frames)).save(tmp_path / "a.ckpt")
    ended = played(mr.load(tmp_path / "a.ckpt", agent(None).model, kind=mr.DQN), range(frames, 60))
    assert torch.equal(whole.weights.theta, ended.weights.theta)
    assert_same_memory(whole, ended)
