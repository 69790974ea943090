"""An MLP's weights and examples as the compiled kernel holds them: whole vectors, aligned, zeros left out."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from metareplay.engines.cpu.simd import EIGHT, LANES, lowest, nonzeros

Array = NDArray[Any]
Layers = Sequence[tuple[Array, Array]]  # an MLP's (W, b) as torch has them
Index = int | np.signedinteger[Any]
Function = TypeVar("Function", bound=Callable[..., Any])

CHUNK = EIGHT  # steps kept beside the weights before they are written; also how many rows a vector operation takes
GROUP = 64  # examples whose gradients are computed together: a layer's outputs fit into the fastest cache
CROSS_ENTROPY, SQUARED_ERROR, HUBER = range(3)
SETS = range(1 << CHUNK)  # a set of a chunk's terms, as bits
MANY = 5
SIZES = np.array([(0, 1, 2, 4, 4, MANY, MANY, MANY, MANY)[terms.bit_count()] for terms in SETS], np.uint8)
ORDERS = np.array([sorted(range(CHUNK), key=lambda j: not terms >> j & 1) for terms in SETS], np.uint8)  # its own first

OPTIONS: dict[str, Any] = {
    "fastmath": {"contract", "reassoc"},
    "error_model": "numpy",
    "nogil": True,
    "cache": True,
    "_nrt": False,
}


def source_stamp(folder: Path) -> str:
    """A word for what the compiled functions' files say."""
    files = ("simd.py", "layout.py", "steps.py", "groups.py")
    return hashlib.sha256(b"".join((folder / name).read_bytes() for name in files)).hexdigest()


STAMP = source_stamp(Path(__file__).parent)


def compiled(function: Function) -> Function:
    """Compile for this CPU on first use, without the GIL; cached on disk. NaN and infinity keep their meaning.

    `_nrt=False`: nothing is allocated inside, so no references need counting (it halves the time of a step).
    By itself numba's cache looks only at the file of the function that is called, not at those of what it calls.
    """
    made: Any = njit(**OPTIONS)(function)
    made._cache._cache_file._source_stamp = STAMP
    return cast(Function, made)


class SparseRows(NamedTuple):
    """Vectors as their nonzero entries, then a constant 1, then zero terms up to a multiple of CHUNK."""

    picks: Array  # (R, longest) uint32: positions
    values: Array  # (R, longest)
    counts: Array  # (R,) int64: nonzero entries, the constant 1 not counted
    masks: Array  # (R, width + 1 in LANES) uint16: a bit for each position, set in table rows where there is an entry


class Net(NamedTuple):
    """The weights, and room to work. Layers are stacked along the first axis."""

    firsts: Array  # (L,) each layer's first row in rows
    inputs: Array  # (L,) input widths
    outputs: Array  # (L,) output widths
    widths: Array  # (L,) outputs + CHUNK, rounded up to whole vectors
    rows: Array  # (sum of inputs + 1 in eights, widest): [W_0[p], x_1[p], ..., x_CHUNK[p]]
    every: Array  # (L, longest) uint32: each layer's rows
    terms: Array  # (1, rows of the first layer in LANES) uint8: the set of the chunk's terms that each has
    by_size: Array  # (MANY + 1, rows) uint32: the first layer's rows to write, by how many terms they have
    size_counts: Array  # (MANY + 1,)
    changed: Array  # (rows of the first layer in LANES,) int64: a bit for each that the batch has changed
    is_copied: Array  # (1,) whether before_batch is the same as rows
    chunks: Array  # (L, CHUNK) uint32: each layer's rows in steps
    steps: Array  # (L * CHUNK, widest): v_j
    ahead: Array  # (CHUNK, widest): the first layer's [x'W_0, x'x_1, ...] for each of a chunk's inputs
    sums: Array  # (L, widest): [x'W, x'x_1, ..., x'x_CHUNK]
    deltas: Array  # (L, widest): [d, v_1'd, ..., v_CHUNK'd]
    active: SparseRows  # (L, ...): each layer's input, for layers after the first
    dots: Array  # (1, longest)
    before_batch: Array  # as rows
    before_example: Array  # as rows


class Batch(NamedTuple):
    """Room for the gradients of a batch, of which one step is made: row layer * size + i is example i's."""

    size: int
    deltas: Array  # (L * size, widest)
    active: SparseRows  # (L * size, ...)


class Turned(NamedTuple):
    """Inputs by pairs of neighbouring pixels, in blocks of up to GROUP table rows: pairs that are not both zero.

    In block b, pixels 2q and 2q + 1 are values[b, 2e] and values[b, 2e + 1] in the block's example items[b, e], for
    starts[b, q] <= e < starts[b, q + 1].
    """

    starts: Array  # (B, pairs + 2) uint32
    items: Array  # (B, GROUP * pairs) uint8
    values: Array  # (B, GROUP * pairs * 2)
    counts: Array  # (B,) how many rows each block has
    rows: Array  # (B, GROUP) int64: which
    writes: Array  # (B, GROUP) int64: Table.writes of each when it was turned


class Group(NamedTuple):
    """Room for the gradients of GROUP examples at a time: row layer * GROUP + i is example i's."""

    inputs: Array  # ((L + 1) * GROUP, widest): each layer's input, then a 1; at last the outputs
    deltas: Array  # (L * GROUP, widest)
    transposed: Array  # (L * longest, widest): row layer * longest + u is W[:, u]


class Targets(NamedTuple):
    """What each table row should map to: labels for the cross-entropy, values for the other losses."""

    loss: int
    labels: Array  # (R,) int64
    values: Array  # (R, d_out)


class Steps(NamedTuple):
    """A plan's rows; batch b of example i is number i * s + b, rows[ends[number] : ends[number + 1]]."""

    rows: Array
    ends: Array
    shares: Array  # where a batch is one step: the weight of each row's loss in it
    s: int
    incoming: int  # the table row of the first example


class Rates(NamedTuple):
    """How far steps and Reptile lines go; clip is the largest gradient norm (infinity: any)."""

    memory: float
    current: float
    within: float
    across: float
    clip: float


class PullRows(NamedTuple):
    """EWC's penalty: twice its strength, importance and anchor as rows."""

    twice: float
    importance: Array
    anchor: Array


def aligned(shape: tuple[int, ...], dtype: Any) -> Array:
    """Zeros that start on a cache line, so that a vector load never straddles two."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    zeros: Array = raw[start : start + size].view(dtype)
    return zeros.reshape(shape)


def sparse_rows(count: int, width: int, dtype: Any) -> SparseRows:
    """Room for so many sparse vectors of a width."""
    longest = _up(width + 1, CHUNK)
    return SparseRows(
        picks=aligned((count, longest), np.uint32),
        values=aligned((count, longest), dtype),
        counts=np.zeros(count, np.int64),
        masks=np.zeros((count, _up(width + 1, LANES) // LANES), np.uint16),
    )


def make_net(layer_widths: tuple[int, ...], dtype: Any) -> Net:
    """Room for an MLP with these widths; `put_weights` fills it."""
    sizes = np.asarray(layer_widths, np.int64)
    inputs, outputs = sizes[:-1].copy(), sizes[1:].copy()
    ends = np.cumsum(_up(inputs + 1, CHUNK))  # whole eights of rows
    firsts = np.concatenate(([0], ends[:-1]))
    widths = _up(outputs + CHUNK, LANES)
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
        chunks=np.arange(depth * CHUNK, dtype=np.uint32).reshape(depth, CHUNK),
        steps=aligned((depth * CHUNK, widest), dtype),
        ahead=aligned((CHUNK, widest), dtype),
        sums=aligned((depth, widest), dtype),
        deltas=aligned((depth, widest), dtype),
        active=active,
        dots=aligned((1, active.values.shape[1]), dtype),
        before_batch=aligned((rows, widest), dtype),
        before_example=aligned((rows, widest), dtype),
    )


def make_batch(net: Net, size: int) -> Batch:
    """Room for a batch of up to so many examples."""
    depth, dtype = len(net.inputs), net.rows.dtype
    return Batch(
        size=size,
        deltas=aligned((depth * size, net.rows.shape[1]), dtype),
        active=sparse_rows(depth * size, int(net.inputs[1:].max(initial=0)), dtype),
    )


def make_turned(blocks: int, width: int, dtype: Any) -> Turned:
    """Room for so many blocks; pages that are not used cost nothing."""
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
    """Room for a group of examples."""
    depth, dtype = len(net.inputs), net.rows.dtype
    widest = _up(max(int(net.inputs[1:].max(initial=0)) + 1, net.rows.shape[1]), LANES)
    return Group(
        inputs=aligned(((depth + 1) * GROUP, widest), dtype),
        deltas=aligned((depth * GROUP, widest), dtype),
        transposed=aligned((depth * int(net.outputs.max()), widest), dtype),
    )


def put_weights(net: Net, rows: Array, layers: Layers) -> None:
    """Copy an MLP's weights into rows laid out as the net's."""
    for part, weight, bias in _beside(net, rows, layers):
        part[:-1], part[-1] = weight.T, bias


def get_weights(net: Net, rows: Array, layers: Layers) -> None:
    """Copy rows laid out as the net's into an MLP's weights."""
    for part, weight, bias in _beside(net, rows, layers):
        weight[:], bias[:] = part[:-1].T, part[-1]


@compiled
def pack(sparse: SparseRows, dense: Array, which: Array) -> None:
    """Enter dense[i] into sparse as row which[i], for every i."""
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
    """End row r after n entries: the constant 1 at position `one`, then zero terms."""
    sparse.counts[r] = n
    for t in range(n, (n + CHUNK) // CHUNK * CHUNK):
        sparse.picks[r, t] = one
        sparse.values[r, t] = 0
    sparse.values[r, n] = 1


def _beside(net: Net, rows: Array, layers: Layers) -> Iterator[tuple[Array, Array, Array]]:
    """Each layer's rows beside its weights: (rows, W, b), all views."""
    for first, n, m, (weight, bias) in zip(net.firsts, net.inputs, net.outputs, layers, strict=True):
        yield rows[first : first + n + 1, :m], weight, bias


def _up(n: Any, unit: int) -> Any:
    return -(-n // unit) * unit
