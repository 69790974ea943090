"""Torch's optimizers in the compiled engine: the weights and moments of the torch engine, kept in the same place."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import metareplay as mr
from metareplay._core.plan import Plan, Rates
from metareplay.engines.choose import EngineName
from metareplay.engines.cpu.engine import CpuEngine
from metareplay.engines.cpu.optimizers import CompiledOptimizer
from metareplay.engines.objective import QuadraticPenalty, Supervised
from metareplay.learners.replay import ReplayLearner, one_batch_each
from metareplay.memories.sampler import Sampler

Make = Callable[[nn.Parameter], torch.optim.Optimizer]
ENGINES: tuple[EngineName, ...] = ("torch", "cpu")
OPTIMIZERS: dict[str, Make] = {
    "Adam": lambda theta: torch.optim.Adam([theta], lr=0.01),
    "Adam, all options": lambda theta: torch.optim.Adam(
        [theta], lr=0.01, betas=(0.5, 0.9), eps=1e-4, weight_decay=0.01
    ),
    "AdamW": lambda theta: torch.optim.AdamW([theta], lr=0.01, weight_decay=0.01),
    "RMSProp": lambda theta: torch.optim.RMSprop([theta], lr=0.01),
    "RMSProp, all options": lambda theta: torch.optim.RMSprop(
        [theta], lr=0.01, alpha=0.9, eps=1e-4, momentum=0.5, weight_decay=0.01
    ),
    "SGD with weight decay": lambda theta: torch.optim.SGD([theta], lr=0.1, weight_decay=0.01),
    "SGD with momentum": lambda theta: torch.optim.SGD([theta], lr=0.1, momentum=0.9, dampening=0.5, weight_decay=0.01),
    "SGD with Nesterov's momentum": lambda theta: torch.optim.SGD([theta], lr=0.1, momentum=0.9, nesterov=True),
}
# Of the way that the weights have gone. Adam and RMSProp divide each gradient by its own size, so the rounding of a
# gradient that is almost 0 moves a weight as far as any other; the average over all weights is what can be compared.
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}
DTYPES = [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)]  # another compilation


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@final
@dataclass(eq=False, repr=False, kw_only=True)
class Own(ReplayLearner):
    """Replay with any optimizer, any way through the batches, and a penalty if there should be one."""

    make: Make = OPTIMIZERS["Adam"]
    together: bool = True
    by_task: bool = False
    penalty: float = 0.0

    def plan(self, memory: Sampler) -> Plan:
        if self.together:
            return one_batch_each(memory, self.k, lr=1.0)
        for current in memory.incoming():
            for drawn in memory.sample(2, self.k - 1):
                memory.visit(current, drawn)
            memory.store()
        return memory.plan(Rates(memory=1.0, current=1.0, within=0.5, across=0.7), s=2)

    def make_objective(self) -> Supervised:
        theta = flat(self.model)
        pull = QuadraticPenalty(self.penalty, theta.abs(), theta * theta.abs()) if self.penalty else None
        return Supervised(nn.functional.cross_entropy, by_task=self.by_task, clip=self.clip, penalty=pull)

    def make_optimizer(self, theta: nn.Parameter) -> torch.optim.Optimizer:
        return self.make(theta)


WAYS: dict[str, dict[str, Any]] = {
    "batches": {"k": 11},
    "batches of one": {"k": 1},
    "large clipped batches": {"k": 70, "clip": 0.3},
    "batches by task": {"k": 11, "by_task": True},
    "rows": {"k": 4, "together": False},
    "clipped rows": {"k": 4, "together": False, "clip": 0.3},
}


def examples(dtype: torch.dtype = torch.float32, count: int = 30) -> tuple[Tensor, Tensor, Tensor]:
    """Sparse and dense inputs of three tasks; some inputs are 0 from the middle on."""
    generator = torch.Generator().manual_seed(0)
    xs = torch.rand(count, 37, generator=generator)
    xs[: count // 2] *= torch.rand(count // 2, 37, generator=generator) < 0.2
    xs[count // 2 :, :10] = 0
    return xs.to(dtype), torch.randint(5, (count,), generator=generator), torch.arange(count) * 3 // count


def net(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """A net whose widths are no whole vectors."""
    return mr.networks.mlp(37, (40, 9), 5, seed=1).to(dtype)


def own(engine: EngineName, dtype: torch.dtype = torch.float32, memory: int = 20, **options: Any) -> Own:
    return Own(net(dtype), memory=mr.Reservoir(memory), engine=engine, **options)


def apart(one: Tensor, other: Tensor, start: Tensor | None = None) -> float:
    """How far one vector is from another, as a part of the other's way from the start."""
    way = other if start is None else other - start
    return float((one - other).norm() / way.norm())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_and_moments_of_the_torch_engine(name: str, way: str, dtype: torch.dtype) -> None:
    learners = [own(engine, dtype, memory=100, make=OPTIMIZERS[name], **WAYS[way]) for engine in ENGINES]
    for learner in learners:
        learner.observe_many(*examples(dtype, 16))
        assert learner.chosen_engine.name == learner.engine
    theirs, ours = learners
    assert apart(ours.weights.theta, theirs.weights.theta, start=flat(net(dtype))) < TOLERANCE[dtype]
    expected, found = theirs.chosen_engine.state(), ours.chosen_engine.state()
    assert found.keys() == expected.keys()
    for moment, value in expected.items():
        assert found[moment].dtype == value.dtype
        assert apart(found[moment], value) < TOLERANCE[dtype]


LONG: dict[str, Make] = {
    "Adam": lambda theta: torch.optim.Adam([theta], lr=0.01, betas=(0.5, 0.9), eps=1e-4, weight_decay=0.1),
    "RMSProp": lambda theta: torch.optim.RMSprop([theta], lr=0.01, alpha=0.9, eps=1e-4, momentum=0.5, weight_decay=0.1),
}


@pytest.mark.parametrize("way", ["rows", "clipped rows"])
@pytest.mark.parametrize("name", LONG)
def test_every_step_of_a_long_run_is_the_torch_engines(name: str, way: str) -> None:
    """Strong weight decay takes the weights of idle inputs almost to 0, where their steps depend on the last digit.

    After 60 examples by RMSProp on rows, the engines differ by 3e-3 of the way even in double precision. So does torch
    from itself, by 2e-3, if its first weights are changed in the last digit; the same holds for every other optimizer
    and way that was tried. So each example starts here from the torch engine's weights and moments, and after it both
    must agree.
    """
    theirs, ours = (own(engine, torch.float64, make=LONG[name], **WAYS[way]) for engine in ENGINES)
    for x, y, task in zip(*examples(torch.float64, 60), strict=True):
        ours.weights.theta.copy_(theirs.weights.theta)
        ours.chosen_engine.restore(theirs.chosen_engine.state())
        before = theirs.weights.theta.clone()
        for learner in (theirs, ours):
            learner.observe_many(x[None], y[None], task[None])
        assert ours.chosen_engine.name == "cpu"
        assert apart(ours.weights.theta, theirs.weights.theta, start=before) < 1e-9


@pytest.mark.parametrize("together", [True, False])
def test_with_a_penalty(together: bool) -> None:
    found = []
    for engine in ENGINES:
        learner = own(engine, torch.float64, together=together, penalty=3.0, clip=0.3, k=4)
        learner.observe_many(*examples(torch.float64))
        assert learner.chosen_engine.name == engine
        found.append(learner.weights.theta)
    assert apart(found[1], found[0]) < TOLERANCE[torch.float64]


@pytest.mark.parametrize("name", ["Adam", "RMSProp"])
def test_as_near_to_double_precision_as_torch_is(name: str) -> None:
    """After 400 steps the engines differ by more than rounding; neither is nearer to what is right than the other."""
    given_here = examples(count=400)
    found = {}
    for engine, dtype in (("torch", torch.float64), ("torch", torch.float32), ("cpu", torch.float32)):
        learner = own(engine, dtype, make=OPTIMIZERS[name], k=11)  # type: ignore[arg-type]
        learner.observe_many(given_here[0].to(dtype), *given_here[1:])
        found[engine, dtype] = learner.weights.theta.double()
    right = found["torch", torch.float64]
    theirs, ours = apart(found["torch", torch.float32], right), apart(found["cpu", torch.float32], right)
    assert ours < 3 * theirs
    assert ours < 1e-3


floats = st.floats(0.0, 0.95)


@st.composite
def optimizers(draw: st.DrawFn) -> Make:
    kind = draw(st.sampled_from([torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.SGD]))
    options: dict[str, Any] = {"lr": draw(st.floats(1e-4, 0.1)), "weight_decay": draw(st.just(0) | st.floats(0, 0.5))}
    if kind in (torch.optim.Adam, torch.optim.AdamW):
        options["betas"] = draw(floats), draw(floats)
    else:
        options["momentum"] = draw(st.just(0) | floats)
    if kind is torch.optim.SGD:
        options["nesterov"] = options["momentum"] > 0 and draw(st.booleans())
        options["dampening"] = 0 if options["nesterov"] else draw(floats)
    else:
        options["eps"] = draw(st.floats(1e-6, 1.0))
    if kind is torch.optim.RMSprop:
        options["alpha"] = draw(floats)
    return lambda theta: kind([theta], **options)


@settings(max_examples=60)
@given(make=optimizers(), together=st.booleans(), k=st.integers(1, 5))
def test_any_plain_options(make: Make, together: bool, k: int) -> None:
    xs, ys, tasks = examples(torch.float64, 12)
    found = []
    for engine in ENGINES:
        learner = own(engine, torch.float64, make=make, together=together, k=k)
        learner.observe_many(xs, ys, tasks)
        found.append(learner.weights.theta)
    assert apart(found[1], found[0]) < 1e-9  # with eps = 1e-6, rounding of a tiny gradient counts a million times


def hooked(theta: nn.Parameter) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam([theta])

    def double(*_: Any) -> None:
        assert theta.grad is not None
        theta.grad.mul_(2)

    optimizer.register_step_pre_hook(double)
    return optimizer


LEFT_TO_TORCH: dict[str, Make] = {
    "amsgrad": lambda theta: torch.optim.Adam([theta], amsgrad=True),
    "maximize": lambda theta: torch.optim.Adam([theta], lr=1e-4, maximize=True),
    "foreach": lambda theta: torch.optim.RMSprop([theta], foreach=True),
    "centered": lambda theta: torch.optim.RMSprop([theta], centered=True),
    "a tensor as rate": lambda theta: torch.optim.Adam([theta], lr=torch.tensor(0.01)),
    "another optimizer": lambda theta: torch.optim.Adagrad([theta]),
    "a hook": hooked,
}


@pytest.mark.parametrize("name", LEFT_TO_TORCH)
def test_what_the_kernel_does_not_know_is_left_to_torch(name: str) -> None:
    learners = [own(engine, make=LEFT_TO_TORCH[name], k=3) for engine in ENGINES]
    for learner in learners:
        assert isinstance(learner.chosen_engine, CpuEngine) == (learner.engine == "cpu")
        theta = nn.Parameter(learner.weights.theta)
        assert CompiledOptimizer.of(learner.make_optimizer(theta), learner.weights) is None
        learner.observe_many(*examples())
    assert apart(learners[1].weights.theta, learners[0].weights.theta) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_pieces_of_any_size_give_the_same_weights(name: str) -> None:
    xs, ys, tasks = examples(count=60)
    found = []
    for size in (60, 7, 1):
        learner = own("cpu", make=OPTIMIZERS[name], k=5)
        for part in torch.arange(60).split(size):
            learner.observe_many(xs[part], ys[part], tasks[part])
        found.append((learner.weights.theta, *learner.chosen_engine.state().values()))
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True))


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
@pytest.mark.parametrize("saved_by", ENGINES)
def test_a_checkpoint_of_either_engine_is_continued(optimizer: Any, saved_by: EngineName, tmp_path: Path) -> None:
    xs, ys, tasks = examples(count=60)

    def make(engine: EngineName) -> mr.ER:
        return mr.ER(net(), memory=mr.Reservoir(20), lr=0.01, k=5, optimizer=optimizer, engine=engine)

    whole, begun = make("cpu"), make(saved_by)
    whole.observe_many(xs, ys, tasks)
    begun.observe_many(xs[:17], ys[:17], tasks[:17])
    begun.save(tmp_path / "run.ckpt")
    loaded = mr.load(tmp_path / "run.ckpt", net(), engine="cpu")
    assert loaded.chosen_engine.name == "cpu"
    loaded.observe_many(xs[17:], ys[17:], tasks[17:])
    assert apart(loaded.weights.theta, whole.weights.theta) < TOLERANCE[torch.float32]
    if saved_by == "cpu":
        assert torch.equal(loaded.weights.theta, whole.weights.theta)


@pytest.mark.parametrize("first", [0, 9])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_example_that_is_not_finite_is_undone(name: str, first: int) -> None:
    """Also when it is the very first, before there are any moments."""
    xs, ys, tasks = examples(count=60)
    whole, broken = (own("cpu", make=OPTIMIZERS[name], k=1) for _ in range(2))
    bad = xs[:20].clone()
    bad[first] = 3e38
    with pytest.raises(mr.NonFiniteError, match=f"example {first} "):
        broken.observe_many(bad, ys[:20], tasks[:20])
    whole.observe_many(xs[:first], ys[:first], tasks[:first])
    for _ in range(2):
        kept, expected = broken.chosen_engine.state(), whole.chosen_engine.state()
        assert kept.keys() == expected.keys()
        assert all(torch.equal(kept[moment], value) for moment, value in expected.items())
        assert torch.equal(broken.weights.theta, whole.weights.theta)
        for learner in (whole, broken):
            learner.observe_many(xs[20:], ys[20:], tasks[20:])


def test_a_second_moment_that_overflows_is_undone_although_the_weights_stay_finite() -> None:
    xs, ys, tasks = examples(count=60)
    learner = own("cpu", k=1)
    learner.observe_many(xs[:5], ys[:5], tasks[:5])
    before, xs[5] = learner.weights.theta.clone(), 1e25
    with pytest.raises(mr.NonFiniteError, match="example 5 "):
        learner.observe_many(xs[5:9], ys[5:9], tasks[5:9])
    assert torch.equal(learner.weights.theta, before)
    assert all(torch.isfinite(value).all() for value in learner.chosen_engine.state().values())


def test_moments_that_have_almost_vanished_are_zero() -> None:
    """The first ten inputs are 0 from example 30 on; denormal numbers, which are slow, must not be left."""
    xs, ys, tasks = examples(count=60)
    learner = own("cpu", k=1, memory=1)
    learner.observe_many(xs, ys, tasks)
    rest = xs[50:].repeat(100, 1)
    learner.observe_many(rest, torch.arange(1000) % 5, 2)
    first = learner.chosen_engine.state()["exp_avg"][: 40 * 37].view(40, 37)
    assert not first[:, :10].any()
    assert first[:, 10:].any()


def test_a_rate_that_changes_in_the_stream_is_obeyed() -> None:
    xs, ys, tasks = examples(count=60)
    found = []
    for engine in ENGINES:
        made: list[torch.optim.Optimizer] = []

        def make(theta: nn.Parameter, made: list[torch.optim.Optimizer] = made) -> torch.optim.Optimizer:
            made.append(OPTIMIZERS["Adam"](theta))
            return made[-1]

        learner = own(engine, torch.float64, make=make, k=3)
        learner.observe_many(xs[:20].double(), ys[:20], tasks[:20])
        before = learner.weights.theta.clone()
        made[-1].param_groups[0]["lr"] = 0.0
        learner.observe_many(xs[20:30].double(), ys[20:30], tasks[20:30])
        assert torch.equal(learner.weights.theta, before)
        made[-1].param_groups[0]["lr"] = 0.003
        learner.observe_many(xs[30:].double(), ys[30:], tasks[30:])
        found.append(learner.weights.theta)
    assert apart(found[1], found[0]) < TOLERANCE[torch.float64]


def test_a_head_that_grows_keeps_its_moments() -> None:
    xs, ys, tasks = examples(torch.float64, 60)
    found = []
    for engine in ENGINES:
        learner = own(engine, torch.float64, k=5)
        learner.observe_many(xs[:30], ys[:30], tasks[:30])
        with learner.reshaping() as model:
            assert isinstance(model, nn.Sequential)
            head = nn.Linear(9, 6).double()
            for new, old in zip(head.parameters(), model[-1].parameters(), strict=True):
                new.data = torch.cat([old.data, torch.zeros_like(old.data[:1])])
            model[-1] = head
        learner.observe_many(xs[30:], ys[30:], tasks[30:])
        assert learner.chosen_engine.name == engine
        found.append(learner.weights.theta)
    assert apart(found[1], found[0]) < TOLERANCE[torch.float64]
