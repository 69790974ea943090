"""The graph engine on a real GPU: the weights of plain stepping, the same bits every time, nothing left behind."""

import tempfile
import threading
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import metareplay as mr
from metareplay.engines.choose import EngineName
from metareplay.engines.cuda.engine import CudaEngine
from metareplay.engines.cuda.rewrite import streamlined
from metareplay.engines.precision import full_precision

CLASSES, TASKS = 5, 3
Make = Callable[..., mr.Learner]


def mlp() -> nn.Module:
    return mr.networks.mlp(144, (40, 30), CLASSES, seed=1).cuda()


def cnn(norm: bool = False, dropout: bool = False) -> nn.Module:
    """Conv, ReLU and pooling as in the Omniglot net, then a convolution with a stride as in the DQN's."""
    layers: list[nn.Module] = [nn.Conv2d(1, 16, 3, padding=1), *([nn.BatchNorm2d(16)] if norm else []), nn.ReLU()]
    layers += [nn.MaxPool2d(2), nn.Conv2d(16, 20, 3, 2), nn.ReLU(), *([nn.Dropout(0.3)] if dropout else [])]
    layers += [nn.Flatten(), nn.Linear(80, CLASSES)]
    return mr.networks.glorot(nn.Sequential(*layers), seed=2).cuda()


def heads() -> nn.Module:
    body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(72, 16))
    body.append(nn.ReLU())
    return mr.networks.MultiHead(mr.networks.glorot(body, 3), 16, (CLASSES, CLASSES + 2, CLASSES), seed=4).cuda()


def examples(count: int = 40, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    xs = torch.randint(256, (count, 1, 12, 12), generator=generator, dtype=torch.uint8)
    return xs, torch.randint(CLASSES, (count,), generator=generator), torch.arange(count) * TASKS // count


def memory() -> mr.Reservoir:
    return mr.Reservoir(12)


LEARNERS: dict[str, Make] = {
    "online": lambda net, **o: mr.Online(net, lr=0.05, **o),
    "ewc": lambda net, **o: mr.EWC(net, lr=0.05, strength=3.0, fisher_examples=4, **o),
    "er": lambda net, **o: mr.ER(net, memory=memory(), lr=0.05, k=5, **o),
    "mer": lambda net, **o: mr.MER(net, memory=memory(), lr=0.05, beta=0.3, gamma=0.7, s=3, k=6, **o),
    "mer-clip": lambda net, **o: mr.MER(net, memory=memory(), lr=0.05, beta=0.3, s=2, k=4, clip=0.5, **o),
    "mer-one-big-batch": lambda net, **o: mr.MEROneBigBatch(net, memory=memory(), lr=0.05, gamma=0.3, s=2, k=4, **o),
    "mer-current-rate": lambda net, **o: mr.MERCurrentRate(net, memory=memory(), lr=0.02, gamma=0.3, s=3, k=5, **o),
}
NETS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "cnn-norm": lambda: cnn(norm=True),
    "heads": heads,
}


def taught(learner: mr.Learner, given: tuple[Tensor, ...], cuts: tuple[int, ...] = (7,)) -> mr.Learner:
    for part in zip(*(values.tensor_split(cuts) for values in given), strict=True):
        learner.observe_many(*part)
    return learner


def apart(one: mr.Learner, other: mr.Learner) -> float:
    a, b = one.weights.theta.double(), other.weights.theta.double()
    return float((a - b).norm() / a.norm())


def same(one: mr.Learner, other: mr.Learner) -> bool:
    pairs = zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_every_learner_and_net_as_plain_stepping() -> str:
    worst = 0.0
    for kind, net in NETS.items():
        for name, make in LEARNERS.items():
            if kind in ("cnn-norm", "heads") and name not in ("online", "ewc", "mer", "mer-one-big-batch"):
                continue  # takes too long
            plain, graphs = make(net(), engine="torch"), make(net(), engine="cuda")
            taught(plain, examples())
            taught(graphs, examples())
            assert graphs.chosen_engine.name == "cuda", graphs.chosen_engine.name
            found = apart(plain, graphs)
            assert found < 2e-5, f"{kind} {name} {found}"
            buffers = zip(plain.model.buffers(), graphs.model.buffers(), strict=True)
            for a, b in buffers:
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
            worst = max(worst, found)
    return f"relative distance at most {worst:.1e}"


def test_auto_takes_graphs_for_a_model_on_the_gpu() -> None:
    assert taught(LEARNERS["mer"](mlp()), examples()).chosen_engine.name == "cuda"


def test_graphs_are_used_and_not_only_stepping() -> str:
    learner = taught(LEARNERS["mer"](cnn(), engine="cuda"), examples())
    engine = learner.chosen_engine
    assert isinstance(engine, CudaEngine)
    assert engine._batches is not None
    kinds = set(engine._batches._graphs)
    assert (6, True, True) in kinds, kinds
    assert engine._batches.model is not learner.model, "the convolutions were not streamlined"
    return f"graphs: {len(kinds)}"


def test_chunks_loops_and_resuming_give_the_same_bits() -> None:
    for net in (mlp, cnn, lambda: cnn(norm=True), heads):
        make = LEARNERS["mer"]
        whole = taught(make(net(), engine="cuda"), examples(), ())
        single = make(net(), engine="cuda")
        for x, y, task in zip(*examples(), strict=True):
            single.observe(x, int(y), int(task))
        assert same(whole, single), "one by one is not the same as a chunk"
        begun = taught(make(net(), engine="cuda"), tuple(values[:25] for values in examples()), ())
        with tempfile.TemporaryDirectory() as folder:
            begun.save(Path(folder) / "a.ckpt")
            ended = mr.load(Path(folder) / "a.ckpt", net())
        taught(ended, tuple(values[25:] for values in examples()), ())
        assert same(whole, ended), "resuming is not the same as going on"


def test_replicas_in_threads_are_the_same_bits_as_alone() -> None:
    for net in (mlp, cnn):
        alone = [taught(LEARNERS["mer"](net(), engine="cuda", seed=i), examples(60, i)) for i in range(5)]
        beside = [LEARNERS["mer"](net(), engine="cuda", seed=i) for i in range(5)]
        failed: list[BaseException] = []

        def work(learner: mr.Learner, seed: int, failed: list[BaseException] = failed) -> None:
            try:
                taught(learner, examples(60, seed))
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(learner, i)) for i, learner in enumerate(beside)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed, failed[0]
        assert all(learner.chosen_engine.name == "cuda" for learner in beside)
        assert all(same(one, other) for one, other in zip(alone, beside, strict=True))


def test_an_example_that_is_not_finite_is_undone_and_named() -> None:
    xs, ys, tasks = examples()
    real = xs.float() / 255
    learner = LEARNERS["mer"](cnn(norm=True), engine="cuda")
    learner.observe_many(real[:20], ys[:20], tasks[:20])
    before = {name: value.clone() for name, value in learner.model.state_dict().items()}
    try:
        learner.observe_many(torch.full((1, 1, 12, 12), 1e30), ys[:1], tasks[:1])
        raise AssertionError("nothing was raised")
    except mr.NonFiniteError as error:
        assert "example 20" in str(error)
    assert all(torch.equal(before[name], value) for name, value in learner.model.state_dict().items())
    learner.observe_many(real[20:], ys[20:], tasks[20:])
    assert learner.chosen_engine.name == "cuda"


def test_what_cannot_be_captured_falls_back_with_a_reason() -> str:
    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mr.networks.mlp(144, (8,), CLASSES)

        def forward(self, xs: Tensor) -> Tensor:
            scale = 1.0 if float(xs.sum()) > 0 else 2.0  # waits for the device
            found: Tensor = self.net(xs) * scale
            return found

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mr.networks.mlp(144, (8,), CLASSES)
            self.calls = 0

        def forward(self, xs: Tensor) -> Tensor:
            self.calls += 1
            found: Tensor = self.net(xs) * (1 + self.calls % 3)
            return found

    reasons = []
    separate = mr.networks.separate_mlps(144, (12,), CLASSES, TASKS).cuda()
    made: list[Callable[[EngineName], mr.Learner]] = [
        lambda engine: LEARNERS["mer"](cnn(dropout=True), engine=engine),
        lambda engine: LEARNERS["mer"](Asks().cuda(), engine=engine),
    ]
    for make in made:
        plain, fallen = make("torch"), make("cuda")
        taught(plain, examples())
        taught(fallen, examples())
        assert fallen.chosen_engine.name.startswith("torch (cuda could not capture: "), fallen.chosen_engine.name
        assert apart(plain, fallen) < 2e-5
        reasons.append(str(getattr(fallen.chosen_engine, "reason", None)))
    taught(mr.Independent(separate, engine="cuda"), examples())
    counts = taught(mr.Online(Counts().cuda(), engine="cuda"), examples())
    assert counts.chosen_engine.name.startswith("torch (cuda could not capture: "), counts.chosen_engine.name
    assert torch.rand(3, device="cuda").isfinite().all()  # torch's generator is free
    assert torch.nn.functional.dropout(torch.ones(9, device="cuda")).isfinite().all()
    before = torch.cuda.memory_reserved()
    large = torch.empty(2**32, dtype=torch.uint8, device="cuda")
    del large
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before  # torch can free memory
    return "; ".join(reasons)


def test_optimizers_with_moments_are_captured() -> str:
    found = []
    for optimizer in ("adam", "rmsprop"):

        def make(engine: EngineName, optimizer: Any = optimizer) -> mr.Learner:
            return mr.ER(cnn(), memory=memory(), k=4, optimizer=optimizer, lr=0.001, engine=engine)

        plain, graphs = taught(make("torch"), examples()), taught(make("cuda"), examples())
        assert graphs.chosen_engine.name == "cuda", graphs.chosen_engine.name
        found.append(apart(plain, graphs))
        assert found[-1] < 2e-5, found
        moments, ours = plain.chosen_engine.state(), graphs.chosen_engine.state()
        assert all(torch.allclose(moments[name], ours[name], rtol=1e-3, atol=1e-7) for name in moments)
    return f"relative distance at most {max(found):.1e}"


def test_a_run_s_record_names_the_engine() -> None:
    xs, ys, _ = examples()
    for net, wanted in ((cnn(), "cuda"), (cnn(dropout=True), "torch (cuda could not capture: ")):
        record = mr.run(LEARNERS["mer"](net, engine="cuda"), mr.OwnStream.from_tensors(xs, ys, test=(xs, ys)))
        assert record.engine.startswith(wanted), record.engine
        assert record.examples == len(xs)


def test_settings_of_torch_and_the_generator_are_left_alone() -> None:
    def settings() -> list[Any]:
        cudnn = torch.backends.cudnn
        return [cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, cudnn.deterministic, cudnn.benchmark]

    before, state = settings(), torch.cuda.get_rng_state()
    taught(LEARNERS["mer"](cnn(), engine="cuda"), examples())
    assert settings() == before
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_full_float32_against_float64_on_the_cpu() -> str:
    """Nothing like tf32's error: the same plan in float64 is the reference."""
    found = {}
    for name, net in NETS.items():
        graphs = taught(LEARNERS["mer"](net(), engine="cuda"), examples())
        reference = taught(LEARNERS["mer"](net().cpu().double(), engine="torch"), examples())
        a, b = graphs.weights.theta.cpu().double(), reference.weights.theta
        found[name] = float((a - b).norm() / b.norm())
        assert found[name] < 1e-5, found
    return ", ".join(f"{name} {value:.1e}" for name, value in found.items())


def test_streamlined_convolutions_are_torch_s() -> str:
    worst = 0.0
    torch.manual_seed(0)
    layers: list[tuple[int, int, int, int, int, int, int, bool]] = [
        (1, 28, 64, 3, 1, 1, 2, True), (64, 14, 64, 3, 1, 1, 2, True), (64, 3, 64, 3, 1, 1, 2, True),
        (32, 20, 64, 4, 2, 0, 1, True), (3, 9, 5, 3, 2, 1, 1, False), (5, 16, 7, 5, 1, 2, 4, True),
        (3, 8, 6, 1, 1, 0, 2, False), (64, 7, 64, 3, 1, 1, 2, True), (4, 84, 32, 8, 4, 0, 1, True),
        (64, 9, 64, 3, 1, 0, 1, True), (128, 8, 128, 3, 1, 1, 2, True),
    ]  # fmt: skip
    for kernel, stride, padding, pool in product((2, 3, 4, 8), (1, 2, 4), (0, 1), (1, 2)):
        size = (kernel + stride + pool * 5) // 4 * 4 + stride % 3  # sizes with and without powers of two in them
        layers.append((16, size, 16, kernel, stride, padding, pool, True))
    for channels, size, outputs, kernel, stride, padding, pool, relu in layers:
        parts: list[nn.Module] = [nn.Conv2d(channels, outputs, kernel, stride, padding)]
        parts += [nn.ReLU()] if relu else []
        parts += [nn.MaxPool2d(pool)] if pool > 1 else []
        net = nn.Sequential(*parts).cuda()
        ours = streamlined(net)
        assert ours is not net
        xs = torch.randn(1, channels, size, size, device="cuda", requires_grad=True)
        exact = nn.Sequential(*parts).double().cpu()
        doubles = xs.detach().cpu().double().requires_grad_()
        wanted = exact(doubles)
        slope = torch.randn_like(wanted)
        reference = torch.autograd.grad(wanted, [doubles, *exact.parameters()], slope)
        net.float().cuda()
        with full_precision(xs.device):
            outputs_ = ours(xs)
            gradients = torch.autograd.grad(outputs_, [xs, *net.parameters()], slope.float().cuda())
        for a, b in zip((outputs_, *gradients), (wanted, *reference), strict=True):
            worst = max(
                worst, float((a.detach().cpu().double() - b.detach()).norm() / b.detach().norm().clamp(min=1e-9))
            )
        assert worst < 3e-6, (worst, channels, size, outputs, kernel, stride, padding, pool, relu)
    return f"relative error at most {worst:.1e}"


def test_a_model_on_the_cpu_is_refused() -> None:
    try:
        mr.Online(mr.networks.mlp(4, (5,), 3), engine="cuda")
        raise AssertionError("nothing was raised")
    except mr.InputError as error:
        assert "model.cuda()" in str(error)


def test_a_memory_that_does_not_fit_is_explained() -> None:
    learner = mr.ER(mr.networks.mlp(10**6, (2,), 2).cuda(), memory=mr.Reservoir(10**7), k=2, engine="cuda")
    try:
        learner.observe(torch.zeros(10**6), 1)
        raise AssertionError("nothing was raised")
    except mr.MetareplayError as error:
        assert "memory" in str(error)
