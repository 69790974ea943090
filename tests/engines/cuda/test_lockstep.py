"""Steps in lockstep, by triton's interpreter: the weights of the torch engine, and runs that do not notice each other.

The interpreter takes about a fifth of a second per step, so networks and plans are tiny.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from no_graphs import Rerun
from torch import Tensor, nn
from torch.nn import functional

import metareplay as mr
from metareplay._core.columns import Columns
from metareplay._core.draws import Draws
from metareplay._core.plan import Plan, Rates
from metareplay._core.table import Table, TensorStorage
from metareplay._core.weights import Weights
from metareplay.engines.cuda import engine as cuda_engine
from metareplay.engines.cuda import lockstep as lockstep_module
from metareplay.engines.cuda import trial
from metareplay.engines.cuda.convnet import ConvNet, Sizes, power_of_2
from metareplay.engines.cuda.engine import CudaEngine
from metareplay.engines.cuda.lockstep import Job, Kind, Lockstep, Terms, _block, _cut, _kinds, _parts, _turns, _warps
from metareplay.engines.cuda.trial import first_examples
from metareplay.engines.objective import QuadraticPenalty, Supervised
from metareplay.engines.torch_engine import TorchEngine

CPU = torch.device("cpu")
PLAIN = Supervised(functional.cross_entropy)
ALIKE = 1e-4  # distance from the torch engine's weights, as a share of the way
Make = Callable[..., mr.Learner]
overflowing = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, which the interpreter uses


def body(norm: bool, relu: bool, pool: bool) -> nn.Sequential:
    """Layers for images of 5 x 5 pixels that end with four features."""
    parts: list[nn.Module] = [nn.Conv2d(1, 2, 2, padding=1) if pool else nn.Conv2d(1, 2, 2, 2, padding=1)]
    parts += [nn.GroupNorm(2, 2)] if norm else []
    parts += [nn.ReLU()] if relu else []
    parts += [nn.MaxPool2d(2)] if pool else []
    parts += [nn.Conv2d(2, 4, 3), *([nn.GroupNorm(2, 4)] if norm else [])]
    parts += [nn.ReLU()] if relu else []
    return nn.Sequential(*parts, nn.Flatten())


def one_head(norm: bool = False, relu: bool = True, pool: bool = True) -> nn.Module:
    return drawn(nn.Sequential(body(norm, relu, pool), nn.Linear(4, 3)))


def three_heads(norm: bool = False, relu: bool = True, pool: bool = True) -> nn.Module:
    return drawn(mr.networks.MultiHead(body(norm, relu, pool), 4, (3, 2, 4)))


def drawn(net: nn.Module, seed: int = 1) -> nn.Module:
    """Draw all parameters, biases too; large enough that every layer learns."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in net.parameters():
        parameter.data = torch.rand(parameter.shape, generator=generator) - 0.4
    return net


def examples(count: int, seed: int = 0, as_bytes: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Images, labels that every task has, and tasks one after the other."""
    generator = torch.Generator().manual_seed(seed)
    xs = torch.randint(256, (count, 1, 5, 5), generator=generator, dtype=torch.uint8)
    ys = torch.randint(2, (count,), generator=generator)
    return xs if as_bytes else xs.float() / 100 - 1, ys, torch.arange(count) * 3 // count


def way(ours: Tensor, wanted: Tensor, start: Tensor) -> float:
    """The distance between two results as a share of the way that one of them went."""
    assert torch.isfinite(wanted).all()
    assert not torch.equal(wanted, start)
    return float((ours - wanted).norm() / (wanted - start).norm())


def in_lockstep(learner: mr.Learner, recorder: Any = None) -> CudaEngine:
    """Put a learner, made with engine="torch", on the engine for GPUs."""
    assert isinstance(learner.chosen_engine, TorchEngine)
    learner.chosen_engine = CudaEngine(learner.chosen_engine, recorder or Rerun())
    return learner.chosen_engine


def mer(net: nn.Module, **options: Any) -> mr.Learner:
    return mr.MER(net, memory=mr.Reservoir(4), s=2, k=2, engine="torch", **options)


def ewc(net: nn.Module, **options: Any) -> mr.Learner:
    return mr.EWC(net, lr=0.05, strength=3.0, engine="torch", **options)


def current_rate() -> mr.Learner:
    return mr.MERCurrentRate(three_heads(), memory=mr.Reservoir(4), lr=0.03, gamma=0.3, s=3, k=2, engine="torch")


LEARNERS: dict[str, tuple[Make, int, bool]] = {  # the learner, how many examples, whether inputs are bytes
    "mer": (lambda: mer(three_heads(norm=True), lr=0.1, beta=0.3, gamma=0.7), 3, True),
    "mer, gamma alone": (lambda: mer(one_head(relu=False), lr=0.05, beta=1.0, gamma=0.5), 3, False),
    "mer, beta alone": (lambda: mer(three_heads(pool=False), lr=0.1, beta=0.4, gamma=1.0), 3, True),
    "mer, clipped": (lambda: mer(one_head(norm=True, pool=False), lr=0.1, beta=0.4, clip=0.5), 3, True),
    "mer, current rate": (current_rate, 4, False),
    "online": (lambda: mr.Online(one_head(norm=True, relu=False), lr=0.05, engine="torch"), 6, False),
    "online, steps": (lambda: mr.Online(three_heads(), lr=0.05, steps=3, engine="torch"), 3, True),
    "ewc": (lambda: ewc(three_heads(), fisher_examples=2), 9, True),
    "ewc, clipped": (lambda: ewc(one_head(pool=False, relu=False), fisher_examples=1, clip=0.3), 6, False),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_learners_have_the_weights_of_the_torch_engine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_engine, "lockstep_obstacle", lambda *_: None)  # no trial, which takes as long as the rest
    make, count, as_bytes = LEARNERS[name]
    plain, ours = make(), make()
    start = plain.weights.theta.clone()
    engine = in_lockstep(ours)
    for learner in (plain, ours):
        learner.observe_many(*examples(count, as_bytes=as_bytes))
    assert engine._side_by_side is not None
    assert engine.name == "cuda"
    assert ours.seen == count
    assert way(ours.weights.theta, plain.weights.theta, start) < ALIKE


@given(
    size=st.tuples(st.integers(3, 8), st.integers(3, 8)),
    kernels=st.tuples(*4 * [st.integers(1, 3)]),
    strides=st.tuples(*4 * [st.integers(1, 2)]),
    paddings=st.tuples(*4 * [st.integers(0, 1)]),
    pools=st.tuples(*2 * [st.sampled_from([1, 2, 4])]),
    channels=st.tuples(*2 * [st.sampled_from([1, 2, 4])]),
    groups=st.tuples(*2 * [st.sampled_from([0, 1, 2])]),
    relus=st.tuples(*2 * [st.booleans()]),
)
@settings(max_examples=15, phases=[Phase.generate])  # not shrunk, which would take minutes
def test_any_geometry(
    size: tuple[int, ...], kernels: tuple[int, ...], strides: tuple[int, ...], paddings: tuple[int, ...],
    pools: tuple[int, ...], channels: tuple[int, ...], groups: tuple[int, ...], relus: tuple[bool, ...],
) -> None:  # fmt: skip
    """One step of a network of two convolutions of any kind."""
    parts: list[nn.Module] = []
    for number, ins in enumerate((1, channels[0])):
        two = slice(2 * number, 2 * number + 2)
        parts.append(nn.Conv2d(ins, channels[number], kernels[two], strides[two], paddings[two]))  # type: ignore[arg-type]
        if groups[number]:
            parts.append(nn.GroupNorm(min(groups[number], channels[number]), channels[number], eps=0.1))
        parts += [nn.ReLU()] if relus[number] else []
        parts += [nn.MaxPool2d(pools[number])] if pools[number] > 1 else []
    net, xs = nn.Sequential(*parts, nn.Flatten()), torch.rand(2, 1, *size)
    try:
        features = net(xs[:1]).shape[1]
    except (RuntimeError, ValueError):  # too small for these filters, windows and groups
        assume(False)
    net = nn.Sequential(net, nn.Linear(features, 3))
    job = made(net, xs, Plan.once(np.full(1, -1), 0.1, 0, 0))
    wanted, start = by_torch(job)[1], job.weights.theta.clone()
    assert lockstep_for([job]).execute([job]) == [1]
    assert way(job.weights.theta, wanted, start) < ALIKE


def made(net: nn.Module, xs: Tensor, plan: Plan, objective: Supervised = PLAIN, seed: int = 0) -> Job:
    """A job on these images, whose labels are 0 and 1 in turn."""
    columns = Columns({"x": xs, "y": torch.arange(len(xs)) % 2, "task": torch.arange(len(xs)) % 3})
    table = Table(0, len(xs), columns, TensorStorage(CPU))
    table.bring(columns)
    return Job(Weights(drawn(net, seed)), plan, table, objective)


def job_of(
    kinds: Sequence[Kind], seed: int = 0, rates: Rates | None = None, net: nn.Module | None = None,
    objective: Supervised = PLAIN,
) -> Job:  # fmt: skip
    """A job with batches of these lengths, of random rows."""
    sizes = [size for kind in kinds for size in kind]
    rows = np.random.default_rng(seed).integers(0, 6, sum(sizes))
    ends, s = np.concatenate([[0], np.cumsum(sizes)]), len(kinds[0])
    plan = Plan(rows, ends, s, np.full(len(kinds), -1), rates or Rates(0.1, 0.1, 0.5, 0.8), 0, 0)
    return made(three_heads() if net is None else net, examples(6, seed)[0], plan, objective, seed)


def lockstep_for(jobs: list[Job], size: int = 1, recorder: Any = None) -> Lockstep:
    job = jobs[0]
    net, terms = ConvNet.of(job.weights, job.objective, job.table), Terms.of(job.plan, job.table, job.objective)
    assert net is not None
    assert terms is not None
    return Lockstep(net, terms, size, recorder or Rerun(), CPU)


def by_torch(job: Job) -> tuple[int, Tensor]:
    """How many examples the torch engine learns, and its weights; the job's own do not change."""
    start = job.weights.theta.clone()
    learned = TorchEngine(job.weights, Draws(0)).execute(job.plan, job.table, job.objective).learned
    found = job.weights.theta.clone()
    job.weights.theta.copy_(start)
    return learned, found


def alone(job: Job) -> tuple[int, Tensor]:
    """How many examples a job learns that has a lockstep for itself, and its weights; the job's own do not change."""
    start = job.weights.theta.clone()
    [learned] = lockstep_for([job]).execute([job])
    found = job.weights.theta.clone()
    job.weights.theta.copy_(start)
    return learned, found


def test_runs_beside_each_other_are_the_same_bits_as_alone() -> None:
    """Other data, weights, rates, clips and lengths; a place between them rests."""
    clips = [replace(PLAIN, clip=clip) for clip in (0.3, 2.0)]
    jobs = [
        job_of([(1, 1), (2, 2), (2, 2)], seed=1, objective=clips[0]),
        job_of([(1, 1), (3, 3)], seed=2, rates=Rates(0.03, 0.2, 0.3, 0.5), objective=clips[1]),
    ]
    wanted = [alone(job) for job in jobs]
    learned = lockstep_for(jobs, size=3).execute([jobs[0], None, jobs[1]])
    assert learned == [3, 0, 2]
    for job, (count, theta) in zip(jobs, wanted, strict=True):
        assert torch.equal(job.weights.theta, theta)
        assert count == len(job.plan)
    expected = by_torch(again := job_of([(1, 1), (2, 2), (2, 2)], seed=1, objective=clips[0]))[1]
    assert way(jobs[0].weights.theta, expected, again.weights.theta) < ALIKE


def test_a_run_whose_batches_still_grow_catches_up_with_the_others() -> None:
    """No place rests, and what the runs do is different at first and the same later."""
    jobs = [job_of([(1,), (2,), (2,)], seed=1), job_of([(2,), (2,), (2,)], seed=2)]
    wanted = [alone(job)[1] for job in jobs]
    assert lockstep_for(jobs, size=2).execute(jobs) == [3, 3]
    for job, theta in zip(jobs, wanted, strict=True):
        assert torch.equal(job.weights.theta, theta)


def penalised(job: Job, strength: float, seed: int) -> Job:
    generator = torch.Generator().manual_seed(seed)
    vectors = [torch.rand(len(job.weights.theta), generator=generator) for _ in range(2)]
    return replace(job, objective=replace(PLAIN, penalty=QuadraticPenalty(strength, *vectors)))


def test_runs_have_their_own_penalties_which_may_change() -> None:
    jobs = [penalised(job_of([(1,), (1,)], seed), strength=seed, seed=seed) for seed in (1, 2)]
    wanted = [by_torch(job)[1] for job in jobs]
    starts = [job.weights.theta.clone() for job in jobs]
    lockstep = lockstep_for(jobs, size=2)
    assert lockstep.execute(jobs) == [2, 2]
    for job, theta, start in zip(jobs, wanted, starts, strict=True):
        assert way(job.weights.theta, theta, start) < ALIKE
    other = penalised(jobs[0], strength=3, seed=3)
    start, expected = other.weights.theta.clone(), by_torch(other)[1]
    assert lockstep.execute([other, None]) == [2, 0]
    assert way(other.weights.theta, expected, start) < ALIKE


@overflowing
@pytest.mark.parametrize("clip", [None, 0.5])
def test_an_example_that_is_not_finite_is_undone_and_ends_its_run_alone(clip: float | None) -> None:
    """The second example of one run has a pixel that is not a number; the other run goes on."""
    objective = replace(PLAIN, clip=clip)
    wild = job_of([(1,), (2,), (1,), (1,)], seed=1, objective=objective)
    wild.plan.rows[:] = [0, 1, 2, 3, 4]
    bad = examples(6, as_bytes=False)[0]
    bad[2, 0, 0, 1] = torch.nan  # in some pixels of two windows
    calm = job_of([(1,), (2,), (2,)], seed=2, objective=objective)
    jobs = [with_images(wild, bad), with_images(calm, examples(6, seed=5, as_bytes=False)[0])]
    after_one, beside = alone(first(jobs[0], 1)), alone(jobs[1])
    assert by_torch(jobs[0])[0] == 1
    lockstep = lockstep_for(jobs, size=2)
    assert lockstep.execute(jobs) == [1, 3]
    assert after_one[0] == 1
    assert torch.equal(jobs[0].weights.theta, after_one[1])
    assert torch.equal(jobs[1].weights.theta, beside[1])
    good = first(jobs[0], 1)
    expected = alone(good)[1]
    assert lockstep.execute([good, None]) == [1, 0]  # it learns again
    assert torch.equal(good.weights.theta, expected)


def with_images(job: Job, xs: Tensor) -> Job:
    return replace(made(three_heads(), xs, job.plan, job.objective), weights=job.weights)


def first(job: Job, count: int) -> Job:
    """Only the first examples of a job."""
    plan, last = job.plan, count * job.plan.s
    rows, ends = plan.rows[: plan.ends[last]], plan.ends[: last + 1]
    return replace(job, plan=replace(plan, rows=rows, ends=ends, slots=plan.slots[:count]))


@overflowing
def test_weights_that_overflow_are_noticed_though_the_losses_are_finite() -> None:
    job = job_of([(1,), (1,)], rates=Rates(float("inf"), float("inf")))
    start = job.weights.theta.clone()
    assert lockstep_for([job]).execute([job]) == [0]
    assert torch.equal(job.weights.theta, start)


@overflowing
def test_a_label_that_a_task_does_not_have_is_not_learned() -> None:
    job = job_of([(1,), (1,)])
    job.plan.rows[:] = [0, 1]
    labels = torch.tensor([0, 3, 0, 0, 0, 0])  # the second task has two classes
    job.table.fill("y", torch.arange(6), labels)
    assert by_torch(job)[0] == lockstep_for([job]).execute([job])[0] == 1


def test_long_examples_are_divided_and_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of([(2, 3), (1, 2)], seed=3)
    whole = alone(job)
    monkeypatch.setattr(lockstep_module, "LONGEST", 2)
    assert len(_parts((2, 3))) == 3
    divided = alone(job)
    assert whole[0] == divided[0] == 2
    assert torch.equal(whole[1], divided[1])
    assert way(divided[1], by_torch(job)[1], job.weights.theta) < ALIKE


def test_long_plans_get_more_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockstep_module, "ROOM", 2)
    jobs = [job_of([(1,), (1,)], seed=1), job_of([(2,), (3,)], seed=2)]
    wanted = [alone(job)[1] for job in jobs]
    lockstep = lockstep_for(jobs)
    assert lockstep._steps == 2
    assert lockstep.execute([jobs[0]]) == [2]
    lockstep._graphs["any"] = lambda: None
    assert lockstep.execute([jobs[1]]) == [2]
    assert lockstep._steps == 8
    assert not lockstep._graphs  # they would look at the old tables
    for job, theta in zip(jobs, wanted, strict=True):
        assert torch.equal(job.weights.theta, theta)


def test_nothing_to_do_changes_nothing() -> None:
    job = job_of([(1,)])
    start = job.weights.theta.clone()
    lockstep = lockstep_for([job], size=2)
    assert lockstep.execute([None, None]) == [0, 0]
    empty = first(job, 0)
    assert lockstep.execute([empty, None]) == [0, 0]
    assert torch.equal(job.weights.theta, start)


def counted(jobs: list[Job | None], monkeypatch: pytest.MonkeyPatch) -> tuple[Rerun, Lockstep, list[int]]:
    """Execute jobs without taking a single step, which would only take time."""
    monkeypatch.setattr(Lockstep, "_step", lambda *_: None)
    recorder = Rerun()
    lockstep = lockstep_for([job for job in jobs if job is not None], len(jobs), recorder)
    return recorder, lockstep, lockstep.execute(jobs)


def test_a_graph_is_made_once_for_each_kind_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third example of a kind in a row makes the graph, which is used from then on."""
    kinds: list[Kind] = [*5 * [(1, 1)], *4 * [(2, 2)], (1, 1), (3, 3), (2, 2)]
    recorder, lockstep, learned = counted([job_of(kinds)], monkeypatch)
    assert learned == [12]
    assert recorder.recorded == len(lockstep._graphs) == 2
    assert recorder.replayed == 3 + 2 + 1 + 1
    again = job_of(kinds, seed=2)
    assert lockstep.execute([again]) == [12]
    assert recorder.recorded == 2


def test_graphs_of_divided_examples_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockstep_module, "LONGEST", 2)
    recorder, lockstep, learned = counted([job_of(4 * [(7,)])], monkeypatch)
    assert learned == [4]
    assert set(lockstep._graphs) == {
        (((2, True, False),), False), (((2, False, False),), False), (((1, False, True),), True)
    }  # fmt: skip
    assert recorder.recorded == 3
    assert recorder.replayed == 2 * 4  # of the third example and the fourth


def test_the_cursor_goes_through_the_whole_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [job_of([(1, 1), (2, 2), (2, 2)]), None, job_of([(3, 3)])]
    _, lockstep, learned = counted(jobs, monkeypatch)
    assert learned == [3, 0, 1]
    assert lockstep._runs.cursor.tolist() == [10, 0, 6]


kinds = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), max_size=6)


@given(runs=st.dictionaries(st.integers(0, 3), kinds, max_size=4))
def test_turns_give_every_run_its_examples_in_order(runs: dict[int, list[Kind]]) -> None:
    given: dict[int, list[Kind]] = {run: [] for run in runs}
    for turn in _turns(runs, 4):
        taking = sum(mask for mask, _, _ in turn)
        assert isinstance(taking, Tensor)
        assert taking.max() == 1  # each run at most once
        assert len({kind for _, kind, _ in turn}) == len(turn)
        for mask, kind, times in turn:
            assert len(mask) == 4
            assert times >= 1
            for run in mask.nonzero().flatten().tolist():
                given[run] += times * [kind]
    assert given == runs


def test_turns_take_equal_examples_together() -> None:
    one: list[Kind] = [(1,), (2,), (2,), (2,)]
    found = _turns({0: one, 2: [(1,), (2,), (3,)]}, 3)
    shown = [[(mask.tolist(), kind, times) for mask, kind, times in turn] for turn in found]
    assert shown == [
        [([1, 0, 1], (1,), 1)],
        [([1, 0, 1], (2,), 1)],
        [([1, 0, 0], (2,), 1), ([0, 0, 1], (3,), 1)],
        [([1, 0, 0], (2,), 1)],
    ]
    assert _turns({}, 2) == []


@given(kind=st.lists(st.integers(1, 40), min_size=1, max_size=6), longest=st.integers(1, 50))
def test_parts_cover_an_example_in_order(kind: list[int], longest: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lockstep_module, "LONGEST", longest)
        parts = _parts(tuple(kind))
    assert [closes for _, closes in parts] == [False] * (len(parts) - 1) + [True]
    lengths, current = list[int](), 0
    for batches, _ in parts:
        assert sum(steps for steps, _, _ in batches) <= longest
        for steps, opens, ends in batches:
            assert steps >= 1
            assert opens == (current == 0)
            current += steps
            if ends:
                lengths.append(current)
                current = 0
    assert lengths == kind
    assert current == 0


def test_parts_of_short_and_of_full_examples() -> None:
    longest = lockstep_module.LONGEST
    assert _parts((2, 3)) == [(((2, True, True), (3, True, True)), True)]
    assert _parts((longest,)) == [(((longest, True, True),), False), ((), True)]


@given(across=st.integers(1, 2000), wide=st.sampled_from([16, 32]), inner=st.integers(1, 5000))
def test_cuts_cover_a_product_once(across: int, wide: int, inner: int) -> None:
    tiles, parts, tile = _cut(across, wide, inner)
    assert tile["columns"] == wide
    assert tiles * wide >= across > (tiles - 1) * wide
    share = tile["depth"] * tile["turns"]
    assert parts * share >= inner > (parts - 1) * share
    assert 1 <= parts <= lockstep_module.PARTS
    assert 16 <= tile["depth"] <= lockstep_module.DEPTH  # Triton's least and our most
    assert tile["depth"] == power_of_2(tile["depth"])


@given(
    outs=st.sampled_from([1, 2, 4, 8, 16, 32, 64]),
    groups=st.sampled_from([0, 1, 2, 8]),
    pixels=st.integers(1, 1024),
    window=st.sampled_from([1, 4, 16]),
)
def test_blocks_are_powers_of_two_and_whole_groups(outs: int, groups: int, pixels: int, window: int) -> None:
    assume(groups <= outs and pixels >= window)
    layer = Sizes(
        ins=1, outs=outs, taps=1, pixels=pixels, count=pixels, window=window, windows=pixels // window, relu=True,
        groups=groups, eps=0.0, weight=0, bias=0, scale=0, shift=0,
    )  # fmt: skip
    block = _block(layer)
    assert block["blocks"] * window >= pixels
    assert block["blocks"] == power_of_2(block["blocks"]) >= layer.windows
    assert outs % block["channels"] == 0
    if groups:
        assert block["channels"] == outs // groups
    else:
        values = block["channels"] * block["blocks"] * window
        assert block["channels"] == 1 or values <= lockstep_module.VALUES
    assert _warps(layer) in (4, 8, 16)


def test_kinds_are_the_lengths_of_batches() -> None:
    wanted: list[Kind] = [(1, 2), (3, 3)]
    assert _kinds(job_of(wanted).plan) == wanted


@given(
    kinds=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=6), steps=st.integers(1, 30)
)
def test_first_examples_are_just_enough(kinds: list[Kind], steps: int) -> None:
    plan = job_of(kinds).plan
    few = first_examples(plan, steps)
    assert 1 <= len(few) <= len(plan)
    assert len(few.rows) == few.ends[-1]
    assert len(few.rows) >= steps or len(few) == len(plan)
    assert few.ends[(len(few) - 1) * plan.s] < steps  # one fewer would not do
    for i in range(len(few)):
        assert all(np.array_equal(a, b) for a, b in zip(few.batches(i), plan.batches(i), strict=True))


def test_terms_of_plans() -> None:
    job = job_of([(1,)], rates=Rates(0.1, 0.1))
    terms = Terms.of(job.plan, job.table, job.objective)
    assert terms == Terms(as_bytes=True, clipped=False, penalised=False, within=False, across=False)
    rates = replace(job.plan, rates=Rates(0.1, 0.1, within=0.5))
    assert Terms.of(rates, job.table, PLAIN) == replace(terms, within=True)
    rates = replace(job.plan, rates=Rates(0.1, 0.1, across=0.5))
    assert Terms.of(rates, job.table, PLAIN) == replace(terms, across=True)
    assert Terms.of(job.plan, job.table, replace(PLAIN, clip=1.0)) == replace(terms, clipped=True)
    assert Terms.of(job.plan, job.table, penalised(job, 1.0, 0).objective) == replace(terms, penalised=True)
    real = with_images(job, examples(6, as_bytes=False)[0])
    assert Terms.of(real.plan, real.table, PLAIN) == replace(terms, as_bytes=False)
    assert Terms.of(replace(job.plan, together=True), job.table, PLAIN) is None


def learner() -> mr.Learner:
    return mr.MER(one_head(), memory=mr.Reservoir(4), lr=0.1, beta=0.3, s=1, k=2, engine="torch")


def test_the_engine_tries_lockstep_and_uses_it() -> None:
    plain, ours = learner(), learner()
    start, engine = plain.weights.theta.clone(), in_lockstep(ours)
    for one in (plain, ours):
        one.observe_many(*examples(3))
        one.observe_many(*examples(1, seed=1))
    assert engine._side_by_side is not None
    assert engine._batches is None
    assert engine.name == "cuda"
    assert way(ours.weights.theta, plain.weights.theta, start) < ALIKE


def fall(reason: Callable[..., Any], where: object, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Learn with something replaced so that lockstep fails its trial; batches take over."""
    monkeypatch.setattr(trial, "STEPS", 1)
    monkeypatch.setattr(where, name, reason)
    plain, ours = learner(), learner()
    start, engine = plain.weights.theta.clone(), in_lockstep(ours)
    for one in (plain, ours):
        one.observe_many(*examples(2))
    assert engine._side_by_side is None
    assert engine._batches is not None
    assert engine.name.startswith("cuda (not in lockstep: ")
    assert way(ours.weights.theta, plain.weights.theta, start) < ALIKE


def test_steps_that_give_other_weights_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def less(self: Lockstep, step: int) -> None:
        step_as_usual(self, step)
        self.theta.mul_(0.999)

    step_as_usual = Lockstep._step
    fall(less, Lockstep, "_step", monkeypatch)


def test_steps_that_learn_nothing_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    fall(lambda *_: None, Lockstep, "_step", monkeypatch)


def test_a_compiler_that_fails_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no such instruction")

    fall(fails, Lockstep, "_step", monkeypatch)


def test_examples_that_lockstep_does_not_learn_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    fall(lambda *_: [0], Lockstep, "execute", monkeypatch)


def test_running_out_of_memory_in_the_trial_is_explained_and_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(Lockstep, "execute", full)
    ours = learner()
    start, _ = ours.weights.theta.clone(), in_lockstep(ours)
    with pytest.raises(mr.MetareplayError, match="not enough GPU memory"):
        ours.observe_many(*examples(2))
    assert torch.equal(ours.weights.theta, start)


def test_running_out_of_memory_later_is_explained_and_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(cuda_engine, "lockstep_obstacle", lambda *_: None)
    monkeypatch.setattr(Lockstep, "execute", full)
    ours = learner()
    start, _ = ours.weights.theta.clone(), in_lockstep(ours)
    with pytest.raises(mr.MetareplayError, match="not enough GPU memory"):
        ours.observe_many(*examples(2))
    assert torch.equal(ours.weights.theta, start)


def test_plans_with_other_terms_or_tables_get_a_lockstep_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_engine, "lockstep_obstacle", lambda *_: None)
    both = [mr.MER(one_head(), memory=mr.Reservoir(4), lr=0.1, beta=0.3, s=1, k=2, engine="torch") for _ in range(2)]
    start, engine = both[0].weights.theta.clone(), in_lockstep(both[1])
    used = []
    for rate in (0.3, 0.4, 1.0):
        for one in both:
            one.beta = rate
            one.observe_many(*examples(1, seed=int(10 * rate)))
        used.append(engine._side_by_side)
    assert used[0] is used[1]  # another rate, the same kernels
    assert used[1] is not used[2]
    assert way(both[1].weights.theta, both[0].weights.theta, start) < ALIKE


@overflowing
def test_an_example_that_is_not_finite_is_named_by_the_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_engine, "lockstep_obstacle", lambda *_: None)
    ours = mr.Online(one_head(), lr=0.1, engine="torch")
    in_lockstep(ours)
    xs, ys, _ = examples(3, as_bytes=False)
    xs[1] = 3e38
    with pytest.raises(mr.NonFiniteError, match="example 1 of the stream"):
        ours.observe_many(xs, ys)
    assert ours.seen == 1
    assert torch.isfinite(ours.weights.theta).all()
