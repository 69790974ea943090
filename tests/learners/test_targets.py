"""Targets of any shape, for a loss of the user's own, and predictions from outputs of any shape."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import metareplay as mr

Make = Callable[[], tuple[nn.Module, Tensor, Tensor]]


def tokens(outputs: Tensor, ys: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), ys.flatten())


def gaussian(outputs: Tensor, ys: Tensor) -> Tensor:
    return functional.gaussian_nll_loss(outputs[:, 0], ys, outputs[:, 1].exp())


def binary(outputs: Tensor, ys: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(outputs[:, 0], ys.to(outputs.dtype))


def segmentation() -> tuple[nn.Module, Tensor, Tensor]:
    xs = torch.rand(30, 1, 5, 5)
    return nn.Conv2d(1, 2, 3, padding=1), xs, (xs[:, 0] > 0.5).long()


def next_token() -> tuple[nn.Module, Tensor, Tensor]:
    xs = torch.randint(7, (30, 4))
    return nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 7)), xs, (xs + 1) % 7


def uncertain() -> tuple[nn.Module, Tensor, Tensor]:
    xs = torch.rand(30, 6)
    return mr.networks.mlp(6, (8,), 2, seed=1), xs, xs.sum(1)


def two_classes() -> tuple[nn.Module, Tensor, Tensor]:
    xs = torch.rand(30, 6)
    return mr.networks.mlp(6, (8,), 1, seed=1), xs, (xs[:, 0] > 0.5).long()


def soft() -> tuple[nn.Module, Tensor, Tensor]:
    xs = torch.rand(30, 6)
    return mr.networks.mlp(6, (8,), 3, seed=1), xs, (5 * xs[:, :3]).softmax(1)


def counts() -> tuple[nn.Module, Tensor, Tensor]:
    xs = torch.rand(30, 6)
    return mr.networks.mlp(6, (8,), 1, seed=1), xs, (5 * xs[:, 0]).long()


CASES: dict[str, tuple[Make, dict[str, Any], tuple[int, ...]]] = {  # what predict gives for one example
    "segmentation": (segmentation, {"loss": functional.cross_entropy}, (5, 5)),
    "next token": (next_token, {"loss": tokens}, (4,)),
    "gaussian": (uncertain, {"loss": gaussian, "regression": True}, (2,)),
    "binary": (two_classes, {"loss": binary}, ()),
    "soft labels": (soft, {"loss": functional.cross_entropy}, ()),
    "counts": (counts, {"loss": nn.PoissonNLLLoss(), "regression": True}, (1,)),
    "counts, squared": (counts, {"loss": functional.mse_loss, "regression": True}, (1,)),
}
every = pytest.mark.parametrize("name", CASES)


def learner(name: str, **more: Any) -> tuple[mr.Learner, Tensor, Tensor]:
    torch.manual_seed(3)
    make, options, _ = CASES[name]
    model, xs, ys = make()
    return mr.MER(model, memory=mr.Reservoir(9), lr=0.05, beta=0.5, s=2, k=4, **options, **more), xs, ys


@every
def test_one_by_one_is_the_same_as_many_and_learning_helps(name: str) -> None:
    many, xs, ys = learner(name)
    one, _, _ = learner(name)
    assert many.loss is not None
    targets = ys[:, None] if many.regression and name.startswith("counts") else ys
    before = float(many.loss(many.outputs(xs), targets))
    for _ in range(2):
        many.observe_many(xs, ys)
        for x, y in zip(xs, ys, strict=True):
            one.observe(x, y)
    assert torch.equal(many.weights.theta, one.weights.theta)
    assert float(many.loss(many.outputs(xs), targets)) < before
    assert many.predict(xs).shape == (30, *CASES[name][2])


@every
def test_a_checkpoint_continues(name: str, tmp_path: Path) -> None:
    whole, xs, ys = learner(name)
    half, _, _ = learner(name)
    whole.observe_many(xs, ys)
    half.observe_many(xs[:13], ys[:13])
    half.save(tmp_path / "half.ckpt")
    fresh, _, _ = learner(name)
    loaded = mr.load(tmp_path / "half.ckpt", fresh.model, loss=fresh.loss)
    with pytest.raises(mr.InputError, match=r"y has shape|cannot be used"):
        loaded.observe_many(xs[:2], torch.zeros(2, 3, 3, 3))
    loaded.observe_many(xs[13:], ys[13:])
    assert torch.equal(loaded.weights.theta, whole.weights.theta)


@pytest.mark.parametrize("name", ["soft labels", "counts, squared"])
def test_the_compiled_engine_takes_what_it_knows_and_leaves_the_rest_to_torch(name: str) -> None:
    fast, xs, ys = learner(name, engine="cpu")
    plain, _, _ = learner(name, engine="torch")
    for one in (fast, plain):
        one.observe_many(xs, ys)
    assert fast.chosen_engine.name == ("torch" if name == "soft labels" else "cpu")
    torch.testing.assert_close(fast.weights.theta, plain.weights.theta, rtol=1e-4, atol=1e-5)


def test_predictions_follow_the_shape_of_the_targets() -> None:
    square, xs, ys = learner("segmentation")
    assert torch.equal(square.predict(xs), square.outputs(xs).argmax(1))
    assert square.predict_proba(xs).sum(1).allclose(torch.ones(30, 5, 5))
    text, words, following = learner("next token")
    text.observe_many(words, following)
    assert torch.equal(text.predict(words), text.outputs(words).argmax(-1))
    assert text.predict_proba(words).sum(-1).allclose(torch.ones(30, 4))
    two, xs, ys = learner("binary")
    two.observe_many(xs, ys)
    assert torch.equal(two.predict(xs), (two.outputs(xs)[:, 0] > 0).long())
    assert two.predict_proba(xs)[:, 1].allclose(two.outputs(xs)[:, 0].sigmoid())
    with pytest.raises(mr.InputError, match="probabilities are undefined for regression"):
        learner("gaussian")[0].predict_proba(xs)


def test_two_named_classes_with_a_single_output() -> None:
    named = mr.Online(mr.networks.mlp(6, (8,), 1, seed=1), lr=0.5, loss=binary, classes=["no", "yes"])
    _, xs, ys = two_classes()
    for _ in range(20):
        named.observe_many(xs, [["no", "yes"][y] for y in ys.tolist()])
    assert named.accuracy(xs, [["no", "yes"][y] for y in ys.tolist()]) > 80
    assert named.predict_proba(xs).shape == (30, 2)


@pytest.mark.parametrize(
    ("name", "ys", "message"),
    [
        ("segmentation", torch.zeros(3, dtype=torch.int64), "the loss cannot take outputs of shape"),
        ("segmentation", torch.zeros(2, 5, 5, dtype=torch.int64), "one target for each of the 3 examples"),
        ("soft labels", torch.full((3, 3), float("nan")), "y is not finite"),
        ("soft labels", torch.zeros(3, 4), "the loss cannot take outputs of shape"),
        ("soft labels", torch.full((3,), 9), "label 9 is out of range"),
    ],
)
def test_targets_that_the_loss_cannot_take(name: str, ys: Tensor, message: str) -> None:
    fresh, xs, _ = learner(name)
    with pytest.raises(mr.InputError, match=message) as caught:
        fresh.observe_many(xs[:3], ys)
    assert "\n" not in str(caught.value)
    assert fresh.seen == 0


def test_a_loss_that_gives_a_number_for_each_example_is_refused() -> None:
    each = mr.Online(nn.Conv2d(1, 2, 3, padding=1), loss=nn.CrossEntropyLoss(reduction="none"))
    _, xs, ys = segmentation()
    with pytest.raises(mr.InputError, match="return the mean over the batch"):
        each.observe_many(xs, ys)


def test_targets_keep_their_shape_and_type() -> None:
    for name, wrong in (("soft labels", torch.tensor(1)), ("binary", torch.tensor(0.3))):
        used, xs, ys = learner(name)
        used.observe_many(xs, ys)
        with pytest.raises(mr.InputError, match="earlier ones had"):
            used.observe(xs[0], wrong)


def test_without_a_loss_of_ones_own_nothing_is_loosened() -> None:
    with pytest.raises(mr.InputError, match="not one score per class"):
        mr.Online(nn.Conv2d(1, 2, 3, padding=1)).observe_many(*segmentation()[1:])
    with pytest.raises(mr.InputError, match="class labels are integers"):
        mr.Online(mr.networks.mlp(6, (8,), 3)).observe_many(*soft()[1:])


def test_accuracy_of_a_single_output_is_that_of_its_predictions() -> None:
    def yes_or_no(outputs: Tensor, ys: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(outputs[:, 0], ys.float())

    xs = torch.rand(200, 4)
    ys = (xs[:, 0] > 0.5).long()
    learner = mr.ER(nn.Linear(4, 1), memory=mr.Reservoir(50), lr=1.0, k=5, loss=yes_or_no)
    learner.observe_many(xs, ys)
    found = 100 * float((learner.predict(xs) == ys).double().mean())
    assert found > 90
    assert learner.accuracy(xs, ys) == pytest.approx(found)
