"""Labels of any kind, and heads that grow: the same weights one by one and in chunks, saved and loaded."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import metareplay as mr
from metareplay._core.plain_labels import read, written
from metareplay.learners.labels import Labels

NAMES: list[Any] = ["cat", 7, ("a", 1), None, 2.5, False]
MAKE: dict[str, Callable[..., mr.Learner]] = {
    "online": lambda net, **more: mr.Online(net, lr=0.1, **more),
    "mer": lambda net, **more: mr.MER(net, memory=mr.Reservoir(9), beta=0.3, s=2, k=4, **more),
    "er-adam": lambda net, **more: mr.ER(net, memory=mr.Reservoir(9), lr=0.01, optimizer="adam", k=4, **more),
    "ewc": lambda net, **more: mr.EWC(net, lr=0.1, strength=3.0, fisher_examples=3, **more),
    "gem": lambda net, **more: mr.GEM(net, memory=mr.Ring(9, 3), **more),
}
every = pytest.mark.parametrize("name", MAKE)
engines = pytest.mark.parametrize("engine", ["torch", "cpu"])


def net(classes: int = 1) -> nn.Sequential:
    return mr.networks.mlp(6, (8,), classes, seed=1)


def top(learner: mr.Learner) -> nn.Linear:
    assert isinstance(learner.model, nn.Sequential)
    assert isinstance(learner.model[-1], nn.Linear)
    return learner.model[-1]


def examples(count: int = 48, seed: int = 0) -> tuple[Tensor, list[Any]]:
    """Examples of classes that appear one after another."""
    rng = np.random.default_rng(seed)
    numbers = [int(rng.integers(1 + n * len(NAMES) // count)) for n in range(count)]
    return torch.from_numpy(rng.random((count, 6))).float(), [NAMES[n] for n in numbers]


def learned(name: str, engine: str, count: int = 48) -> mr.Learner:
    learner = MAKE[name](net(), classes="grow", engine=engine)
    xs, ys = examples()
    learner.observe_many(xs[:count], ys[:count], task=0)
    return learner


@engines
@every
def test_one_by_one_is_the_same_as_many(name: str, engine: str) -> None:
    many, one = learned(name, engine), MAKE[name](net(), classes="grow", engine=engine)
    for x, y in zip(*examples(), strict=True):
        one.observe(x, y, task=0)
    assert torch.equal(many.weights.theta, one.weights.theta)
    assert many.labels == one.labels
    assert many.chosen_engine.name == engine
    assert many.labels is not None
    assert top(many).out_features == len(many.labels) == len(set(examples()[1]))


@engines
@every
def test_it_is_the_same_as_growing_by_hand(name: str, engine: str) -> None:
    """The numbers of the labels, and a larger layer whenever a label is new."""
    hand = MAKE[name](net(), engine=engine)
    known: list[Any] = []
    for x, y in zip(*examples(), strict=True):
        if y not in known:
            known.append(y)
        if len(known) > top(hand).out_features:
            with hand.reshaping() as model:
                assert isinstance(model, nn.Sequential)
                old, new = top(hand), nn.Linear(8, len(known))
                with torch.no_grad():
                    for before, after in zip(old.parameters(), new.parameters(), strict=True):
                        after.zero_()[: len(before)] = before
                model[-1] = new
        hand.observe(x, known.index(y), task=0)
    assert torch.equal(hand.weights.theta, learned(name, engine).weights.theta)


@every
def test_both_engines_land_on_the_same_weights(name: str) -> None:
    one, other = (learned(name, engine).weights.theta for engine in ("torch", "cpu"))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@engines
@every
@pytest.mark.parametrize("size", [1, 3, 6])
def test_a_checkpoint_continues_in_a_head_of_any_size(name: str, engine: str, size: int, tmp_path: Path) -> None:
    whole, half = learned(name, engine), learned(name, engine, count=24)
    half.save(tmp_path / "half.ckpt")
    assert half.labels is not None
    model = net(min(size, len(half.labels)))
    loaded = mr.load(tmp_path / "half.ckpt", model)
    assert loaded.labels == half.labels
    xs, ys = examples()
    loaded.observe_many(xs[24:], ys[24:], task=0)
    assert torch.equal(loaded.weights.theta, whole.weights.theta)
    assert loaded.labels == whole.labels


def test_loading_into_a_larger_head_keeps_its_further_outputs(tmp_path: Path) -> None:
    learner = mr.ER(net(3), memory=mr.Reservoir(9), lr=0.01, optimizer="adam", k=4)
    xs, _ = examples()
    learner.observe_many(xs, torch.arange(len(xs)) % 3)
    learner.save(tmp_path / "three.ckpt")
    given = net(5)[-1].get_parameter("weight").detach()
    loaded = mr.load(tmp_path / "three.ckpt", net(5))
    assert torch.equal(loaded.outputs(xs)[:, :3], learner.outputs(xs))
    assert torch.equal(top(loaded).weight[3:], given[3:])
    moments = loaded.chosen_engine.state()["exp_avg"].split([48, 8, 40, 5])
    assert moments[2].view(5, 8)[:3].any()
    assert not moments[2].view(5, 8)[3:].any()
    loaded.observe(xs[0], 4)
    with pytest.raises(mr.CheckpointError, match="another model"):
        mr.load(tmp_path / "three.ckpt", net(2))


def test_a_damaged_checkpoint_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    learner = learned("mer", "torch")
    learner.save(tmp_path / "saved.ckpt")
    model = net(1)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(mr.CheckpointError):
        mr.load(tmp_path / "saved.ckpt", model, memory=mr.Reservoir(5))
    with pytest.raises(mr.CheckpointError):
        mr.load(tmp_path / "saved.ckpt", mr.networks.mlp(6, (9,), 1, seed=1))
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))


def test_predictions_are_labels() -> None:
    learner = learned("mer", "torch")
    xs, ys = examples()
    predicted, chances = learner.predict(xs), learner.predict_proba(xs)
    assert isinstance(predicted, np.ndarray)
    assert chances.shape == (48, len(learner.labels or ()))
    torch.testing.assert_close(chances.sum(1), torch.ones(48))
    assert [learner.labels[n] for n in chances.argmax(1).tolist()] == predicted.tolist()  # type: ignore[index]
    right = [one == other for one, other in zip(predicted.tolist(), ys, strict=True)]
    assert learner.accuracy(xs, ys) == pytest.approx(100 * np.mean(right))
    assert learner.accuracy(xs[:2], ["never seen", "nor this"]) == 0


def test_outputs_that_no_label_has_yet_are_never_predicted() -> None:
    learner = MAKE["online"](net(5), classes="grow")
    xs, _ = examples()
    with pytest.raises(mr.InputError, match="no label is known yet"):
        learner.predict(xs)
    assert learner.observe(xs[0], "first", predict=True) is None
    assert set(learner.predict(xs)) == {"first"}
    assert learner.observe(xs[1], "second", predict=True) == "first"
    assert top(learner).out_features == 5


def test_labels_that_are_known_in_advance() -> None:
    xs, _ = examples()
    ys = ["no", "yes"] * 24
    named, numbered = MAKE["mer"](net(2), classes=["no", "yes"]), MAKE["mer"](net(2))
    named.observe_many(xs, np.array(ys))
    numbered.observe_many(xs, torch.tensor([0, 1] * 24))
    assert torch.equal(named.weights.theta, numbered.weights.theta)
    assert named.predict(xs).tolist() == [ys[n] for n in numbered.predict(xs).tolist()]
    with pytest.raises(mr.InputError, match="label 'maybe' is not one of the classes: they are 'no', 'yes'"):
        named.observe(xs[0], "maybe")
    with pytest.raises(mr.InputError, match="classes has 3 labels, but the model has 2 outputs"):
        MAKE["mer"](net(2), classes=["a", "b", "c"]).observe(xs[0], "a")
    assert named.settings()["classes"] == ["no", "yes"]
    assert "classes" not in numbered.settings()


def test_a_named_head() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.top = nn.Linear(6, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.top(self.body(x).relu()).log_softmax(1)  # type: ignore[no-any-return]

    xs, ys = examples()
    with pytest.raises(mr.InputError, match="it has 'body', 'top'"):
        mr.Online(Net(), classes="grow").observe(xs[0], "a")
    with pytest.raises(mr.InputError, match="the layer 'body' has 8 outputs"):
        mr.Online(Net(), classes="grow", head="body").observe(xs[0], "a")
    with pytest.raises(mr.InputError, match="head='tip': the model has no such linear layer"):
        mr.Online(Net(), classes="grow", head="tip").observe(xs[0], "a")
    learner = mr.Online(Net(), classes="grow", head="top")
    learner.observe_many(xs, ys)
    assert learner.predict_proba(xs).shape[1] == len(set(ys))


def test_heads_that_cannot_grow_are_refused() -> None:
    xs, _ = examples()
    frozen = net(2)
    frozen[-1].requires_grad_(False)
    with pytest.raises(mr.InputError, match="frozen or parametrized"):
        mr.Online(frozen, classes="grow").observe(xs[0], "a")
    tied = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    tied[1].weight = tied[0].weight
    with pytest.raises(mr.InputError, match=r"0\.weight and 1\.weight are one parameter"):
        mr.Online(tied, classes="grow").observe(xs[0], "a")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": "shrink"}, "classes='shrink': use 'grow', a list of labels, or None"),
        ({"classes": 3}, "classes is an int"),
        ({"classes": ["a", "a"]}, "name at least one label, and each of them once"),
        ({"classes": []}, "name at least one label"),
        ({"classes": "grow", "regression": True}, "regression has no labels"),
        ({"classes": range(3), "regression": torch.tensor([[0], [0]])}, "regression=.*use True or False"),
        ({"head": "2"}, "set classes='grow', too"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(mr.InputError, match=message):
        mr.Online(net(2), **options)


def test_models_with_heads_for_each_task_have_their_own_classes() -> None:
    model = mr.networks.MultiHead(nn.Linear(6, 4), features=4, classes=(2, 2))
    with pytest.raises(mr.InputError, match="classes of its own for each task"):
        mr.Online(model, classes="grow")


@pytest.mark.parametrize(
    ("y", "message"), [([1], "cannot be hashed"), (float("nan"), "NaN"), (torch.zeros(2), "cannot be hashed")]
)
def test_what_is_no_label(y: Any, message: str) -> None:
    learner = MAKE["mer"](net(), classes="grow")
    with pytest.raises(mr.InputError, match=message):
        learner.observe(torch.zeros(6), y)
    assert learner.labels == ()
    with pytest.raises(mr.InputError, match="one label for each of the 2 examples"):
        learner.observe_many(torch.zeros(2, 6), ["a"])
    with pytest.raises(mr.InputError, match="give a list with one label for each example"):
        learner.observe_many(torch.zeros(2, 6), "ab")


def test_labels_of_examples_that_were_not_reached_are_not_known() -> None:
    learner = MAKE["mer"](net(), classes="grow", engine="torch")
    xs, _ = examples()
    xs[2] = 1e30
    with pytest.raises(mr.NonFiniteError, match="example 2"):
        learner.observe_many(xs[:5], ["a", "b", "b", "c", "d"])
    assert list(learner.labels or ()) == ["a", "b"]
    learner.observe_many(xs[3:5], ["d", "c"])
    assert list(learner.labels or ()) == ["a", "b", "d", "c"]


def test_a_label_that_no_file_can_hold(tmp_path: Path) -> None:
    learner = MAKE["online"](net(), classes="grow")
    learner.observe(torch.zeros(6), frozenset("a"))
    assert learner.predict(torch.zeros(1, 6))[0] == frozenset("a")
    with pytest.raises(mr.InputError, match=r"frozenset\({'a'}\) cannot be written to a file"):
        learner.save(tmp_path / "no.ckpt")


leaf = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
plain = leaf | st.tuples(leaf, leaf) | st.tuples(leaf, st.tuples(leaf, leaf))


@settings(max_examples=100)
@given(st.lists(plain, max_size=20))
def test_numbers_follow_the_first_appearance(ys: list[Any]) -> None:
    labels = Labels(grows=True)
    numbers = labels.numbers(ys).tolist()
    first = list(dict.fromkeys(ys))
    assert numbers == [first.index(y) for y in ys]
    labels.admit(len(first) - 1)
    assert labels.known == tuple(first)
    assert read(written(labels.known)) == first
    assert labels.look_up(ys).tolist() == numbers


@pytest.mark.parametrize("saved", [None, "ab", [["a", {}]], ["a", "a"], 3])
def test_damaged_labels_are_refused(saved: Any) -> None:
    with pytest.raises(mr.CheckpointError, match="damaged"):
        read(saved)


def test_layers_that_the_user_replaces_are_found_again() -> None:
    learner = learned("mer", "torch")
    size = top(learner).out_features
    with learner.reshaping() as model:
        assert isinstance(model, nn.Sequential)
        model[-1] = nn.Linear(8, size)
    learner.observe(torch.zeros(6), "another")
    assert top(learner).out_features == size + 1
    assert learner.labels is not None
    assert learner.labels[-1] == "another"


@pytest.mark.parametrize("when", [1, 7, 40, 99, 150, 230])
def test_after_ctrl_c_the_rest_gives_the_same_weights(when: int) -> None:
    """It comes during a forward pass, also of examples with which the head grows; `seen` says where to go on."""

    class Interrupting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.calls = net(), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.calls == when:
                signal.raise_signal(signal.SIGINT)
            return self.net(x)  # type: ignore[no-any-return]

    learner = MAKE["mer"](Interrupting(), classes="grow", engine="torch")
    xs, ys = examples()
    with pytest.raises(KeyboardInterrupt):
        learner.observe_many(xs, ys)
    assert learner.seen < len(xs)
    learner.observe_many(xs[learner.seen :], ys[learner.seen :])
    assert torch.equal(learner.weights.theta, learned("mer", "torch").weights.theta)


def test_known_labels_are_saved_and_loaded(tmp_path: Path) -> None:
    xs, _ = examples()
    ys: list[Any] = [("a", 1), None] * 24
    learner = MAKE["mer"](net(2), classes=[("a", 1), None])
    learner.observe_many(xs, ys)
    learner.save(tmp_path / "named.ckpt")
    loaded = mr.load(tmp_path / "named.ckpt", net(2))
    assert loaded.labels == learner.labels == (("a", 1), None)
    assert loaded.accuracy(xs, ys) == learner.accuracy(xs, ys)
    plain = MAKE["mer"](net(2))
    plain.observe_many(xs, torch.zeros(48, dtype=torch.int64))
    plain.save(tmp_path / "plain.ckpt")
    with pytest.raises(mr.CheckpointError, match="saved without labels of its own; leave classes out"):
        mr.load(tmp_path / "plain.ckpt", net(2), classes="grow")


def test_a_run_with_a_head_that_grows(tmp_path: Path) -> None:
    xs, _ = examples()
    ys = torch.arange(48) // 12 * 10
    stream = mr.OwnStream.from_tensors(
        xs, ys, tasks=torch.arange(48) // 24, test=[(xs[:24], ys[:24]), (xs[24:], ys[24:])]
    )

    def made() -> mr.Learner:
        return MAKE["mer"](net(), classes="grow")

    whole = mr.run(made(), stream)
    assert (whole.accuracy[0] == 0).all()
    stopped = mr.Run(made(), stream, checkpoint=tmp_path / "run.ckpt")
    for step in stopped.steps():
        if step.seen > 24:
            break
    stopped.save()
    again = mr.run(made(), stream, checkpoint=tmp_path / "run.ckpt")
    assert again.weights == whole.weights
    assert (again.accuracy == whole.accuracy).all()
    with pytest.raises(mr.InputError, match="leave classes='grow' out"):
        mr.run(made(), stream, alignment=2)


def test_growing_inside_inference_mode() -> None:
    learner = MAKE["mer"](net(), classes="grow", engine="torch")
    xs, ys = examples()
    with torch.inference_mode():
        learner.observe_many(xs, ys, task=0)
    assert torch.equal(learner.weights.theta, learned("mer", "torch").weights.theta)


def test_storing_without_a_memory_changes_nothing() -> None:
    learner = MAKE["online"](net(), classes="grow")
    xs, _ = examples()
    learner.observe(xs[0], "a")
    with pytest.raises(mr.InputError, match="Online has no memory to store examples in"):
        learner.store(xs[:2], ["b", "c"])
    assert (learner.labels, top(learner).out_features) == (("a",), 1)


def test_a_head_that_is_frozen_later_is_refused_when_it_would_have_to_grow(tmp_path: Path) -> None:
    learner = MAKE["online"](net(2), classes="grow")
    xs, _ = examples()
    learner.observe_many(xs[:3], ["a", "b", "c"])
    with learner.reshaping():
        top(learner).requires_grad_(False)
    learner.observe_many(xs[:2], ["c", "a"])
    learner.save(tmp_path / "frozen.ckpt")
    loaded = mr.load(tmp_path / "frozen.ckpt", net())
    for one in (learner, loaded):
        one.observe(xs[0], "b")
        with pytest.raises(mr.InputError, match="frozen or parametrized"):
            one.observe(xs[0], "d")
        assert list(one.labels or ()) == ["a", "b", "c"]
        with one.reshaping():
            top(one).requires_grad_(True)
        one.observe(xs[0], "d")
        assert (one.labels, top(one).out_features) == (("a", "b", "c", "d"), 4)


def test_other_labels_than_the_saved_ones_are_refused(tmp_path: Path) -> None:
    learner = MAKE["mer"](net(3), classes=["a", "b", "c"])
    learner.observe_many(examples()[0][:3], ["a", "b", "c"])
    learner.save(tmp_path / "named.ckpt")
    for other in (["x", "y", "z"], ["b", "a", "c"], ["a", "b"]):
        with pytest.raises(mr.CheckpointError, match="saved with the labels 'a', 'b', 'c', not"):
            mr.load(tmp_path / "named.ckpt", net(3), classes=other)
    assert mr.load(tmp_path / "named.ckpt", net(3), classes=["a", "b", "c"]).labels == learner.labels
