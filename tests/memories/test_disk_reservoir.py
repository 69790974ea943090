"""A reservoir on disk: the same draws and weights as in RAM, and whatever happens to the process, a complete state."""

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from every_learner import EVERY, examples, state
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import metareplay as mr
from metareplay._core.row_form import RowForm
from metareplay._core.seal import opened_json, sealed_json
from metareplay._core.undo_log import UndoLog
from metareplay.errors import DiskError
from torture.disturbance import OutOfMemoryOnce


def mer(memory: mr.Memory, engine: Any = "torch") -> mr.MER:
    return mr.MER(mr.networks.mlp(6, (8, 5), 4, seed=1), memory=memory, beta=0.3, s=2, k=4, seed=7, engine=engine)


def kept_of(capacity: int, seen: int) -> list[int]:
    """Return which of so many rows a reservoir with seed 0 holds, by slot."""
    slots = mr.Reservoir(capacity).place(mr.Draws(0), np.zeros(seen, np.int64))
    last = dict(zip(slots.tolist(), range(seen), strict=True))
    return [last[slot] for slot in range(min(seen, capacity))]


def numbered(start: int, count: int) -> Tensor:
    return torch.arange(start, start + count, dtype=torch.int32)[:, None].repeat(1, 3)


@pytest.mark.parametrize("engine", ["torch", "cpu"])
@pytest.mark.parametrize("chunk", [1, 11, 30])
def test_a_learner_has_the_same_weights_as_with_a_reservoir_in_ram(engine: str, chunk: int, tmp_path: Path) -> None:
    here, there = mer(mr.Reservoir(9), engine), mer(mr.DiskReservoir(tmp_path, 9), engine)
    for learner in (here, there):
        for start in range(0, 30, chunk):
            learner.observe_many(*(part[start : start + chunk] for part in examples()))
    assert there.chosen_engine.name == engine
    for name, values in state(here).items():
        assert torch.equal(values, state(there)[name]), name
    assert np.array_equal(here.memory.numbers(), there.memory.numbers())


@pytest.mark.parametrize("name", ["er-adam", "gem-reservoir", "mer-cnn", "er-tasks", "er-heads"])
def test_every_kind_of_engine_call_works(name: str, tmp_path: Path) -> None:
    here, there = EVERY[name](), EVERY[name]()
    vars(there)["memory"] = mr.DiskReservoir(tmp_path, 9)
    for learner in (here, there):
        learner.observe_many(*examples())
    assert torch.equal(here.weights.theta, there.weights.theta)


def test_a_checkpoint_refers_to_the_files_and_continues_exactly(tmp_path: Path) -> None:
    whole, saved = mer(mr.Reservoir(9)), mer(mr.DiskReservoir(tmp_path / "rows", 9))
    whole.observe_many(*examples())
    saved.observe_many(*(part[:13] for part in examples()))
    saved.save(tmp_path / "disk.ckpt")
    saved.observe_many(*(part[13:21] for part in examples()))  # what comes after the checkpoint is undone by loading
    assert isinstance(saved.memory, mr.DiskReservoir)
    with pytest.raises(mr.CheckpointError, match="is in use: close the reservoir"):
        mr.load(tmp_path / "disk.ckpt", mer(mr.Reservoir(9)).model)
    saved.memory.close()
    for _ in range(2):
        loaded = mr.load(tmp_path / "disk.ckpt", mer(mr.Reservoir(9)).model, kind=mr.MER)
        assert loaded.memory.seen == 13
        loaded.observe_many(*(part[13:] for part in examples()))
        for name, values in state(whole).items():
            assert torch.equal(values, state(loaded)[name]), name
        assert isinstance(loaded.memory, mr.DiskReservoir)
        loaded.memory.close()


def test_a_checkpoint_that_is_too_old_is_refused(tmp_path: Path) -> None:
    learner = mer(mr.DiskReservoir(tmp_path / "rows", 9))
    for i in range(3):
        learner.observe_many(*(part[5 * i : 5 * i + 5] for part in examples()))
        learner.save(tmp_path / f"{i}.ckpt")
    assert isinstance(learner.memory, mr.DiskReservoir)
    learner.memory.close()
    model = mer(mr.Reservoir(9)).model
    with pytest.raises(mr.CheckpointError, match=r"cannot go back to mark 1: .* two newest marks \(2, 3 now\)"):
        mr.load(tmp_path / "0.ckpt", model)
    assert mr.load(tmp_path / "1.ckpt", model).seen == 10


def test_a_learner_goes_on_with_the_rows_of_an_earlier_process(tmp_path: Path) -> None:
    first = mer(mr.DiskReservoir(tmp_path, 9))
    first.observe_many(*examples())
    held = first.memory.examples()
    assert isinstance(first.memory, mr.DiskReservoir)
    first.memory.close()
    memory = mr.DiskReservoir(tmp_path)
    assert torch.equal(memory.examples().xs, held.xs)
    second = mer(memory)
    second.observe_many(*examples())
    assert memory.seen == 60
    memory.close()
    small = mr.MER(mr.networks.mlp(6, (8,), 2), memory=mr.DiskReservoir(tmp_path))
    with pytest.raises(mr.InputError, match="comes with examples that this learner cannot learn: label"):
        small.observe_many(examples()[0][:2], torch.tensor([0, 1]))


def test_batches_of_every_kind_come_back_as_they_were(tmp_path: Path) -> None:
    batch: dict[str, Any] = {
        "a": torch.rand(7, 2).bfloat16(),
        "b": torch.arange(7),
        "c": torch.rand(7) > 0.5,
        "d": np.ones((7, 0)),
    }
    with mr.DiskReservoir(tmp_path / "dict", 10) as reservoir:
        reservoir.offer(batch)
        drawn = reservoir.sample(50)
        assert drawn.keys() == batch.keys()
        assert torch.equal(drawn["a"], torch.as_tensor(batch["a"])[drawn["b"]])
        assert torch.equal(drawn["c"], torch.as_tensor(batch["c"])[drawn["b"]])
        assert drawn["d"].shape == (50, 0)
    with mr.DiskReservoir(tmp_path / "tuple", 10) as reservoir:
        reservoir.offer((torch.ones(3, 2), torch.zeros(3)))
        ones, zeros = reservoir.sample(2)
        assert (ones.shape, zeros.shape) == ((2, 2), (2,))
    with mr.DiskReservoir(tmp_path / "one", 10) as reservoir:
        reservoir.offer(numbered(0, 5))
    with mr.DiskReservoir(tmp_path / "one") as reservoir:
        assert reservoir.sample(4).shape == (4, 3)


def test_bad_batches_are_refused(tmp_path: Path) -> None:
    with mr.DiskReservoir(tmp_path, 10) as reservoir:
        with pytest.raises(mr.InputError, match="is empty: offer rows first"):
            reservoir.sample(3)
        wrong: list[tuple[Any, str]] = [
            (3, "a batch is an int: give a dictionary"),
            ({}, "must have one length"),
            ({"a": torch.zeros(3), "b": torch.zeros(4)}, "one length, and these have: a 3, b 4"),
            ({"a": [1, 2]}, "part 'a' of a batch is a list"),
            ({"a": torch.tensor(1)}, "no first dimension"),
            (np.array(["a"]), "part '0' of a batch has dtype <U1: use numbers"),
        ]
        for batch, message in wrong:
            with pytest.raises(mr.InputError, match=message):
                reservoir.offer(batch)
        reservoir.offer({"a": torch.zeros(3)})
        with pytest.raises(mr.InputError, match=r"a float64 \(\), but this reservoir holds rows of a float32 \(\)"):
            reservoir.offer({"a": torch.zeros(3).double()})
        with pytest.raises(mr.InputError, match="size=0"):
            reservoir.sample(0)
        assert reservoir.seen == 3
    with pytest.raises(mr.InputError, match="is closed: open"):
        reservoir.sample(1)
    with pytest.raises(mr.InputError, match="has a capacity of 10, not 11"):
        mr.DiskReservoir(tmp_path, 11)
    with pytest.raises(mr.InputError, match=r"there is no reservoir in .* yet"):
        mr.DiskReservoir(tmp_path / "new")


def test_offers_keep_what_a_reservoir_in_ram_keeps(tmp_path: Path) -> None:
    slots = mr.Reservoir(50).place(mr.Draws(3), np.zeros(500, np.int64))
    expected = dict(zip(slots.tolist(), range(500), strict=True))
    with mr.DiskReservoir(tmp_path, 50, seed=3) as reservoir:
        for start, count in ((0, 1), (1, 80), (81, 400), (481, 19)):
            reservoir.offer(numbered(start, count))
        held = reservoir.held()["0"][:, 0].tolist()
        assert held == [expected[slot] for slot in range(50)]
        assert reservoir.numbers().tolist() == held
        assert reservoir.check() == []


def test_rows_are_kept_or_not_wherever_memory_runs_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metareplay.memories.disk_reservoir.PIECE", 8)
    wide, whole = numbered(0, 30).repeat(1, 2), OutOfMemoryOnce()
    with mr.DiskReservoir(tmp_path / "whole", 20) as reservoir:
        reservoir.offer(wide[:4, :3])
        assert whole.during(lambda: reservoir.offer(wide[4:, :3])) is None
        assert whole.count, "parts of rows are copied"
    for number in range(whole.count):
        with mr.DiskReservoir(tmp_path / str(number), 20) as reservoir:
            reservoir.offer(wide[:4, :3])
            at = OutOfMemoryOnce(number)
            assert at.during(partial(reservoir.offer, wide[4:, :3])) is None
            assert reservoir.seen in (4, 30), at.where
            assert reservoir.held()["0"][:, 0].tolist() == kept_of(20, reservoir.seen)
            reservoir.offer(wide[reservoir.seen :, :3])
            assert reservoir.held()["0"][:, 0].tolist() == kept_of(20, 30)
            assert reservoir.check() == []


def test_a_row_whose_bytes_cannot_be_made_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    with mr.DiskReservoir(tmp_path, 20) as reservoir:
        reservoir.offer(numbered(0, 8))
        with monkeypatch.context() as patch:
            patch.setattr(RowForm, "records", full)
            with pytest.raises(MemoryError):
                reservoir.offer(numbered(8, 30))
        assert (len(reservoir), reservoir.seen, reservoir.seen_of) == (8, 8, {-1: 8})
        assert reservoir.held()["0"][:, 0].tolist() == kept_of(20, 8)
        reservoir.offer(numbered(8, 30))
        assert reservoir.held()["0"][:, 0].tolist() == kept_of(20, 38)


def test_only_a_batch_that_was_sampled_can_be_taken_back(tmp_path: Path) -> None:
    with mr.DiskReservoir(tmp_path, 20) as reservoir:
        reservoir.offer(numbered(0, 30))
        with pytest.raises(mr.InputError, match=r"no batch was sampled from the reservoir in .* yet: call sample\(\)"):
            reservoir.take_back()
        first = reservoir.sample(5)
        reservoir.take_back()
        with pytest.raises(mr.InputError, match="no batch was sampled"):
            reservoir.take_back()
        assert torch.equal(reservoir.sample(5), first)
    with mr.DiskReservoir(tmp_path) as reservoir:
        assert reservoir.seen == 30


def test_marks_bring_back_rows_counts_and_draws(tmp_path: Path) -> None:
    with mr.DiskReservoir(tmp_path, 20) as reservoir:
        reservoir.offer(numbered(0, 30))
        reservoir.sample(3)
        mark, held = reservoir.mark(), reservoir.held()["0"]
        later = []
        for _ in range(2):
            drawn = reservoir.sample(5)
            reservoir.offer(numbered(30, 200))
            later.append((drawn, reservoir.held()["0"], reservoir.sample(4)))
            reservoir.return_to(mark)
            assert torch.equal(reservoir.held()["0"], held)
            assert reservoir.seen == 30
        for one, other in zip(*later, strict=True):
            assert torch.equal(one, other)
        with pytest.raises(mr.InputError, match="cannot go back to mark 77"):
            reservoir.return_to(77)


def test_a_mark_may_be_a_whole_number_of_numpy(tmp_path: Path) -> None:
    with mr.DiskReservoir(tmp_path, 5) as reservoir:
        reservoir.offer(numbered(0, 9))
        mark: Any = np.int64(reservoir.mark())
        reservoir.offer(numbered(9, 20))
        reservoir.return_to(mark)
    assert mr.DiskReservoir(tmp_path).seen == 9


def test_a_mark_is_never_taken_for_another_one(tmp_path: Path) -> None:
    """A checkpoint of a training that was given up must not be answered with rows of the one that went on instead."""
    with mr.DiskReservoir(tmp_path, 20) as reservoir:
        reservoir.offer(numbered(0, 30))
        first = reservoir.mark()
        reservoir.offer(numbered(30, 30))
        given_up = reservoir.mark()
        reservoir.offer(numbered(60, 30))
        reservoir.return_to(first)
        assert len(list(tmp_path.glob("undo-*.bin"))) == 0
        reservoir.offer(numbered(30, 50))
        later, held = reservoir.mark(), reservoir.held()["0"]
    with mr.DiskReservoir(tmp_path) as reservoir:
        assert reservoir.marks == [first, later]
        with pytest.raises(mr.InputError, match=f"cannot go back to mark {given_up}"):
            reservoir.return_to(given_up)
        reservoir.offer(numbered(80, 50))
        reservoir.return_to(later)
        assert torch.equal(reservoir.held()["0"], held)
        reservoir.return_to(first)
        assert reservoir.held()["0"][:, 0].tolist() == kept_of(20, 30)


def test_a_mark_that_cannot_be_written_leaves_the_earlier_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mr.DiskReservoir(tmp_path, 20) as reservoir:
        reservoir.offer(numbered(0, 30))
        marks = [reservoir.mark(), reservoir.mark()]
        reservoir.offer(numbered(30, 30))
        reservoir.flush()

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("metareplay._core.files.os.fsync", full)
            with pytest.raises(DiskError, match="No space left"):
                reservoir.mark()
        assert reservoir.marks == marks
        reservoir.return_to(marks[0])
        assert reservoir.held()["0"][:, 0].tolist() == kept_of(20, 30)


def test_killed_while_the_log_is_compacted_and_killed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is shorter than the last commit says; what is logged next must not be taken for what is missing."""
    first, second = tmp_path / "first", tmp_path / "second"
    compact = UndoLog.compact

    def killed(log: UndoLog, rows: int) -> None:
        compact(log, rows)
        if not first.exists():
            shutil.copytree(tmp_path / "rows", first)

    monkeypatch.setattr(UndoLog, "compact", killed)
    with mr.DiskReservoir(tmp_path / "rows", 20) as reservoir:
        reservoir.offer(numbered(0, 30))
        reservoir.mark()
        while not first.exists():
            reservoir.offer(numbered(reservoir.seen, 30))
            reservoir.flush()
    monkeypatch.setattr("metareplay._core.disk_rows.SECONDS", 1000.0)
    with mr.DiskReservoir(first) as reservoir:
        seen = reservoir.seen
        rows = (first / "rows.bin").read_bytes()
        while (first / "rows.bin").read_bytes() == rows:
            reservoir.offer(numbered(reservoir.seen, 10))
            time.sleep(0.01)
        shutil.copytree(first, second)  # as a kill would leave it: written, not committed
    with mr.DiskReservoir(second) as reservoir:
        assert reservoir.seen == seen
        assert reservoir.held()["0"][:, 0].tolist() == kept_of(20, seen)


@pytest.mark.parametrize("killed_at", ["the document", "the first segment", "the last segment"])
def test_killed_while_going_back_to_a_mark(killed_at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of the log that was undone is never needed again, so it does no harm if it is damaged."""
    folder, copy = tmp_path / "rows", tmp_path / "copy"
    with mr.DiskReservoir(folder, 20) as reservoir:
        reservoir.offer(numbered(0, 30))
        first, held = reservoir.mark(), reservoir.held()["0"]
        reservoir.offer(numbered(30, 50))
        reservoir.mark()
        reservoir.offer(numbered(80, 50))
        reservoir.flush()
        at = {"the document": first + 2, "the first segment": first, "the last segment": first + 1}[killed_at]
        remove = UndoLog.remove

        def removed(log: UndoLog, segment: int) -> None:
            if segment == at and not copy.exists():
                shutil.copytree(folder, copy)
            remove(log, segment)

        monkeypatch.setattr(UndoLog, "remove", removed)
        reservoir.return_to(first)
    for _ in range(2):
        if killed_at != "the document":  # going back was done
            for path in copy.glob("undo-*.bin"):
                path.write_bytes(path.read_bytes()[:-1])
        with mr.DiskReservoir(copy) as reservoir:
            assert not list(copy.glob("undo-*.bin"))
            assert reservoir.marks == [first]
            assert torch.equal(reservoir.held()["0"], held)
            reservoir.offer(numbered(30, 70))
            reservoir.return_to(first)
            assert torch.equal(reservoir.held()["0"], held)


def test_the_undo_log_stays_small_and_marks_stay_reachable(tmp_path: Path) -> None:
    with mr.DiskReservoir(tmp_path, 20) as reservoir:
        reservoir.offer(numbered(0, 30))
        mark, held = reservoir.mark(), reservoir.held()["0"]
        for _ in range(60):
            reservoir.offer(numbered(reservoir.seen, 20 + reservoir.seen // 2))
            reservoir.flush()
            log = sum(path.stat().st_size for path in tmp_path.glob("undo-*.bin"))
            assert log < 4 * (tmp_path / "rows.bin").stat().st_size
            if reservoir.seen > 10**6:
                break
        assert reservoir.seen > 10**6
        assert list(tmp_path.glob("undo-*.bin"))
        reservoir.return_to(mark)
        assert torch.equal(reservoir.held()["0"], held)


def test_removed_rows_are_in_no_file(tmp_path: Path) -> None:
    with mr.DiskReservoir(tmp_path, 100) as reservoir:
        reservoir.offer({"x": torch.full((40, 4), 0x5EC2E7, dtype=torch.int32), "y": torch.arange(40)})
        reservoir.mark()
        reservoir.offer({"x": torch.zeros(300, 4, dtype=torch.int32), "y": torch.arange(40, 340)})
        kept = [y for y in reservoir.held()["y"].tolist() if y >= 40]
        reservoir.flush()
        secret = (0x5EC2E7).to_bytes(4, "little")
        assert any(secret in path.read_bytes() for path in tmp_path.iterdir())
        assert reservoir.remove(lambda held: held["y"] < 40) == 100 - len(kept)
        assert not any(secret in path.read_bytes() for path in tmp_path.iterdir())
        assert sorted(reservoir.held()["y"].tolist()) == sorted(kept)
        assert reservoir.marks == []
        assert reservoir.check() == []
        reservoir.offer({"x": torch.ones(3000, 4, dtype=torch.int32), "y": torch.arange(340, 3340)})
        assert len(kept) < len(reservoir) <= 100
        held = reservoir.held()["y"].tolist()
        assert len(set(held)) == len(held)
        assert np.array_equal(reservoir.numbers(), held)
        assert reservoir.remove(numbers=held[:3]) == 3
        assert reservoir.remove(older_than=0) == len(held) - 3
    with mr.DiskReservoir(tmp_path) as reservoir:
        assert (len(reservoir), reservoir.seen) == (0, 3340)


@pytest.mark.parametrize("bit", [0, 77, 200])
def test_a_wrong_bit_is_noticed_and_repaired(bit: int, tmp_path: Path) -> None:
    with mr.DiskReservoir(tmp_path, 10) as reservoir:
        reservoir.offer(numbered(0, 10))
    content = bytearray((tmp_path / "rows.bin").read_bytes())
    size = len(content) // 10
    content[4 * size + bit // 8] ^= 1 << bit % 8
    (tmp_path / "rows.bin").write_bytes(content)
    with mr.DiskReservoir(tmp_path) as reservoir:
        assert reservoir.check() == [4]
        with pytest.raises(mr.CheckpointError, match=r"row 4 of .* is damaged .* repair\(\) removes"):
            reservoir.sample(100)
        assert reservoir.repair() == 1
        assert sorted(reservoir.held()["0"][:, 0].tolist()) == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    with mr.DiskReservoir(tmp_path, 10) as reservoir:
        reservoir.offer(numbered(0, 10))
    document, rows = (tmp_path / "reservoir.json").read_bytes(), (tmp_path / "rows.bin").read_bytes()
    for content in (document[:-9], document.replace(b'"count": 10', b'"count": 11'), b"", b"{}"):
        (tmp_path / "reservoir.json").write_bytes(content)
        with pytest.raises(mr.CheckpointError, match="is damaged: restore the folder from a copy"):
            mr.DiskReservoir(tmp_path)
    (tmp_path / "reservoir.json").write_bytes(document)
    (tmp_path / "rows.bin").write_bytes(rows[:-1])
    with pytest.raises(mr.CheckpointError, match="does not have its size"):
        mr.DiskReservoir(tmp_path)
    (tmp_path / "rows.bin").unlink()
    with pytest.raises(mr.CheckpointError, match=r"rows.bin is missing"):
        mr.DiskReservoir(tmp_path)


@pytest.mark.parametrize("damage", ["a wrong bit", "cut short", "missing"])
def test_a_mark_whose_undo_log_is_damaged_cannot_be_returned_to(damage: str, tmp_path: Path) -> None:
    with mr.DiskReservoir(tmp_path, 6) as memory:
        for start in range(0, 24, 4):
            memory.offer({"x": numbered(start, 4)})
            memory.mark()
        first, last = memory.marks
        held = memory.held()["x"].tolist()
    path = tmp_path / f"undo-{first}.bin"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content) if damage == "a wrong bit" else path.read_bytes()[:-1])
    if damage == "missing":
        path.unlink()
    with mr.DiskReservoir(tmp_path) as memory:
        with pytest.raises(mr.CheckpointError, match=f"undo-{first}.bin in .* is damaged, so that mark {first} cannot"):
            memory.return_to(first)
        assert memory.held()["x"].tolist() == held  # nothing has changed
        memory.return_to(last)
        assert memory.held()["x"].tolist() == held


def test_a_log_that_ends_too_early_is_refused(tmp_path: Path) -> None:
    with mr.DiskReservoir(tmp_path, 6) as memory:
        memory.offer({"x": numbered(0, 6)})
        memory.mark()
        memory.offer({"x": numbered(6, 12)})
    path = tmp_path / "undo-1.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(mr.CheckpointError, match=r"undo-1\.bin in .* is damaged: restore the folder"):
        mr.DiskReservoir(tmp_path)


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, room = os.pwrite, [10**9]

    def pwrite(file: int, content: Any, offset: int) -> int:
        if room[0] < len(content):
            raise OSError(28, "No space left on device")
        room[0] -= len(content)
        return real(file, content, offset)

    monkeypatch.setattr("metareplay._core.row_file.os.pwrite", pwrite)
    reservoir = mr.DiskReservoir(tmp_path, 20)
    reservoir.offer(numbered(0, 30))
    reservoir.flush()
    room[0] = 40
    reservoir.offer(numbered(30, 30))
    with pytest.raises(DiskError, match=r"No space left on device; free some space"):
        reservoir.flush()
    with pytest.raises(DiskError, match=r"No space left"):
        reservoir.offer(numbered(60, 30))
    assert reservoir.seen == 60
    held = reservoir.held()["0"]
    room[0] = 10**9
    reservoir.flush()
    reservoir.close()
    with mr.DiskReservoir(tmp_path) as again:
        assert torch.equal(again.held()["0"], held)


def test_a_learner_undoes_what_a_full_disk_cannot_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = mer(mr.DiskReservoir(tmp_path, 9))
    xs, ys, tasks = examples()
    learner.observe_many(xs[:12], ys[:12], tasks[:12])
    assert isinstance(learner.memory, mr.DiskReservoir)
    learner.memory.flush()

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("metareplay._core.row_file.os.pwrite", full)
        learner.observe_many(xs[12:16], ys[12:16], tasks[12:16])  # waits to be written
        with pytest.raises(DiskError):
            learner.memory.flush()
        before = state(learner)
        with pytest.raises(mr.InputError, match=r"example 16 of the stream could not be stored and was undone: cannot"):
            learner.observe_many(xs[16:], ys[16:], tasks[16:])
        for name, values in state(learner).items():
            assert torch.equal(values, before[name]), name
    learner.observe_many(xs[16:], ys[16:], tasks[16:])
    whole = mer(mr.Reservoir(9))
    whole.observe_many(xs, ys, tasks)
    assert torch.equal(learner.weights.theta, whole.weights.theta)


CHILD = """
import sys, torch, metareplay as mr
from metareplay._core import disk_rows
disk_rows.SECONDS = 0.005  # commits often
reservoir = mr.DiskReservoir(sys.argv[1], 40)
print("ready", flush=True)
while True:
    start = reservoir.seen
    reservoir.offer(torch.arange(start, start + 7)[:, None].repeat(1, 300))
    if start % 35 == 0:
        reservoir.mark()
    if start % 210 == 0 and reservoir.marks:
        reservoir.return_to(reservoir.marks[0])
"""


def test_killed_at_any_moment_it_opens_with_a_complete_state(tmp_path: Path) -> None:
    rng, seen = random.Random(0), []
    environment = os.environ | {"PYTHONPATH": str(Path(mr.__file__).parent.parent)}
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, env=environment
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            time.sleep(rng.uniform(0.0, 0.3))
            child.send_signal(signal.SIGKILL)
        with mr.DiskReservoir(tmp_path, 40) as reservoir:
            assert reservoir.seen % 7 == 0
            if reservoir.seen:
                held = reservoir.held()["0"]
                assert held[:, 0].tolist() == held[:, -1].tolist() == kept_of(40, reservoir.seen)
            assert reservoir.check() == [] if reservoir.seen else True
            seen.append(reservoir.seen)
    assert max(seen) > 40


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_stopped_before_any_write_it_opens_with_the_last_commit(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The files are copied before a write, as if the process had been killed there, and the copy is opened."""
    folder = tmp_path_factory.mktemp("rows")
    counter, at, torn = itertools.count(), data.draw(st.integers(0, 40)), data.draw(st.booleans())
    snapshots: list[dict[str, bytes]] = []
    real = os.pwrite

    def pwrite(file: int, content: Any, offset: int) -> int:
        if next(counter) == at:
            if torn:
                real(file, bytes(content)[: len(content) // 2], offset)
            snapshots.append({path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()})
        return real(file, content, offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("metareplay._core.row_file.os.pwrite", pwrite)
        with mr.DiskReservoir(folder, 40) as reservoir:
            for size in data.draw(st.lists(st.integers(1, 60), min_size=1, max_size=6)):
                reservoir.offer(numbered(reservoir.seen, size))
                step = data.draw(st.sampled_from(["nothing", "flush", "mark", "return"]))
                if step == "flush":
                    reservoir.flush()
                elif step == "mark":
                    reservoir.mark()
                elif step == "return" and reservoir.marks:
                    reservoir.return_to(reservoir.marks[0])
    if snapshots:
        copy = tmp_path_factory.mktemp("copy")
        for name, content in snapshots[0].items():
            (copy / name).write_bytes(content)
        with mr.DiskReservoir(copy, 40) as reservoir:
            if reservoir.seen:
                assert reservoir.held()["0"][:, 0].tolist() == kept_of(40, reservoir.seen)
                assert reservoir.check() == []


def test_a_forked_process_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock goes over to it as well, so both would write into the same files."""
    told = "belongs to the process that opened it: open another folder in this one"
    with mr.DiskReservoir(tmp_path, 20) as reservoir:
        for start in (0, 30):
            parent, seen = os.getpid(), reservoir.seen
            with monkeypatch.context() as patch:
                patch.setattr(os, "getpid", lambda parent=parent: parent + 1)
                with pytest.raises(mr.InputError, match=told):
                    reservoir.offer(numbered(start, 30))
                if seen:
                    with pytest.raises(mr.InputError, match=told):
                        reservoir.sample(3)
            assert reservoir.seen == seen
            reservoir.offer(numbered(start, 30))
        assert reservoir.held()["0"][:, 0].tolist() == kept_of(20, 60)


def test_a_folder_that_cannot_be_written_any_more_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> int:
        raise OSError(5, "Input/output error")

    with mr.DiskReservoir(tmp_path, 20) as reservoir:
        reservoir.offer(numbered(0, 30))
        with monkeypatch.context() as patch:
            patch.setattr("metareplay._core.row_file.os.pwrite", gone)
            with pytest.raises(DiskError, match="Input/output error; make it writable again, nothing is lost so far"):
                reservoir.flush()


def test_a_relative_folder_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with mr.DiskReservoir("replay", capacity=5) as reservoir:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        reservoir.offer(torch.arange(9))
        reservoir.flush()
    assert not list((tmp_path / "elsewhere").iterdir())
    with mr.DiskReservoir(tmp_path / "replay") as reservoir:
        assert reservoir.seen == 9


@pytest.mark.parametrize("has_mark", [True, False])
def test_a_checkpoint_makes_no_folder_and_fills_none(has_mark: bool, tmp_path: Path) -> None:
    here, rows = tmp_path / "here.ckpt", tmp_path / "rows"
    learner = mer(mr.DiskReservoir(rows, 9) if has_mark else mr.Reservoir(9))
    learner.observe_many(*examples())
    if not has_mark:  # a stranger's file may say anything
        settings = {"kind": "DiskReservoir", "folder": str(rows), "capacity": 9, "seed": 0}
        vars(learner.memory)["settings"] = lambda: settings
    learner.save(here)
    if has_mark:
        cast(mr.DiskReservoir, learner.memory).close()
        shutil.rmtree(rows)
    with pytest.raises(mr.CheckpointError, match=r"its rows are in .*, and no reservoir of it is there: put"):
        mr.load(here, mer(mr.Reservoir(9)).model)
    assert not rows.exists()
    mr.DiskReservoir(rows, 9).close()
    with pytest.raises(
        mr.CheckpointError, match="cannot go back to mark 1" if has_mark else "no reservoir of it is there"
    ):
        mr.load(here, mer(mr.Reservoir(9)).model)


WRONG_PARTS: dict[str, Any] = {
    "count": 10**15,
    "capacity": "large",
    "segment": "../../elsewhere",
    "entries": -1,
    "marks": [[1, 2]],
    "returning": 99,
    "state": {"seen": 3, "seen_of": [[-1, 3]], "sampled": 0, "kind": "dict"},
    "complete": [["a", 1]],
}


@pytest.mark.parametrize("name", WRONG_PARTS)
def test_a_document_that_no_reservoir_would_have_written_is_refused(name: str, tmp_path: Path) -> None:
    with mr.DiskReservoir(tmp_path / "rows", 5) as reservoir:
        reservoir.offer(numbered(0, 9))
        reservoir.mark()
    path = tmp_path / "rows" / "reservoir.json"
    parts, _ = opened_json(path.read_bytes())
    path.write_bytes(sealed_json(parts | {name: WRONG_PARTS[name]}))
    files = {one.name: one.read_bytes() for one in path.parent.iterdir()}
    with pytest.raises(mr.CheckpointError, match=r"reservoir\.json is damaged: restore the folder from a copy"):
        mr.DiskReservoir(tmp_path / "rows")
    assert {one.name: one.read_bytes() for one in path.parent.iterdir()} == files
    path.write_bytes(sealed_json(parts))
    with mr.DiskReservoir(tmp_path / "rows") as reservoir:
        assert reservoir.seen == 9
