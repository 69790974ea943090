"""Single examples through the compiled engine: the same weights, draws and errors as `observe_many`."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from every_learner import assert_same_state, state
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import metareplay as mr
from metareplay._core.plan import Plan
from metareplay._core.table import Table
from metareplay.engines.engine import Outcome
from metareplay.engines.objective import Objective

COUNT = 40
XS = torch.linspace(-2, 2, COUNT * 6).reshape(COUNT, 6).sin()
YS = torch.arange(COUNT) * 7 % 4


def mlp(outputs: int = 4) -> nn.Module:
    return mr.networks.mlp(6, (8, 5), outputs, seed=1)


def mer(model: nn.Module | None = None, **options: Any) -> mr.Learner:
    usual: dict[str, Any] = {"memory": mr.Reservoir(9), "beta": 0.3, "s": 2, "k": 4, "seed": 7}
    return mr.MER(model or mlp(), **(usual | options))


Made = tuple[mr.Learner, Tensor, Tensor]
KINDS: dict[str, Callable[[], Made]] = {
    "mer": lambda: (mer(gamma=0.7), XS, YS),
    "mer-clip": lambda: (mer(clip=0.3), XS, YS),
    "mer-recent": lambda: (mer(memory=mr.Recent(5)), XS, YS),
    "mer-double": lambda: (mer(mlp().double()), XS.double(), YS),
    "mer-bytes": lambda: (mer(), (XS * 100 + 100).to(torch.uint8), YS),
    "mer-squares": lambda: (mer(), XS.reshape(COUNT, 2, 3), YS),
    "mer-regression": lambda: (mer(mlp(2), regression=True, lr=0.01), XS, XS[:, :2] ** 2),
    "big-batch": lambda: (mr.MEROneBigBatch(mlp(), memory=mr.Reservoir(9), s=2, k=4, seed=7), XS, YS),
    "current-rate": lambda: (mr.MERCurrentRate(mlp(), memory=mr.Reservoir(9), s=2, k=4, seed=7), XS, YS),
    "er": lambda: (mr.ER(mlp(), memory=mr.Reservoir(9), k=4, seed=7), XS, YS),
    "online": lambda: (mr.Online(mlp(), lr=0.1), XS, YS),
    "online-steps": lambda: (mr.Online(mlp(), lr=0.1, steps=3), XS, YS),
}
every = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())


def all_at_once(make: Callable[[], Made]) -> mr.Learner:
    learner, xs, ys = make()
    learner.observe_many(xs, ys)
    return learner


@every
@given(what=st.lists(st.tuples(st.sampled_from(["one", "one", "many", "predict", "load"]), st.integers(1, 12))))
@settings(max_examples=12, deadline=None)
def test_any_mixture_of_calls_gives_the_same_weights(
    make: Callable[[], Made], what: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    learner, xs, ys = make()
    for kind, count in [*what, ("one", COUNT)]:
        start, end = learner.seen, min(COUNT, learner.seen + count)
        if kind == "one":
            for x, y in zip(xs[start:end], ys[start:end], strict=True):
                learner.observe(x, y)
        elif kind == "many":
            learner.observe_many(xs[start:end], ys[start:end])
        elif kind == "predict":
            learner.predict(xs[:1])
        else:
            path = tmp_path_factory.mktemp("saved") / "run.ckpt"
            learner.save(path)
            learner = mr.load(path, make()[0].model)
    assert_same_state(state(learner), state(all_at_once(make)))


class Counted:
    """Count how often the usual way is taken."""

    def __init__(self, learner: mr.Learner, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plans = 0
        execute = learner.chosen_engine.execute

        def counting(plan: Plan, table: Table, objective: Objective) -> Outcome:
            self.plans += 1
            return execute(plan, table, objective)

        monkeypatch.setattr(learner.chosen_engine, "execute", counting)


@every
def test_only_the_first_example_takes_the_usual_way(make: Callable[[], Made], monkeypatch: pytest.MonkeyPatch) -> None:
    learner, xs, ys = make()
    counted = Counted(learner, monkeypatch)
    for x, y in zip(xs, ys, strict=True):
        learner.observe(x, y)
    assert counted.plans == 1
    assert_same_state(state(learner), state(all_at_once(make)))


SCHEDULES = {
    "mer": "lr beta gamma",
    "big-batch": "lr gamma",
    "current-rate": "lr gamma",
    "er": "lr",
    "online-steps": "lr",
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_changes_rates_and_keeps_what_was_drawn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (scheduled, xs, ys), (steady, *_), (many, *_) = (KINDS[name]() for _ in range(3))
    drawn: dict[mr.Learner, list[int]] = {scheduled: [], steady: []}
    for learner, counts in drawn.items():
        plan_ahead = learner.plan_ahead

        def counting(count: int, table: Table, plan: Callable[..., Any] = plan_ahead, noted: list[int] = counts) -> Any:
            noted.append(count)
            return plan(count, table)

        monkeypatch.setattr(learner, "plan_ahead", counting)
    for number, (x, y) in enumerate(zip(xs, ys, strict=True)):
        steady.observe(x, y)
        for learner in (scheduled, many):
            for option in SCHEDULES[name].split():
                setattr(learner, option, 0.5 / (number + 2))
        scheduled.observe(x, y)
        many.observe_many(x[None], y[None])
    assert_same_state(state(scheduled), state(many))
    assert drawn[scheduled] == drawn[steady]


@pytest.mark.parametrize(
    "as_given",
    [
        lambda x, y: (x.numpy(), int(y)),
        lambda x, y: (x.numpy(), np.int32(y)),
        lambda x, y: (torch.stack([x, x], 1)[:, 0], y),
        lambda x, y: (np.stack([x.numpy(), x.numpy()], 1)[:, 1], y),
    ],
    ids=["numpy", "numpy label", "strided tensor", "strided array"],
)
def test_rows_come_as_tensors_or_arrays(
    as_given: Callable[[Tensor, Tensor], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = mer()
    counted = Counted(learner, monkeypatch)
    for x, y in zip(XS, YS, strict=True):
        learner.observe(*as_given(x, y))
    assert counted.plans == 1
    assert_same_state(state(learner), state(all_at_once(lambda: (mer(), XS, YS))))


def test_task_ids_are_kept_with_the_examples() -> None:
    many, single = mer(), mer()
    tasks = torch.arange(COUNT) // 10
    many.observe_many(XS, YS, tasks)
    for x, y, task in zip(XS, YS, tasks.tolist(), strict=True):
        single.observe(x, y, task)
    assert_same_state(state(many), state(single))
    assert many.own_memory is not None
    assert single.own_memory is not None
    assert many.own_memory.seen_of == single.own_memory.seen_of


@pytest.mark.parametrize(
    ("x", "y", "task"),
    [
        (torch.full((6,), torch.nan), 1, None),
        (torch.full((6,), -torch.inf), 1, None),
        (XS[0], 4, None),
        (XS[0], -1, None),
        (XS[0], True, None),
        (XS[0], 1.0, None),
        (XS[0, :5], 1, None),
        (XS[0], 1, -1),
        (XS[0], 1, 0.5),
        ("six", 1, None),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(x: Any, y: Any, task: Any) -> None:
    learner = mer()
    for number in range(20):
        learner.observe(XS[number], YS[number])
    with pytest.raises(mr.InputError):
        learner.observe(x, y, task)
    for number in range(20, COUNT):
        learner.observe(XS[number], YS[number])
    assert_same_state(state(learner), state(all_at_once(lambda: (mer(), XS, YS))))


def test_an_example_that_cannot_be_learned_is_undone_and_named() -> None:
    learner, other = (mer(mlp(2), regression=True, lr=0.01) for _ in range(2))
    targets = XS[:, :2].clone()
    for number in range(20):
        learner.observe(XS[number], targets[number])
    with pytest.raises(mr.NonFiniteError, match="example 20 of the stream"):
        learner.observe(XS[20], torch.full((2,), 3e38))
    assert learner.seen == 20
    for number in range(20, COUNT):
        learner.observe(XS[number], targets[number])
    other.observe_many(XS, targets)
    assert_same_state(state(learner), state(other))


def test_weights_that_the_user_has_changed_are_the_ones_that_learn() -> None:
    single, many = mer(), mer()
    for learner in (single, many):
        learner.observe_many(XS[:10], YS[:10])
    for number in range(10, 15):
        single.observe(XS[number], YS[number])
    many.observe_many(XS[10:15], YS[10:15])
    for learner in (single, many):
        learner.model.get_parameter("1.weight").data.mul_(0.5)
    for number in range(15, 20):
        single.observe(XS[number], YS[number])
    many.observe_many(XS[15:20], YS[15:20])
    assert_same_state(state(single), state(many))


@pytest.mark.parametrize("change", ["moved", "replaced", "frozen", "added"])
def test_a_model_that_was_changed_is_noticed(change: str) -> None:
    model = mlp()
    learner = mer(model)
    for number in range(10):
        learner.observe(XS[number], YS[number])
    assert isinstance(model, nn.Sequential)
    if change == "moved":
        model.double()
    elif change == "replaced":
        model[1] = nn.Linear(6, 8)
    elif change == "frozen":
        model[1].requires_grad_(False)
    else:
        model.append(nn.Linear(4, 4))
    with pytest.raises(mr.InputError, match="moved or replaced"):
        learner.observe(XS[10], 1)
    with pytest.raises(mr.InputError, match="moved or replaced"):
        learner.predict(XS[:1])
    assert learner.seen == 10


@every
def test_single_predictions_are_those_of_a_batch_up_to_rounding(make: Callable[[], Made]) -> None:
    learner = all_at_once(make)
    _, xs, _ = make()
    together = learner.outputs(xs)
    single = torch.cat([learner.outputs(xs[i : i + 1]) for i in range(COUNT)])
    torch.testing.assert_close(single, together)
    from_arrays = torch.cat([learner.outputs(xs[i : i + 1].numpy()) for i in range(COUNT)])
    assert torch.equal(single, from_arrays)


def test_a_prediction_refuses_what_is_not_finite() -> None:
    learner = all_at_once(KINDS["mer"])
    with pytest.raises(mr.InputError, match="not finite"):
        learner.predict(torch.full((1, 6), torch.inf))


def pressing_ctrl_c(work: Callable[[], None], at: int = -1) -> int:
    """Do some work with Ctrl-C at the line of the package with this number; return how many lines were executed."""
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.startswith(str(Path(mr.__file__).parent)):
            return None
        if event == "line":
            lines += 1
            if lines - 1 == at:
                signal.raise_signal(signal.SIGINT)
        return trace

    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        assert at >= 0
    finally:
        sys.settrace(None)
    return lines


@pytest.mark.parametrize("kind", ["mer", "online"])
def test_ctrl_c_comes_before_or_after_an_example(kind: str) -> None:
    learner, xs, ys = KINDS[kind]()

    def go_on() -> None:
        for number in range(learner.seen, 10):
            learner.observe(xs[number], ys[number])

    learner.observe_many(xs[:3], ys[:3])
    states = {3: state(learner)}
    for number in range(3, 10):
        learner.observe(xs[number], ys[number])
        states[learner.seen] = state(learner)
    lines = at = 0
    while at <= lines:
        learner, _, _ = KINDS[kind]()
        learner.observe_many(xs[:3], ys[:3])
        if not lines:
            lines = pressing_ctrl_c(go_on)
            continue
        pressing_ctrl_c(go_on, at)
        assert_same_state(state(learner), states[learner.seen])
        go_on()
        assert_same_state(state(learner), states[10])
        at += 29
    assert lines > 300


def test_a_loaded_learner_takes_the_fast_way_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    all_at_once(KINDS["mer"]).save(tmp_path / "run.ckpt")
    learner = mr.load(tmp_path / "run.ckpt", mlp())
    counted = Counted(learner, monkeypatch)
    for x, y in zip(XS, YS, strict=True):
        learner.observe(x, y)
    assert counted.plans == 1


def test_the_first_prediction_of_a_row_is_one_prediction() -> None:
    for classes in (3, 4):
        learner = mr.Online(mr.networks.mlp(4, (8,), classes, seed=0))
        row = torch.rand(4)
        assert learner.predict(row).shape == ()
        assert learner.outputs(row).shape == (classes,)
        assert int(learner.predict(row)) == int(learner.predict(row[None])[0])
    named = mr.Online(mr.networks.mlp(4, (8,), 2, seed=0), classes=["no", "yes"])
    assert named.predict(np.zeros(4, np.float32)) in ("no", "yes")


def test_a_picture_without_a_batch_is_refused_before_the_first_example() -> None:
    learner = mr.Online(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(0), nn.Linear(72, 2)))
    with pytest.raises(mr.InputError, match=r"give a batch, x\[None\]"):
        learner.predict(torch.rand(1, 8, 8))


@pytest.mark.parametrize("target", [0.5, [0.5]])
def test_rows_given_as_lists_take_the_fast_way(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = mr.Online(mr.networks.mlp(4, (8,), 1, seed=0), regression=True)
    learner.observe([0.1, 0.2, 0.3, 0.4], [0.5])
    monkeypatch.setattr(mr.Online, "observe_many", lambda *_: pytest.fail("the slow way"))
    learner.observe([0.1, 0.2, 0.3, 0.4], target)
    assert learner.seen == 2
