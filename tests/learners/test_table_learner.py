"""What learners with a table undo, and put back, when something fails."""

import random
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, final

import pytest
import torch
from der_plus_plus import DERPlusPlus
from every_learner import assert_same_state, examples, mlp, state
from torch import Tensor, nn
from torch.nn import functional

import metareplay as mr
from metareplay._core.table import Table
from metareplay.learners.replay import one_batch_each
from torture.disturbance import Disturbance, OutOfMemory, OutOfMemoryOnce


def learner_of(kind: type[mr.ReplayLearner], folder: Path) -> mr.ReplayLearner:
    return kind(mlp(), memory=mr.DiskReservoir(folder, 9), lr=0.1, k=5, seed=7, engine="torch")


def learn(learner: mr.Learner, start: int, end: int) -> None:
    learner.observe_many(*(part[start:end] for part in examples()))


@pytest.mark.parametrize("disturbance", [OutOfMemoryOnce, OutOfMemory])
@pytest.mark.parametrize("kind", [mr.ER, DERPlusPlus])
def test_without_memory_a_learner_with_rows_on_disk_has_the_weights_of_what_it_has_seen(
    kind: type[mr.ReplayLearner], disturbance: type[Disturbance], tmp_path: Path
) -> None:
    known, counted = learner_of(kind, tmp_path / "known"), disturbance()
    learn(known, 0, 6)
    states = {6: state(known)}
    for number in range(6, 14):
        learn(known, number, number + 1)
        states[known.seen] = state(known)
    again = learner_of(kind, tmp_path / "counted")
    learn(again, 0, 6)
    assert counted.during(lambda: learn(again, 6, 14)) is None
    for number in counted.drawn(1000, random.Random(0)):
        learner = learner_of(kind, tmp_path / str(number))
        learn(learner, 0, 6)
        at = disturbance(number)
        assert at.during(partial(learn, learner, 6, 14)) is None, at.where
        assert_same_state(state(learner), states[learner.seen])
        if learner.seen < 14:
            learn(learner, learner.seen, 14)
        assert_same_state(state(learner), states[14])


@final
class Counting(mr.Objective):
    """The cross-entropy, and how often it was computed, which is part of a learner's state."""

    def __init__(self) -> None:
        self.count = torch.zeros(())

    def loss(self, model: nn.Module, examples: mr.Columns) -> Tensor:
        self.count += 1
        return functional.cross_entropy(model(examples["x"]), examples["y"])

    def state(self) -> dict[str, Tensor]:
        return {"count": self.count}

    def restore(self, state: dict[str, Tensor]) -> None:
        self.count = state["count"].clone()


@final
@dataclass(eq=False, repr=False, kw_only=True)
class Counted(mr.ReplayLearner):
    """Replay with that objective."""

    def make_objective(self) -> Counting:
        return Counting()

    def plan(self, memory: mr.Sampler) -> mr.Plan:
        return one_batch_each(memory, self.k, self.lr)


def test_examples_that_cannot_be_stored_leave_no_trace_in_an_objective(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learner_of(Counted, tmp_path)
    learn(learner, 0, 6)
    before, count = state(learner), int(learner.objective.state()["count"])

    def full(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Table, "keep", full)
        with pytest.raises(mr.InputError, match="could not be stored and was undone: no space left"):
            learn(learner, 6, 8)
    assert_same_state(state(learner), before)
    assert learner.objective.state()["count"] == count > 0


def test_layers_are_put_back_without_a_moment_in_which_the_lock_is_missing() -> None:
    """Predictions in other threads look for the lock at any time."""
    learner: Any = mr.ER(mlp(), memory=mr.Reservoir(9), lr=0.1, k=5, seed=7, engine="torch")
    learn(learner, 0, 6)
    before, undo, lines = dict(vars(learner)), learner.remember_layers(), 0
    learner.added, learner.objective = 1, None

    def trace(frame: FrameType, event: str, _value: object) -> Any:
        nonlocal lines
        if event == "line" and Path(frame.f_code.co_filename).name == "table_learner.py":
            lines += 1
            assert "_layers_lock" in vars(learner), frame.f_lineno
        return trace

    earlier = sys.gettrace()
    sys.settrace(trace)
    try:
        undo()
    finally:
        sys.settrace(earlier)
    assert lines > 1
    assert vars(learner) == before
    assert torch.is_tensor(learner.predict(examples()[0]))
