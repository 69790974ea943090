import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import metareplay as mr
from metareplay.networks import MultiHead, mlp, separate_mlps, task_input_mlp


def test_a_head_for_each_task() -> None:
    net = MultiHead(mlp(4, (8,), 6), features=6, classes=(2, 3))
    inputs, tasks = torch.rand(5, 4), torch.tensor([0, 1, 1, 0, 1])
    outputs = net(inputs, tasks)
    assert outputs.shape == (5, 3)
    for i, task in enumerate(tasks.tolist()):
        alone = net.heads[task](net.body(inputs[i : i + 1]))[0]
        torch.testing.assert_close(outputs[i, : len(alone)], alone)
    assert torch.isinf(outputs[tasks == 0, 2]).all()
    with pytest.raises(mr.InputError, match="task 2"):
        net(inputs, torch.full((5,), 2))


def test_separate_networks_share_nothing() -> None:
    net = separate_mlps(6, (20, 10), 3, tasks=4)
    assert [layer.out_features for layer in net.nets[0].modules() if isinstance(layer, nn.Linear)] == [5, 2, 3]
    inputs, tasks = torch.rand(5, 6), torch.tensor([0, 1, 1, 3, 0])
    net(inputs, tasks).sum().backward()
    touched = [any(p.grad is not None and bool(p.grad.any()) for p in one.parameters()) for one in net.nets]
    assert touched == [True, True, False, True]
    firsts = [next(one.parameters()).detach() for one in net.nets]
    assert not any(torch.equal(one, other) for one, other in pairwise(firsts))


def test_more_tasks_than_hidden_units_leaves_one_unit() -> None:
    net = separate_mlps(6, (3,), 3, tasks=7)
    assert isinstance(net.nets[6], nn.Sequential)
    assert net.nets[6][1].out_features == 1


def test_task_inputs_share_all_but_the_first_layer() -> None:
    net = task_input_mlp(6, (8, 5), 3, tasks=3)
    inputs = torch.rand(2, 6)
    net(inputs, torch.tensor([1, 1])).sum().backward()
    assert [any(p.grad is not None for p in one.parameters()) for one in net.inputs] == [False, True, False]
    assert all(p.grad is not None for p in net.shared.parameters())
    with pytest.raises(mr.InputError, match="hidden"):
        task_input_mlp(6, (), 3, tasks=3)


def test_independent_clone_starts_a_task_from_the_one_before() -> None:
    def make(start: str) -> mr.Independent:
        return mr.Independent(separate_mlps(6, (8,), 3, tasks=2, seed=1), lr=0.1, start=start)  # type: ignore[arg-type]

    xs, ys = torch.rand(20, 6), torch.arange(20) % 3
    cloned, fresh = make("clone"), make("fresh")
    for learner in (cloned, fresh):
        learner.observe_many(xs[:10], ys[:10], task=0)
    assert torch.equal(cloned.weights.theta, fresh.weights.theta)
    for learner in (cloned, fresh):
        learner.observe_many(xs[10:], ys[10:], task=1)

    def weights(learner: mr.Independent, task: int) -> torch.Tensor:
        return nn.utils.parameters_to_vector(learner.model.nets[task].parameters())

    assert torch.equal(weights(cloned, 0), weights(fresh, 0))
    expected = mr.Online(mlp(6, (4,), 3), lr=0.1)
    expected.weights.theta.copy_(weights(cloned, 0).detach())
    expected.observe_many(xs[10:], ys[10:])
    torch.testing.assert_close(weights(cloned, 1).detach(), expected.weights.theta)
    assert not torch.equal(weights(fresh, 1), weights(cloned, 1))


@pytest.mark.parametrize("kind", [mr.Independent, mr.TaskInput])
def test_networks_of_another_kind_are_refused(kind: type[mr.Learner]) -> None:
    with pytest.raises(mr.InputError, match=r"networks\."):
        kind(mlp(6, (8,), 3))


@given(counts=st.lists(st.integers(1, 5), min_size=1, max_size=4), rows=st.integers(1, 6), seed=st.integers(0, 99))
def test_all_heads_at_once_give_the_same_outputs_and_gradients(counts: list[int], rows: int, seed: int) -> None:
    """What a GPU does instead of asking which tasks there are."""
    torch.manual_seed(seed)
    net = mr.networks.MultiHead(nn.Linear(4, 6), 6, counts, seed=seed)
    xs, tasks = torch.randn(rows, 4), torch.randint(len(counts), (rows,))
    one, other = net(xs, tasks), net.all_heads(net.body(xs), tasks)
    torch.testing.assert_close(one, other)
    slope = torch.randn_like(one)
    mask = torch.isfinite(one)
    gradients = [
        torch.autograd.grad((outputs[mask] * slope[mask]).sum(), list(net.parameters()), materialize_grads=True)
        for outputs in (one, other)
    ]
    for here, there in zip(*gradients, strict=True):
        torch.testing.assert_close(here, there, atol=1e-6, rtol=1e-5)
    absent = sorted(set(range(len(counts))) - set(tasks.tolist()))
    heads = dict(zip((name for name, _ in net.named_parameters()), gradients[1], strict=True))
    assert all((heads[f"heads.{task}.weight"] == 0).all() for task in absent)


def test_task_inputs_start_uniform_by_fan_in_with_zero_biases() -> None:
    net = task_input_mlp(400, (100, 50), 10, tasks=3, seed=5)
    layers = [layer for layer in net.modules() if isinstance(layer, nn.Linear)]
    assert [layer.in_features for layer in layers] == [400, 400, 400, 100, 50]
    for layer in layers:
        limit = 1 / math.sqrt(layer.in_features)
        assert 0.95 * limit < layer.weight.abs().max() <= limit
        assert abs(float(layer.weight.detach().var()) - limit**2 / 3) < 0.1 * limit**2
        assert not layer.bias.any()
    assert not any(torch.equal(one.weight, other.weight) for one, other in pairwise(layers[:3]))


def test_task_inputs_follow_their_seed_and_leave_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    nets = [task_input_mlp(6, (8, 5), 3, tasks=3, seed=seed) for seed in (1, 1, 2)]
    one, same, other = (nn.utils.parameters_to_vector(net.parameters()) for net in nets)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)
