"""The fleet's kernel, interpreted on the CPU, against the plain engine; and what a fleet reports, saves and refuses."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import metareplay as mr
from metareplay import networks
from metareplay.bench.frame import fill
from metareplay.experiments.loop import Run
from metareplay.runners.fleet import fleet as fleet_engine
from metareplay.runners.fleet.fleet import WINDOW, Fleet
from metareplay.runners.fleet.layout import Layout, Place
from metareplay.runners.fleet.terms import Terms
from metareplay.streams.stream import Chunk, Examples, Stream

INPUTS, HIDDEN, CLASSES = 20, (12, 9), 5


class Noise(Stream):
    """Made-up images of which most pixels are zero."""

    def __init__(self, seed: int = 0, examples: int = 8, tasks: int = 2, dtype: torch.dtype = torch.uint8) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.seed, self.examples, self._tasks = seed, examples, tasks
        count = examples * tasks
        xs = torch.randint(0, 256, (count, INPUTS), generator=generator)
        self.xs = (xs * (torch.rand(count, INPUTS, generator=generator) < 0.3)).to(dtype)
        self.ys = torch.randint(0, CLASSES, (count,), generator=generator)

    @property
    def tasks(self) -> int:
        return self._tasks

    @property
    def total(self) -> int:
        return len(self.xs)

    def chunks(self, start: int = 0) -> Iterator[Chunk]:
        for task in range(self.tasks):
            some = slice(max(start, task * self.examples), (task + 1) * self.examples)
            yield Chunk(self.xs[some], self.ys[some], task)

    def test(self, task: int) -> Examples:
        del task
        return Examples(self.xs, self.ys)

    def settings(self) -> dict[str, object]:
        return {"stream": "Noise", "seed": self.seed, "examples": self.examples}


def net(seed: int = 0) -> nn.Module:
    return networks.mlp(INPUTS, HIDDEN, CLASSES, seed=seed)


Make = Callable[[], mr.Learner]
LEARNERS: dict[str, Make] = {
    "several examples per block": lambda: mr.MER(
        net(), memory=mr.Reservoir(5), lr=0.1, beta=0.3, s=2, k=4, engine="torch"
    ),
    "a long batch": lambda: mr.MER(
        net(1), memory=mr.Reservoir(40), lr=0.05, beta=0.1, s=1, k=30, seed=1, engine="torch"
    ),
    "gamma": lambda: mr.MER(
        net(1), memory=mr.Reservoir(6), lr=0.05, beta=0.5, gamma=0.3, s=1, k=4, seed=4, engine="torch"
    ),
    "official": lambda: mr.MER(
        net(2), memory=mr.Reservoir(4, rule="official"), lr=0.1, beta=1.0, s=3, k=3, seed=2, engine="torch"
    ),
    "Algorithm 6": lambda: mr.MEROneBigBatch(
        net(3), memory=mr.Reservoir(6), lr=0.05, gamma=0.3, s=2, k=4, seed=3, engine="torch"
    ),
    "Algorithm 7": lambda: mr.MERCurrentRate(
        net(), memory=mr.Reservoir(7), lr=0.05, gamma=0.3, s=3, k=6, engine="torch"
    ),
    "online": lambda: mr.Online(net(2), lr=0.05, engine="torch"),
}


def started(name: str, stream: Stream | None = None) -> Run:
    return Run(LEARNERS[name](), stream or Noise())


def distance(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


@pytest.fixture(scope="module")
def flown() -> Fleet:
    """Every kind of learner, each with a stream of its own, two with the same one, task by task."""
    fleet = Fleet([started(name, Noise(number % 5)) for number, name in enumerate(LEARNERS)], "cpu")
    fleet.learn(8)
    fleet.learn(8)
    return fleet


@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_lands_on_the_weights_of_the_plain_engine(flown: Fleet, name: str) -> None:
    number = list(LEARNERS).index(name)
    plain = started(name, Noise(number % 5))
    before = plain.learner.weights.theta.clone()
    for chunk in plain.stream.chunks():
        plain.learner.observe_many(chunk.xs, chunk.ys)
    assert flown.failed[number] is None
    assert distance(flown.theta(number), plain.learner.weights.theta) < 1e-6
    assert distance(before, plain.learner.weights.theta) > 1e-3


def test_accuracy_is_that_of_the_net(flown: Fleet) -> None:
    for number, name in enumerate(LEARNERS):
        same = LEARNERS[name]()
        same.weights.theta.copy_(flown.theta(number))
        stream = flown.runs[number].stream
        right = same.predict(stream.test(0).xs) == stream.test(0).ys
        assert flown.accuracy(number, 0) == pytest.approx(100 * right.double().mean().item())


def test_batches_longer_than_a_tile() -> None:
    stream, count = Noise(examples=150, tasks=1), 2
    learner = mr.MER(net(), memory=mr.Reservoir(200), lr=0.02, beta=0.3, s=1, k=140, engine="torch")
    beside = Run(LEARNERS["online"](), stream)
    fleet = Fleet([Run(learner, stream), beside], "cpu")
    fleet.start_with(145)
    fleet.learn(count)
    plain = mr.MER(net(), memory=mr.Reservoir(200), lr=0.02, beta=0.3, s=1, k=140, engine="torch")
    fill(plain, stream.xs[:145], stream.ys[:145])
    plain.observe_many(stream.xs[145 : 145 + count], stream.ys[145 : 145 + count])
    assert distance(fleet.theta(0), plain.weights.theta) < 1e-6
    alone = Fleet([beside], "cpu")
    alone.start_with(145)
    alone.learn(count)
    assert torch.equal(alone.theta(0), fleet.theta(1))


def test_a_restored_state_continues_bit_for_bit_whatever_the_other_runs_are(flown: Fleet) -> None:
    first = Fleet([started("several examples per block")], "cpu")
    first.learn(8)
    state = first.state()
    second = Fleet([started("several examples per block")], "cpu")
    second.restore(state)
    second.learn(8)
    assert torch.equal(second.theta(0), flown.theta(0))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, which stands in for the GPU
@pytest.mark.parametrize(("lr", "beta"), [(1e30, 1.0), (300.0, 1.0), (3000.0, 0.01)])  # the last two: only in float16
def test_numbers_that_are_not_finite_end_a_run_and_no_other(lr: float, beta: float) -> None:
    wild = mr.MER(net(), memory=mr.Reservoir(5), lr=lr, beta=beta, s=1, k=4, engine="torch")
    fleet = Fleet([Run(wild, Noise(1)), started("online", Noise(1))], "cpu")
    fleet.learn(8)
    fleet.learn(8)
    assert fleet.failed[0] is not None
    assert fleet.failed[1] is None
    assert torch.isfinite(fleet.theta(1)).all()


@pytest.mark.parametrize(
    ("learner", "says"),
    [
        (lambda: mr.ER(net(), memory=mr.Reservoir(5)), "not ER"),
        (lambda: mr.MER(net(), memory=mr.Recent(5)), "Reservoir, not with Recent"),
        (lambda: mr.MER(net(), memory=mr.Reservoir(5), gamma=0.5, s=2), "gamma=1 or s=1"),
        (lambda: mr.MER(net(), memory=mr.Reservoir(5), clip=1.0), "clips"),
        (lambda: mr.MER(net(), memory=mr.Reservoir(5), k=513), "up to 512"),
        (lambda: mr.Online(net(), loss=nn.functional.multi_margin_loss), "cross-entropy"),
        (lambda: mr.Online(networks.mlp(INPUTS, (8,), CLASSES)), "two hidden layers"),
        (lambda: mr.Online(networks.mlp(INPUTS, (200, 8), CLASSES)), "up to 128"),
        (lambda: mr.Online(net().double()), "float32"),
    ],
)
def test_what_cannot_fly_is_told_why(learner: Make, says: str) -> None:
    with pytest.raises(mr.InputError, match=says):
        Fleet([Run(learner(), Noise())], "cpu")


def test_runs_that_do_not_go_together() -> None:
    other = Run(mr.Online(networks.mlp(INPUTS, (8, 8), CLASSES)), Noise())
    with pytest.raises(mr.InputError, match="nets of one shape"):
        Fleet([started("online"), other], "cpu")
    with pytest.raises(mr.InputError, match="equally long tasks"):
        Fleet([started("online"), started("online", Noise(examples=9))], "cpu")
    with pytest.raises(mr.InputError, match="bytes"):
        Fleet([started("online", Noise(dtype=torch.float32))], "cpu")
    with pytest.raises(mr.InputError, match="at least one"):
        Fleet([], "cpu")


def test_without_a_gpu_or_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(mr.InputError, match="needs a CUDA GPU"):
        Fleet([started("online")])
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(mr.InputError, match="needs a CUDA GPU"):
        Fleet([started("online")], "cpu")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(mr.InputError, match="needs Triton"):
        Fleet([started("online")], "cpu")


def test_a_gpu_that_is_too_small_says_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    run = started("online")
    monkeypatch.setattr(fleet_engine, "check_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2**30, 2**30))
    with pytest.raises(mr.InputError, match=r"9000 runs need .* GiB .* fly at most \d+ at a time"):
        Fleet([run] * 9000, "cuda")


def test_beyond_the_end_of_the_streams() -> None:
    fleet = Fleet([started("online")], "cpu")
    with pytest.raises(mr.InputError, match="the streams have 16"):
        fleet.learn(17)
    assert fleet.seen == 0


def test_the_kernel_and_the_flight_agree_on_windows() -> None:
    assert Layout.of((INPUTS, *HIDDEN, CLASSES), span=128).window == WINDOW
    stream = Noise(examples=WINDOW + 3, tasks=1)
    whole, parts = (Fleet([started("several examples per block", stream)], "cpu") for _ in range(2))
    for fleet, counts in ((whole, [6]), (parts, [3, 3])):
        fleet.start_with(WINDOW - 3)
        for count in counts:
            fleet.learn(count)
    assert torch.equal(parts.theta(0), whole.theta(0))


def test_the_kernel_and_the_fleet_find_weights_at_the_same_place() -> None:
    layout = Layout.of((INPUTS, *HIDDEN, CLASSES), span=128)
    views = layout.views(torch.arange(layout.theta_size))
    assert [int(view.flatten()[0]) for view in views] == list(layout.theta)
    assert sum(view.numel() for view in views) == layout.theta_size


def test_the_terms_of_a_learner() -> None:
    assert Terms.of(LEARNERS["Algorithm 6"]()) == Terms(6, 6, 2, 1, Place.LAST, 1, 0.05, 0.05, 0.3)
    assert Terms.of(LEARNERS["Algorithm 7"]()).current_rate == pytest.approx(0.15)
    assert Terms.of(LEARNERS["gamma"]()).beta == pytest.approx(0.15)
    assert Terms.of(LEARNERS["official"]()).odds == 2
