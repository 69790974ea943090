"""The graph engine's whole flow without a GPU: in place of a graph, the captured function is run again."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from every_learner import EVERY, assert_same_state, examples, state
from hypothesis import given
from hypothesis import strategies as st
from no_graphs import Rerun
from torch import Tensor, nn

import metareplay as mr
from metareplay._core.plan import Plan, Rates
from metareplay.engines import choose
from metareplay.engines.cuda import batches as batches_module
from metareplay.engines.cuda import engine as cuda_engine
from metareplay.engines.cuda.engine import CudaEngine
from metareplay.engines.cuda.graphs import CudaGraphs, Work
from metareplay.engines.cuda.pieces import Patience, Piece, pieces, row_rates
from metareplay.engines.cuda.trial import first_cause
from metareplay.engines.torch_engine import TorchEngine
from torture.disturbance import Disturbance, OutOfMemory, OutOfMemoryOnce


def with_graphs(learner: mr.Learner, recorder: Any = None) -> mr.Learner:
    """The same learner, made with engine="torch", on the graph engine."""
    assert isinstance(learner.chosen_engine, TorchEngine)
    learner.chosen_engine = CudaEngine(learner.chosen_engine, recorder or Rerun(), fewer_kernels=False)
    return learner


def taught(learner: mr.Learner, *cuts: int) -> mr.Learner:
    parts = (values.tensor_split(cuts) for values in examples())
    for part in zip(*parts, strict=True):
        learner.observe_many(*part)
    return learner


MADE = {name: make for name, make in EVERY.items() if not name.endswith("-torch")}
FALLEN = {
    "online-cnn": "the module draws random numbers",
    "er-cnn": "the module draws random numbers",
    "mer-cnn": "the module draws random numbers",
}


@pytest.mark.parametrize("name", MADE)
def test_every_learner_as_the_torch_engine(name: str) -> None:
    plain, graphs = taught(MADE[name](engine="torch"), 7), taught(with_graphs(MADE[name](engine="torch")), 7)
    for one, other in zip(state(plain).values(), state(graphs).values(), strict=True):
        torch.testing.assert_close(one, other)
    reason = FALLEN.get(name)
    if name.startswith("gem"):  # gradients of sizes that come often are graphs
        assert graphs.chosen_engine.name in ("cuda", "torch")
    else:
        assert graphs.chosen_engine.name == ("cuda" if reason is None else f"torch (cuda could not capture: {reason})")


@pytest.mark.parametrize("name", ["mer", "mer-heads", "mer-current-rate", "mer-one-big-batch", "ewc", "online"])
def test_many_weights_are_moved_piece_by_piece(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "LARGE", 0)
    plain, graphs = taught(MADE[name](engine="torch"), 7), taught(with_graphs(MADE[name](engine="torch")), 7)
    for one, other in zip(state(plain).values(), state(graphs).values(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", ["mer", "mer-heads", "mer-current-rate", "mer-one-big-batch", "er", "ewc", "online"])
def test_chunks_loops_and_resuming_give_the_same_bits(name: str, tmp_path: Path) -> None:
    whole, loop, begun = (with_graphs(EVERY[name](engine="torch")) for _ in range(3))
    taught(whole)
    taught(loop, *range(1, 30))
    begun.observe_many(*(values[:13] for values in examples()))
    begun.save(tmp_path / "a.ckpt")
    fresh = EVERY[name](engine="torch").model
    ended = with_graphs(mr.load(tmp_path / "a.ckpt", fresh, engine="torch"))
    ended.observe_many(*(values[13:] for values in examples()))
    assert_same_state(state(whole), state(loop))
    assert_same_state(state(whole), state(ended))


def normed() -> nn.Module:
    net = nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(8, 4)
    )
    return mr.networks.glorot(net, seed=5)


@pytest.mark.parametrize("kind", [mr.MER, mr.ER, mr.Online])
def test_statistics_of_batch_norm_move_as_in_stepping(kind: type[mr.Learner]) -> None:
    """Also through the trial, which puts them back."""
    options: dict[str, Any] = {} if kind is mr.Online else {"k": 4}
    learners = [kind(normed(), lr=0.1, engine="torch", **options) for _ in range(2)]
    with_graphs(learners[1])
    for learner in learners:
        taught(learner, 3)
    assert learners[1].chosen_engine.name == "cuda"
    assert float(learners[0].model.get_buffer("2.num_batches_tracked")) > 0
    assert_same_state(state(learners[0]), state(learners[1]))


def test_an_example_that_is_not_finite_is_undone_and_named() -> None:
    learner = with_graphs(mr.MER(mr.networks.mlp(6, (8,), 4), memory=mr.Reservoir(9), s=2, k=4, engine="torch"))
    xs, ys = examples()[0] / 255, examples()[1]
    learner.observe_many(xs, ys)
    before = state(learner)
    with pytest.raises(mr.NonFiniteError, match="example 31 of the stream"):
        learner.observe_many(torch.stack([xs[0], torch.full((6,), 3e38)]), torch.tensor([0, 3]))
    assert learner.seen == 31
    assert all(torch.isfinite(value).all() for value in learner.model.state_dict().values())
    assert not torch.equal(before["1.weight"], state(learner)["1.weight"])  # the one before it was learned
    learner.observe_many(xs, ys)
    assert learner.chosen_engine.name == "cuda"


def test_a_loss_that_is_infinite_with_finite_gradients_is_noticed() -> None:
    """Only one class has a finite score: the weights stay finite, the loss does not."""

    class OneClass(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 2)
            self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

        def forward(self, xs: Tensor) -> Tensor:
            found: Tensor = self.layer(xs) + self.mask
            return found

    learner = with_graphs(mr.Online(OneClass(), engine="torch"))
    learner.observe(torch.rand(6), 0)
    with pytest.raises(mr.NonFiniteError):
        learner.observe(torch.rand(6), 1)
    assert learner.seen == 1


class Untouched(Rerun):
    """Fails to record, as a capture fails in a module that waits for the device."""

    def record(self, work: Work) -> Work:
        del work
        raise RuntimeError("operation not permitted when stream is capturing\nmore")


def test_what_cannot_be_captured_is_stepped_and_says_why() -> None:
    graphs = taught(with_graphs(EVERY["mer"](engine="torch"), Untouched()))
    assert_same_state(state(graphs), state(taught(EVERY["mer"](engine="torch"))))
    wanted = "torch (cuda could not capture: operation not permitted when stream is capturing)"
    assert graphs.chosen_engine.name == wanted
    again, (xs, ys, _) = with_graphs(EVERY["mer"](engine="torch"), Untouched()), examples()
    assert mr.run(again, mr.OwnStream.from_tensors(xs, ys)).engine == wanted


class OneShort(Rerun):
    """Replays less than was recorded: as a graph does of a module that decides something in Python."""

    def record(self, work: Work) -> Work:
        del work
        return lambda: None


def test_a_replay_that_does_something_else_is_noticed() -> None:
    graphs = taught(with_graphs(EVERY["mer"](engine="torch"), OneShort()))
    assert "replaying gave other weights than stepping" in graphs.chosen_engine.name
    assert_same_state(state(graphs), state(taught(EVERY["mer"](engine="torch"))))


def test_a_rewritten_module_that_computes_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = list[nn.Module]()

    class Doubled(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module
            wrong.append(self)

        def forward(self, xs: Tensor) -> Tensor:
            found: Tensor = 2 * self.module(xs)
            return found

    monkeypatch.setattr(cuda_engine, "streamlined", Doubled)
    learner = EVERY["mer"](engine="torch")
    assert isinstance(learner.chosen_engine, TorchEngine)
    learner.chosen_engine = CudaEngine(learner.chosen_engine, recorder := Rerun())
    taught(learner)
    assert wrong
    assert recorder.replayed > 0
    assert learner.chosen_engine.name == "cuda"
    assert_same_state(state(learner), state(taught(EVERY["mer"](engine="torch"))))


def test_a_module_that_replaces_its_buffers_is_noticed() -> None:
    class Moving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 4)
            self.mean: Tensor
            self.register_buffer("mean", torch.zeros(6))

        def forward(self, xs: Tensor) -> Tensor:
            self.mean = 0.9 * self.mean + 0.1 * xs.detach().mean(0)
            found: Tensor = self.layer(xs - self.mean)
            return found

    learner = taught(with_graphs(mr.Online(Moving(), engine="torch")))
    assert "replaces its buffers" in learner.chosen_engine.name


def test_graphs_are_made_for_lengths_that_stay() -> None:
    """k = 4 with 9 slots: lengths 1, 2, 3 come once, then 4 for ever: three graphs besides the trial's."""
    recorder = Rerun()
    taught(with_graphs(EVERY["mer"](engine="torch"), recorder))
    assert recorder.recorded == 1 + 3  # the trial's; opening, a batch, closing
    assert recorder.replayed == 1 + 2 + (30 - 3 - 2) * (2 + 2)  # the trial; the first example's batches; the rest


def test_a_changed_table_or_rate_makes_new_graphs() -> None:
    recorder = Rerun()
    reptile = mr.Reptile(mr.networks.mlp(6, (8,), 4), lr=0.2, beta=0.4, s=3, k=5, engine="torch")
    other = mr.Reptile(mr.networks.mlp(6, (8,), 4), lr=0.2, beta=0.4, s=3, k=5, engine="torch")
    assert isinstance(reptile.chosen_engine, TorchEngine)
    reptile.chosen_engine = CudaEngine(reptile.chosen_engine, recorder, fewer_kernels=False)
    xs, ys, _ = examples()
    for learner in (reptile, other):
        learner.train(xs[:20], ys[:20], updates=6)
        learner.train(xs[20:], ys[20:], updates=6)
        learner.lr = 0.1
        learner.train(xs[20:], ys[20:], updates=2)
    torch.testing.assert_close(reptile.weights.theta, other.weights.theta)
    assert reptile.chosen_engine.name == "cuda"


@pytest.mark.parametrize("where", ["record", "open", "_learn", "_close"])
def test_out_of_memory_is_explained_and_undone(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it happens, also before an example has begun: nothing is lost, nothing is half done."""

    def full(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    learner = EVERY["mer"](engine="torch") if where == "record" else taught(EVERY["mer"](engine="torch"))
    with_graphs(learner)
    if where != "record":
        taught(learner, 1)
        assert isinstance(learner.chosen_engine, CudaEngine)
        learner.chosen_engine._batches._graphs.clear()  # type: ignore[union-attr]
    before = state(learner)
    monkeypatch.setattr(batches_module.Batches, where, full)
    with pytest.raises(mr.MetareplayError, match="not enough GPU memory"):
        taught(learner)
    assert_same_state(before, state(learner))


@pytest.mark.parametrize("kind", [OutOfMemoryOnce, OutOfMemory])
@pytest.mark.parametrize("begun", [0, 6])
@pytest.mark.parametrize("name", ["online", "ewc", "gem", "er-adam", "mer"])
def test_wherever_memory_runs_out_the_learner_is_before_or_after_an_example(
    name: str, begun: int, kind: type[Disturbance]
) -> None:
    """Once, or from there on: what was learned stays, and going on with enough memory ends the same."""

    def learn(learner: mr.Learner, end: int) -> None:
        given = [part[learner.seen : end] for part in examples()]
        if learner.seen < end:
            learner.observe_many(*given)

    def begin() -> mr.Learner:
        learner = with_graphs(MADE[name](engine="torch"))
        learn(learner, begun)
        return learner

    def now(learner: mr.Learner) -> dict[str, Tensor]:
        """The state; an optimizer's moments that are still 0 do not count."""
        return {key: value for key, value in state(learner).items() if not key.startswith("engine/") or value.any()}

    end, whole, states = begun + 4, begin(), dict[int, dict[str, Tensor]]()
    for seen in range(begun, end + 1):
        learn(whole, seen)
        states[seen] = now(whole)
    moments, other = kind(), begin()
    assert moments.during(partial(learn, other, end)) is None
    places = moments.drawn(1000, random.Random(0))
    assert len(places) > 10
    for number in places[:: len(places) // 6]:
        learner, at = begin(), kind(number)
        assert at.during(partial(learn, learner, end)) is None
        assert_same_state(states[learner.seen], now(learner))
        learn(learner, end)
        assert_same_state(states[end], now(learner))


def test_moments_that_could_only_be_made_in_part_are_made_anew() -> None:
    xs, ys, tasks = (part[:2] for part in examples())

    def learn(learner: mr.Learner) -> None:
        learner.observe_many(xs[learner.seen :], ys[learner.seen :], tasks[learner.seen :])

    moments, whole = OutOfMemoryOnce(), with_graphs(EVERY["er-adam"](engine="torch"))
    assert moments.during(partial(learn, whole)) is None
    numbers = [found for (file, _), found in moments.times.items() if file == batches_module.__file__]
    assert numbers, "no operation of this file takes memory any more"
    for number in sorted({one for found in numbers for one in found[:4]}):
        learner, at = with_graphs(EVERY["er-adam"](engine="torch")), OutOfMemoryOnce(number)
        assert at.during(partial(learn, learner)) is None
        if learner.seen < 2:
            learn(learner)
        assert_same_state(state(whole), state(learner))


def test_a_table_that_does_not_fit_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("metareplay.learners.table_learner.Table", full)
    learner = EVERY["mer"]()
    with pytest.raises(mr.MetareplayError, match=r"9 memories of this size need 0\.0 GiB, more than cpu has left"):
        taught(learner)
    assert learner.seen == 0


def test_without_a_gpu_or_with_a_model_on_the_cpu_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(mr.InputError, match="needs a CUDA GPU"):
        mr.Online(mr.networks.mlp(6, (8,), 3), engine="cuda")
    with pytest.raises(mr.InputError, match="needs a CUDA GPU"):
        choose.check_gpu()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(mr.InputError, match=r"call model\.cuda\(\)"):
        mr.Online(mr.networks.mlp(6, (8,), 3), engine="cuda")


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any plan: examples of s batches, the batches of one example equally long."""
    n, s, capacity = draw(st.integers(1, 6)), draw(st.integers(1, 4)), draw(st.integers(1, 20))
    sizes = np.repeat([draw(st.integers(1, 40)) for _ in range(n)], s)
    ends = np.concatenate([[0], np.cumsum(sizes)])
    rows = np.array(draw(st.lists(st.integers(0, capacity + n - 1), min_size=int(ends[-1]), max_size=int(ends[-1]))))
    rates = Rates(memory=0.1, current=draw(st.sampled_from([0.1, 0.5])))
    return Plan(rows, ends, s, np.full(n, -1), rates, 0, capacity, together=draw(st.booleans()))


@given(plan=plans(), most=st.integers(1, 50))
def test_pieces_cover_each_batch_in_order(plan: Plan, most: int) -> None:
    for i in range(len(plan)):
        parts = pieces(plan, i, most)
        at = int(plan.ends[i * plan.s])
        for piece in parts:
            assert piece.start == at
            assert piece.size >= 1
            assert plan.together or piece.size <= most
            assert piece.opens == (at in plan.ends)
            at += piece.size
            assert piece.closes == (at in plan.ends)
        assert at == plan.ends[(i + 1) * plan.s]
        assert sum(piece.opens for piece in parts) == sum(piece.closes for piece in parts) == plan.s


def test_a_very_long_batch_is_cut_into_parts_of_two_sizes_at_most() -> None:
    plan = Plan(np.zeros(1010, np.int64), np.array([0, 1010]), 1, np.array([-1]), Rates(0.1, 0.1), 0, 5)
    sizes = [piece.size for piece in pieces(plan, 0)]
    assert len(sizes) == 8
    assert sum(sizes) == 1010
    assert len(set(sizes)) <= 2
    assert pieces(plan, 0)[0] == Piece(0, 126, opens=True, closes=False)


@given(plan=plans())
def test_rates_are_those_of_the_rule(plan: Plan) -> None:
    rates = row_rates(plan)
    if plan.together or plan.rates.current == plan.rates.memory:
        assert rates is None
        return
    assert rates is not None
    wanted = [
        plan.rates.current if row == plan.incoming + i else plan.rates.memory
        for i in range(len(plan))
        for batch in plan.batches(i)
        for row in batch
    ]
    assert rates.tolist() == wanted


def test_long_batches_in_parts_give_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    make: Callable[[], mr.Learner] = lambda: mr.MEROneBigBatch(  # noqa: E731
        mr.networks.mlp(6, (8,), 4, seed=1), memory=mr.Reservoir(20), gamma=0.3, s=3, k=9, engine="torch"
    )
    whole = taught(with_graphs(make()))
    monkeypatch.setattr(pieces, "__defaults__", (4,))
    parts = taught(with_graphs(make()))
    assert_same_state(state(whole), state(parts))


def test_patience_ends_when_the_same_kinds_came_often_enough_in_a_row() -> None:
    patience, short, long = Patience(3), {(2, True, True)}, {(5, True, True)}
    found = [patience.ends(kinds) for kinds in (short, short, long, long, long, long, short)]
    assert found == [False, False, False, False, True, True, False]


class FakeStream:
    """Writes down who waits for whom."""

    def __init__(self, name: object, log: list[str]) -> None:
        self.name, self.log, self.cuda_stream = name, log, 7

    def wait_stream(self, other: "FakeStream") -> None:
        self.log.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """torch.cuda as far as graphs need it; gives the log of what was done."""
    log: list[str] = []
    main = FakeStream("main", log)

    class Graph:
        def replay(self) -> None:
            log.append("replay")

    @contextmanager
    def capture(_: Graph, pool: int, stream: FakeStream, capture_error_mode: str) -> Iterator[None]:
        log.append(f"capture in pool {pool} on {stream.name}, {capture_error_mode}")
        yield

    @contextmanager
    def on(where: Any) -> Iterator[None]:
        log.append(f"on {getattr(where, 'name', where)}")
        yield
        log.append(f"off {getattr(where, 'name', where)}")

    pools = iter(range(100))
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: FakeStream("ours", log))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(pools))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    for name, fake in {"graph": capture, "device": on, "stream": on}.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    for name in ("endAllocateToPool", "releasePool"):
        said = f"{name} of pool {{1}} on GPU {{0}}"
        monkeypatch.setattr(torch._C, f"_cuda_{name}", lambda *given, said=said: log.append(said.format(*given)))
    return log


def test_work_aside_comes_after_what_was_asked_before_and_before_what_follows(cuda: list[str]) -> None:
    def work() -> None:
        cuda.append("work")
        raise KeyError

    with pytest.raises(KeyError), CudaGraphs(torch.device("cpu")).aside():
        work()
    waits = [line for line in cuda if "waits" in line or line == "work"]
    assert waits == ["ours waits for main", "work", "main waits for ours"]


def test_a_graph_is_captured_on_the_own_stream_and_replayed(cuda: list[str]) -> None:
    graphs = CudaGraphs(torch.device("cpu"))
    replay = graphs.record(lambda: cuda.append("work"))
    replay()
    assert cuda == ["capture in pool 0 on ours, thread_local", "work", "replay"]


def test_after_a_capture_that_failed_another_one_is_made_and_the_lock_is_free(cuda: list[str]) -> None:
    def fails() -> None:
        raise RuntimeError("not while capturing")

    graphs = CudaGraphs(torch.device("cpu"))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="not while capturing"):
            graphs.record(fails)
    assert cuda == [
        "capture in pool 0 on ours, thread_local",
        "endAllocateToPool of pool 0 on GPU 3",
        "releasePool of pool 0 on GPU 3",
        "capture in pool 1 on ours, thread_local",
        "capture in pool 1 on ours, thread_local",
        "endAllocateToPool of pool 1 on GPU 3",
        "releasePool of pool 1 on GPU 3",
        "capture in pool 2 on ours, thread_local",
    ]
    assert len(graphs._failed) == 2


def test_a_pool_that_torch_has_given_back_is_not_given_back_again(
    cuda: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise RuntimeError("endAllocatePool: not currently recording to mempool_id")

    def fails() -> None:
        raise KeyError

    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", refused)
    with pytest.raises(KeyError):
        CudaGraphs(torch.device("cpu")).record(fails)
    assert not any("releasePool" in line for line in cuda)


def test_the_first_cause_is_told() -> None:
    def fails() -> None:
        try:
            raise RuntimeError("a value was asked for")
        finally:
            raise RuntimeError("the capture could not be ended")

    with pytest.raises(RuntimeError) as caught:
        fails()
    assert first_cause(caught.value) == "a value was asked for"


def test_two_learners_that_got_the_same_stream_take_turns(cuda: list[str]) -> None:
    one, other = (CudaGraphs(torch.device("cpu")) for _ in range(2))

    def work() -> None:
        with other.aside():
            cuda.append("the other one")

    thread = Thread(target=work)
    with one.aside():
        thread.start()
        thread.join(0.05)
        cuda.append("one")
    thread.join()
    assert [line for line in cuda if "one" in line] == ["one", "the other one"]


def test_recorded_work_reads_nothing_from_ram(monkeypatch: pytest.MonkeyPatch) -> None:
    """Task ids are kept in RAM: reading them during a capture would end it."""
    learner = with_graphs(EVERY["mer"](engine="torch"))
    learner.observe_many(*examples())
    assert isinstance(learner.chosen_engine, CudaEngine)
    batches = learner.chosen_engine._batches
    assert batches is not None
    assert learner.table is not None

    def read(_: Tensor) -> Tensor:
        raise AssertionError("a copy from RAM")

    monkeypatch.setattr(learner.table.column("task"), "gather", read)
    for slot in batches._slots.values():
        batches._batch(slot, opens=True, closes=True)
