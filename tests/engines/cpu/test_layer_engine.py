"""The compiled engine for any known layers: the torch engine's weights, with the same masks, in every learner."""

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import metareplay as mr
from metareplay.engines.choose import EngineName
from metareplay.engines.cpu import layer_engine, masks
from metareplay.engines.cpu.engine import CpuEngine
from metareplay.engines.cpu.layer_engine import LayerEngine
from metareplay.engines.cpu.traced_engine import TracedEngine
from metareplay.engines.engine import Engine

ENGINES: tuple[EngineName, ...] = ("torch", "cpu")
TOLERANCE = {torch.float32: 3e-5, torch.float64: 1e-12}
DTYPES = [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)]  # another compilation


class Own(nn.Module):
    """An MLP as people write it."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.drop = nn.Linear(9, 3), nn.Dropout(0.4)
        self.first = nn.Linear(7, 9)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.elu(self.first(x.view(x.size(0), -1)), 0.7)
        found: Tensor = self.last(functional.dropout(self.drop(h), 0.2, self.training))
        return found


class OwnReLU(nn.Module):
    """An MLP that has the faster kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(7, 9), nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(functional.relu(self.first(x)))
        return found


def frozen() -> nn.Module:
    net = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    net[0].requires_grad_(False)
    net[2].weight.requires_grad_(False)
    net[3].bias.requires_grad_(False)
    return net


def between(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(7, 9), *layers, nn.Linear(9, 3))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "own class": Own,
    "ReLU without bias": lambda: nn.Sequential(nn.Linear(7, 9, bias=False), nn.ReLU(), nn.Linear(9, 3, bias=False)),
    "ReLU at the end": lambda: nn.Sequential(nn.Linear(7, 9), nn.LeakyReLU(0.3), nn.Linear(9, 3), nn.ReLU()),
    "Tanh": between(nn.Tanh()),
    "GELU": between(nn.GELU()),
    "GELU by tanh": between(nn.GELU(approximate="tanh")),
    "SiLU and Sigmoid": between(nn.SiLU(), nn.Sigmoid()),
    "LeakyReLU and ELU": between(nn.LeakyReLU(0.2), nn.ELU(0.5)),
    "LayerNorm": lambda: nn.Sequential(nn.LayerNorm(7), nn.Linear(7, 9), nn.LayerNorm(9), nn.ReLU(), nn.Linear(9, 3)),
    "plain LayerNorm": between(nn.LayerNorm(9, elementwise_affine=False)),
    "Dropout": lambda: nn.Sequential(nn.Dropout(0.1), nn.Linear(7, 9), nn.ReLU(), nn.Dropout(), nn.Linear(9, 3)),
    "one share": lambda: nn.Sequential(nn.Dropout(), nn.Linear(7, 9), nn.ReLU(), nn.Dropout(), nn.Linear(9, 3)),
    "frozen": frozen,
}
LEARNERS: dict[str, Callable[..., mr.Learner]] = {
    "mer": lambda net, **o: mr.MER(net, memory=mr.Reservoir(9), lr=0.05, beta=0.5, gamma=0.6, s=2, k=4, **o),
    "clipped": lambda net, **o: mr.MER(net, memory=mr.Reservoir(9), lr=0.05, beta=0.5, s=1, k=4, clip=0.4, **o),
    "one big batch": lambda net, **o: mr.MEROneBigBatch(net, memory=mr.Reservoir(9), lr=0.05, s=2, k=4, **o),
    "current rate": lambda net, **o: mr.MERCurrentRate(net, memory=mr.Reservoir(9), lr=0.02, gamma=0.5, s=3, k=4, **o),
    "er": lambda net, **o: mr.ER(net, memory=mr.Reservoir(9), lr=0.05, k=4, clip=0.4, **o),
    "er-adam": lambda net, **o: mr.ER(net, memory=mr.Reservoir(9), lr=0.01, k=4, optimizer="adam", **o),
    "er-rmsprop": lambda net, **o: mr.ER(net, memory=mr.Reservoir(9), lr=0.01, k=1, optimizer="rmsprop", **o),
    "er-tasks": lambda net, **o: mr.ERTasks(net, memory=mr.Reservoir(9), lr=0.05, k=6, **o),
    "ewc": lambda net, **o: mr.EWC(net, lr=0.05, strength=3.0, **o),
    "gem": lambda net, **o: mr.GEM(net, memory=mr.Ring(9, 3), lr=0.05, **o),
    "online": lambda net, **o: mr.Online(net, lr=0.05, **o),
}


def examples(dtype: torch.dtype = torch.float32, count: int = 30) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    xs = torch.randn(count, 7, generator=generator)
    return xs.to(dtype), torch.randint(3, (count,), generator=generator), torch.arange(count) * 3 // count


def net(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    return mr.networks.glorot(MODELS[name](), seed=1).to(dtype)


def inner(learner: mr.Learner) -> Engine:
    assert isinstance(learner.chosen_engine, TracedEngine)
    return learner.chosen_engine.current


def learned(name: str, learner: str, engine: EngineName, dtype: torch.dtype) -> mr.Learner:
    made = LEARNERS[learner](net(name, dtype), engine=engine)
    made.observe_many(*examples(dtype))
    assert made.chosen_engine.name == engine
    assert engine == "torch" or isinstance(inner(made), LayerEngine)
    return made


def apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_weights_of_the_torch_engine(name: str, dtype: torch.dtype) -> None:
    before = {key: value.clone() for key, value in net(name, dtype).named_parameters()}
    theirs, ours = (learned(name, "mer", engine, dtype) for engine in ENGINES)
    assert apart(ours.weights.theta, theirs.weights.theta) < TOLERANCE[dtype]
    for key, value in ours.model.named_parameters():
        assert torch.equal(value, before[key]) == (not value.requires_grad)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("learner", ["mer", "er", "gem"])
@pytest.mark.parametrize("name", ["Dropout", "one share"])
def test_masks_drawn_at_once_or_call_by_call(
    name: str, learner: str, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether one call of torch draws what several would depends on the CPU; both ways are tried where they can be."""
    if at_once and not masks.draws_follow_one_another():
        pytest.skip("on this CPU every call has a beginning of its own")
    monkeypatch.setattr(masks, "draws_follow_one_another", lambda: at_once)
    theirs, ours = (learned(name, learner, engine, torch.float64) for engine in ENGINES)
    assert apart(ours.weights.theta, theirs.weights.theta) < TOLERANCE[torch.float64]


@pytest.mark.parametrize("name", ["own class", "frozen"])
@pytest.mark.parametrize("learner", LEARNERS)
def test_every_learner(learner: str, name: str) -> None:
    theirs, ours = (learned(name, learner, engine, torch.float64) for engine in ENGINES)
    assert apart(ours.weights.theta, theirs.weights.theta) < 1e-9
    expected, found = theirs.chosen_engine.state(), ours.chosen_engine.state()
    assert found.keys() == expected.keys()
    assert all(apart(found[moment], value) < 1e-6 for moment, value in expected.items())


@st.composite
def chains(draw: st.DrawFn) -> nn.Sequential:
    """Layers in any order, the first of them for seven inputs and the last Linear with three outputs."""
    width, layers = 7, list[nn.Module]()
    for _ in range(draw(st.integers(1, 3))):
        for kind in draw(st.lists(st.sampled_from(list(BETWEEN)), max_size=2)):
            layers.append(BETWEEN[kind](width))
        following = draw(st.integers(1, 20))
        layers.append(nn.Linear(width, following, bias=draw(st.booleans())))
        layers[-1].requires_grad_(draw(st.booleans()))
        width = following
    return nn.Sequential(*layers, nn.Tanh(), nn.Linear(width, 3))


BETWEEN: dict[str, Callable[[int], nn.Module]] = {
    "relu": lambda _: nn.ReLU(),
    "leaky": lambda _: nn.LeakyReLU(0.1),
    "elu": lambda _: nn.ELU(),
    "tanh": lambda _: nn.Tanh(),
    "sigmoid": lambda _: nn.Sigmoid(),
    "gelu": lambda _: nn.GELU(),
    "silu": lambda _: nn.SiLU(),
    "dropout": lambda _: nn.Dropout(0.3),
    "norm": lambda width: nn.LayerNorm(width, eps=0.1),
}


@settings(max_examples=40)
@given(model=chains(), together=st.booleans())
def test_any_chain(model: nn.Sequential, together: bool) -> None:
    found = []
    for engine in ENGINES:
        made = LEARNERS["er" if together else "mer"](copy.deepcopy(model).double(), engine=engine)
        made.observe_many(*examples(torch.float64, 12))
        assert made.chosen_engine.name == engine
        found.append(made.weights.theta)
    assert apart(found[1], found[0]) < 1e-9


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.HuberLoss()], ids=["squared", "huber"])
def test_regression(loss: nn.Module) -> None:
    xs = examples(torch.float64)[0]
    found = []
    for engine in ENGINES:
        learner = mr.ER(
            net("GELU", torch.float64), memory=mr.Reservoir(9), k=3, loss=loss, regression=True, engine=engine
        )
        learner.observe_many(xs, xs[:, :3] ** 2)
        found.append(learner.weights.theta)
    assert apart(found[1], found[0]) < TOLERANCE[torch.float64]


@pytest.mark.parametrize("learner", ["mer", "er-adam", "gem"])
def test_pieces_of_any_size_give_the_same_weights(learner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where masks are drawn for a few examples at a time."""
    xs, ys, tasks = examples()
    found = []
    for size, numbers in ((30, 2**22), (30, 500), (7, 2**22), (1, 1)):
        monkeypatch.setattr(layer_engine, "MASK_NUMBERS", numbers)
        made = LEARNERS[learner](net("own class"), engine="cpu")
        for part in torch.arange(30).split(size):
            made.observe_many(xs[part], ys[part], tasks[part])
        found.append(made.weights.theta)
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("saved_by", ENGINES)
def test_a_checkpoint_of_either_engine_is_continued(saved_by: EngineName, tmp_path: Path) -> None:
    xs, ys, tasks = examples()
    whole = learned("own class", "er-adam", "cpu", torch.float32)
    begun = LEARNERS["er-adam"](net("own class"), engine=saved_by)
    begun.observe_many(xs[:11], ys[:11], tasks[:11])
    begun.save(tmp_path / "run.ckpt")
    loaded = mr.load(tmp_path / "run.ckpt", net("own class"), engine="cpu")
    loaded.observe_many(xs[11:], ys[11:], tasks[11:])
    assert apart(loaded.weights.theta, whole.weights.theta) < 1e-4
    if saved_by == "cpu":
        assert torch.equal(loaded.weights.theta, whole.weights.theta)


@pytest.mark.parametrize("learner", ["mer", "er-adam", "gem"])
@pytest.mark.parametrize("first", [0, 9])
def test_an_example_that_is_not_finite_is_undone(learner: str, first: int) -> None:
    xs, ys, tasks = examples()
    whole, broken = (LEARNERS[learner](net("Dropout"), engine="cpu") for _ in range(2))
    bad = xs[:20].clone()
    bad[first] = 3e38
    with pytest.raises(mr.NonFiniteError, match=f"example {first} "):
        broken.observe_many(bad, ys[:20], tasks[:20])
    whole.observe_many(xs[:first], ys[:first], tasks[:first])
    assert torch.equal(broken.weights.theta, whole.weights.theta)
    kept, expected = broken.chosen_engine.state(), whole.chosen_engine.state()
    assert kept.keys() == expected.keys()
    assert all(torch.equal(kept[moment], value) for moment, value in expected.items())


def test_dropout_that_is_changed_or_put_to_sleep_in_the_stream() -> None:
    xs, ys, tasks = examples(torch.float64)
    found = []
    for engine in ENGINES:
        learner = LEARNERS["mer"](net("Dropout", torch.float64), engine=engine)
        learner.observe_many(xs[:10], ys[:10], tasks[:10])
        model: Any = learner.model
        model[3].p = 0.8
        learner.observe_many(xs[10:20], ys[10:20], tasks[10:20])
        model.train()
        model[3].eval()
        learner.observe_many(xs[20:], ys[20:], tasks[20:])
        found.append(learner.weights.theta)
    assert apart(found[1], found[0]) < TOLERANCE[torch.float64]


class Changing(nn.Module):
    """Compute what plain attributes say."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.leaky = nn.Linear(7, 9), nn.Linear(9, 3), nn.LeakyReLU(0.1)
        self.act, self.p, self._scaled, self.options = "relu", 0.0, False, {"use": ["leaky"]}
        self.config = SimpleNamespace(bounded=False)

    def forward(self, x: Tensor) -> Tensor:
        h = getattr(functional, self.act)(self.first(x))
        h = self.leaky(h) if self.options["use"] else h
        h = functional.dropout(h, self.p, self.training) if self.p else h
        found: Tensor = self.last(h)
        return found.tanh() if self.config.bounded else found * 2 if self._scaled else found


CHANGES: dict[str, Callable[[Any], object]] = {
    "another function": lambda model: setattr(model, "act", "gelu"),
    "dropout": lambda model: setattr(model, "p", 0.3),
    "a slope": lambda model: setattr(model.leaky, "negative_slope", 0.7),
    "a list in a dictionary": lambda model: model.options["use"].clear(),
    "a private switch": lambda model: setattr(model, "_scaled", True),
    "an object": lambda model: setattr(model.config, "bounded", True),
    "a part": lambda model: setattr(model, "leaky", nn.Sigmoid()),
    "a hook": lambda model: model.first.register_forward_hook(lambda _m, _x, y: 2 * y),
    "modes": lambda model: model.eval(),
}


@pytest.mark.parametrize("one_by_one", [True, False])
@pytest.mark.parametrize("name", CHANGES)
def test_a_model_that_is_changed_in_the_stream_is_watched_anew(name: str, one_by_one: bool) -> None:
    xs, ys, _ = examples(torch.float64)
    found: list[mr.Learner] = []
    for engine in ENGINES:
        model = mr.networks.glorot(Changing(), seed=1).double()
        model.act = "tanh" if name in ("a slope", "a part") else "relu"
        model.options["use"] = ["leaky"] if name in ("a slope", "a part", "a list in a dictionary") else []
        learner = LEARNERS["mer"](model, engine=engine)
        for start, end in ((0, 15), (15, 30)):
            if one_by_one:
                for x, y in zip(xs[start:end], ys[start:end], strict=True):
                    learner.observe(x, y)
            else:
                learner.observe_many(xs[start:end], ys[start:end])
            assert learner.runs_on.startswith(engine) or start
            if start == 0:
                CHANGES[name](learner.model)
        found.append(learner)
    theirs, ours = found
    assert ours.runs_on.startswith("torch: " if name in ("a private switch", "a hook") else "cpu")
    assert apart(ours.weights.theta, theirs.weights.theta) < TOLERANCE[torch.float64]
    many = torch.linspace(-3, 3, 1400, dtype=torch.float64).sin().reshape(200, 7)
    for inputs in (many, many[:1], many[0]):
        assert apart(ours.outputs(inputs), theirs.outputs(inputs)) < TOLERANCE[torch.float64]


def test_a_model_that_is_changed_back_is_compiled_again() -> None:
    model = mr.networks.glorot(Changing(), seed=1)
    model.options["use"] = []
    learner = LEARNERS["mer"](model)
    for scaled, expected in ((False, "cpu"), (True, "torch"), (False, "cpu")):
        model._scaled = scaled
        learner.observe_many(*examples())
        assert learner.runs_on.split(":")[0] == expected


def test_dropout_that_drops_everything_is_left_to_torch() -> None:
    learner = LEARNERS["mer"](net("Dropout"))
    learner.observe_many(*examples())
    model: Any = learner.model
    model[3].p = 1.0
    learner.observe_many(*examples())
    assert learner.runs_on == "torch: the compiled engine needs Dropout that keeps something"


def test_images_in_bytes_that_are_flattened() -> None:
    generator = torch.Generator().manual_seed(0)
    xs, ys = torch.randint(256, (30, 1, 3, 4), dtype=torch.uint8, generator=generator), torch.arange(30) % 3
    found = []
    for engine in ENGINES:
        model = mr.networks.glorot(nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 3)), seed=0)
        learner = LEARNERS["mer"](model, engine=engine)
        learner.observe_many(xs, ys)
        assert learner.chosen_engine.name == engine
        found.append(learner.weights.theta)
    assert apart(found[1], found[0]) < TOLERANCE[torch.float32]


def test_torchs_generator_and_the_modes_stay_as_they_were() -> None:
    learner = LEARNERS["mer"](net("Dropout").eval())
    torch.manual_seed(3)
    state = torch.get_rng_state()
    learner.observe_many(*examples())
    assert isinstance(inner(learner), LayerEngine)
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(part.training for part in learner.model.modules())


def test_an_optimizer_that_the_kernel_does_not_know() -> None:
    found = []
    for engine in ENGINES:
        learner = LEARNERS["er"](net("Dropout", torch.float64), engine=engine)
        theta = nn.Parameter(learner.weights.theta)
        theta.grad = learner.weights.gradient
        plain: Any = learner.chosen_engine if engine == "torch" else inner(learner)
        for one in [plain] if engine == "torch" else [plain._plain, plain._stepping]:
            one.optimizer = torch.optim.Adagrad([theta], lr=0.02)
        learner.observe_many(*examples(torch.float64))
        assert learner.chosen_engine.name == engine
        found.append(learner.weights.theta)
    assert apart(found[1], found[0]) < TOLERANCE[torch.float64]


def test_a_relu_mlp_in_a_class_of_ones_own_has_the_faster_kernel() -> None:
    own = LEARNERS["mer"](mr.networks.glorot(OwnReLU(), seed=1))
    usual = LEARNERS["mer"](mr.networks.glorot(nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 3)), seed=1))
    for learner in (own, usual):
        learner.observe_many(*examples())
        assert isinstance(inner(learner) if learner is own else learner.chosen_engine, CpuEngine)
        assert learner.chosen_engine.name == "cpu"
    assert torch.equal(own.weights.theta, usual.weights.theta)


class Fickle(OwnReLU):
    """Do what something outside of the model says."""

    outside: ClassVar[dict[str, Callable[[Tensor], Tensor]]] = {}

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.outside["does"](self.first(x)))
        return found


@pytest.mark.parametrize("first", [functional.relu, functional.silu])
def test_a_model_that_is_not_what_it_was_when_watched_goes_to_torch(
    first: Callable[[Tensor], Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    Fickle.outside["does"] = first
    ours, theirs = (
        LEARNERS["mer"](mr.networks.glorot(Fickle(), seed=1), engine=engine) for engine in ("auto", "torch")
    )
    assert ours.runs_on == "cpu"
    Fickle.outside["does"] = functional.tanh
    for learner in (ours, theirs):
        learner.observe_many(*examples())
        learner.observe_many(*examples())
    assert ours.runs_on.startswith("torch: the compiled engine needs a model whose gradients are those of its layers")
    assert torch.equal(ours.weights.theta, theirs.weights.theta)
    assert sum("learning by torch" in record.message for record in caplog.records) == 1


def test_a_chain_that_was_not_tried_or_is_not_right_never_predicts(tmp_path: Path) -> None:
    """Many inputs at a time, which are worth copying the weights into the kernel."""
    xs = torch.randn(200, 7, generator=torch.Generator().manual_seed(0))
    Fickle.outside["does"] = functional.relu
    tried, wrong, untried = (LEARNERS["mer"](mr.networks.glorot(Fickle(), seed=1)) for _ in range(3))
    tried.observe_many(*examples())
    assert tried.runs_on == "cpu"
    tried.save(tmp_path / "run.ckpt")
    loaded = mr.load(tmp_path / "run.ckpt", Fickle())
    assert torch.equal(loaded.outputs(xs), tried.outputs(xs))
    Fickle.outside["does"] = functional.tanh
    wrong.observe_many(*examples())
    assert wrong.runs_on.startswith("torch")
    for learner in (wrong, untried):
        with torch.no_grad():
            assert torch.equal(learner.outputs(xs), learner.model(xs))


def test_the_notice_comes_once_per_learner_however_often_its_head_grows(caplog: pytest.LogCaptureFixture) -> None:
    learner = mr.Online(nn.Sequential(nn.Linear(7, 9), nn.Softplus(), nn.Linear(9, 1)), classes="grow")
    for label, x in enumerate(examples()[0][:5]):
        learner.observe(x, label)
    assert learner.labels == tuple(range(5))
    assert sum("learning by torch" in record.message for record in caplog.records) == 1


def test_which_engine_runs_and_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "metareplay")
    fast, asked = LEARNERS["mer"](net("Tanh")), LEARNERS["mer"](net("Tanh"), engine="torch")
    slow = mr.Online(nn.Sequential(nn.Linear(7, 9), nn.BatchNorm1d(9), nn.Linear(9, 3)).eval())
    assert (fast.runs_on, asked.runs_on) == ("cpu", "torch")
    assert slow.runs_on == "torch: the compiled engine needs layers without buffers, and this model has a BatchNorm1d"
    assert "engine=auto (runs on cpu)" in repr(fast)
    assert f"engine=auto (runs on {slow.runs_on})" in repr(slow)
    xs, ys, _ = examples()
    for learner in (fast, asked):
        learner.observe_many(xs, ys)
    assert not caplog.records
    other = mr.Online(nn.Sequential(nn.Linear(7, 9), nn.Softplus(), nn.Linear(9, 3)))
    for x, y in zip(xs, ys, strict=True):
        other.observe(x, y)
    (remark,) = caplog.records
    assert "learning by torch" in remark.message
    assert "this model has a Softplus" in remark.message
