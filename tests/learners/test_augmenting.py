"""Augmentation on replay: stored examples are transformed whenever they are replayed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from every_learner import assert_same_state, examples, mlp, state
from torch import Tensor

import metareplay as mr
from metareplay.learners import augmenting

both = pytest.mark.parametrize("engine", ["torch", "cpu"])


def noisy(xs: Tensor) -> Tensor:
    return (xs // 2 + torch.randint(0, 100, xs.shape, dtype=xs.dtype)).clamp(0, 255)


def mer(memory: mr.Memory, engine: Any) -> mr.MER:
    return mr.MER(mlp(), memory=memory, beta=0.3, s=2, k=4, seed=7, engine=engine)


@both
def test_the_identity_changes_nothing(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(augmenting, "ROWS", 20)  # several parts
    plain, same = mer(mr.Reservoir(9), engine), mer(mr.Reservoir(9).augmented(lambda xs: xs), engine)
    for learner in (plain, same):
        learner.observe_many(*examples())
    assert_same_state(state(plain), state(same))
    assert same.chosen_engine.name == engine


@both
def test_chunks_and_resuming_give_the_same_weights(engine: str, tmp_path: Path) -> None:
    whole, saved = (mer(mr.Reservoir(9).augmented(noisy), engine) for _ in range(2))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    whole.observe_many(*examples())
    assert torch.equal(torch.get_rng_state(), before)
    saved.observe_many(*(part[:13] for part in examples()))
    saved.save(tmp_path / "noisy.ckpt")
    with pytest.raises(mr.CheckpointError, match=r"augmentation of your own, noisy: pass the memory"):
        mr.load(tmp_path / "noisy.ckpt", mlp())
    loaded = mr.load(tmp_path / "noisy.ckpt", mlp(), memory=mr.Reservoir(9).augmented(noisy))
    for x, y, task in zip(*(part[13:] for part in examples()), strict=True):
        loaded.observe(x, int(y), int(task))
    assert_same_state(state(whole), state(loaded))
    plain = mer(mr.Reservoir(9), engine)
    plain.observe_many(*examples())
    assert not torch.equal(plain.weights.theta, whole.weights.theta)


def test_the_incoming_example_is_learned_as_it_is() -> None:
    given = list[Tensor]()

    def look(xs: Tensor) -> Tensor:
        given.append(xs.clone())
        return xs

    learner = mer(mr.Reservoir(9).augmented(look), "torch")
    xs, ys, tasks = examples()
    learner.observe_many(xs, ys, tasks)
    assert len(given) == 29  # none for the first example
    for number, replayed in enumerate(given, 1):
        assert len(replayed) == 2 * min(3, number)
        earlier = {tuple(row) for row in xs[:number].tolist()}
        assert {tuple(row) for row in replayed.tolist()} <= earlier


@both
def test_it_works_with_a_memory_on_disk(engine: str, tmp_path: Path) -> None:
    here, there = mr.Reservoir(9).augmented(noisy), mr.DiskReservoir(tmp_path, 9).augmented(noisy)
    one, other = mer(here, engine), mer(there, engine)
    for learner in (one, other):
        learner.observe_many(*examples())
    assert_same_state(state(one), state(other))


def test_a_bad_function_is_refused_and_nothing_is_learned() -> None:
    def broken(_: Tensor) -> Tensor:
        raise RuntimeError("no\nidea")

    wrong: list[tuple[Any, str]] = [
        (lambda xs: xs.float(), "made torch.float32 of shape"),
        (broken, "transformed: no$"),
    ]
    for augment, message in wrong:
        learner = mer(mr.Reservoir(9).augmented(augment), "cpu")
        before = learner.weights.theta.clone()
        with pytest.raises(mr.InputError, match=message):
            learner.observe_many(*examples())
        assert learner.seen == 0
        assert torch.equal(learner.weights.theta, before)
    with pytest.raises(mr.InputError, match="augment=3: use a function"):
        mr.Reservoir(9).augmented(3)  # type: ignore[arg-type]
    with pytest.raises(mr.InputError, match=r"call augmented\(\) before that"):
        learner.memory.augmented(noisy)
    gem = mr.GEM(mlp(), memory=mr.Reservoir(9).augmented(noisy))
    with pytest.raises(mr.InputError, match="GEM cannot transform what it replays"):
        gem.observe_many(*examples())
