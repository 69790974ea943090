"""An MLP's weights and examples as the compiled kernels hold them: whole vectors, aligned, zeros left out.

All layers are rows of one matrix, `Net.rows`. Row p of a layer belongs to input p of that layer. It holds the weights
W_0[p, :] from that input to every output and, beside them, entry p of the inputs x_1, x_2, ... of the pending steps:
steps that are not yet written into W_0 (the header of steps.py says why). The bias is one more row, for an input that
is always 1. For widths 784-100-100-10:

           column   0 ... 99          100 ... 107            108 ... 111
                  +-----------------+----------------------+-----------+
    row   0       | W_0[0, :]       | x_1[0] ... x_8[0]    | 0 0 0 0   |  first layer: firsts[0] = 0, inputs[0] = 784,
    row   1       | W_0[1, :]       | x_1[1] ... x_8[1]    | 0 0 0 0   |  outputs[0] = 100
      ...         |                 |                      |           |
    row 783       | W_0[783, :]     | x_1[783] ... x_8[783]| 0 0 0 0   |
    row 784       | the bias        | 1 1 1 0 0 0 0 0      | 0 0 0 0   |  in a batch of three, five columns stay empty
    rows 785-791  | 0               | 0                    | 0         |  up to a multiple of eight rows
                  +-----------------+----------------------+-----------+
    row 792       | W_0[0, :]       | x_1[0] ... x_8[0]    | 0 0 0 0   |  second layer: firsts[1] = 792; its inputs are
      ...         |                 |                      |           |  what the ReLUs of the first layer let through
                  +-----------------+----------------------+-----------+
           column   0 ... 9   10 ... 17             18 ... 31
                  +---------+----------------------+-------------------+
    row 896       | W_0[0,:]| x_1[0] ... x_8[0]    | 0 ... 0           |  third layer: firsts[2] = 896, outputs[2] = 10;
      ...         |         |                      |                   |  columns from 32 on are not used

So widths[0] = 100 + 8, rounded up to whole vectors: 112 columns, seven vectors of LANES. The eight columns cost nothing
there: 100 outputs alone need seven vectors too. The other half of the pending steps is in `Net.steps`, whose rows
8 * layer to 8 * layer + 7 hold v_1 to v_8 of a layer, v_j = -rate_j d_j, in the columns of its outputs.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from metareplay._core.numba_private import cached_njit, source_stamp
from metareplay.engines.cpu.simd import EIGHT, LANES, lowest, nonzeros

Array = NDArray[Any]
Layers = Sequence[tuple[Array, Array]]  # an MLP's (W, b) as torch has them
Index = int | np.signedinteger[Any]
Function = TypeVar("Function", bound=Callable[..., Any])

# Steps that are kept beside the weights before all of them are written at once. Writing after every step was slower
# (2.3 us against 2.0 in a prototype), and so was keeping the 101 steps of a whole batch, because there are as many
# products x_i'x_j as pairs of steps (docs/performance.md). With eight, the steps that change a row fit into a byte.
PENDING = EIGHT

GROUP = 64  # examples whose gradients are computed together: a layer's outputs fit into the fastest cache
CROSS_ENTROPY, SQUARED_ERROR, HUBER = range(3)

# The terms of a row of the first layer are the pending steps that change it: those whose input is not zero there. On
# MNIST a row that is changed at all has 3.3 of the 8 on average, so it pays to write rows with up to four terms with
# their own terms only. There are loops for 1, 2 and 4 (a row with three takes another one along, which is zero there).
# A row with MANY or more is written with all eight, whose v_j then stay in registers from row to row: with own terms
# for these rows as well, dense inputs took 25 % longer (docs/performance.md).
MANY = 5
SETS = range(1 << PENDING)  # every set of terms, as bits
SIZES = np.array([(0, 1, 2, 4, 4, MANY, MANY, MANY, MANY)[terms.bit_count()] for terms in SETS], np.uint8)
# For every set the pending steps in such an order that its own terms come first.
ORDERS = np.array([sorted(range(PENDING), key=lambda j: not terms >> j & 1) for terms in SETS], np.uint8)

OPTIONS: dict[str, Any] = {"fastmath": {"contract", "reassoc"}, "error_model": "numpy", "nogil": True}
KERNEL_FILES = (
    "simd.py",
    "layout.py",
    "steps.py",
    "products.py",
    "groups.py",
    "optimizer_steps.py",
    "layer_steps.py",
    "single_rows.py",
    "factor_steps.py",
)  # they decide the machine code
STAMP = source_stamp(Path(__file__).parent, KERNEL_FILES)


def compiled(function: Function) -> Function:
    """Compile a function for this CPU when it is first called, without the GIL, and keep the result on disk.

    NaN and infinity keep their meaning. Nothing may be allocated inside.

    Args:
        function: The function, written in the part of Python that numba compiles.
    """
    return cast(Function, cached_njit(function, OPTIONS, STAMP))


def inlined(function: Function) -> Function:
    """Compile a function into its callers: passing a whole net would take longer than the work itself.

    Args:
        function: The function, written in the part of Python that numba compiles.
    """
    return cast(Function, cached_njit(function, OPTIONS | {"forceinline": True}, STAMP))


class SparseRows(NamedTuple):
    """Hold vectors as their nonzero entries, then a constant 1, then zero terms up to a multiple of EIGHT."""

    picks: Array  # (R, longest) uint32: positions
    values: Array  # (R, longest)
    counts: Array  # (R,) int64: nonzero entries, the constant 1 not counted
    masks: Array  # (R, width + 1 in LANES) uint16: a bit for each position, set in table rows where there is an entry


class Net(NamedTuple):
    """Hold the weights and room to work. The picture at the top of the file shows `rows`; L is the number of layers."""

    firsts: Array  # (L,) each layer's first row in rows
    inputs: Array  # (L,) input widths
    outputs: Array  # (L,) output widths
    widths: Array  # (L,) columns in use: outputs + PENDING, rounded up to whole vectors
    rows: Array  # (all layers' inputs + 1, each rounded up to eights; widest): [W_0[p], x_1[p], ..., x_PENDING[p]]
    every: Array  # (L, longest) uint32: each layer's rows
    terms: Array  # (1, rows of the first layer in LANES) uint8: the set of pending steps whose input is not 0 there
    by_size: Array  # (MANY + 1, rows) uint32: the first layer's rows to write, by the SIZES of their terms
    size_counts: Array  # (MANY + 1,) how many rows of by_size are listed
    changed: Array  # (rows of the first layer in LANES,) int64: a bit for each row that the batch has changed
    is_copied: Array  # (1,) whether before_batch already equals rows
    pending: Array  # (L, PENDING) uint32: each layer's rows in steps
    steps: Array  # (L * PENDING, widest): v_j
    ahead: Array  # (PENDING, widest): the first layer's [x'W_0, x'x_1, ...] for the input of each pending step
    sums: Array  # (L, widest): [x'W, x'x_1, ..., x'x_PENDING]
    deltas: Array  # (L, widest): [d, v_1'd, ..., v_PENDING'd]
    active: SparseRows  # (L, ...): each layer's input, for layers after the first
    dots: Array  # (1, longest): the entries of W d for the inputs in active
    before_batch: Array  # laid out as rows: the weights before the current batch
    before_example: Array  # laid out as rows: the weights before the current example


class Batch(NamedTuple):
    """Hold the gradients of a batch that is one step: row layer * size + i belongs to example i in a layer."""

    size: int
    deltas: Array  # (L * size, widest)
    active: SparseRows  # (L * size, ...)


class Turned(NamedTuple):
    """Hold the inputs of up to GROUP table rows (a block) by pairs of neighbouring pixels, without pairs of zeros.

    In block b, pixels 2q and 2q + 1 are values[b, 2e] and values[b, 2e + 1] in the block's example items[b, e], for
    starts[b, q] <= e < starts[b, q + 1].
    """

    starts: Array  # (B, pairs + 2) uint32
    items: Array  # (B, GROUP * pairs) uint8
    values: Array  # (B, GROUP * pairs * 2)
    counts: Array  # (B,) how many rows each block has
    rows: Array  # (B, GROUP) int64: which table rows these are
    writes: Array  # (B, GROUP) int64: Table.writes of each row when it was sorted, to tell whether it has changed since


class Group(NamedTuple):
    """Hold the gradients of GROUP examples at a time: row layer * GROUP + i belongs to example i in a layer."""

    inputs: Array  # ((L + 1) * GROUP, widest): each layer's input and a 1 after it; the last GROUP rows are the outputs
    deltas: Array  # (L * GROUP, widest)
    transposed: Array  # (L * longest, widest): row layer * longest + u is W[:, u]


class Targets(NamedTuple):
    """Hold the target of each table row: labels for the cross-entropy, values for the other losses."""

    loss: int
    labels: Array  # (R,) int64
    values: Array  # (R, d_out)


class Steps(NamedTuple):
    """Hold a plan's rows: batch b of example i is number i * s + b and has rows[ends[number] : ends[number + 1]]."""

    rows: Array
    ends: Array
    shares: Array  # the weight of each row's loss in its step
    s: int
    incoming: int  # the table row of the first example


class KernelRates(NamedTuple):
    """Say how far steps and Reptile lines go."""

    memory: float  # alpha, for a step on a stored example or a batch
    current: float  # for a step on the incoming example alone
    within: float  # beta, the Reptile line after each batch
    across: float  # gamma, the Reptile line after the batches of one example
    clip: float  # the largest norm of a gradient; infinity for no limit


class PullRows(NamedTuple):
    """Hold EWC's penalty, a `QuadraticPenalty`, laid out as the net's rows."""

    twice: float  # twice its strength
    importance: Array  # F, the sum of the tasks' importances
    anchor: Array  # the sum of the tasks' importances times their weights


def aligned(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return zeros that start on a cache line, so that loading a vector never touches one more line than it must.

    Args:
        shape: The shape of the array.
        dtype: The type of its numbers.
    """
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    zeros: Array = raw[start : start + size].view(dtype)
    return zeros.reshape(shape)


def sparse_rows(count: int, width: int, dtype: Any) -> SparseRows:
    """Return room for sparse vectors.

    Args:
        count: How many vectors.
        width: How long each of them is, the constant 1 not counted.
        dtype: The type of their numbers.
    """
    longest = _up(width + 1, EIGHT)
    return SparseRows(
        picks=aligned((count, longest), np.uint32),
        values=aligned((count, longest), dtype),
        counts=np.zeros(count, np.int64),
        masks=np.zeros((count, _up(width + 1, LANES) // LANES), np.uint16),
    )


def make_net(layer_widths: tuple[int, ...], dtype: Any) -> Net:
    """Return room for an MLP; `put_weights` fills in the weights.

    Args:
        layer_widths: The sizes of the input, of each hidden layer and of the output.
        dtype: The type of the weights, float32 or float64.
    """
    sizes = np.asarray(layer_widths, np.int64)
    inputs, outputs = sizes[:-1].copy(), sizes[1:].copy()
    ends = np.cumsum(_up(inputs + 1, EIGHT))  # each layer begins at a multiple of eight rows
    firsts = np.concatenate(([0], ends[:-1]))
    widths = _up(outputs + PENDING, LANES)
    depth, widest, rows = len(inputs), int(widths.max()), int(ends[-1])
    active = sparse_rows(depth, int(inputs.max()) + LANES, dtype)  # whole vectors are stored
    return Net(
        firsts=firsts,
        inputs=inputs,
        outputs=outputs,
        widths=widths,
        rows=aligned((rows, widest), dtype),
        every=(firsts[:, None] + np.arange(_up(inputs.max() + 1, LANES))).astype(np.uint32),
        terms=np.zeros((1, _up(inputs[0] + 1, LANES)), np.uint8),
        by_size=np.zeros((MANY + 1, rows), np.uint32),
        size_counts=np.zeros(MANY + 1, np.int64),
        changed=np.zeros(_up(inputs[0] + 1, LANES) // LANES, np.int64),
        is_copied=np.zeros(1, np.bool_),
        pending=np.arange(depth * PENDING, dtype=np.uint32).reshape(depth, PENDING),
        steps=aligned((depth * PENDING, widest), dtype),
        ahead=aligned((PENDING, widest), dtype),
        sums=aligned((depth, widest), dtype),
        deltas=aligned((depth, widest), dtype),
        active=active,
        dots=aligned((1, active.values.shape[1]), dtype),
        before_batch=aligned((rows, widest), dtype),
        before_example=aligned((rows, widest), dtype),
    )


def make_batch(net: Net, size: int) -> Batch:
    """Return room for the gradients of a batch.

    Args:
        net: The net whose gradients they are.
        size: How many examples the batch has at most.
    """
    depth, dtype = len(net.inputs), net.rows.dtype
    return Batch(
        size=size,
        deltas=aligned((depth * size, net.rows.shape[1]), dtype),
        active=sparse_rows(depth * size, int(net.inputs[1:].max(initial=0)), dtype),
    )


def make_turned(blocks: int, width: int, dtype: Any) -> Turned:
    """Return room for inputs sorted by pixel; pages of it that are never used take no memory.

    Args:
        blocks: How many blocks of up to GROUP table rows.
        width: The size of an input.
        dtype: The type of its numbers.
    """
    most = GROUP * (width // 2 + 1)
    return Turned(
        starts=np.zeros((blocks, width // 2 + 3), np.uint32),
        items=np.zeros((blocks, most), np.uint8),
        values=np.zeros((blocks, 2 * most), dtype),
        counts=np.zeros(blocks, np.int64),
        rows=np.zeros((blocks, GROUP), np.int64),
        writes=np.zeros((blocks, GROUP), np.int64),
    )


def make_group(net: Net) -> Group:
    """Return room for the gradients of a group of examples.

    Args:
        net: The net whose gradients they are.
    """
    depth, dtype = len(net.inputs), net.rows.dtype
    widest = _up(max(int(net.inputs[1:].max(initial=0)) + 1, net.rows.shape[1]), LANES)
    return Group(
        inputs=aligned(((depth + 1) * GROUP, widest), dtype),
        deltas=aligned((depth * GROUP, widest), dtype),
        transposed=aligned((depth * int(net.outputs.max()), widest), dtype),
    )


def put_weights(net: Net, rows: Array, layers: Layers) -> None:
    """Copy an MLP's weights into rows.

    Args:
        net: The net that says how rows are laid out.
        rows: The rows to write, the net's own or others laid out alike.
        layers: Each layer's weights and biases.
    """
    for part, weight, bias in _beside(net, rows, layers):
        part[:-1], part[-1] = weight.T, bias


def get_weights(net: Net, rows: Array, layers: Layers) -> None:
    """Copy rows into an MLP's weights.

    Args:
        net: The net that says how rows are laid out.
        rows: The rows to read, the net's own or others laid out alike.
        layers: Each layer's weights and biases, which are overwritten.
    """
    for part, weight, bias in _beside(net, rows, layers):
        weight[:], bias[:] = part[:-1].T, part[-1]


@compiled
def pack(sparse: SparseRows, dense: Array, which: Array) -> None:
    """Enter dense vectors into sparse rows: dense[i] becomes row which[i].

    Args:
        sparse: Where to enter them.
        dense: (n, width) the vectors.
        which: (n,) the row that each goes to.
    """
    for i in range(len(which)):
        pack_row(sparse, which[i], dense, i, 1.0)


@compiled
def pack_row(sparse: SparseRows, r: Index, dense: Array, i: Index, scale: float) -> None:
    """Enter dense[i] / scale into sparse as row r."""
    width, number = dense.shape[1], sparse.values.dtype.type
    sparse.masks[r] = 0
    n = np.int64(0)
    for j in range(0, width - LANES + 1, LANES):
        bits = nonzeros(dense, i, j)
        sparse.masks[r, j // LANES] = bits
        while bits:
            p = j + lowest(bits)
            sparse.picks[r, n] = p
            sparse.values[r, n] = dense[i, p]
            n += 1
            bits &= bits - 1
    for p in range(width - width % LANES, width):
        sparse.picks[r, n] = p
        sparse.values[r, n] = dense[i, p]
        sparse.masks[r, p // LANES] |= np.uint16((dense[i, p] != 0) << p % LANES)
        n += dense[i, p] != 0
    if scale != 1:
        for t in range(n):
            sparse.values[r, t] /= number(scale)
    sparse.masks[r, width // LANES] |= np.uint16(1 << width % LANES)
    close(sparse, r, n, width)


@compiled
def close(sparse: SparseRows, r: Index, n: Index, one: Index) -> None:
    """End sparse row r after n entries: the constant 1 at position `one`, then zero terms up to a multiple of EIGHT."""
    sparse.counts[r] = n
    for t in range(n, (n + EIGHT) // EIGHT * EIGHT):
        sparse.picks[r, t] = one
        sparse.values[r, t] = 0
    sparse.values[r, n] = 1


def _beside(net: Net, rows: Array, layers: Layers) -> Iterator[tuple[Array, Array, Array]]:
    """Yield each layer's part of the rows beside its weights: (rows, W, b), all of them views."""
    for first, n, m, (weight, bias) in zip(net.firsts, net.inputs, net.outputs, layers, strict=True):
        yield rows[first : first + n + 1, :m], weight, bias


def _up(n: Any, unit: int) -> Any:
    """Round up to a multiple of a unit."""
    return -(-n // unit) * unit
