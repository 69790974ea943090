import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import metareplay as mr
from metareplay._core.columns import Columns
from metareplay._core.numba_private import source_stamp
from metareplay._core.table import Table, TensorStorage
from metareplay.engines.cpu import engine as cpu_engine
from metareplay.engines.cpu import groups, layout, optimizer_steps, steps
from metareplay.engines.cpu.layer_engine import LayerEngine
from metareplay.engines.cpu.traced_engine import TracedEngine
from metareplay.learners import gem
from metareplay.learners.gem import project


def mer(seed: int = 0, gamma: float = 1.0) -> mr.MER:
    net = mr.networks.mlp(6, (8, 7), 3, seed=1)
    return mr.MER(net, memory=mr.Reservoir(10), lr=0.1, beta=0.3, gamma=gamma, s=2, k=4, seed=seed, engine="cpu")


def examples(count: int = 40) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(count, 6, generator=generator), torch.randint(3, (count,), generator=generator)


QUALIFY: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: mr.networks.mlp(6, (8, 7), 3),
    "own": lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)),
    "nested": lambda: nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU()), nn.Linear(5, 3)),
    "one layer": lambda: nn.Linear(6, 3),
    "float64": lambda: mr.networks.mlp(6, (8, 7), 3).double(),
}


def hooked() -> nn.Module:
    net = mr.networks.mlp(6, (8, 7), 3)
    net[1].register_forward_hook(lambda *arguments: 2 * arguments[2])
    return net


def tied() -> nn.Module:
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    net[2].weight = net[0].weight
    return net


DO_NOT: dict[str, Callable[[], nn.Module]] = {
    "another activation": lambda: nn.Sequential(nn.Linear(6, 5), nn.Softplus(), nn.Linear(5, 3)),
    "batch norm": lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)),
    "half": lambda: mr.networks.mlp(6, (8, 7), 3).bfloat16(),
    "hooked": hooked,
    "tied": tied,
}


@pytest.mark.parametrize("make", QUALIFY.values(), ids=QUALIFY.keys())
def test_chosen_for_any_chain_of_linear_and_relu(make: Callable[[], nn.Module]) -> None:
    learner = mr.Online(make(), lr=0.1)
    assert learner.chosen_engine.name == "cpu"
    learner.observe_many(*examples())
    assert learner.seen == 40


@pytest.mark.parametrize("make", DO_NOT.values(), ids=DO_NOT.keys())
def test_any_other_model_uses_torch(make: Callable[[], nn.Module]) -> None:
    learner = mr.Online(make(), lr=0.1)
    assert learner.chosen_engine.name == "torch"
    with pytest.raises(mr.InputError, match="engine 'cpu' needs"):
        mr.Online(make(), lr=0.1, engine="cpu")


def test_losses_that_do_not_qualify() -> None:
    net = mr.networks.mlp(6, (8,), 3)
    assert mr.Online(net, loss=nn.CrossEntropyLoss()).chosen_engine.name == "cpu"
    assert mr.Online(net, loss=nn.CrossEntropyLoss(label_smoothing=0.1)).chosen_engine.name == "torch"
    assert mr.Online(net, loss=lambda outputs, ys: functional.cross_entropy(outputs, ys)).chosen_engine.name == "torch"


def test_the_users_module_holds_the_weights_afterwards() -> None:
    net = mr.networks.glorot(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), seed=0)
    before = [p.detach().clone() for p in net.parameters()]
    learner = mr.MER(net, memory=mr.Reservoir(5), s=2, k=3)
    learner.observe_many(*examples())
    assert all(not torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))
    assert torch.equal(nn.utils.parameters_to_vector(net.parameters()), learner.weights.theta)


@pytest.mark.parametrize("where", [0, 1, 23, 39])
@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_overflow_stops_at_its_example_undoes_and_names_it(where: int, gamma: float) -> None:
    xs, ys = examples()
    poison = xs.clone()
    poison[where] = 3e38
    learner, healthy = mer(gamma=gamma), mer(gamma=gamma)
    with pytest.raises(mr.NonFiniteError, match=f"example {where} of the stream"):
        learner.observe_many(poison, ys)
    healthy.observe_many(xs[:where], ys[:where])
    assert learner.seen == healthy.seen == where
    torch.testing.assert_close(learner.weights.theta, healthy.weights.theta, rtol=0, atol=0)
    if where:
        assert torch.equal(learner.memory.examples().xs, healthy.memory.examples().xs)
    learner.observe_many(xs[where:], ys[where:])
    healthy.observe_many(xs[where:], ys[where:])
    assert torch.equal(learner.weights.theta, healthy.weights.theta)


def test_weights_that_overflow_without_a_loss_that_does() -> None:
    learner = mr.Online(mr.networks.mlp(2, (), 2), lr=1e38)
    learner.observe(torch.zeros(2), 0)
    before = learner.weights.theta.clone()
    with pytest.raises(mr.NonFiniteError, match="example 1 "):
        learner.observe_many(torch.full((3, 2), 100.0), torch.tensor([1, 1, 1]))
    assert torch.equal(learner.weights.theta, before)


def test_exact_resume(tmp_path: Path) -> None:
    xs, ys = examples()
    whole = mer()
    whole.observe_many(xs, ys)
    learner = mer()
    learner.observe_many(xs[:17], ys[:17])
    learner.save(tmp_path / "run.ckpt")
    learner = mr.load(tmp_path / "run.ckpt", mr.networks.mlp(6, (8, 7), 3))  # type: ignore[assignment]
    assert learner.chosen_engine.name == "cpu"
    learner.observe_many(xs[17:], ys[17:])
    assert torch.equal(learner.weights.theta, whole.weights.theta)


def test_a_result_does_not_depend_on_what_runs_beside_it() -> None:
    xs, ys = examples(400)

    def work(seed: int) -> Tensor:
        learner = mer(seed=seed)
        learner.observe_many(xs, ys)
        return learner.weights.theta

    alone = [work(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        beside = list(pool.map(work, range(4)))
    assert all(torch.equal(one, other) for one, other in zip(alone, beside, strict=True))


def test_the_memory_may_be_larger_than_what_was_packed_before() -> None:
    """Chunks of growing size: the packed copy of the table grows with it and stays right."""
    xs, ys = examples(300)
    one, many = mer(), mer()
    one.observe_many(xs, ys)
    for start, end in ((0, 1), (1, 3), (3, 100), (100, 101), (101, 300)):
        many.observe_many(xs[start:end], ys[start:end])
    assert torch.equal(one.weights.theta, many.weights.theta)


def test_inputs_that_are_not_vectors_to_the_first_layer_are_left_to_torch() -> None:
    """A Linear without Flatten on inputs with more dimensions, and on bare numbers."""
    xs, ys = torch.rand(30, 5, 8), torch.rand(30, 5, 4)
    learners = [mr.Online(mr.networks.glorot(nn.Linear(8, 4), 0), regression=True, engine=e) for e in ("auto", "torch")]
    for learner in learners:
        learner.observe_many(xs, ys)
        assert learner.chosen_engine.name == "torch"
    assert torch.equal(learners[0].weights.theta, learners[1].weights.theta)


def test_class_weights_are_no_plain_cross_entropy() -> None:
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.1]))
    assert mr.ER(mr.networks.mlp(6, (8,), 3), loss=weighted).chosen_engine.name == "torch"


def test_parameters_in_another_order_have_the_other_kernel() -> None:
    layer = nn.Linear(6, 3)
    weight = layer.weight
    del layer.weight
    layer.weight = weight  # now the bias comes first
    assert [name for name, _ in layer.named_parameters()] == ["bias", "weight"]
    engine = mr.Online(layer).chosen_engine
    assert isinstance(engine, TracedEngine)
    assert isinstance(engine.current, LayerEngine)


def test_losses_that_do_not_go_with_their_targets_are_left_to_torch() -> None:
    soft = mr.Online(mr.networks.mlp(6, (8,), 3), loss=functional.cross_entropy, regression=True)
    assert soft.chosen_engine.name == "torch"
    soft.observe(torch.rand(6), torch.tensor([0.2, 0.3, 0.5]))
    assert mr.Online(mr.networks.mlp(6, (8,), 3), loss=functional.mse_loss).chosen_engine.name == "torch"


def test_another_dataset_is_not_mistaken_for_the_one_before() -> None:
    first, second = torch.rand(30, 6), torch.rand(20, 6)
    learners = [mr.Reptile(mr.networks.mlp(6, (8,), 3), s=3, k=5, engine=engine) for engine in ("torch", "cpu")]
    for learner in learners:
        learner.train(first, torch.arange(30) % 3, updates=5)
        learner.train(second, torch.arange(20) % 3, updates=5)
    torch.testing.assert_close(learners[0].weights.theta, learners[1].weights.theta)


def test_restored_into_a_learner_that_has_learned_other_things(tmp_path: Path) -> None:
    xs, ys = examples()
    stream, other = (mr.OwnStream.from_tensors(x, ys, test=(x, ys)) for x in (xs, 1 - xs))
    expected = mr.run(mer(), stream, checkpoint=tmp_path / "whole.ckpt")
    work = mr.Run(mer(), stream, checkpoint=tmp_path / "half.ckpt")
    for step in work.steps():
        if step.seen:
            work.save()
            break
    learner = mer()
    mr.run(learner, other)
    assert mr.run(learner, stream, checkpoint=tmp_path / "half.ckpt").weights == expected.weights


def test_a_nan_inside_the_net_is_not_taken_for_a_closed_unit() -> None:
    """Two infinities that cancel in a hidden unit: NaN there, though every output could be finite."""
    results = []
    for engine in ("torch", "cpu"):
        net = mr.networks.mlp(2, (2,), 2, seed=0)
        learner = mr.Online(net, lr=0.1, engine=engine)
        with torch.no_grad():
            learner.weights.theta[:4] = torch.tensor([3e38, -3e38, 0.1, 0.1])
        with pytest.raises(mr.NonFiniteError, match="example 1 "):
            learner.observe_many(torch.tensor([[0.0, 0.0], [10.0, 10.0], [0.0, 0.0]]), torch.tensor([0, 1, 0]))
        results.append(learner.seen)
    assert results == [1, 1]


@pytest.mark.parametrize("kind", [mr.Online, mr.GEM])
def test_a_loss_that_overflows_although_its_gradient_does_not(kind: type[mr.Learner]) -> None:
    for engine in ("torch", "cpu"):
        options = {"memory": mr.Reservoir(5)} if kind is mr.GEM else {}
        learner = kind(mr.networks.mlp(2, (), 1), regression=True, lr=1e-30, engine=engine, **options)  # type: ignore[arg-type]
        with pytest.raises(mr.NonFiniteError, match="example 0 "):
            learner.observe(torch.ones(2), torch.tensor([1e20]))


def test_wide_and_deep() -> None:
    xs, ys = torch.rand(20, 50), torch.randint(17, (20,))
    learners = [
        mr.MER(
            mr.networks.mlp(50, (64, 17, 130, 16), 17), memory=mr.Reservoir(9), lr=0.05, beta=0.3, s=2, k=17, engine=e
        )
        for e in ("torch", "cpu")
    ]
    for learner in learners:
        learner.observe_many(xs, ys)
    torch.testing.assert_close(learners[0].weights.theta, learners[1].weights.theta, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("zeros", [0.0, 0.3, 0.5, 0.7, 0.9], ids=str)
@pytest.mark.parametrize("k", [1, 6, 8, 21])
def test_any_share_of_zeros_in_the_inputs(zeros: float, k: int) -> None:
    """Dense and sparse inputs go different ways through the first layer; some chunks have both."""
    generator = torch.Generator().manual_seed(0)
    xs = torch.rand(60, 50, generator=generator, dtype=torch.float64)
    shares = zeros + 0.2 * torch.rand(60, 1, generator=generator)
    xs[torch.rand(60, 50, generator=generator) < shares] = 0
    ys = torch.randint(5, (60,), generator=generator)
    learners = [
        mr.MER(
            mr.networks.mlp(50, (40, 9), 5, seed=2).double(),
            memory=mr.Reservoir(30),
            lr=0.05,
            beta=0.3,
            gamma=0.7,
            s=2,
            k=k,
            engine=engine,
        )
        for engine in ("torch", "cpu")
    ]
    for learner in learners:
        learner.observe_many(xs, ys)
    torch.testing.assert_close(learners[0].weights.theta, learners[1].weights.theta, rtol=1e-12, atol=1e-12)


def two_heads() -> mr.networks.MultiHead:
    """Heads right above a ReLU, so that each task's way is a chain."""
    body = nn.Sequential(mr.networks.mlp(6, (8,), 7, seed=1), nn.ReLU())
    return mr.networks.MultiHead(body, features=7, classes=(3, 4), seed=2)


@pytest.mark.parametrize("options", [{"optimizer": "adam"}, {"clip": 0.5}], ids=str)
def test_a_step_on_all_weights_where_tasks_have_parts_of_their_own(options: dict[str, object]) -> None:
    xs, ys = examples(10)
    learners = [mr.ER(two_heads(), memory=mr.Reservoir(5), k=3, engine=e, **options) for e in ("torch", "auto")]  # type: ignore[arg-type]
    for learner in learners:
        learner.observe_many(xs, ys, task=0)
    assert torch.equal(learners[0].weights.theta, learners[1].weights.theta)


def test_outputs_of_heads_with_fewer_classes_have_one_shape_however_many() -> None:
    learner, (xs, _) = mr.Online(two_heads()), examples(200)
    torch.testing.assert_close(learner.outputs(xs, task=0)[:20], learner.outputs(xs[:20], task=0))


@pytest.mark.parametrize("seed", range(5))
def test_with_heads_pieces_of_any_size_and_a_loaded_learner_give_the_same_weights(seed: int, tmp_path: Path) -> None:
    xs, ys = examples(60)
    tasks = torch.arange(60) // 30
    found = []
    for size in (60, 7, 1):
        learner: mr.Learner = mr.MER(two_heads(), memory=mr.Reservoir(10), lr=0.1, beta=0.5, s=1, k=2, seed=seed)
        for part in torch.arange(60).split(size):
            learner.observe_many(xs[part], ys[part], tasks[part])
            learner.save(tmp_path / "run.ckpt")
            learner = mr.load(tmp_path / "run.ckpt", two_heads())
        found.append(learner.weights.theta)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("factors", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("hidden", [(), (16,), (100, 30), (7, 130), (250,)], ids=str)
def test_gem_with_more_memories_than_are_done_together(
    dtype: torch.dtype, hidden: tuple[int, ...], factors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rings that are not full, that wrap around, of more than 64 slots, and a task that comes again."""
    generator = torch.Generator().manual_seed(0)
    xs = torch.rand(330, 31, generator=generator) * (torch.rand(330, 31, generator=generator) < 0.3)
    ys = torch.randint(3, (330,), generator=generator)
    tasks = torch.tensor([0, 1, 2, 1]).repeat_interleave(torch.tensor([200, 60, 50, 20]))
    shares = []

    def watched(*arguments: Any) -> Tensor:
        shares.append(project(*arguments))
        return shares[-1]

    monkeypatch.setattr(gem, "project", watched)
    monkeypatch.setattr(cpu_engine, "pays", lambda *_: factors)
    found = []
    for engine in ("torch", "cpu"):
        net = mr.networks.mlp(31, hidden, 3, seed=1).to(dtype)
        learner = mr.GEM(net, memory=mr.Ring(451, tasks=3), lr=0.05, engine=engine)
        learner.observe_many(xs.to(dtype), ys, tasks)
        found.append(learner.weights.theta)
    violated = [bool((some[1:] > 0).any()) for some in shares if len(some) > 1]
    assert 20 < sum(violated) < len(violated) - 20
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-12)


def test_gem_of_another_table_does_not_take_the_memories_of_the_one_before() -> None:
    xs, ys = examples(60)
    learner = mr.GEM(mr.networks.mlp(6, (8,), 3, seed=1), memory=mr.Ring(10, tasks=2), lr=0.1, engine="cpu")
    plain = mr.GEM(mr.networks.mlp(6, (8,), 3, seed=1), memory=mr.Ring(10, tasks=2), lr=0.1, engine="torch")
    for one in (learner, plain):
        one.observe_many(xs[:30], ys[:30], torch.arange(30) // 15)
        assert one.table is not None
        brought = Columns({"x": xs[30:40], "y": ys[30:40], "task": torch.arange(10) // 5})
        other = Table(10, 256, brought, TensorStorage(torch.device("cpu")))
        other.bring(brought)
        other.keep(np.arange(10))
        other.writes[:] = one.table.writes
        one.table = other
        one.observe_many(xs[40:], ys[40:], 1)
    torch.testing.assert_close(learner.weights.theta, plain.weights.theta, rtol=1e-4, atol=1e-6)


def test_gem_goes_on_after_an_example_whose_loss_is_not_finite() -> None:
    net = mr.networks.mlp(6, (8, 40), 3).double()  # the first layer is not the widest
    with torch.no_grad():
        net[1].weight.mul_(10)  # type: ignore[operator]
    learner, (xs, ys) = mr.GEM(net, memory=mr.Ring(10, tasks=2), engine="cpu"), examples()
    learner.observe_many(xs[:20].double(), ys[:20], torch.arange(20) // 10)
    with pytest.raises(mr.NonFiniteError):
        learner.observe(torch.full((6,), 1.7e308, dtype=torch.float64), 0, task=1)
    learner.observe(xs[20].double(), ys[20], task=1)
    assert learner.seen == 21


def test_what_was_compiled_before_any_of_its_files_changed_is_not_used(tmp_path: Path) -> None:
    folder = Path(layout.__file__).parent
    stamps = {source_stamp(folder, layout.KERNEL_FILES)}
    for name in ("simd.py", "layout.py", "steps.py", "groups.py", "optimizer_steps.py", "factor_steps.py"):
        shutil.copytree(folder, tmp_path / name)
        with (tmp_path / name / name).open("a") as file:
            file.write("# changed")
        stamps.add(source_stamp(tmp_path / name, layout.KERNEL_FILES))
    assert len(stamps) == 7
    functions: list[Any] = [steps.run_plan, groups.group_gradients, optimizer_steps.run_plan, layout.pack]
    for function in functions:
        assert function._cache._cache_file._source_stamp == layout.STAMP


def test_a_hook_on_a_parameter_is_obeyed() -> None:
    net, (xs, ys) = mr.networks.mlp(6, (8,), 3), examples()
    net[1].weight.register_hook(torch.zeros_like)  # type: ignore[operator]
    before = net[1].weight.detach().clone()  # type: ignore[operator]
    mr.Online(net, lr=0.1).observe_many(xs, ys)
    assert torch.equal(net[1].weight, before)  # type: ignore[arg-type]


def test_predictions_in_another_thread_do_not_disturb_learning() -> None:
    xs, ys = examples(200)
    alone, watched = mer(), mer()
    alone.observe_many(xs, ys)
    watched.observe_many(xs[:1], ys[:1])
    with ThreadPoolExecutor(2) as pool:
        learning = pool.submit(lambda: [watched.observe(xs[i], int(ys[i])) for i in range(1, 200)])
        looking = pool.submit(lambda: [watched.predict(xs) for _ in range(200)])
        learning.result()
        looking.result()
    assert torch.equal(alone.weights.theta, watched.weights.theta)
