"""Q-networks with convolutions, compiled, land on torch's weights, whatever their shapes."""

import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from q_agents import EXPLORES, KINDS, RATES, agents, distance
from torch import nn

import metareplay as mr
from metareplay._core.plan import Plan, Rates
from metareplay.engines.cpu import q_steps
from metareplay.engines.cpu.convolutions import features_of
from metareplay.engines.cpu.q_engine import CpuQEngine
from metareplay.engines.cpu.q_kernel import QKernel
from metareplay.engines.q_shape import Conv, Shape, parts_of

Array = NDArray[Any]
ACTIONS = 3


def network(image: tuple[int, int, int], convs: list[dict[str, Any]], hidden: tuple[int, ...] = (7,)) -> nn.Sequential:
    """A network with weights and biases of its own; hidden layers of no width leave one linear layer."""
    torch.manual_seed(0)
    layers, seen = list[nn.Module](), torch.zeros(1, *image)
    for conv in convs:
        layers += [nn.Conv2d(seen.shape[1], **conv), nn.ReLU()]
        seen = layers[-2](seen)
    sizes = [seen.numel(), *hidden, ACTIONS]
    dense = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Flatten(), *dense[:-1])


def small(hidden: tuple[int, ...] = (7,)) -> nn.Sequential:
    return network((2, 9, 8), [{"out_channels": 5, "kernel_size": 3}, {"out_channels": 3, "kernel_size": 2}], hidden)


def played(agent: mr.QLearner, frames: int, image: tuple[int, ...] = (2, 9, 8), dtype: Any = np.uint8) -> mr.QLearner:
    """Let an agent act on random pictures and learn; they depend on how many it has seen."""
    for _ in range(frames):
        rng = np.random.default_rng(agent.seen)
        pictures = 256 * rng.random((2, *image)) if dtype == np.uint8 else rng.normal(size=(2, *image))
        x, following = pictures.astype(dtype)
        agent.observe(x, agent.act(x), float(rng.normal()), following, bool(rng.random() < 0.3))
    return agent


@st.composite
def shapes(draw: st.DrawFn) -> tuple[tuple[int, int, int], list[dict[str, Any]]]:
    """The shape of a picture, and two convolutions that fit it; another number would be compiled anew."""
    image = (draw(st.integers(1, 5)), draw(st.integers(1, 13)), draw(st.integers(1, 13)))
    convs, (height, width) = list[dict[str, Any]](), image[1:]
    for _ in range(2):
        kernel = draw(st.integers(1, min(height, 5))), draw(st.integers(1, min(width, 5)))
        stride = draw(st.integers(1, 4)), draw(st.integers(1, 4))
        convs.append({"out_channels": draw(st.integers(1, 40)), "kernel_size": kernel, "stride": stride})
        height, width = ((a - b) // c + 1 for a, b, c in zip((height, width), kernel, stride, strict=True))
    return image, convs


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    kind, options = draw(agents(9))
    image, convs = draw(shapes())
    return {
        "kind": kind,
        "options": options,
        "image": image,
        "convs": convs,
        "hidden": tuple(draw(st.lists(st.integers(1, 20), max_size=2))),
        "dtype": draw(st.sampled_from([np.uint8, np.float32, np.float64])),
    }


@settings(max_examples=30)
@given(case=cases())
def test_same_weights_as_torch(case: dict[str, Any]) -> None:
    def agent(engine: Any) -> mr.QLearner:
        model = network(case["image"], case["convs"], case["hidden"])
        return KINDS[case["kind"]](model, memory=mr.Reservoir(6), engine=engine, **EXPLORES, **case["options"])

    ours, theirs = (played(agent(engine), 12, case["image"], case["dtype"]) for engine in ("cpu", "torch"))
    assert [one.chosen_engine.name for one in (ours, theirs)] == ["cpu", "torch"]
    assert distance(theirs, ours) < 1e-4
    for name, value in theirs.chosen_engine.state().items():
        torch.testing.assert_close(ours.chosen_engine.state()[name], value, rtol=2e-2, atol=1e-4)


@given(shape=shapes(), hidden=st.lists(st.integers(1, 40), max_size=2).map(tuple))
def test_packing_loses_nothing(shape: Any, hidden: tuple[int, ...]) -> None:
    image, convs = shape
    model = network(image, convs, hidden)
    found = Shape.of(model, image)
    assert found is not None
    net = q_steps.make_net((features_of(found.convs), *hidden, ACTIONS), 1, False, found.convs)
    theta = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()
    q_steps.pack(net, theta, net.weights)
    assert np.count_nonzero(net.weights.flat) == np.count_nonzero(theta)
    back = np.full(theta.size, np.nan, np.float32)
    q_steps.unpack(net, net.weights, back)
    assert np.array_equal(back, theta)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=str)
@pytest.mark.parametrize("size", [36, 45])
def test_outputs_are_the_model_s(dtype: torch.dtype, size: int) -> None:
    agent = mr.DQN(mr.networks.nature_cnn(2, actions=4, size=size))
    xs = torch.randint(256, (3, 4, size, size), dtype=torch.uint8)
    as_given = xs if dtype is torch.uint8 else xs.float() / 255
    assert agent.chosen_engine.name == "cpu"
    torch.testing.assert_close(agent.outputs(as_given), agent.model(xs.float() / 255).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", RATES)
@pytest.mark.parametrize(("first", "then"), [("torch", "cpu"), ("cpu", "torch"), ("cpu", "cpu")])
def test_checkpoints_move_between_engines(kind: str, optimizer: str, first: Any, then: Any, tmp_path: Path) -> None:
    def made(engine: Any) -> mr.QLearner:
        options: dict[str, Any] = {"optimizer": optimizer, "lr": RATES[optimizer], "k": 4, "warmup": 3, **EXPLORES}
        return KINDS[kind](small(), memory=mr.Reservoir(9), target_every=7, engine=engine, **options)

    whole = played(played(made(first), 10), 10)
    played(made(first), 10).save(tmp_path / "agent.ckpt")
    ended = mr.load(tmp_path / "agent.ckpt", small(), kind=KINDS[kind], engine=then)
    assert isinstance(ended, mr.DQN | mr.DQNMER)
    played(ended, 10)
    assert ended.chosen_engine.name == then
    assert distance(whole, ended) < 1e-5 if first != then else torch.equal(whole.weights.theta, ended.weights.theta)


def test_moments_are_there_for_whoever_asks_and_heard_from_whoever_sets_them() -> None:
    """In between they stay in the kernel."""

    def agent() -> mr.QLearner:
        return mr.DQNMER(small(), memory=mr.Reservoir(9), k=3, warmup=0, lr=1e-3, optimizer="adam", **EXPLORES)

    quiet, asked, set_back = played(agent(), 8), agent(), agent()
    for _ in range(8):
        state = played(asked, 1).chosen_engine.state()
        asked.chosen_engine.restore({name: value.clone() for name, value in state.items()})
        undo = set_back.chosen_engine.remember()
        seen = {name: value.clone() for name, value in set_back.chosen_engine.state().items()}
        if set_back.table is not None:  # from the second frame on, learn one more batch and undo it
            rows, kept, rates = np.array([0]), np.array([-1]), Rates(memory=1e-3, current=1e-3)
            plan = Plan(rows, np.array([0, 1]), 1, kept, rates, set_back.seen, len(set_back.table) - 1)
            assert set_back.chosen_engine.execute(plan, set_back.table, set_back.objective).learned == 1
        undo()
        found = set_back.chosen_engine.state()
        assert found.keys() == seen.keys()
        assert all(torch.equal(found[name], value) for name, value in seen.items())
        played(set_back, 1)
    expected = quiet.chosen_engine.state()
    assert int(expected["step"]) > 8
    for other in (asked, set_back):
        assert torch.equal(other.weights.theta, quiet.weights.theta)
        assert all(torch.equal(other.chosen_engine.state()[name], value) for name, value in expected.items())


@pytest.mark.parametrize("optimizer", RATES)
@pytest.mark.parametrize("method", ["take", "run", "give"])
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_comes_after_the_frame(optimizer: Any, method: str, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if it is pressed twice: what is compiled cannot hang."""

    def agent() -> mr.QLearner:
        options: dict[str, Any] = {"lr": RATES[optimizer], "optimizer": optimizer, "target_every": 2, **EXPLORES}
        return mr.DQNMER(small(), memory=mr.Reservoir(9), k=3, warmup=0, **options)

    whole, stopped = played(agent(), 8), played(agent(), 3)
    original = getattr(QKernel, method)

    def pressing(*arguments: Any) -> Any:
        found = original(*arguments)
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(QKernel, method, pressing)
        with pytest.raises(KeyboardInterrupt):
            played(stopped, 1)
    assert stopped.seen == 4
    played(stopped, 4)
    assert torch.equal(stopped.weights.theta, whole.weights.theta)
    assert torch.equal(stopped.temporal_difference.target.theta, whole.temporal_difference.target.theta)


@pytest.mark.parametrize("optimizer", RATES)
def test_a_frame_that_is_not_finite_is_undone_and_named(optimizer: Any) -> None:
    agent = mr.DQNMER(small(), memory=mr.Reservoir(5), lr=RATES[optimizer], k=2, warmup=0, optimizer=optimizer)
    played(agent, 3)
    good = agent.weights.theta.clone()
    with torch.no_grad():
        agent.weights.theta[-ACTIONS:] = 3e38  # the biases of the last layer
    before = {"theta": agent.weights.theta.clone(), **agent.chosen_engine.state()}
    before = {name: value.clone() for name, value in before.items()}
    dark = np.zeros((2, 9, 8), np.uint8)
    with pytest.raises(mr.NonFiniteError, match=r"example 3 of the stream"):
        agent.observe(dark, 2, -3e38, dark, terminated=True)
    after = {"theta": agent.weights.theta, **agent.chosen_engine.state()}
    assert all(torch.equal(before[name], after[name]) for name in before)
    agent.weights.theta.copy_(good)
    assert played(agent, 1).seen == 4


def test_pictures_of_whole_numbers_are_left_to_torch_which_refuses_them() -> None:
    agent = mr.DQN(small(), memory=mr.Recent(5), warmup=9)
    with pytest.raises(mr.InputError, match="the model cannot take inputs of shape"):
        agent.act(np.zeros((2, 9, 8), np.int64))


CONV, HEAD, SQUARE = nn.Conv2d(2, 3, 3), nn.Linear(126, 3), nn.Linear(3, 3)


def tied(layer: nn.Linear, to: nn.Linear) -> nn.Linear:
    layer.weight = to.weight
    return layer


def test_a_network_with_a_parameter_of_its_own_is_torch_s() -> None:
    model = nn.Sequential(CONV, nn.ReLU(), nn.Flatten(), HEAD)
    assert parts_of(model) is not None
    model.scale = nn.Parameter(torch.ones(3))
    assert parts_of(model) is None


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(216, 3)],
        [nn.Conv2d(2, 3, 3, dilation=2), nn.ReLU(), nn.Flatten(), nn.Linear(60, 3)],
        [nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(168, 3)],
        [nn.Conv2d(2, 3, 3, bias=False), nn.ReLU(), nn.Flatten(), HEAD],
        [CONV, nn.ReLU(), nn.Flatten(), nn.Linear(126, 3, bias=False)],
        [CONV, nn.Tanh(), nn.Flatten(), HEAD],
        [CONV, nn.Flatten(), HEAD],
        [CONV, nn.ReLU(), nn.Flatten(), HEAD, nn.ReLU()],
        [CONV, nn.ReLU(), nn.Flatten(2), nn.Linear(42, 3)],
        [CONV, nn.ReLU()],
        [CONV, nn.ReLU(), nn.Flatten(), nn.Linear(126, 3).requires_grad_(False)],
        [CONV, nn.ReLU(), nn.Flatten(), HEAD, nn.ReLU(), SQUARE, nn.ReLU(), SQUARE],
        [CONV, nn.ReLU(), nn.Flatten(), HEAD, nn.ReLU(), SQUARE, nn.ReLU(), tied(nn.Linear(3, 3), SQUARE)],
    ],
    ids=str,
)
def test_other_networks_are_torch_s(layers: list[nn.Module]) -> None:
    assert parts_of(nn.Sequential(*layers)) is None


def test_the_shape_of_a_network() -> None:
    found = Shape.of(mr.networks.nature_cnn(size=64), (4, 64, 64))
    assert found is not None
    assert found.convs[0] == Conv(ins=4, height=64, width=64, outs=32, kernel=(8, 8), stride=(4, 4))
    assert [(conv.size, conv.pixels) for conv in found.convs] == [((15, 15), 225), ((6, 6), 36), ((4, 4), 16)]
    assert [(dense.inputs, dense.outs) for dense in found.denses] == [(1024, 512), (512, 3)]
    assert features_of(found.convs) == 1024
    assert Shape.of(mr.networks.nature_cnn(size=64), (4, 52, 64)) is None


def test_the_engine_says_what_it_needs() -> None:
    with pytest.raises(mr.InputError, match="engine 'cpu' needs a chain of Linear and ReLU layers, or of Conv2d, ReLU"):
        mr.DQN(nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(216, 3)), engine="cpu")
    assert isinstance(mr.DQN(small()).chosen_engine, CpuQEngine)
