"""The graph engine: any module on a CUDA device. A batch's steps are captured once and replayed with new rows.

On a GPU single-example SGD is bound by launches. A CUDA graph launches a whole batch at once; rows, tasks and rates of
a chunk lie on the device before it begins, so that nothing is copied to the device in between.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from metareplay._core.draws import Ints
from metareplay._core.plan import Plan
from metareplay._core.table import Table
from metareplay._core.weights import reptile
from metareplay.engines.cuda.rewrite import streamlined, streamlined_loss
from metareplay.engines.engine import Engine, Gradients, Outcome, Pull
from metareplay.engines.inputs import as_input
from metareplay.engines.torch_engine import Loss, TorchEngine, forward
from metareplay.errors import MetareplayError

MOST = 128  # steps in one graph: thousands of kernels, captured in a second
LARGE = 2**19  # weights: gathering the gradient of more takes longer than a kernel that knows all its pieces
PATIENCE = 3  # examples in a row with batches of one length before a graph is made for it
ALIKE = 1e-2  # how far a replay may be from stepping, as a share of the way that the weights went
_turns: dict[int, threading.RLock] = {}  # by stream
_trying = threading.Lock()  # one trial at a time: its kernels may have to be compiled
_exclusive = threading.Lock()  # torch captures one graph at a time, and has one generator for a device

Work = Callable[[], None]


class Recorder(Protocol):
    """What turns work on the device into something that can be done again at little cost."""

    def aside(self) -> AbstractContextManager[None]:
        """Where all work is done: after what was asked before, and before what is asked afterwards."""

    def record(self, work: Work) -> Work:
        """The same work on the same tensors, recorded without doing it."""


@final
class CudaGraphs:
    """CUDA graphs on a stream of their own, so that those of several learners run side by side.

    torch has 32 streams and gives them out in turn. Two learners that got the same one take turns too: otherwise one's
    work could end up in the other's graph.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._failed: list[torch.cuda.CUDAGraph] = []
        self._pool = torch.cuda.graph_pool_handle()  # graphs that never run at the same time share their memory

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        """Taken when it is needed: many learners are made and never learn."""
        return torch.cuda.Stream(self._device)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """On our stream."""
        with _turns.setdefault(self._stream.cuda_stream, threading.RLock()), torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            try:
                with torch.cuda.stream(self._stream):
                    yield
            finally:
                current.wait_stream(self._stream)

    def record(self, work: Work) -> Work:
        """A graph."""
        with _exclusive:
            try:
                return self._capture(work)
            except BaseException:
                self._pool = torch.cuda.graph_pool_handle()
                with suppress(Exception):  # a capture that ends well sets torch's generator free again
                    self._capture(torch.empty(1, device=self._device).zero_)
                raise

    def _capture(self, work: Callable[[], object]) -> Work:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                work()
        except BaseException:
            self._failed.append(graph)  # torch's allocator may still ask it
            raise
        replay: Work = graph.replay
        return replay


@final
@dataclass(frozen=True)
class Piece:
    """Rows of one batch that are learned in one go: the whole batch, or part of a very long one."""

    start: int  # in the plan's rows
    size: int
    opens: bool  # the batch begins here
    closes: bool  # it ends here: the Reptile line follows

    @property
    def kind(self) -> tuple[int, bool, bool]:
        """Pieces of one kind differ in their rows alone."""
        return self.size, self.opens, self.closes


def pieces(plan: Plan, example: int, most: int = MOST) -> list[Piece]:
    """An example's batches, the very long ones in parts of nearly equal size."""
    found = []
    for start, end in pairwise(plan.ends[example * plan.s : (example + 1) * plan.s + 1].tolist()):
        parts = 1 if plan.together else -(-(end - start) // most)
        cuts = [start + (end - start) * part // parts for part in range(parts + 1)]
        found += [Piece(a, b - a, a == start, b == end) for a, b in pairwise(cuts)]
    return found


def row_rates(plan: Plan) -> NDArray[np.float64] | None:
    """The rate of each of the plan's rows; None if all have the same, or belong to batches of one step."""
    if plan.together or plan.rates.current == plan.rates.memory:
        return None
    example = np.repeat(np.arange(len(plan)), np.diff(plan.ends[:: plan.s]))
    return np.where(plan.rows == plan.incoming + example, plan.rates.current, plan.rates.memory)


@final
class Patience:
    """Says when a kind of example has come often enough in a row to make graphs for it."""

    def __init__(self, needed: int = PATIENCE) -> None:
        self._needed = needed
        self._kinds: set[tuple[int, bool, bool]] = set()
        self._count = 0

    def ends(self, kinds: set[tuple[int, bool, bool]]) -> bool:
        """Count an example that has pieces of these kinds."""
        self._count = self._count + 1 if kinds == self._kinds else 1
        self._kinds = kinds
        return self._count >= self._needed


@final
class CudaEngine(Engine):
    """Plans by graphs: the same rows in the same order, the same weights up to rounding.

    Batches of a length that has no graph yet are stepped through by the very same function that is captured, so that
    results do not depend on when a graph was made.
    """

    def __init__(self, plain: TorchEngine, recorder: Recorder, fewer_kernels: bool = True) -> None:
        """`plain` takes over where a module cannot be captured; `fewer_kernels`: with our own for single examples."""
        self.weights = plain.weights
        self._fewer = fewer_kernels
        self.reason: str | None = None  # why stepping had to take over
        self._plain, self._recorder = plain, recorder
        self._asked = False  # for gradients
        self._steps: _Steps | None = None
        self._lock = threading.RLock()  # a prediction in another thread waits

    @property
    def name(self) -> str:  # type: ignore[override]
        """Whether graphs are used, and if not, why; a learner that only asks for gradients has none."""
        if self.reason is not None:
            return f"torch (cuda could not capture: {self.reason})"
        return "torch" if self._steps is None and self._asked else "cuda"

    def execute(self, plan: Plan, table: Table, pull: Pull | None = None) -> Outcome:
        """Example by example; one that cannot be learned is undone."""
        with self._lock:
            if self.reason is None:
                with self._recorder.aside(), self._plain.learning():
                    try:
                        steps = self._ready(plan, table, pull)
                        if steps is not None:
                            return steps.execute(plan, pull)
                    except torch.cuda.OutOfMemoryError as error:
                        self._steps = None
                        return Outcome(0, _too_large(error))
            with self._recorder.aside(), _exclusive:
                return self._plain.execute(plan, table, pull)

    def _ready(self, plan: Plan, table: Table, pull: Pull | None) -> "_Steps | None":
        """What carries out such plans; None if it has to be stepping."""
        if self.reason is None and (self._steps is None or not self._steps.serves(plan, table, pull)):
            self._steps = None  # first, as it holds memory
            self.reason = self._obstacle(plan)
            if self.reason is None:
                with _trying:
                    self._steps = self._first_that_can(plan, table, pull)
        return self._steps if self.reason is None else None

    def _first_that_can(self, plan: Plan, table: Table, pull: Pull | None) -> "_Steps | None":
        """With module and loss rewritten if that works and gives the same, else as they are."""
        given = self.weights.module, self._plain.loss
        fewer = streamlined(given[0]), streamlined_loss(given[1])
        as_given = _Steps(self._plain, self._recorder, *given, table, plan, pull)
        for parts in dict.fromkeys([fewer, given] if self._fewer else [given]):
            steps = as_given if parts == given else _Steps(self._plain, self._recorder, *parts, table, plan, pull)
            self.reason = steps.trial(plan, as_given)
            if self.reason is None:
                return steps
        return None

    def _obstacle(self, plan: Plan) -> str | None:
        if self._plain.optimizer is not None:
            return "the optimizer keeps moments"
        return "the loss is balanced over tasks" if plan.balanced else None

    def gradients(self, table: Table, groups: list[Ints], example: int) -> Gradients:
        """By plain torch."""
        self._asked = True
        with self._lock, self._recorder.aside():
            return self._plain.gradients(table, groups, example)

    def outputs(self, xs: Tensor, tasks: Tensor) -> Tensor:
        """By plain torch."""
        with self._lock:
            return self._plain.outputs(xs, tasks)

    def healthy(self) -> bool:
        """Weights, statistics and moments are finite."""
        return self._plain.healthy()

    def remember(self) -> Callable[[], None]:
        """Copies of weights, buffers and moments."""
        return self._plain.remember()

    def state(self) -> dict[str, Tensor]:
        """An optimizer's moments; graphs hold nothing."""
        return self._plain.state()

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue with saved moments."""
        self._plain.restore(state)


@final
class _Steps:
    """What learns examples of one table with one set of rates: the work itself, and graphs of it."""

    def __init__(
        self,
        plain: TorchEngine,
        recorder: Recorder,
        model: nn.Module,
        loss: Loss,
        table: Table,
        plan: Plan,
        pull: Pull | None,
    ) -> None:
        """`model` and `loss` are the learner's, or the same rewritten."""
        self._weights, self._loss, self._clip = plain.weights, loss, plain.clip
        self._statistics, self._recorder, self._table = plain.statistics, recorder, table
        self._model = model
        self._parameters: list[Tensor] = [p for p in self._weights.module.parameters() if p.requires_grad]
        self._buffers = list(self._weights.module.buffers())
        self._together, self._rates = plan.together, plan.rates
        theta = self._weights.theta
        self._start = theta.clone()  # before the example: theta_A0
        self._batch_start = theta.clone()  # before the batch: theta_W0
        self._kept = [buffer.clone() for buffer in self._buffers]
        self._fine = torch.ones((), dtype=torch.bool, device=theta.device)  # everything was finite so far
        self._one = torch.ones((), dtype=theta.dtype, device=theta.device)
        self._pull = None if pull is None else Pull(pull.strength, pull.importance.clone(), pull.anchor.clone())
        self._pulled = pull
        self._slots: dict[int, _Slot] = {}  # by the number of rows
        self._graphs: dict[object, Work] = {}
        self._patience = Patience()

    def serves(self, plan: Plan, table: Table, pull: Pull | None) -> bool:
        """Whether plans like this one can be carried out."""
        strength = None if pull is None else pull.strength
        ours = None if self._pull is None else self._pull.strength
        same = (plan.together, plan.rates, strength) == (self._together, self._rates, ours)
        return same and table is self._table and not plan.balanced

    def trial(self, plan: Plan, given: "_Steps") -> str | None:
        """Step through the first batch, capture and replay it; put everything back. Why it cannot be captured.

        The module as it was given must come to the same weights: compilers make mistakes.
        """
        chunk = _Chunk(plan, self._table, self._weights.theta.device)
        piece = pieces(plan, 0)[0]
        self._open()
        places = [buffer.data_ptr() for buffer in self._weights.module.buffers()]
        try:
            generator = _generator(self._weights.theta.device)
            before = generator.get_state()
            self._run(piece, chunk, self._eager(piece))
            stepped = self._weights.theta.clone()
            if not torch.equal(before, generator.get_state()):
                return "the module draws random numbers"
            if places != [buffer.data_ptr() for buffer in self._weights.module.buffers()]:
                return "the module replaces its buffers"
            self._undo()
            graph = self._record(piece)
            self._undo()
            self._run(piece, chunk, graph)
            if not _alike(self._weights.theta, stepped, self._start):
                return "replaying gave other weights than stepping"
            self._undo()
            if given is not self and not _alike(stepped, given._first_batch(plan), self._start):
                return "the rewritten module gave other weights"
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            return _first_cause(error)
        finally:
            self._undo()
        return None

    def _first_batch(self, plan: Plan) -> Tensor:
        """The weights after stepping through it; everything is put back."""
        piece = pieces(plan, 0)[0]
        self._open()
        try:
            self._run(piece, _Chunk(plan, self._table, self._weights.theta.device), self._eager(piece))
            return self._weights.theta.clone()
        finally:
            self._undo()

    def execute(self, plan: Plan, pull: Pull | None) -> Outcome:
        """One look at the device an example; one that fails is undone."""
        self._take(pull)
        chunk = _Chunk(plan, self._table, self._weights.theta.device)
        for i in range(len(plan)):
            parts = pieces(plan, i)
            capture = self._patience.ends({piece.kind for piece in parts})
            begun = False
            try:
                self._work("open", self._open, capture)()
                begun = True  # before, there is nothing to undo
                if not self._learn(parts, chunk, capture):
                    self._undo()
                    return Outcome(i)
            except BaseException as error:
                if begun:
                    self._undo()
                small = isinstance(error, torch.cuda.OutOfMemoryError)
                return Outcome(i, _too_large(error) if small else error)
        return Outcome(len(plan))

    def _learn(self, parts: list[Piece], chunk: "_Chunk", capture: bool) -> bool:
        """Algorithm 1's loops; whether everything stayed finite."""
        for piece in parts:
            self._run(piece, chunk, self._work(piece.kind, self._eager(piece), capture))
        self._work("close", self._close, capture)()
        return bool(self._fine)

    def _work(self, kind: object, work: Work, capture: bool) -> Work:
        """The graph of it if there is one, or is to be."""
        if capture and kind not in self._graphs:
            self._graphs[kind] = self._recorder.record(work)
        return self._graphs.get(kind, work)

    def _record(self, piece: Piece) -> Work:
        self._graphs[piece.kind] = self._recorder.record(self._eager(piece))
        return self._graphs[piece.kind]

    def _run(self, piece: Piece, chunk: "_Chunk", work: Work) -> None:
        self._slot(piece.size).take(chunk, piece)
        work()

    def _slot(self, size: int) -> "_Slot":
        if size not in self._slots:
            self._slots[size] = _Slot(size, self._weights.theta)
        return self._slots[size]

    def _eager(self, piece: Piece) -> Work:
        slot = self._slot(piece.size)
        return lambda: self._batch(slot, piece.opens, piece.closes)

    def _open(self) -> None:
        self._fine.fill_(True)
        self._start.copy_(self._weights.theta)
        for kept, buffer in zip(self._kept, self._buffers, strict=True):
            kept.copy_(buffer)

    def _close(self) -> None:
        reptile(self._weights.theta, self._start, self._rates.across)
        for values in (self._weights.theta, *self._statistics):
            self._fine.logical_and_(torch.isfinite(values).all())

    def _undo(self) -> None:
        self._weights.theta.copy_(self._start)
        for kept, buffer in zip(self._kept, self._buffers, strict=True):
            buffer.copy_(kept)

    def _batch(self, slot: "_Slot", opens: bool, closes: bool) -> None:
        """The work that is captured: inputs of all rows at once, then step after step, then the Reptile line."""
        theta, rates = self._weights.theta, self._rates
        if opens and rates.within != 1:
            self._batch_start.copy_(theta)
        xs, ys = as_input(self._table.xs[slot.rows], self._weights), self._table.ys[slot.rows]
        size = slot.size if self._together else 1
        losses = []
        for j in range(0, slot.size, size):
            outputs = forward(self._model, xs[j : j + size], slot.tasks[j : j + size])
            loss = self._loss(outputs, ys[j : j + size])
            self._descend(loss, slot.rates[j] if rates.current != rates.memory and not self._together else None)
            losses.append(loss.detach())
        self._fine.logical_and_(torch.isfinite(torch.stack(losses)).all())
        if closes:
            reptile(theta, self._batch_start, rates.within)

    def _descend(self, loss: Tensor, rate: Tensor | None) -> None:
        """theta <- theta - rate * gradient, in as few kernels as possible."""
        one = self._one if loss.dim() == 0 and loss.dtype == self._one.dtype else None
        found = torch.autograd.grad(loss, self._parameters, one, allow_unused=True, materialize_grads=True)
        theta, changed = self._weights.theta, rate is not None or self._clip is not None or self._pull is not None
        with torch.no_grad():
            if theta.numel() > LARGE and not changed:
                torch._foreach_add_(self._parameters, found, alpha=-self._rates.memory)
                return
            gradient = torch.cat([g.reshape(-1) for g in found])
            if self._pull is not None:
                gradient.add_(self._pull.gradient(theta))
            if self._clip is not None:
                norm = gradient.norm()
                gradient.mul_(torch.where(norm > self._clip, self._clip / norm, 1.0))
            if rate is None:
                theta.add_(gradient, alpha=-self._rates.memory)
            else:
                theta.addcmul_(gradient, rate, value=-1)

    def _take(self, pull: Pull | None) -> None:
        """Let graphs find this penalty where they look for it."""
        if pull is not self._pulled and pull is not None and self._pull is not None:
            self._pull.importance.copy_(pull.importance)
            self._pull.anchor.copy_(pull.anchor)
            self._pulled = pull


@final
class _Chunk:
    """A plan's rows, tasks and rates, on the device."""

    def __init__(self, plan: Plan, table: Table, device: torch.device) -> None:
        rows = torch.from_numpy(plan.rows)
        self.rows_and_tasks = torch.stack([rows, table.tasks[rows]]).to(device)
        rates = row_rates(plan)
        self.rates = None if rates is None else torch.from_numpy(rates).to(device)


@final
class _Slot:
    """Where work on so many rows finds them."""

    def __init__(self, size: int, theta: Tensor) -> None:
        self.size = size
        self._both = torch.zeros((2, size), dtype=torch.int64, device=theta.device)
        self.rows, self.tasks = self._both
        self.rates = torch.zeros(size, dtype=theta.dtype, device=theta.device)

    def take(self, chunk: _Chunk, piece: Piece) -> None:
        """These rows are next; a copy from device to device."""
        end = piece.start + piece.size
        self._both.copy_(chunk.rows_and_tasks[:, piece.start : end])
        if chunk.rates is not None:
            self.rates.copy_(chunk.rates[piece.start : end])


def _generator(device: torch.device) -> torch.Generator:
    return torch.cuda.default_generators[device.index or 0] if device.type == "cuda" else torch.default_generator


def _alike(one: Tensor, other: Tensor, start: Tensor) -> bool:
    """Whether two results are the same up to rounding; both not finite counts."""
    if not torch.isfinite(other).all():
        return not bool(torch.isfinite(one).all())
    apart, way = (one - other).norm(), (other - start).norm()
    return bool(apart <= ALIKE * way + 1e-6 * start.norm())


def _first_cause(error: BaseException) -> str:
    """What went wrong first, in one line: when a capture fails, its end fails too."""
    while error.__context__ is not None:
        error = error.__context__
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _too_large(error: BaseException) -> MetareplayError:
    return MetareplayError(
        f"the GPU has not enough memory: use a smaller memory or batch, or fewer runs at a time ({str(error)[:80]})"
    )
