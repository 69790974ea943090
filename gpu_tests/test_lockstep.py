"""Lockstep on a real GPU: the weights of float64 on the CPU, the same bits alone and in formation."""

import tempfile
import threading
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import metareplay as mr
from gpu_tests.test_cuda_engine import apart, same, taught
from metareplay._core.columns import Columns
from metareplay._core.table import Table, TensorStorage
from metareplay.engines.choose import EngineName
from metareplay.engines.cuda.engine import CudaEngine
from metareplay.engines.cuda.formation import Formation
from metareplay.networks.cnn import Norm

CLASSES, TASKS = (5, 7, 6), 3
ENGINES: tuple[EngineName, EngineName] = ("torch", "cuda")
NEAR = 1e-4  # a share of the way that the weights went
SECONDS = 200.0  # after which a thread has hung; kernels are compiled in the meantime
Make = Callable[[nn.Module, EngineName], mr.Learner]


def net(norm: Norm | None = None, seed: int = 1) -> nn.Module:
    return mr.networks.omniglot_cnn(seed, classes=CLASSES, norm=norm)


def examples(count: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Images in bytes, labels that every task has, and tasks one after the other."""
    generator = torch.Generator().manual_seed(seed)
    xs = torch.randint(256, (count, 1, 28, 28), generator=generator, dtype=torch.uint8)
    return xs, torch.randint(min(CLASSES), (count,), generator=generator), torch.arange(count) * TASKS // count


def memory() -> mr.Reservoir:
    return mr.Reservoir(12)


LEARNERS: dict[str, tuple[Make, int]] = {  # with as many examples as give about 60 steps
    "mer": (
        lambda net, engine: mr.MER(net, memory=memory(), lr=0.02, beta=0.3, gamma=0.7, s=2, k=4, engine=engine),
        9,
    ),
    "mer-clip": (
        lambda net, engine: mr.MER(net, memory=memory(), lr=0.02, beta=0.3, s=2, k=4, clip=0.5, engine=engine),
        9,
    ),
    "mer-current-rate": (
        lambda net, engine: mr.MERCurrentRate(net, memory=memory(), lr=0.01, gamma=0.3, s=3, k=3, engine=engine),
        7,
    ),
    "online": (lambda net, engine: mr.Online(net, lr=0.02, engine=engine), 60),
    "online-steps": (lambda net, engine: mr.Online(net, lr=0.02, steps=3, engine=engine), 20),
    "ewc": (lambda net, engine: mr.EWC(net, lr=0.02, strength=3.0, fisher_examples=4, engine=engine), 60),
    "ewc-clip": (
        lambda net, engine: mr.EWC(net, lr=0.02, strength=3.0, fisher_examples=4, clip=0.5, engine=engine),
        60,
    ),
}


def engine_of(learner: mr.Learner) -> CudaEngine:
    engine = learner.chosen_engine
    assert isinstance(engine, CudaEngine)
    return engine


def in_lockstep(learner: mr.Learner) -> bool:
    return engine_of(learner)._side_by_side is not None


def in_threads(works: list[Callable[[], object]]) -> None:
    """Do all this at the same time; fail if any of it fails, or hangs."""
    failed: list[BaseException] = []

    def work(one: Callable[[], object]) -> None:
        try:
            one()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(one,), daemon=True) for one in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert not failed, failed[0]
    assert not any(thread.is_alive() for thread in threads), "it hangs"


def from_float64(ours: mr.Learner, net: Callable[[], nn.Module], make: Make, given: tuple[Tensor, ...]) -> float:
    """Return how far a learner's weights are from those of float64 on the CPU, as a share of the way that they went.

    The exact result itself jumps where two values in a window of max-pooling are nearly equal: first weights that
    differ by 1e-7 can end several percent apart. So several runs begin that close together, and the nearest counts.

    Args:
        ours: The learner, taught.
        net: Makes its network with the first weights.
        make: Makes the learner.
        given: What it was taught.
    """
    theta, found = ours.weights.theta.cpu().double(), []
    for seed in range(8):
        exact = make(net().double(), "torch")
        start, generator = exact.weights.theta.clone(), torch.Generator().manual_seed(seed)
        if seed:
            exact.weights.theta.mul_(1 + 1e-7 * torch.randn(len(start), generator=generator, dtype=torch.float64))
        wanted = taught(exact, given).weights.theta
        found.append(float((theta - wanted).norm() / (wanted - start).norm()))
        if found[-1] < NEAR:
            break
    return min(found)


def test_every_learner_as_float64_on_the_cpu() -> str:
    worst = 0.0
    norms: tuple[Norm | None, ...] = (None, "group")
    for norm in norms:
        for name, (make, count) in LEARNERS.items():
            ours = taught(make(net(norm).cuda(), "cuda"), examples(count))
            assert in_lockstep(ours), f"{norm} {name}: {ours.chosen_engine.name}"
            found = from_float64(ours, partial(net, norm), make, examples(count))
            assert found < NEAR, f"{norm} {name} {found}"
            worst = max(worst, found)
    return f"distance at most {worst:.1e} of the way"


def test_one_head_and_real_inputs_as_float64_on_the_cpu() -> str:
    xs, ys, tasks = examples(9)
    given = xs.float() / 128 - 1, ys, tasks
    make, _ = LEARNERS["mer"]
    one_head = partial(mr.networks.omniglot_cnn, 2, classes=5, norm="group")
    ours = taught(make(one_head().cuda(), "cuda"), given)
    assert in_lockstep(ours)
    found = from_float64(ours, one_head, make, given)
    assert found < NEAR, found
    return f"{found:.1e}"


def test_five_runs_in_formation_are_the_same_bits_as_alone() -> None:
    """Of other seeds, rates and lengths; each is taught in pieces, so that it waits for the others again and again."""
    for clip in (None, 0.5):

        def made(seed: int, clip: float | None = clip) -> mr.Learner:
            return mr.MER(
                net("group", seed).cuda(), memory=memory(), lr=0.01 + 0.005 * seed, beta=0.3, s=2, k=4, seed=seed,
                clip=clip, engine="cuda",
            )  # fmt: skip

        def given(seed: int) -> tuple[Tensor, Tensor, Tensor]:
            return examples(20 + 3 * seed, seed)

        alone = [taught(made(seed), given(seed), (3, 9, 15)) for seed in range(5)]
        beside, formation = [made(seed) for seed in range(5)], Formation(5)

        def work(seed: int, beside: list[mr.Learner] = beside, formation: Formation = formation) -> None:
            with formation.place() as place:
                engine_of(beside[seed]).place = place
                taught(beside[seed], given(seed), (3, 9, 15))
                assert engine_of(beside[seed]).place is place, "it left the formation"

        in_threads([partial(work, seed) for seed in range(5)])
        assert all(in_lockstep(one) for one in (*alone, *beside))
        assert all(same(one, other) for one, other in zip(alone, beside, strict=True))


def test_online_does_not_hang() -> None:
    """Its examples have one length, so that a graph is made as early as in the trial; several in threads, too."""
    make, _ = LEARNERS["online"]
    learners = [make(net().cuda(), "cuda") for _ in range(3)]
    in_threads([lambda: taught(learners[0], examples(30))])
    in_threads([partial(taught, one, examples(30)) for one in learners[1:]])
    assert all(in_lockstep(one) for one in learners)
    assert all(same(learners[0], one) for one in learners)


def test_chunks_loops_and_resuming_give_the_same_bits() -> None:
    make, _ = LEARNERS["mer"]
    whole = taught(make(net("group").cuda(), "cuda"), examples(24), ())
    single = make(net("group").cuda(), "cuda")
    for x, y, task in zip(*examples(24), strict=True):
        single.observe(x, int(y), int(task))
    assert same(whole, single), "one by one is not the same as a chunk"
    begun = taught(make(net("group").cuda(), "cuda"), tuple(values[:13] for values in examples(24)), ())
    with tempfile.TemporaryDirectory() as folder:
        begun.save(Path(folder) / "a.ckpt")
        ended = mr.load(Path(folder) / "a.ckpt", net("group").cuda())
    taught(ended, tuple(values[13:] for values in examples(24)), ())
    assert all(in_lockstep(one) for one in (whole, single, ended))
    assert same(whole, ended), "resuming is not the same as going on"


def test_an_example_that_is_not_finite_is_undone_and_named() -> None:
    xs, ys, tasks = examples(20)
    real = xs.float() / 255
    norms: tuple[Norm | None, ...] = (None, "group")
    for norm in norms:
        learner = LEARNERS["mer"][0](net(norm).cuda(), "cuda")
        taught(learner, (real[:10], ys[:10], tasks[:10]))
        before, large = learner.weights.theta.clone(), torch.full((1, 1, 28, 28), 3e38)
        wrong = (learner.predict(large, task=0) + 1) % min(CLASSES)  # the loss of a right prediction is 0
        try:
            learner.observe_many(large, wrong, tasks[:1])
            raise AssertionError("nothing was raised")
        except mr.NonFiniteError as error:
            assert "example 10" in str(error)
        assert torch.equal(learner.weights.theta, before)
        taught(learner, (real[10:], ys[10:], tasks[10:]))
        assert in_lockstep(learner)
        assert torch.isfinite(learner.weights.theta).all()


def test_er_with_tasks_by_graphs_as_float64_on_the_cpu() -> str:
    """Its loss is balanced over the tasks in a batch; the whole batch is one step.

    After 40 examples, float32 on the CPU is 15 % away from float64, too, because of a near tie in max-pooling.
    """

    def make(net: nn.Module, engine: EngineName) -> mr.Learner:
        return mr.ERTasks(net, memory=memory(), lr=0.02, k=5, engine=engine)

    ours = taught(make(net("group").cuda(), "cuda"), examples(20))
    assert ours.chosen_engine.name == "cuda", ours.chosen_engine.name
    found = from_float64(ours, partial(net, "group"), make, examples(20))
    assert found < NEAR, found
    return f"{found:.1e}"


def test_gem_by_graphs_is_torch_s() -> str:
    worst = 0.0
    makers: tuple[Callable[[], nn.Module], ...] = (
        partial(net, "group"),
        partial(mr.networks.omniglot_cnn, 1, classes=7),
    )
    for make in makers:
        learners = [
            taught(mr.GEM(make().cuda(), memory=mr.Ring(12, TASKS), lr=0.01, engine=engine), examples(36))
            for engine in ENGINES
        ]
        gradients = engine_of(learners[1])._gradients
        assert gradients is not None
        assert not gradients.fails, "torch had to compute the gradients"
        assert gradients.has_joint_graphs, "no groups were computed together"
        worst = max(worst, apart(*learners))
        assert worst < 1e-4, worst
    return f"relative distance at most {worst:.1e}"


def test_gradients_of_many_memories_in_one_pass_are_torch_s() -> str:
    """Groups of the sizes of GEM's memories on Omniglot, in full pieces and in one that is not full.

    Of the million windows of a group, rounding lets one or two choose another pixel, which shows in the fourth digit.
    """
    classes, worst = (20, 24, 55, 14, 30), 0.0
    generator = torch.Generator().manual_seed(0)
    tasks = torch.arange(len(classes)).repeat_interleave(306)
    xs = torch.randint(256, (len(tasks), 1, 28, 28), generator=generator, dtype=torch.uint8)
    xs[:, :, 14:] = 0  # blank parts give windows of equal values
    ys = torch.randint(min(classes), (len(tasks),), generator=generator)
    columns = Columns({"x": xs, "y": ys, "task": tasks})
    norms: tuple[Norm | None, ...] = (None, "group")
    for norm, size in product(norms, (102, 10)):
        model = mr.networks.omniglot_cnn(1, classes=classes, norm=norm).cuda()
        learner = mr.GEM(model, memory=mr.Ring(9, 3), engine="cuda")
        table = Table(0, len(tasks), columns, TensorStorage(learner.weights.device))
        table.bring(columns)
        engine, rows = engine_of(learner), np.arange(len(tasks)).reshape(-1, 102)[:12, :size]
        for _ in range(6):
            found = engine.gradients(table, list(rows), learner.objective, 0).each()
        assert engine._gradients is not None
        assert engine._gradients.has_joint_graphs, "no groups were computed together"
        wanted = engine._plain.gradients(table, list(rows), learner.objective, 0).each()
        worst = max(worst, float(((found - wanted).norm(dim=1) / wanted.norm(dim=1)).max()))
        assert worst < 1e-3, worst
    return f"relative distance at most {worst:.1e}"
