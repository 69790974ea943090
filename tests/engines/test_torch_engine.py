from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import metareplay as mr
from metareplay.engines.torch_engine import clip_norm


def test_clip_bounds_every_step() -> None:
    """With the clip, one SGD step moves the weights by at most lr * clip; without it, further."""
    xs, ys = 50 * torch.rand(1, 6), torch.tensor([1])
    moved = {}
    for clip in (None, 0.5):
        learner = mr.Online(mr.networks.mlp(6, (8,), 3), lr=0.1, clip=clip)
        before = learner.weights.theta.clone()
        learner.observe_many(xs, ys)
        moved[clip] = float((learner.weights.theta - before).norm())
    assert moved[0.5] == pytest.approx(0.05, rel=1e-4)
    assert moved[None] > 0.05


def test_clip_leaves_small_gradients_alone_and_keeps_the_direction() -> None:
    gradient = torch.tensor([3.0, 4.0])
    clip_norm(gradient, 6.0)
    assert gradient.tolist() == [3.0, 4.0]
    clip_norm(gradient, 1.0)
    torch.testing.assert_close(gradient, torch.tensor([0.6, 0.8]))


def test_any_loss() -> None:
    """A loss of the user's own, and classes of torch's."""
    xs, ys = torch.rand(20, 6), torch.arange(20) % 3
    results = []
    for loss in (None, functional.cross_entropy, nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.3)):
        learner = mr.ER(mr.networks.mlp(6, (8,), 3), memory=mr.Reservoir(5), k=3, loss=loss)
        learner.observe_many(xs, ys)
        results.append(learner.weights.theta.clone())
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    assert not torch.equal(results[0], results[3])


def test_regression_learns_a_line_and_predicts_outputs() -> None:
    generator = torch.Generator().manual_seed(0)
    xs = torch.rand(400, 2, generator=generator)
    ys = 3 * xs[:, 0] - xs[:, 1] + 0.5
    learner = mr.ER(mr.networks.mlp(2, (), 1), memory=mr.Reservoir(50), lr=0.3, k=8, regression=True)
    learner.observe_many(xs, ys)  # one real target an example: (400,) is taken as (400, 1)
    assert learner.predict(xs).shape == (400, 1)
    assert (learner.predict(xs)[:, 0] - ys).abs().max() < 0.05
    with pytest.raises(mr.InputError, match="reals of shape"):
        learner.observe_many(xs, torch.ones(400, dtype=torch.int64))
    with pytest.raises(mr.InputError, match="reals of shape"):
        learner.observe_many(xs, torch.rand(400, 2))
    with pytest.raises(mr.InputError, match="not finite"):
        learner.observe_many(xs[:1], torch.tensor([torch.nan]))


def test_images_are_scaled_when_used_and_stay_uint8_in_memory() -> None:
    images = torch.randint(256, (20, 1, 5, 5), dtype=torch.uint8)
    ys = torch.arange(20) % 3
    learners = [mr.ER(mr.networks.mlp(25, (8,), 3), memory=mr.Reservoir(5), k=3) for _ in range(2)]
    learners[0].observe_many(images, ys)
    learners[1].observe_many(images.float() / 255, ys)
    assert torch.equal(learners[0].weights.theta, learners[1].weights.theta)
    assert learners[0].memory.examples().xs.dtype == torch.uint8


def test_tokens_are_given_to_the_model_as_they_are() -> None:
    net = nn.Sequential(nn.Embedding(50, 4), nn.Flatten(), nn.Linear(12, 3))
    learner = mr.MER(net, memory=mr.Reservoir(5), s=2, k=3)
    learner.observe_many(torch.randint(50, (10, 3)), torch.arange(10) % 3)
    assert learner.predict(torch.randint(50, (4, 3))).shape == (4,)


def test_the_number_of_threads_is_put_back() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        mr.Online(mr.networks.mlp(6, (8,), 3)).observe(torch.rand(6), 1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_what_is_no_single_example_is_explained() -> None:
    learner = mr.Online(mr.networks.mlp(6, (8,), 3))
    with pytest.raises(mr.InputError, match="cannot take inputs of shape"):
        learner.observe(torch.rand(7), 1)
    pixelwise = mr.Online(nn.Linear(6, 3))
    with pytest.raises(mr.InputError, match="not one score per class"):
        pixelwise.observe(torch.rand(1, 6), 1)
    assert pixelwise.seen == 0


@pytest.mark.parametrize("engine", ["gpu", "numpy"])
def test_unknown_engines_are_refused(engine: Any) -> None:
    with pytest.raises(mr.InputError, match="engine"):
        mr.Online(mr.networks.mlp(6, (8,), 3), engine=engine)
