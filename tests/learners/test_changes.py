"""Options that change while a learner learns."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from every_learner import CLASSES, INPUTS, assert_same_state, examples, mlp, state

import metareplay as mr
from metareplay._core.plan import Plan
from metareplay.learners.replay import ReplayLearner, one_batch_each
from metareplay.memories.sampler import Sampler

NEW: dict[str, Any] = {"lr": 0.02, "clip": 0.5, "beta": 0.9, "gamma": 0.4, "s": 3, "k": 2}


@dataclass(eq=False, repr=False, kw_only=True)
class Own(ReplayLearner):
    mine: float = 1.0

    def plan(self, memory: Sampler) -> Plan:
        return one_batch_each(memory, self.k, self.lr)


def mer(**options: Any) -> mr.MER:
    usual: dict[str, Any] = {"beta": 0.3, "gamma": 0.8, "s": 2, "k": 4, "seed": 7}
    return mr.MER(mlp(), memory=mr.Reservoir(9), **(usual | options))


def adam(**options: Any) -> mr.ER:
    usual: dict[str, Any] = {"lr": 0.01, "k": 5, "optimizer": "adam", "seed": 7}
    return mr.ER(mlp(), memory=mr.Reservoir(9), **(usual | options))


def learn(learner: mr.Learner, start: int, end: int) -> None:
    learner.observe_many(*(part[start:end] for part in examples()[:2]))


@pytest.mark.parametrize("name", ["model", "memory", "seed", "loss", "regression", "engine"])
def test_what_is_fixed_refuses_assignment(name: str) -> None:
    learner = mer()
    before = getattr(learner, name)
    with pytest.raises(mr.InputError, match=f"^{name} cannot change once the learner is made"):
        setattr(learner, name, before)
    assert getattr(learner, name) is before


@pytest.mark.parametrize(
    ("name", "value"),
    [("lr", -1.0), ("lr", "fast"), ("lr", float("nan")), ("clip", 0), ("beta", 2), ("gamma", 0), ("s", 0), ("k", 1.5)],
)
def test_wrong_values_are_refused_and_nothing_changes(name: str, value: object) -> None:
    learner = mer()
    before = learner.settings()
    with pytest.raises(mr.InputError, match=f"^{name}="):
        setattr(learner, name, value)
    assert learner.settings() == before


def test_batches_that_no_memory_could_hold_are_refused() -> None:
    learner = mer()
    with pytest.raises(mr.InputError, match="memory"):
        learner.k = 2**50
    assert learner.k == 4
    learn(learner, 0, 5)


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("name", NEW)
def test_a_change_is_what_a_learner_made_with_the_new_value_does(name: str, engine: str, tmp_path: Path) -> None:
    learner, unchanged = mer(engine=engine), mer(engine=engine)
    learn(learner, 0, 12)
    learn(unchanged, 0, 12)
    learner.save(tmp_path / "run.ckpt")
    made_so = mr.load(tmp_path / "run.ckpt", mlp(), **{name: NEW[name]})
    setattr(learner, name, NEW[name])
    assert learner.settings() == made_so.settings()
    for one in (learner, made_so, unchanged):
        learn(one, 12, 20)
    assert_same_state(state(learner), state(made_so))
    assert not torch.equal(learner.weights.theta, unchanged.weights.theta)


def test_one_by_one_and_many_at_once_agree_after_every_change() -> None:
    many, single = mer(), mer()
    xs, ys, _ = examples()
    for start, (name, value) in zip(range(0, 30, 5), NEW.items(), strict=True):
        learn(many, start, start + 5)
        for x, y in zip(xs[start : start + 5], ys[start : start + 5], strict=True):
            single.observe(x, y)
        setattr(many, name, value)
        setattr(single, name, value)
    assert_same_state(state(many), state(single))


def test_an_optimizer_follows_its_rate_and_keeps_its_moments(tmp_path: Path) -> None:
    learner, unchanged = adam(), adam()
    learn(learner, 0, 12)
    learn(unchanged, 0, 12)
    learner.save(tmp_path / "run.ckpt")
    made_so = mr.load(tmp_path / "run.ckpt", mlp(), lr=0.001)
    learner.lr = 0.001
    for one in (learner, made_so, unchanged):
        learn(one, 12, 30)
    assert_same_state(state(learner), state(made_so))
    assert not torch.equal(learner.weights.theta, unchanged.weights.theta)


@pytest.mark.parametrize("name", ["lr", "clip"])
def test_a_change_for_which_a_gpu_has_no_room_is_not_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, unchanged = adam(engine="torch"), adam(engine="torch")
    learn(learner, 0, 12)
    learn(unchanged, 0, 12)

    def full(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(learner.weights, "device", torch.device("cuda"))  # where a change makes the engine anew
        patch.setattr("metareplay.learners.predictor.choose_engine", full)
        with pytest.raises(torch.cuda.OutOfMemoryError):
            setattr(learner, name, NEW[name])
    assert getattr(learner, name) == getattr(unchanged, name)
    for one in (learner, unchanged):
        learn(one, 12, 30)
    assert_same_state(state(learner), state(unchanged))


def test_smaller_batches_do_not_overflow_the_table() -> None:
    learner = mer(s=20, k=2**14)
    learner.observe(torch.rand(INPUTS), 0)
    learner.s, learner.k = 1, 2
    learner.observe_many(torch.rand(300, INPUTS), torch.arange(300) % CLASSES)
    assert learner.seen == 301


def test_frozen_layers_are_frozen_again_when_loaded(tmp_path: Path) -> None:
    learner = mer()
    learn(learner, 0, 12)
    with learner.reshaping() as model:
        model.get_parameter("1.weight").requires_grad_(False)
    learner.save(tmp_path / "run.ckpt")
    loaded = mr.load(tmp_path / "run.ckpt", mlp())
    before = loaded.model.get_parameter("1.weight").detach().clone()
    for one in (learner, loaded):
        learn(one, 12, 20)
    assert torch.equal(loaded.model.get_parameter("1.weight"), before)
    assert_same_state(state(learner), state(loaded))


def test_a_learner_of_your_own_may_change_its_own_options() -> None:
    learner = Own(mlp(), memory=mr.Reservoir(9))
    learner.mine = -3.0
    with pytest.raises(mr.InputError, match="seed cannot change"):
        learner.seed = 1
    assert learner.settings()["mine"] == -3.0
