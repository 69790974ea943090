"""Several runs of one convolutional network, or a single one, that take every step together."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, zip_longest
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor

from metareplay._core.draws import Ints
from metareplay._core.plan import Plan
from metareplay._core.table import Table, TensorColumn
from metareplay._core.weights import Weights
from metareplay.engines.cuda.convnet import ConvNet, Sizes, power_of_2
from metareplay.engines.cuda.graphs import Recorder, Work
from metareplay.engines.cuda.pieces import Patience, row_rates
from metareplay.engines.objective import Objective, QuadraticPenalty, Supervised

ROWS: Final = 64  # rows of a tile of a matrix product: channels
COLUMNS: Final = 16  # columns of a tile: pixels; few, because narrow tiles make more programs
WIDER: Final = 32  # columns of a tile of the weights' gradient, which has many: one per input channel and tap
DEPTH: Final = 64  # terms of the inner sum that a program takes at a time
PARTS: Final = 16  # the most programs that share a sum: more of them would leave more parts to be added
BLOCK: Final = 1024  # weights that one program copies or checks
VALUES: Final = 2048  # pixels of all channels that one program finishes, where channels need not stay together
ROOM: Final = 2**18  # planned steps per run that there is room for at first
AHEAD: Final = 128  # steps, about 10 ms, after which the host checks whether the device keeps up
LONGEST: Final = 256  # steps in one graph: thousands of kernels, captured in a second
Kind = tuple[int, ...]  # the lengths of an example's batches
PRECISION: Final = "tf32x3"  # three tf32 products give the digits of a float32 one


@final
@dataclass(frozen=True)
class Job:
    """Hold a plan and what it works on.

    Args:
        weights: The weights of the run.
        plan: The rows to visit.
        table: The examples by row.
        objective: What steps minimise.
    """

    weights: Weights
    plan: Plan
    table: Table
    objective: Supervised


@final
@dataclass(frozen=True)
class Terms:
    """Say which kernels a step needs.

    Args:
        as_bytes: Whether inputs are bytes; otherwise float32.
        clipped: Whether gradients are clipped.
        penalised: Whether there is a penalty on the weights.
        within: Whether there is a Reptile line after each batch.
        across: Whether there is a Reptile line after each example.
    """

    as_bytes: bool
    clipped: bool
    penalised: bool
    within: bool
    across: bool

    @staticmethod
    def of(plan: Plan, table: Table, objective: Objective) -> "Terms | None":
        """Return the terms of a job; None if such plans are not supported.

        Args:
            plan: The plan.
            table: The examples by row.
            objective: What steps minimise.
        """
        column = table.column("x")
        if plan.together or not isinstance(objective, Supervised) or not isinstance(column, TensorColumn):
            return None
        return Terms(
            as_bytes=column.values.dtype == torch.uint8,
            clipped=objective.clip is not None,
            penalised=objective.penalty is not None,
            within=plan.rates.within != 1,
            across=plan.rates.across != 1,
        )


@final
class Lockstep:
    """Execute plans of several runs at once, example by example, with one look at the device when all is done.

    An example that gives something that is not finite is undone on the device, and its run rests from there on.

    Args:
        net: The network that all runs have.
        terms: Which kernels a step needs.
        size: How many runs there is room for.
        recorder: What makes graphs.
        device: The GPU.
        chained: Let a kernel be launched before the one before it has ended; it waits by itself.
    """

    def __init__(
        self, net: ConvNet, terms: Terms, size: int, recorder: Recorder, device: torch.device, chained: bool = False
    ) -> None:
        from metareplay.engines.cuda import convnet_kernels  # here, because only machines with a GPU have triton

        self.net, self.terms, self.size = net, terms, size
        self._kernels, self._recorder, self._device = convnet_kernels, recorder, device
        self._direct = not terms.clipped and not terms.penalised
        self._stride = -(-net.size // BLOCK) * BLOCK
        self._how = {"chained": True, "launch_pdl": True} if chained else {"chained": False}
        zeros = self._zeros
        self.theta = zeros(size, self._stride)
        self._before, self._batch_start = zeros(size, self._stride), zeros(size, self._stride if terms.within else 1)
        self._betas, self._gammas, self._clips, self._strengths = (zeros(size) for _ in range(4))
        self._importance, self._anchor = (zeros(size, self._stride if terms.penalised else 1) for _ in range(2))
        self._penalties: list[QuadraticPenalty | None] = [None] * size  # those that were copied last
        self._learned = zeros(size, kind=torch.int32)
        self._scratch, self._i_scratch = zeros(self._most(_forward_parts)), zeros(self._most(_input_parts))
        self._w_scratch = zeros(self._most(_weight_parts))
        self._signals = [self._make_signals(layer.sizes) for layer in net.layers]
        self._heads = convnet_kernels.Heads(
            *(
                torch.tensor([getattr(head, name) for head in net.heads], dtype=torch.int32, device=device)
                for name in ("weight", "bias", "classes")
            )
        )
        self._programs = self._stride // BLOCK  # that share all weights
        self._squares = zeros(size, self._programs)
        self._graphs: dict[object, Work] = {}
        self._patience = Patience()
        self._pace = _Pace(device)
        self._make_room(ROOM)

    def _zeros(self, *shape: int, kind: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(shape, dtype=kind, device=self._device)

    def _most(self, parts: Callable[[Sizes], int]) -> int:
        """Return the most numbers that the parts of one layer's sums need."""
        return max(self.size * parts(layer.sizes) for layer in self.net.layers[1:])

    def _make_signals(self, layer: Sizes) -> Any:
        count = layer.count if layer.groups else 1
        return self._kernels.Signals(
            outputs=self._zeros(self.size, layer.outs, layer.windows),
            places=self._zeros(self.size, layer.outs, layer.windows, kind=torch.int8),
            hats=self._zeros(self.size, layer.outs, count),
            spreads=self._zeros(self.size, max(1, layer.groups)),
            deltas=self._zeros(self.size, layer.outs, layer.count),
        )

    def _make_room(self, steps: int) -> None:
        """Make room for plans of this many steps; graphs that look elsewhere are forgotten."""
        self._steps = steps
        self._graphs.clear()
        integers = [self._zeros(self.size, steps, kind=torch.int32) for _ in range(2)]
        self._runs = self._kernels.Runs(
            theta=self.theta,
            grads=self._zeros(self.size, self._stride if not self._direct else 1),
            active=self._zeros(self.size, kind=torch.int32),
            fine=torch.ones(self.size, dtype=torch.int32, device=self._device),
            cursor=self._zeros(self.size, kind=torch.int32),
            inputs=self._zeros(self.size, steps, kind=torch.int64),
            tasks=integers[0],
            labels=integers[1],
            rates=self._zeros(self.size, steps),
        )

    def execute(self, jobs: Sequence[Job | None]) -> list[int]:
        """Execute a plan for each run; return how many of its examples each has learned.

        The weights of each run are changed in place.

        Args:
            jobs: The plan of each run, None for one that rests.
        """
        there = {run: job for run, job in enumerate(jobs) if job is not None and len(job.plan)}
        longest = max((len(job.plan.rows) for job in there.values()), default=0)
        if longest > self._steps:
            self._make_room(power_of_2(longest))
        for run, job in there.items():
            self._load(run, job)
        taking = torch.zeros(self.size, dtype=torch.int32)
        taking[list(there)] = 1
        self._runs.active.copy_(taking)
        self._runs.fine.fill_(1)
        self._runs.cursor.zero_()
        self._learned.zero_()
        self._before.copy_(self.theta)
        alive = self._runs.active.clone()  # 0 for a run that has stopped
        kinds = {run: _kinds(job.plan) for run, job in there.items()}
        for masks in _turns(kinds, self.size):
            for mask, kind, times in masks:
                taking_part = mask.to(self._device)
                self._runs.active.copy_(alive * taking_part)
                for _ in range(times):
                    self._example(kind)
                    self._pace.after(sum(kind))
                alive.copy_(torch.where(taking_part > 0, self._runs.active, alive))
        learned: list[int] = self._learned.tolist()
        for run, job in there.items():
            job.weights.theta.copy_(self.theta[run, : self.net.size])
        return [learned[run] if run in there else 0 for run in range(self.size)]

    def _load(self, run: int, job: Job) -> None:
        """Copy a run's weights, plan and rates to the device."""
        plan, table = job.plan, job.table
        self.theta[run, : self.net.size].copy_(job.weights.theta)
        rows, count = torch.from_numpy(plan.rows), len(plan.rows)
        images, labels = table.column("x"), table.column("y")
        assert isinstance(images, TensorColumn), "checked when the network was described"
        on_device = rows.to(self._device)
        self._runs.inputs[run, :count].copy_(on_device * images.values[0].nbytes + images.values.data_ptr())
        self._runs.labels[run, :count].copy_(labels.gather(on_device))
        if len(self.net.heads) > 1:
            self._runs.tasks[run, :count].copy_(table.tasks(plan.rows))
        rates = row_rates(plan)
        if rates is None:
            self._runs.rates[run, :count] = plan.rates.memory
        else:
            self._runs.rates[run, :count].copy_(torch.from_numpy(rates))
        self._betas[run], self._gammas[run] = plan.rates.within, plan.rates.across
        if job.objective.clip is not None:
            self._clips[run] = job.objective.clip
        penalty = job.objective.penalty
        if penalty is not None and penalty is not self._penalties[run]:
            self._importance[run, : self.net.size].copy_(penalty.importance)
            self._anchor[run, : self.net.size].copy_(penalty.anchor)
            self._strengths[run] = penalty.strength
        self._penalties[run] = penalty

    def _example(self, kind: Kind) -> None:
        """Learn one example whose batches have these lengths, by graphs once it has come often enough in a row."""
        capture = self._patience.ends({kind})
        for part in _parts(kind):
            work = self._graphs.get(part)
            if work is None and capture:
                work = self._graphs[part] = self._recorder.record(partial(self._work, *part))
            if work is None:
                self._work(*part)
            else:
                work()

    def _work(self, batches: tuple[tuple[int, bool, bool], ...], closes: bool) -> None:
        """Take the steps of some batches; close the example if they are its last ones."""
        k, taken = self._kernels, 0
        for steps, opens, ends in batches:
            if opens and self.terms.within:
                self._over_weights(k.copy_weights, self._batch_start)
            for step in range(taken, taken + steps):
                self._step(step)
            taken += steps
            if ends and self.terms.within:
                self._over_weights(k.draw_line, self._batch_start, self._betas)
        if closes:
            if self.terms.across:
                self._over_weights(k.draw_line, self._before, self._gammas)
            self._over_weights(k.check)
            self._over_weights(k.settle, self._before)
        k.advance[(self.size,)](self._runs, self._learned, taken, closes=closes, num_warps=1, **self._how)

    def _over_weights(self, kernel: Any, *others: Tensor) -> None:
        kernel[(self._programs, self.size)](self._runs, *others, stride=self._stride, size=BLOCK, **self._how)

    def _step(self, step: int) -> None:
        """Take one step of every active run."""
        k, layers, signals = self._kernels, self.net.layers, self._signals
        planned = {"steps": self._steps, "stride": self._stride, **self._how}
        first, last = layers[0], layers[-1]
        block = _block(first.sizes)
        k.first_layer[(first.sizes.outs // block["channels"], self.size)](
            self._runs, signals[0], first.seen, step, layer=first.sizes, as_bytes=self.terms.as_bytes, **block,
            num_warps=_warps(first.sizes), **planned,
        )  # fmt: skip
        for number, layer in enumerate(layers[1:], start=1):
            tiles, parts, tile = _forward_cut(layer.sizes)
            k.convolve[(tiles * parts, self.size)](
                self._runs, signals[number - 1].outputs, layer.seen, self._scratch, stride=self._stride,
                layer=layer.sizes, parts=parts, **tile, precision=PRECISION, num_warps=4, **self._how,
            )  # fmt: skip
            if layer is not last:
                block = _block(layer.sizes)
                k.finish[(layer.sizes.outs // block["channels"], self.size)](
                    self._runs, signals[number], self._scratch, stride=self._stride, layer=layer.sizes, parts=parts,
                    **block, num_warps=_warps(layer.sizes), **self._how,
                )  # fmt: skip
        classes = power_of_2(max(head.classes for head in self.net.heads))
        k.head[(self.size,)](
            self._runs, self._heads, signals[-1], self._scratch, step, layer=last.sizes, parts=parts,
            blocks=last.sizes.blocks, windows=power_of_2(last.sizes.windows), classes=classes, direct=self._direct,
            num_warps=8, **planned,
        )  # fmt: skip
        for number in range(len(layers) - 1, 0, -1):
            self._step_back(number, step, planned)
        k.first_layer_back[(first.sizes.outs, self.size)](
            self._runs, signals[0].deltas, first.seen, step, layer=first.sizes,
            columns=power_of_2(first.sizes.taps + 1), pixels=power_of_2(first.sizes.count),
            as_bytes=self.terms.as_bytes, direct=self._direct, num_warps=8, **planned,
        )  # fmt: skip
        if not self._direct:
            self._update(step, planned)

    def _step_back(self, number: int, step: int, planned: dict[str, Any]) -> None:
        """Go back through one convolution but the first: its weights step, and the layer below gets its gradient."""
        k, layer, below = self._kernels, self.net.layers[number], self.net.layers[number - 1].sizes
        sizes = layer.sizes
        tiles, parts, tile = _weight_cut(sizes)
        i_tiles, i_parts, i_tile = _input_cut(sizes)
        k.multiply_back[(tiles * parts + i_tiles * i_parts, self.size)](
            self._runs, self._signals[number - 1].outputs, self._signals[number].deltas, layer.seen, layer.sees,
            self._w_scratch, self._i_scratch, stride=self._stride, layer=sizes, tiles=tiles, parts=parts, **tile,
            i_parts=i_parts, **{f"i_{name}": value for name, value in i_tile.items()},
            precision=PRECISION, num_warps=4, **self._how,
        )  # fmt: skip
        block = _block(below)
        warps = _warps(below)
        first = -(-sizes.outs * (sizes.ins * sizes.taps + 1) // (32 * warps))
        k.finish_back[(first + below.outs // block["channels"], self.size)](
            self._runs, self._signals[number - 1], self._w_scratch, self._i_scratch, step, layer=sizes, below=below,
            first=first, parts=parts, size=32 * warps, i_parts=i_parts, **block, direct=self._direct, num_warps=warps,
            **planned,
        )  # fmt: skip

    def _update(self, step: int, planned: dict[str, Any]) -> None:
        """Take the step with the gradient as a whole: add the penalty, clip."""
        k, grid, terms = self._kernels, (self._programs, self.size), self.terms
        given = (self._runs, self._importance, self._anchor, self._strengths, self._squares)
        common = {"count": self.net.size, "programs": self._programs, "penalised": terms.penalised, "size": BLOCK}
        if terms.clipped:
            k.norms[grid](*given, stride=self._stride, **common, **self._how)
        k.update[grid](
            *given, self._clips, step, padded=power_of_2(self._programs), clipped=terms.clipped, **common, **planned
        )


@final
class _Pace:
    """Keep the host only a little ahead of the device.

    A call that waits for the device, such as one that allocates memory in another thread, takes as long as the work
    that is already queued.

    Args:
        device: The GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu, self._steps = device.type == "cuda", 0
        self._asked: deque[torch.cuda.Event] = deque()

    def after(self, steps: int) -> None:
        """Wait, once some more steps have been asked for, until only the latest of them are still to be done.

        Args:
            steps: How many steps have been asked for.
        """
        self._steps += steps
        if self._on_gpu and self._steps >= AHEAD:
            self._steps = 0
            self._asked.append(torch.cuda.Event())
            self._asked[-1].record()
            if len(self._asked) > 2:
                self._asked.popleft().synchronize()


def can_chain(device: torch.device) -> bool:
    """Return whether kernels can be launched before the one before has ended: from Hopper GPUs on.

    Args:
        device: The GPU.
    """
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def _block(layer: Sizes) -> dict[str, int]:
    """Return the channels and windows that one program finishes: a whole group, or a few channels without groups."""
    blocks = layer.blocks
    few = max(1, min(layer.outs, VALUES // (blocks * layer.window)))
    return {"channels": layer.outs // layer.groups if layer.groups else few, "blocks": blocks}


def _warps(layer: Sizes) -> int:
    """Return the warps of a program that finishes a block; in a trial 16 were slower for the largest blocks than 8."""
    block = _block(layer)
    return 8 if block["channels"] * block["blocks"] * layer.window > VALUES else 4


def _cut(across: int, wide: int, inner: int) -> tuple[int, int, dict[str, int]]:
    """Divide a matrix product among programs.

    Args:
        across: Columns of the result.
        wide: Columns of a tile.
        inner: Terms of the inner sum.

    Returns:
        How many tiles there are, how many parts the inner sum has, and the sizes that a kernel takes.
    """
    at_once = min(DEPTH, max(16, power_of_2(inner)))
    turns = -(-inner // (at_once * PARTS))
    return (
        -(-across // wide),
        -(-inner // (at_once * turns)),
        {"rows": ROWS, "columns": wide, "depth": at_once, "turns": turns},
    )


def _forward_cut(layer: Sizes) -> tuple[int, int, dict[str, int]]:
    return _cut(layer.count, COLUMNS, layer.ins * layer.taps)


def _weight_cut(layer: Sizes) -> tuple[int, int, dict[str, int]]:
    return _cut(layer.ins * layer.taps + 1, WIDER, layer.count)


def _input_cut(layer: Sizes) -> tuple[int, int, dict[str, int]]:
    return _cut(layer.pixels, COLUMNS, layer.outs * layer.taps)


def _forward_parts(layer: Sizes) -> int:
    return _forward_cut(layer)[1] * layer.outs * layer.count


def _weight_parts(layer: Sizes) -> int:
    return _weight_cut(layer)[1] * layer.outs * (layer.ins * layer.taps + 1)


def _input_parts(layer: Sizes) -> int:
    return _input_cut(layer)[1] * layer.ins * layer.pixels


def _kinds(plan: Plan) -> list[Kind]:
    """Return the lengths of the batches of each example."""
    sizes: Ints = np.diff(plan.ends).reshape(len(plan), plan.s)
    return [tuple(row) for row in sizes.tolist()]


def _turns(kinds: dict[int, list[Kind]], size: int) -> list[list[tuple[Tensor, Kind, int]]]:
    """Return what to do: in each turn, which runs learn how many examples of which kind.

    Args:
        kinds: The kind of every example of each run.
        size: How many runs there is room for.
    """
    found = []
    for column, same in groupby(zip_longest(*(kinds.get(run, []) for run in range(size)))):
        times = len(list(same))
        masks = []
        for kind in dict.fromkeys(one for one in column if one is not None):
            mask = torch.tensor([int(one == kind) for one in column], dtype=torch.int32)
            masks.append((mask, kind, times))
        found.append(masks)
    return found


Part = tuple[tuple[tuple[int, bool, bool], ...], bool]


def _parts(kind: Kind) -> list[Part]:
    """Divide an example into parts that a graph can hold.

    A part is its batches and whether the example ends with it. A batch is the number of its steps in this part, whether
    it begins here, and whether it ends here.

    Args:
        kind: The lengths of the example's batches.
    """
    found: list[Part] = []
    here: list[tuple[int, bool, bool]] = []
    room = LONGEST
    for length in kind:
        left = length
        while left:
            steps = min(left, room)
            here.append((steps, left == length, left == steps))
            left, room = left - steps, room - steps
            if room == 0:
                found.append((tuple(here), False))
                here, room = [], LONGEST
    return [*found, (tuple(here), True)]
