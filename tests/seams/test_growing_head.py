"""Weights that change shape: a head grows in the middle of a stream, without a new learner."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import metareplay as mr

MAKE: dict[str, Any] = {
    "mer": lambda net, engine: mr.MER(net, memory=mr.Reservoir(9), beta=0.3, s=2, k=4, engine=engine),
    "er-adam": lambda net, engine: mr.ER(net, memory=mr.Reservoir(9), lr=0.01, optimizer="adam", k=4, engine=engine),
    "ewc": lambda net, engine: mr.EWC(net, lr=0.1, strength=3.0, fisher_examples=3, engine=engine),
    "gem": lambda net, engine: mr.GEM(net, memory=mr.Ring(9, 3), engine=engine),
}
every = pytest.mark.parametrize("name", MAKE)
engines = pytest.mark.parametrize("engine", ["torch", "cpu"])


def net(classes: int = 3) -> nn.Sequential:
    return mr.networks.mlp(6, (8,), classes, seed=1)


def examples(classes: int, count: int = 30) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(classes)
    return torch.rand(count, 6, generator=generator), torch.randint(classes, (count,), generator=generator)


def grow(model: nn.Module, classes: int) -> None:
    """Replace the last layer by a larger one with the same first rows."""
    assert isinstance(model, nn.Sequential)
    old = model[-1]
    assert isinstance(old, nn.Linear)
    new = nn.Linear(old.in_features, classes)
    with torch.no_grad():
        new.weight.zero_()
        new.bias.zero_()
        new.weight[: old.out_features] = old.weight
        new.bias[: old.out_features] = old.bias
    model[-1] = new


def grown(name: str, engine: str, when: int = 20) -> mr.Learner:
    learner: mr.Learner = MAKE[name](net(), engine)
    xs, ys = examples(3)
    learner.observe_many(xs[:when], ys[:when], task=0)
    with learner.reshaping() as model:
        grow(model, 5)
    learner.observe_many(*examples(5), task=1)
    return learner


@engines
@every
def test_old_weights_stay_and_new_classes_are_learned(name: str, engine: str) -> None:
    learner: mr.Learner = MAKE[name](net(), engine)
    xs, ys = examples(3)
    learner.observe_many(xs, ys, task=0)
    before = learner.outputs(xs)
    with pytest.raises(mr.InputError, match="out of range"):
        learner.observe(xs[0], 4, task=0)
    with learner.reshaping() as model:
        grow(model, 5)
    assert torch.equal(learner.outputs(xs)[:, :3], before)
    learner.observe(xs[0], 4, task=1)
    assert learner.seen == 31
    assert learner.chosen_engine.name == engine
    assert learner.outputs(xs).shape == (30, 5)


@every
def test_both_engines_land_on_the_same_weights(name: str) -> None:
    one, other = (grown(name, engine).weights.theta for engine in ("torch", "cpu"))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@engines
@every
def test_saved_and_loaded_into_the_larger_model(name: str, engine: str, tmp_path: Path) -> None:
    learner = grown(name, engine)
    learner.save(tmp_path / "grown.ckpt")
    loaded = mr.load(tmp_path / "grown.ckpt", net(5))
    xs, ys = examples(5, 10)
    for one in (learner, loaded):
        one.observe_many(xs, ys, task=1)
    assert torch.equal(learner.weights.theta, loaded.weights.theta)


def test_moments_and_importance_keep_their_values() -> None:
    learner: mr.Learner = MAKE["er-adam"](net(), "torch")
    learner.observe_many(*examples(3))
    old = learner.chosen_engine.state()["exp_avg"].split([48, 8, 24, 3])
    with learner.reshaping() as model:
        grow(model, 5)
    new = learner.chosen_engine.state()["exp_avg"].split([48, 8, 40, 5])
    assert torch.equal(new[0], old[0])
    assert torch.equal(new[2].view(5, 8)[:3], old[2].view(3, 8))
    assert not new[2].view(5, 8)[3:].any()
    assert learner.chosen_engine.state()["step"] == 30
    ewc: Any = MAKE["ewc"](net(), "torch")
    ewc.observe_many(*examples(3), task=0)
    ewc.observe_many(*examples(3), task=1)
    before = ewc.private_state()["importance"].sum()
    with ewc.reshaping() as model:
        grow(model, 5)
    assert ewc.private_state()["importance"].sum() == before > 0


def test_changing_layers_outside_is_still_refused() -> None:
    learner: mr.Learner = MAKE["mer"](net(), "torch")
    learner.observe_many(*examples(3))
    grow(learner.model, 5)
    with pytest.raises(mr.InputError, match=r"inside learner\.reshaping\(\)"):
        learner.observe_many(*examples(3))


def grow_and_fail(learner: mr.Learner) -> None:
    with learner.reshaping() as model:
        grow(model, 4)
        raise KeyError("my own")


def test_an_error_inside_the_block_leaves_a_working_learner() -> None:
    learner: mr.Learner = MAKE["mer"](net(), "cpu")
    learner.observe_many(*examples(3))
    with pytest.raises(KeyError):
        grow_and_fail(learner)
    learner.observe_many(*examples(4))
    assert learner.seen == 60


def test_an_engine_that_cannot_learn_the_new_model_says_so_and_torch_goes_on() -> None:
    learner: mr.Learner = MAKE["mer"](net(), "cpu")
    learner.observe_many(*examples(3))

    def use_softplus() -> None:
        with learner.reshaping() as model:
            assert isinstance(model, nn.Sequential)
            model[2] = nn.Softplus()

    with pytest.raises(mr.InputError, match="engine 'cpu' needs a chain of layers"):
        use_softplus()
    before = learner.weights.theta.clone()
    learner.observe_many(*examples(3))
    assert learner.chosen_engine.name == "torch"
    assert not torch.equal(learner.weights.theta, before)


@pytest.mark.parametrize("name", ["er-adam", "ewc"])
def test_what_is_remembered_is_carried_over_even_then(name: str) -> None:
    learner: mr.Learner = MAKE[name](net(), "cpu")
    learner.observe_many(*examples(3), task=0)
    learner.observe_many(*examples(3), task=1)

    def grow_and_use_softplus() -> None:
        with learner.reshaping() as model:
            assert isinstance(model, nn.Sequential)
            grow(model, 5)
            model[2] = nn.Softplus()

    with pytest.raises(mr.InputError, match="engine 'cpu' needs"):
        grow_and_use_softplus()
    assert len(learner.chosen_engine.state()) == (3 if name == "er-adam" else 0)
    learner.observe_many(*examples(5), task=2)
    assert learner.seen == 90


def test_a_model_of_two_dtypes_can_be_put_right_again() -> None:
    learner: mr.Learner = MAKE["mer"](net(), "torch")
    learner.observe_many(*examples(3))

    def change(dtype: torch.dtype) -> None:
        with learner.reshaping() as model:
            model.to(dtype) if dtype == torch.float32 else model[-1].to(dtype)  # type: ignore[index]

    with pytest.raises(mr.InputError, match="must share one dtype"):
        change(torch.float64)
    change(torch.float32)
    learner.observe_many(*examples(3))
    assert learner.seen == 60


def test_a_prediction_in_another_thread_waits_until_the_layers_are_changed() -> None:
    learner = MAKE["mer"](net(), "cpu")
    learner.observe_many(*examples(3))
    found: list[Any] = []

    def predict() -> None:
        for xs in (torch.rand(6), torch.rand(200, 6)):
            try:
                found.append(learner.outputs(xs).shape)
            except mr.InputError as error:
                found.append(error)

    other = threading.Thread(target=predict)
    with learner.reshaping() as model:
        grow(model, 5)
        other.start()
        other.join(0.3)
        assert not found
    other.join()
    assert found == [(5,), (200, 5)]
