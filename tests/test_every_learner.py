"""Checks that every learner must pass."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from every_learner import CLASSES, EVERY, INPUTS, Make, assert_same_state, examples, state
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

import metareplay as mr

every = pytest.mark.parametrize("make", EVERY.values(), ids=EVERY.keys())


def taught(make: Make, count: int = 30, **options: Any) -> mr.Learner:
    learner = make(**options)
    learner.observe_many(*(part[:count] for part in examples()))
    return learner


@cache
def taught_everything(make: Make) -> dict[str, Tensor]:
    """The state of a learner that was taught all examples in one chunk: learned once, and compared with many times."""
    return state(taught(make))


@every
def test_same_seed_same_everything(make: Make) -> None:
    assert_same_state(state(taught(make)), taught_everything(make))


@every
def test_learning_changes_the_model_the_user_gave(make: Make) -> None:
    learner = make()
    before = [p.detach().clone() for p in learner.model.parameters() if p.requires_grad]
    frozen = [p.detach().clone() for p in learner.model.parameters() if not p.requires_grad]
    learner.observe_many(*examples())
    after = [p for p in learner.model.parameters() if p.requires_grad]
    assert any(not torch.equal(one, other) for one, other in zip(before, after, strict=True))
    still = [p for p in learner.model.parameters() if not p.requires_grad]
    assert all(torch.equal(one, other) for one, other in zip(frozen, still, strict=True))


@every
def test_one_by_one_is_the_same_as_many_at_once(make: Make) -> None:
    one_by_one = make()
    for x, y, task in zip(*examples(), strict=True):
        one_by_one.observe(x, int(y), task=int(task))
    assert_same_state(state(one_by_one), taught_everything(make))


@every
@given(cuts=st.lists(st.integers(0, 30), max_size=4))
@settings(max_examples=8)
def test_any_chunks_give_the_same_weights(make: Make, cuts: list[int]) -> None:
    learner = make()
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), 30], strict=True):
        learner.observe_many(*(part[start:end] for part in examples()))
    assert_same_state(state(learner), taught_everything(make))


@every
@pytest.mark.parametrize("when", [0, 1, 13])
def test_saved_and_loaded_it_goes_on_bit_for_bit(make: Make, when: int, tmp_path: Path) -> None:
    learner = taught(make, when)
    learner.save(tmp_path / "run.ckpt")
    loaded = mr.load(tmp_path / "run.ckpt", make().model)
    assert type(loaded) is type(learner)
    assert loaded.settings() == learner.settings()
    assert_same_state(state(loaded), state(learner))
    loaded.observe_many(*(part[when:] for part in examples()))
    assert_same_state(state(loaded), taught_everything(make))


@every
def test_predicts_before_the_first_example(make: Make) -> None:
    learner = make()
    labels = learner.predict(examples()[0], task=0)
    assert labels.shape == (30,)
    assert labels.dtype == torch.int64
    assert 0 <= labels.min() <= labels.max() < CLASSES
    assert learner.seen == 0


@every
def test_predicting_changes_nothing(make: Make) -> None:
    learner, undisturbed = taught(make, 20), taught(make, 20)
    random_state = torch.get_rng_state()
    learner.predict(examples()[0], task=1)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert_same_state(state(learner), state(undisturbed))


@every
def test_inputs_and_the_global_generators_are_left_alone(make: Make) -> None:
    given, learner = examples(), make()
    torch.manual_seed(5)
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state(legacy=False)["state"]["key"]  # noqa: NPY002
    learner.observe_many(*given)
    assert all(torch.equal(now, before) for now, before in zip(given, examples(), strict=True))
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state(legacy=False)["state"]["key"], numpy_state)  # noqa: NPY002


@every
def test_numpy_and_torch_inputs_are_the_same(make: Make) -> None:
    learner = make()
    xs, ys, tasks = (part.numpy() for part in examples())
    learner.observe_many(xs, ys, tasks)
    assert_same_state(state(learner), taught_everything(make))


def infinite_for_huge_outputs(outputs: Tensor, ys: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, ys) + torch.where(outputs.max() > 1e20, torch.inf, 0.0)


BAD: dict[str, tuple[Callable[..., Any], str]] = {
    "wrong shape": (lambda x, y, t: (x[:, :5], y, t), "shape"),
    "another dtype than before": (lambda x, y, t: (x.double(), y, t), "dtype"),
    "no numbers": (lambda x, y, t: (["a"] * len(x), y, t), "x is"),
    "complex": (lambda x, y, t: (x.to(torch.complex64), y, t), "dtype"),
    "label too large": (lambda x, y, t: (x, y + CLASSES + 1, t), "out of range"),
    "label negative": (lambda x, y, t: (x, y - CLASSES, t), "out of range"),
    "real labels": (lambda x, y, t: (x, y.float(), t), "integers"),
    "too few labels": (lambda x, y, t: (x, y[:-1], t), "label"),
    "negative task": (lambda x, y, t: (x, y, t - 5), "task"),
    "real task": (lambda x, y, t: (x, y, t.float()), "task"),
    "too few tasks": (lambda x, y, t: (x, y, t[:-1]), "task"),
}


@every
def test_bad_input_gets_one_line_and_changes_nothing(make: Make) -> None:
    learner = taught(make, 15)
    before = state(learner)
    for spoil, message in BAD.values():
        with pytest.raises(mr.InputError, match=message) as caught:
            learner.observe_many(*spoil(*(part[15:] for part in examples())))
        assert "\n" not in str(caught.value)
        assert_same_state(state(learner), before)
    learner.observe_many(*(part[15:] for part in examples()))
    assert_same_state(state(learner), taught_everything(make))


@every
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_inputs_that_are_not_finite_are_refused(make: Make, bad: float) -> None:
    learner = make()
    xs, ys, tasks = examples()
    xs = xs.float() / 255
    learner.observe_many(xs[:15], ys[:15], tasks[:15])
    before = state(learner)
    xs[20, 2] = bad
    with pytest.raises(mr.InputError, match="example 5 is not finite"):
        learner.observe_many(xs[15:], ys[15:], tasks[15:])
    assert_same_state(state(learner), before)


@every
def test_an_example_that_breaks_the_weights_is_undone_and_named(make: Make) -> None:
    xs, ys, tasks = examples()
    xs = xs.float() / 255
    poison = xs.clone()
    poison[17] = torch.tensor([3e38, -3e38, 3e38, 3e38, -3e38, 3e38])  # finite, but the loss is not
    learner, healthy = (make(loss=infinite_for_huge_outputs) for _ in range(2))
    for one in (learner, healthy):
        one.observe_many(xs[:5], ys[:5], tasks[:5])
    with pytest.raises(mr.NonFiniteError, match="example 17 of the stream"):
        learner.observe_many(poison[5:], ys[5:], tasks[5:])
    assert learner.seen == 17
    healthy.observe_many(xs[5:17], ys[5:17], tasks[5:17])
    assert_same_state(state(learner), state(healthy))
    learner.observe_many(xs[18:], ys[18:], tasks[18:])
    assert all(torch.isfinite(p).all() for p in learner.model.parameters())


@every
def test_a_learner_that_needs_tasks_says_so(make: Make) -> None:
    learner = make()
    xs, ys, _ = examples()
    before = state(learner)
    needs = learner.uses_tasks or isinstance(learner.model, mr.networks.TaskModule) or "Ring" in repr(learner)
    if needs:
        with pytest.raises(mr.InputError, match="needs the task id"):
            learner.observe_many(xs, ys)
        assert_same_state(state(learner), before)
    else:
        learner.observe_many(xs, ys)
        assert learner.seen == 30


@every
def test_an_empty_chunk_is_nothing(make: Make) -> None:
    learner = taught(make, 10)
    before = state(learner)
    learner.observe_many(torch.zeros(0, INPUTS, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64))
    assert_same_state(state(learner), before)


@every
def test_moving_the_model_away_is_noticed(make: Make) -> None:
    learner = taught(make, 5)
    learner.model.double()
    with pytest.raises(mr.InputError, match="moved or replaced"):
        learner.observe_many(*examples())


@every
def test_the_record_of_options_is_plain_and_complete(make: Make) -> None:
    learner = make()
    assert learner.settings()["lr"] == learner.lr
    assert learner.settings()["seed"] == 7
    assert repr(learner).startswith(type(learner).__name__)


def test_every_learner_is_checked() -> None:
    from metareplay.learners import LEARNERS

    assert {type(make()) for make in EVERY.values()} == set(LEARNERS)


@every
def test_an_exception_in_the_model_is_undone_and_named(make: Make) -> None:
    """A loss that raises at one example: those before it stay learned and stored, it and the rest do not."""
    calls = {"until": 10**9}

    def fragile(outputs: Tensor, ys: Tensor) -> Tensor:
        calls["until"] -= 1
        if calls["until"] < 0:
            raise RuntimeError("no luck\nat all")
        return functional.cross_entropy(outputs, ys)

    learner = make(loss=fragile)
    learner.observe_many(*(part[:5] for part in examples()))
    calls["until"] = 7
    with pytest.raises(mr.InputError, match=r"could not be learned and was undone: no luck$"):
        learner.observe_many(*(part[5:] for part in examples()))
    calls["until"] = 10**9
    assert 5 <= learner.seen < 30
    assert_same_state(state(learner), state(taught(make, learner.seen, loss=fragile)))
    learner.observe_many(*(part[learner.seen :] for part in examples()))
    assert_same_state(state(learner), state(taught(make, loss=fragile)))


@every
def test_interrupted_in_the_middle_nothing_is_half_learned(make: Make) -> None:
    calls = {"until": 10**9}

    def interrupted(outputs: Tensor, ys: Tensor) -> Tensor:
        calls["until"] -= 1
        if calls["until"] == 0:
            raise KeyboardInterrupt
        return functional.cross_entropy(outputs, ys)

    learner = make(loss=interrupted)
    calls["until"] = 12
    with pytest.raises(KeyboardInterrupt):
        learner.observe_many(*examples())
    calls["until"] = 10**9
    assert_same_state(state(learner), state(taught(make, learner.seen, loss=interrupted)))


@every
def test_examples_as_a_loop_gives_them(make: Make) -> None:
    """NumPy and torch scalars as labels and tasks, inputs that require gradients, read-only arrays, no_grad outside."""
    learner = make()
    xs, ys, tasks = (part.numpy() for part in examples())
    xs.flags.writeable = False
    for i in range(30):
        with torch.no_grad() if i % 2 else torch.inference_mode():
            learner.observe(xs[i], ys[i] if i % 3 else torch.tensor(ys[i]), task=tasks[i])
    assert_same_state(state(learner), taught_everything(make))
    assert learner.predict(xs[:0], task=np.int64(0)).shape == (0,)
    inputs = torch.rand(3, INPUTS, requires_grad=True)
    other = make()
    for x in inputs:
        other.observe(x, 1, task=0)
    assert inputs.grad is None


@every
@pytest.mark.parametrize("bad", ["text", None, object()])
def test_what_is_no_array_is_refused_in_one_line(make: Make, bad: object) -> None:
    learner = make()
    good = torch.zeros(INPUTS, dtype=torch.uint8)
    for x, y in ((bad, 1), (good, bad)):
        with pytest.raises(mr.InputError, match="array of numbers") as caught:
            learner.observe(x, y, task=0)
        assert "\n" not in str(caught.value)


@every
def test_modes_of_the_users_modules_are_kept(make: Make) -> None:
    learner = make()
    learner.model.train()
    frozen = [module for module in learner.model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    for module in frozen:
        module.eval()
    learner.predict(examples()[0], task=0)
    learner.observe_many(*examples())
    assert learner.model.training
    assert not any(module.training for module in frozen)
    assert all(not module.running_mean.any() for module in frozen if module.running_mean is not None)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lr": "0.1"}, "lr"),
        ({"k": 2.5}, "k=2.5"),
        ({"s": 1.5}, "s=1.5"),
        ({"seed": "a"}, "seed"),
        ({"engine": "fast"}, "engine"),
        ({"lr": -1}, "lr"),
    ],
)
def test_a_refused_learner_leaves_the_model_to_the_one_that_has_it(wrong: dict[str, object], message: str) -> None:
    model = mr.networks.mlp(INPUTS, (8,), CLASSES)
    learner = mr.Online(model, lr=0.1)
    with pytest.raises(mr.InputError, match=message):
        mr.MER(model, **wrong)  # type: ignore[arg-type]
    learner.observe(torch.rand(INPUTS), 1)


def test_numbers_from_numpy_are_as_good_as_pythons(tmp_path: Path) -> None:
    options: dict[str, Any] = {"lr": np.float32(0.5), "k": np.int64(3), "seed": np.int64(3)}
    capacity: Any = np.int64(5)
    learner = mr.MER(mr.networks.mlp(INPUTS, (8,), CLASSES), memory=mr.Reservoir(capacity), **options)
    learner.observe_many(*examples())
    learner.save(tmp_path / "run.ckpt")
    assert mr.load(tmp_path / "run.ckpt", mr.networks.mlp(INPUTS, (8,), CLASSES)).settings() == learner.settings()


def test_a_refused_first_example_is_forgotten() -> None:
    learner = mr.Online(torch.nn.Linear(INPUTS, 3))
    with pytest.raises(mr.InputError, match="not one score per class"):
        learner.observe(torch.rand(2, INPUTS), 1)
    learner.observe(torch.rand(INPUTS), 2)
    assert learner.seen == 1


def test_a_layer_that_was_swapped_is_noticed() -> None:
    learner = mr.Online(mr.networks.mlp(INPUTS, (8,), CLASSES))
    assert isinstance(learner.model, torch.nn.Sequential)
    learner.model[3] = torch.nn.Linear(8, CLASSES)
    with pytest.raises(mr.InputError, match="moved or replaced"):
        learner.observe(torch.rand(INPUTS), 1)


def test_two_learners_cannot_share_a_memory() -> None:
    memory = mr.Reservoir(5)
    mr.ER(mr.networks.mlp(INPUTS, (8,), CLASSES), memory=memory)
    with pytest.raises(mr.InputError, match="another learner"):
        mr.ER(mr.networks.mlp(INPUTS, (8,), CLASSES), memory=memory)


def test_moments_that_overflow_are_noticed() -> None:
    learner = mr.ER(mr.networks.mlp(INPUTS, (8,), CLASSES), memory=mr.Reservoir(5), k=2, optimizer="adam", lr=0.01)
    xs = torch.rand(2, INPUTS, generator=torch.Generator().manual_seed(0))
    learner.observe(xs[0], 1)
    before = state(learner)
    with pytest.raises(mr.NonFiniteError):
        learner.observe(1e24 * xs[1], 0)
    assert_same_state(state(learner), before)


@pytest.mark.parametrize("name", ["ewc", "independent-clone"])
def test_a_task_whose_first_example_fails_has_not_begun(name: str) -> None:
    def make() -> mr.Learner:
        return EVERY[name](loss=infinite_for_huge_outputs)

    xs, ys, tasks = examples()
    xs = xs.float() / 255
    learner, healthy = make(), make()
    for one in (learner, healthy):
        one.observe_many(xs[:10], ys[:10], tasks[:10])
    with pytest.raises(mr.NonFiniteError):
        learner.observe(torch.tensor([3e38, -3e38, 3e38, 3e38, -3e38, 3e38]), 0, task=1)
    assert_same_state(state(learner), state(healthy))


def test_a_new_network_is_cloned_from_the_task_trained_last() -> None:
    learner = EVERY["independent-clone"]()
    xs, ys, _ = examples()
    for start, task in ((0, 0), (10, 1), (15, 0)):
        learner.observe_many(xs[start : start + 5], ys[start : start + 5], task)
    assert isinstance(learner.model, mr.networks.Separate)
    expected = mr.Online(mr.networks.mlp(INPUTS, (4, 3), CLASSES), lr=0.1)
    expected.model.load_state_dict(learner.model.nets[0].state_dict())
    expected.observe(xs[20], ys[20])
    learner.observe(xs[20], ys[20], task=2)
    for ours, theirs in zip(learner.model.nets[2].parameters(), expected.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
