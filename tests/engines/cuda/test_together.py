"""Gradients of many groups in one pass, without a GPU: against torch's own gradients of each group."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from no_graphs import Rerun
from torch import Tensor, nn
from torch.nn import functional

import metareplay as mr
from metareplay._core.columns import Columns
from metareplay._core.draws import Draws, Ints
from metareplay._core.table import Table, TensorStorage
from metareplay._core.weights import Weights
from metareplay.engines.cuda import gradients as gradients_module
from metareplay.engines.cuda import together as together_module
from metareplay.engines.cuda.engine import CudaEngine
from metareplay.engines.cuda.gradients import OFTEN, GroupGradients
from metareplay.engines.cuda.graphs import Work
from metareplay.engines.cuda.together import Together
from metareplay.engines.inputs import gather
from metareplay.engines.objective import QuadraticPenalty, Supervised
from metareplay.engines.torch_engine import TorchEngine
from metareplay.networks.cnn import Norm

PLAIN = Supervised(functional.cross_entropy)
CLASSES, TASKS, EACH = (3, 5, 4), 3, 12  # classes of each task, tasks, examples of each task


@pytest.fixture(autouse=True)
def without_our_kernels_for_single_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have tests of their own, and are slow where Triton interprets them."""
    monkeypatch.setattr(gradients_module, "streamlined", lambda module: module)


def examples(resolution: int = 16, channels: int = 1, classes: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Images in bytes, labels and tasks; one task after the other."""
    generator, count = torch.Generator().manual_seed(3), TASKS * EACH
    xs = torch.randint(256, (count, channels, resolution, resolution), generator=generator, dtype=torch.uint8)
    return xs, torch.randint(classes, (count,), generator=generator), torch.arange(TASKS).repeat_interleave(EACH)


def table_of(xs: Tensor, ys: Tensor, tasks: Tensor) -> Table:
    columns = Columns({"x": xs, "y": ys, "task": tasks})
    table = Table(0, len(xs), columns, TensorStorage(torch.device("cpu")))
    table.bring(columns)
    return table


def of_task(task: int, *numbers: int) -> Ints:
    return task * EACH + np.array(numbers, np.int64)


def other() -> nn.Module:
    """Two channels, strides, no padding, windows of three, GroupNorm without a ReLU, a ReLU without pooling."""
    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Conv2d(2, 6, (3, 2), stride=(2, 1), padding=(0, 1)), nn.GroupNorm(3, 6), nn.MaxPool2d(3),
        nn.Sequential(nn.Conv2d(6, 4, 2), nn.ReLU()), nn.Flatten(),
    )  # fmt: skip
    return mr.networks.MultiHead(body, 4 * 5, CLASSES)


def cnn(norm: Norm | None, classes: int | tuple[int, ...], resolution: int = 16) -> nn.Module:
    net = mr.networks.omniglot_cnn(1, classes=classes, norm=norm, init="torch", resolution=resolution)
    for parameter in net.parameters():  # gains and biases that are not all one or zero
        if parameter.dim() == 1:
            parameter.data += torch.linspace(-0.1, 0.2, len(parameter))
    return net


def engine_of(net: nn.Module) -> TorchEngine:
    return TorchEngine(Weights(net), Draws(0))


def found_together(plain: TorchEngine, table: Table, groups: list[Ints]) -> Tensor:
    """Compute the gradients of groups of one size directly."""
    weights = plain.weights
    together = Together.of(weights, PLAIN, table)
    assert together is not None
    rows = torch.from_numpy(np.stack(groups).T.reshape(-1))
    assert together.takes(table.tasks(rows.numpy()).view(-1, len(groups)))
    return together.gradients(gather(table, rows, weights), len(groups))


NETS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {  # with the resolution and the number of channels
    "group, heads, 28": (lambda: cnn("group", CLASSES, 28), 28, 1),
    "group, heads, 20": (lambda: cnn("group", CLASSES, 20), 20, 1),
    "group, one head": (lambda: cnn("group", 4, 37), 37, 1),
    "no norm, heads": (lambda: cnn(None, CLASSES), 16, 1),
    "no norm, one head": (lambda: cnn(None, 4, 28), 28, 1),
    "other layers": (other, 17, 2),
}
GROUPS: dict[str, list[Ints]] = {
    "single rows": [of_task(1, 4), of_task(0, 3), of_task(2, 0), of_task(2, 1)],
    "several rows": [of_task(2, 0, 3, 2), of_task(0, 1, 2, 3), of_task(1, 7, 7, 11)],
    "one group": [of_task(1, 0, 3, 2, 5, 8)],
}


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("double", [False, True])
def test_gradients_are_torch_s(net: str, groups: str, double: bool) -> None:
    make, resolution, channels = NETS[net]
    plain = engine_of(make().double() if double else make())
    table = table_of(*examples(resolution, channels))
    for _ in range(2):
        found = found_together(plain, table, GROUPS[groups])
        wanted = plain.gradients(table, GROUPS[groups], PLAIN, 0).each()
        assert found.dtype == wanted.dtype
        for one, other in zip(found, wanted, strict=True):
            assert other.norm() > 1e-4
            assert (one - other).norm() <= (1e-12 if double else 1e-5) * other.norm()
        assert torch.equal(found == 0, wanted == 0) or not double  # the heads of other tasks
        plain.weights.theta.mul_(1.1)  # at other weights, too


def test_ties_in_pooling_windows_go_the_way_of_torch() -> None:
    """Blank parts of an image give windows of equal values."""
    xs, ys, tasks = examples(28)
    xs[:, :, 5:] = 0
    plain, table = engine_of(cnn("group", CLASSES, 28).double()), table_of(xs, ys, tasks)
    groups = GROUPS["several rows"]
    wanted = plain.gradients(table, groups, PLAIN, 0).each()
    torch.testing.assert_close(found_together(plain, table, groups), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("norm", [None, "group"])
def test_a_loss_that_is_not_finite_gives_nan_for_its_own_group_only(norm: Norm | None) -> None:
    xs, ys, tasks = examples()
    real = xs.float() / 255
    real[EACH + 4] = torch.inf
    plain, table = engine_of(cnn(norm, CLASSES)), table_of(real, ys, tasks)
    groups = [of_task(0, 1, 4), of_task(1, 1, 4), of_task(2, 1, 4), of_task(1, 1, 5)]
    found = found_together(plain, table, groups)
    assert torch.isnan(found[1]).all()
    kept = [0, 2, 3]
    assert torch.isfinite(found[kept]).all()
    wanted = plain.gradients(table, [groups[number] for number in kept], PLAIN, 0).each()
    torch.testing.assert_close(found[kept], wanted, rtol=1e-4, atol=1e-6)


def test_a_label_that_the_task_lacks_gives_nan() -> None:
    """Its loss is infinite, while the gradients are finite."""
    xs, ys, tasks = examples()
    ys[2] = 4  # the first task has three classes
    plain, table = engine_of(cnn(None, CLASSES)), table_of(xs, ys, tasks)
    found = found_together(plain, table, [of_task(0, 1, 2), of_task(0, 3, 4)])
    assert torch.isnan(found[0]).all()
    assert torch.isfinite(found[1]).all()


def test_rows_of_several_tasks_in_a_group() -> None:
    table = table_of(*examples())
    tasks = torch.tensor([[0, 1], [0, 2]])
    for net, takes in ((cnn(None, CLASSES), False), (cnn(None, 3), True)):
        together = Together.of(Weights(net), PLAIN, table)
        assert together is not None
        assert together.takes(tasks) is takes
        assert together.takes(torch.tensor([[0, 1], [0, 1]]))


class OwnModule(nn.Module):
    """Not an nn.Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = cnn(None, 3)

    def forward(self, xs: Tensor) -> Tensor:
        outputs: Tensor = self.inside(xs)
        return outputs


def dilated() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3, dilation=2), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3))


def sharing() -> nn.Module:
    """One head for two tasks."""
    net = mr.networks.omniglot_cnn(classes=(3, 3), resolution=16)
    net.heads[1] = net.heads[0]
    return net


def frozen() -> nn.Module:
    net = cnn(None, 3)
    next(net.parameters()).requires_grad_(False)
    return net


def hooked() -> nn.Module:
    net = cnn(None, 3)
    net.register_forward_hook(lambda *_: None)
    return net


UNSUPPORTED: dict[str, Callable[[], nn.Module]] = {
    "BatchNorm": lambda: cnn("batch", CLASSES),
    "own module": OwnModule,
    "dilated": dilated,
    "sharing": sharing,
    "frozen": frozen,
    "hooked": hooked,
    "bfloat16": lambda: cnn(None, 3).bfloat16(),
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(256, 3)),
    "no bias": lambda: nn.Sequential(nn.Conv2d(1, 2, 16), nn.Flatten(), nn.Linear(2, 3, bias=False)),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_other_networks_are_left_alone(name: str) -> None:
    assert Together.of(Weights(UNSUPPORTED[name]()), PLAIN, table_of(*examples())) is None


def test_other_objectives_and_tables_are_left_alone() -> None:
    weights, table = Weights(cnn(None, 3)), table_of(*examples())
    assert Together.of(weights, PLAIN, table) is not None
    penalty = QuadraticPenalty(1.0, torch.zeros_like(weights.theta), torch.zeros_like(weights.theta))
    for objective in (
        replace(PLAIN, penalty=penalty),
        replace(PLAIN, by_task=True),
        replace(PLAIN, regression=True),
        Supervised(functional.multi_margin_loss),
    ):
        assert Together.of(weights, objective, table) is None
    xs, ys, tasks = examples()
    assert Together.of(weights, PLAIN, table_of(xs, functional.one_hot(ys, 3).float(), tasks)) is None
    assert Together.of(weights, PLAIN, table_of(xs[:, 0], ys, tasks)) is None


def made(net: nn.Module, table: Table, recorder: Rerun | None = None) -> tuple[GroupGradients, TorchEngine]:
    plain = engine_of(net)
    return GroupGradients(plain, recorder or Rerun(), table, PLAIN), plain


def asked(gradients: GroupGradients, plain: TorchEngine, groups: list[Ints]) -> Tensor:
    """Ask as the engine does, and check the answer."""
    with plain.learning():
        found = gradients.each(groups)
    assert found is not None
    wanted = plain.gradients(gradients._table, groups, PLAIN, 0).each()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
    return found


def shapes(gradients: GroupGradients) -> list[tuple[int, int]]:
    return sorted(gradients._graphs)


def test_groups_of_one_size_share_graphs_of_few_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together_module, "ROWS", 8)
    recorder = Rerun()
    gradients, plain = made(cnn("group", CLASSES), table_of(*examples()), recorder)
    gradients._seen.update({1: OFTEN, 2: OFTEN, 3: OFTEN})
    rows = [of_task(number % TASKS, number, number + 1) for number in range(11)]
    for count in (1, 2, 3, 4, 11):  # pieces of four groups of two rows, and one of what is left
        for _ in range(OFTEN):
            asked(gradients, plain, [of_task(0, 5), *rows[:count], of_task(2, 2, 3, 4)])
    assert shapes(gradients) == [(1, 1), (1, 2), (1, 3), (2, 2), (3, 2), (4, 2)]
    assert gradients.has_joint_graphs
    before = recorder.replayed
    asked(gradients, plain, [of_task(0, 5), *rows])
    assert recorder.replayed == before + 1 + 3


def test_small_groups_leave_room_in_a_graph() -> None:
    gradients, plain = made(cnn(None, CLASSES), table_of(*examples()))
    gradients._seen.update({2: OFTEN})
    for count in range(2, 7):
        asked(gradients, plain, [of_task(number % TASKS, 0, number + 1) for number in range(count)])
    together = gradients._together
    assert together is not None
    assert shapes(gradients) == [(1, 2), (together.room(2, 2), 2)]


@pytest.mark.parametrize("size", [1, 3, 10, 102, 1000, 5000])
def test_numbers_of_groups_are_few(size: int) -> None:
    together = Together.of(Weights(cnn(None, CLASSES, 28)), PLAIN, table_of(*examples(28)))
    assert together is not None
    most = together.most(size)
    rooms = {count: together.room(count, size) for count in range(1, most + 1)}
    assert len(set(rooms.values())) <= together_module.SHAPES
    assert all(count <= room <= count + most // together_module.SHAPES for count, room in rooms.items())
    assert most == max(1, 1024 // size)


def test_large_images_make_small_pieces() -> None:
    together = Together.of(Weights(cnn(None, 3, 105)), PLAIN, table_of(*examples(105)))
    assert together is not None
    assert together.most(1) == 2**27 // (576 * 52 * 52)


def test_groups_of_mixed_tasks_are_computed_one_by_one() -> None:
    gradients, plain = made(cnn(None, CLASSES), table_of(*examples()))
    gradients._seen.update({2: OFTEN})
    for _ in range(2 * OFTEN):
        asked(gradients, plain, [np.array([0, EACH]), of_task(0, 1, 2)])
    assert shapes(gradients) == [(1, 2)]
    assert not gradients.has_joint_graphs
    for _ in range(OFTEN):
        asked(gradients, plain, [of_task(1, 1, 2), of_task(0, 1, 2)])
    assert gradients.has_joint_graphs


class BrokenForMany(Rerun):
    """Fails to record the graphs of several groups, in one of three ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def record(self, work: Work) -> Work:
        if "jointly" not in work.__qualname__:
            return super().record(work)
        if self.way == "raises":
            raise RuntimeError("operation not permitted when stream is capturing")
        if self.way == "out of memory":
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return lambda: None


@pytest.mark.parametrize("way", ["raises", "out of memory", "replays nothing"])
def test_what_fails_or_differs_is_computed_one_by_one(way: str) -> None:
    gradients, plain = made(cnn(None, CLASSES), table_of(*examples()), BrokenForMany(way))
    gradients._seen.update({2: OFTEN})
    for _ in range(2 * OFTEN):
        asked(gradients, plain, [of_task(1, 1, 2), of_task(0, 1, 2)])
    assert not gradients.has_joint_graphs
    assert not gradients.fails
    assert shapes(gradients) == [(1, 2)]


def test_a_piece_that_is_not_finite_makes_no_graph() -> None:
    xs, ys, tasks = examples()
    real = xs.float() / 255
    real[1] = torch.inf
    gradients, plain = made(cnn(None, CLASSES), table_of(real, ys, tasks))
    gradients._seen.update({2: OFTEN})
    for _ in range(2 * OFTEN):
        with plain.learning():
            found = gradients.each([of_task(2, 1, 2), of_task(0, 1, 2)])
        assert found is not None
        assert torch.isnan(found[1]).all()
    assert not gradients.has_joint_graphs
    asked(gradients, plain, [of_task(2, 1, 2), of_task(0, 3, 4)])
    assert gradients.has_joint_graphs
    with plain.learning():
        found = gradients.each([of_task(2, 1, 2), of_task(0, 1, 2)])
    assert found is not None
    assert torch.isfinite(found[0]).all()
    assert torch.isnan(found[1]).all()


def gem(net: nn.Module, **options: Any) -> mr.Learner:
    return mr.GEM(net, memory=mr.Ring(4 * TASKS, TASKS), lr=0.01, strength=0.5, engine="torch", **options)


@pytest.mark.parametrize("norm", [None, "group"])
@pytest.mark.parametrize("classes", [5, CLASSES])
def test_gem_has_the_weights_of_the_torch_engine(
    norm: Norm | None, classes: int | tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(together_module, "ROWS", 8)
    learners = [gem(cnn(norm, classes).double()) for _ in range(2)]
    plain = learners[1].chosen_engine
    assert isinstance(plain, TorchEngine)
    engine = learners[1].chosen_engine = CudaEngine(plain, Rerun(), fewer_kernels=False)
    for learner in learners:
        learner.observe_many(*(values[::2] for values in examples()))
    assert engine._gradients is not None
    assert engine._gradients.has_joint_graphs
    torch.testing.assert_close(learners[0].weights.theta, learners[1].weights.theta, rtol=1e-9, atol=1e-12)
