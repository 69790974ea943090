"""A table's columns in a storage of the user's own: here files on disk that are mapped into memory."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from every_learner import EVERY, examples, state
from torch import Tensor

import metareplay as mr
from metareplay.memories import Column, Storage


class DiskColumn(Column):
    def __init__(self, path: Path, rows: int, like: Tensor) -> None:
        self._file = np.memmap(path, like.numpy().dtype, "w+", shape=(rows, *like.shape[1:]))
        self.reads = 0

    def gather(self, rows: Tensor) -> Tensor:
        self.reads += 1
        return torch.from_numpy(np.array(self._file[rows.numpy()]))

    def write(self, rows: Tensor, values: Tensor) -> None:
        self._file[rows.numpy()] = values.numpy()


class Disk(Storage):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.columns: dict[str, DiskColumn] = {}

    def column(self, name: str, rows: int, like: Tensor) -> DiskColumn:
        self.columns[name] = DiskColumn(self.folder / f"{name}.bin", rows, like)
        return self.columns[name]


def mer(engine: Any, storage: Storage | None = None) -> mr.MER:
    net = mr.networks.mlp(6, (8, 5), 4, seed=1)
    return mr.MER(net, memory=mr.Reservoir(9, storage=storage), beta=0.3, s=2, k=4, seed=7, engine=engine)


@pytest.mark.parametrize("engine", ["torch", "cpu"])
def test_a_memory_on_disk_gives_the_same_weights(engine: str, tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    here, there = mer(engine), mer(engine, disk)
    for learner in (here, there):
        learner.observe_many(*examples())
    assert there.chosen_engine.name == engine
    torch.testing.assert_close(there.weights.theta, here.weights.theta, rtol=0, atol=0)
    assert disk.columns.keys() == {"x", "y", "task"}
    assert disk.columns["x"].reads > 0
    for name, values in state(here).items():
        assert torch.equal(values, state(there)[name]), name


def test_it_is_saved_and_loaded_into_another_storage(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    saved, whole = mer("torch", Disk(tmp_path / "one")), mer("torch")
    whole.observe_many(*examples())
    saved.observe_many(*(part[:13] for part in examples()))
    saved.save(tmp_path / "disk.ckpt")
    memory = mr.Reservoir(9, storage=Disk(tmp_path / "two"))
    loaded = mr.load(tmp_path / "disk.ckpt", mer("torch").model, memory=memory)
    loaded.observe_many(*(part[13:] for part in examples()))
    assert torch.equal(loaded.weights.theta, whole.weights.theta)


@pytest.mark.parametrize("name", ["er-adam", "gem", "mer-cnn", "er-tasks"])
def test_every_kind_of_engine_call_reads_through_gather(name: str, tmp_path: Path) -> None:
    here, there = EVERY[name](), EVERY[name]()
    assert there.own_memory is not None
    there.own_memory.storage = Disk(tmp_path)
    for learner in (here, there):
        learner.observe_many(*examples())
    assert torch.equal(here.weights.theta, there.weights.theta)


class FullColumn(DiskColumn):
    """Refuses to write labels into the memory's slots from some time on."""

    full = False

    def copy(self, to: Tensor, source: Tensor) -> None:
        if self.full:
            raise OSError("the disk is full")
        super().copy(to, source)


class FullDisk(Disk):
    def column(self, name: str, rows: int, like: Tensor) -> DiskColumn:
        self.columns[name] = FullColumn(self.folder / f"{name}.bin", rows, like)
        return self.columns[name]


@pytest.mark.parametrize("engine", ["torch", "cpu"])
def test_an_example_that_cannot_be_stored_is_undone(engine: str, tmp_path: Path) -> None:
    disk = FullDisk(tmp_path)
    learner = mer(engine, disk)
    xs, ys, tasks = examples()
    learner.observe_many(xs[:12], ys[:12], tasks[:12])
    before = state(learner)
    last = disk.columns["task"]  # the other columns have been written when it is its turn
    assert isinstance(last, FullColumn)
    last.full = True
    with pytest.raises(mr.InputError, match=r"example \d+ of the stream could not be stored and was undone: the disk"):
        learner.observe_many(xs[12:], ys[12:], tasks[12:])
    for name, values in state(learner).items():
        assert torch.equal(values, before[name]), name
    last.full = False
    learner.observe_many(xs[12:], ys[12:], tasks[12:])
    again = mer(engine)
    again.observe_many(xs, ys, tasks)
    torch.testing.assert_close(learner.weights.theta, again.weights.theta, rtol=0, atol=0)
