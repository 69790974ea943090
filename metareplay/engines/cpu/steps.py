"""Plans of batch-1 SGD steps and Reptile lines on an MLP, compiled, one thread.

A layer is kept as the matrix it had when it was last written; the steps since then, at most PENDING, are pending: they
are kept beside it as rank-one terms. With x a layer's input (its last entry is a constant 1, so that W holds the bias),
d the gradient of the loss at its output, and v_j = -rate_j d_j,

    W = W_0 + sum_j x_j v_j'      output     x'W = x'W_0 + sum_j (x'x_j) v_j
                                  backward   W d = W_0 d + sum_j x_j (v_j'd)

so W is written once per PENDING steps, W <- W_0 + beta sum_j x_j v_j', with Reptile's rate folded in. Nothing is
approximated; docs/architecture.md derives it step by step. Row p of a layer is stored as [W_0[p, :], x_1[p], ...,
x_PENDING[p]] (there is a picture in layout.py): one sum over rows gives x'W_0 and every x'x_j, and one dot with
[d, v_1'd, ..., v_PENDING'd] gives a whole entry of W d. Zero inputs (empty pixels, idle ReLUs) are not
visited, unless fewer than half of an example's are zero.

A plain 0 as an argument would make numba compile another version of a function for it; np.int64(0) does not.
"""

from typing import Any

import numpy as np

from metareplay.engines.cpu.layout import (
    CROSS_ENTROPY,
    MANY,
    ORDERS,
    PENDING,
    SIZES,
    SQUARED_ERROR,
    Array,
    Batch,
    Index,
    KernelRates,
    Net,
    PullRows,
    SparseRows,
    Steps,
    Targets,
    close,
    compiled,
    pack_row,
)
from metareplay.engines.cpu.simd import (
    EIGHT,
    LANES,
    LIKE_EIGHT,
    LIKE_SEVEN,
    either,
    inner,
    load,
    load_rows,
    load_span,
    lowest,
    multiply_add,
    multiply_add_each,
    numbers,
    open_bits,
    prefetch,
    splat,
    splat_eight,
    splats,
    store,
    store_eight,
    store_span,
    store_totals,
    store_where,
    where_bits,
    zeros,
)

SPAN = 7 * LANES  # columns whose sums stay in registers: those of a layer with 100 outputs

# --- the two heavy loops


@compiled
def sum_rows(out: Array, o: Index, matrix: Array, sparse: SparseRows, r: Index, width: Index) -> None:
    """Set out[o] = sum_t values[t] matrix[picks[t]] for sparse row r, the constant 1 included."""
    count, column = sparse.counts[r] + 1, np.int64(0)
    while column + SPAN <= width:
        sums = zeros(matrix, LIKE_SEVEN)
        for t in range(count):
            row = load_span(matrix, sparse.picks[r, t], column, LIKE_SEVEN)
            sums = multiply_add_each(splat(sparse.values[r, t]), row, sums)
        store_span(out, o, column, sums)
        column += SPAN
    for j in range(column, width, LANES):
        store(out, o, j, splat(matrix.dtype.type(0)))
    for t in range(0, count if column < width else 0, EIGHT):
        picks = numbers(sparse.picks, r, t, LIKE_EIGHT)
        values = splat_eight(sparse.values, r, t)
        for j in range(column, width, LANES):
            store(out, o, j, inner(values, load_rows(matrix, picks, j), load(out, o, j)))


@compiled
def dot_rows(
    out: Array,
    o: Index,
    start: Index,
    matrix: Array,
    picks: Array,
    r: Index,
    count: Index,
    vectors: Array,
    i: Index,
    width: Index,
) -> None:
    """Set out[o, start + t] = matrix[picks[r, t]] . vectors[i] for t < count; whole eights of them are written."""
    for t in range(0, count, EIGHT):
        rows = numbers(picks, r, t, LIKE_EIGHT)
        sums = zeros(matrix, LIKE_EIGHT)
        for j in range(0, width, LANES):
            sums = multiply_add_each(load(vectors, i, j), load_rows(matrix, rows, j), sums)
        store_totals(out, o, start + t, sums)


@compiled
def fill(out: Array, o: Index, width: Index, number: float) -> None:
    """Set out[o], `width` columns of it, to a number."""
    v = splat(number)
    for j in range(0, width, LANES):
        store(out, o, j, v)


@compiled
def prefetch_row(sparse: SparseRows, r: Index) -> None:
    """Ask for the cache lines of a table row that will be visited soon: a large table lies outside the caches."""
    prefetch(sparse.masks, r, 0)
    prefetch(sparse.masks, r, sparse.masks.shape[1] - 1)
    for t in range(0, sparse.counts[r] + 1, LANES):
        prefetch(sparse.picks, r, t)
        prefetch(sparse.values, r, t)


# --- the gradient at one example


@compiled
def forward(net: Net, layer: Index, inputs: SparseRows, r: Index) -> None:
    """Set sums[layer] = [x'W, x'x_1, ...] for the input x = inputs[r]."""
    sum_rows(net.sums, layer, net.rows, inputs, r, net.widths[layer])
    add_steps(net, layer)


@compiled
def add_steps(net: Net, layer: Index) -> None:
    """Add the pending steps: sums[layer] += sum_j (x'x_j) v_j."""
    products = splat_eight(net.sums, layer, net.outputs[layer])
    pending = numbers(net.pending, layer, 0, LIKE_EIGHT)
    for j in range(0, net.outputs[layer], LANES):
        store(net.sums, layer, j, inner(products, load_rows(net.steps, pending, j), load(net.sums, layer, j)))


@compiled
def relu(net: Net, layer: Index) -> None:
    """Set active[layer + 1] to the positive outputs of a layer, as rows of the next; NaN stays and reaches the loss."""
    width, above, n = net.outputs[layer], layer + 1, np.int64(0)
    for j in range(0, width, LANES):
        sums = load(net.sums, layer, j)
        bits = open_bits(sums) & ((1 << min(LANES, width - j)) - 1)
        store_where(net.active.picks, above, n, bits, load(net.every, above, j))
        n += store_where(net.active.values, above, n, bits, sums)
    close(net.active, above, n, net.firsts[above] + width)


@compiled
def loss_gradient(outputs: Array, o: Index, deltas: Array, d: Index, n: Index, targets: Targets, r: Index) -> bool:
    """Set deltas[d] to the gradient of table row r's loss at the n outputs[o]; return whether that loss is finite."""
    one, size = outputs.dtype.type(1), outputs.dtype.type(0)
    if targets.loss == CROSS_ENTROPY:
        top = outputs[o, 0]
        for u in range(1, n):
            top = max(top, outputs[o, u])
        for u in range(n):
            deltas[d, u] = np.exp(outputs[o, u] - top)
            size += deltas[d, u]
        for u in range(n):
            deltas[d, u] /= size
        deltas[d, targets.labels[r]] -= one
        size += outputs[o, targets.labels[r]]
    else:
        for u in range(n):
            error = outputs[o, u] - targets.values[r, u]
            size += error * error if targets.loss == SQUARED_ERROR else abs(error)
            deltas[d, u] = (2 * error if targets.loss == SQUARED_ERROR else max(-one, min(one, error))) / n
    return bool(np.isfinite(size))


@compiled
def backward(net: Net, layer: Index) -> None:
    """Set deltas[layer - 1] to the gradient at the outputs of the layer below: W d where the ReLU is open, else 0."""
    width, n = net.widths[layer], net.outputs[layer]
    dot_rows(net.deltas, layer, n, net.steps, net.pending, layer, np.int64(PENDING), net.deltas, layer, width)
    count = net.active.counts[layer]
    dot_rows(net.dots, np.int64(0), np.int64(0), net.rows, net.active.picks, layer, count, net.deltas, layer, width)
    fill(net.deltas, layer - 1, net.widths[layer - 1], net.rows.dtype.type(0))
    for t in range(count):
        net.deltas[layer - 1, net.active.picks[layer, t] - net.firsts[layer]] = net.dots[0, t]


@compiled
def differentiate(net: Net, table: SparseRows, targets: Targets, r: Index) -> bool:
    """Set deltas and active for table row r at the current weights; return whether its loss is finite."""
    forward(net, np.int64(0), table, r)
    return differentiate_rest(net, targets, r)


@compiled
def differentiate_rest(net: Net, targets: Targets, r: Index) -> bool:
    """Set deltas and active for table row r, given its sums[0]; return whether its loss is finite."""
    depth = len(net.widths)
    for layer in range(1, depth):
        relu(net, layer - 1)
        forward(net, layer, net.active, layer)
    finite = loss_gradient(net.sums, depth - 1, net.deltas, depth - 1, net.outputs[depth - 1], targets, r)
    for layer in range(depth - 1, 0, -1):
        backward(net, layer)
    return finite


@compiled
def gradient_square(net: Net, table: SparseRows, r: Index) -> Any:
    """Return |gradient|^2 for table row r: over the layers, the sum of (|x|^2 + 1) |d|^2."""
    square = input_square(table, r) * delta_square(net, np.int64(0))
    for layer in range(1, len(net.widths)):
        square += input_square(net.active, layer) * delta_square(net, layer)
    return square


@compiled
def clipped(net: Net, rate: Any, clip: Any, square: Any) -> Any:
    """Return the rate at which a gradient of this squared norm makes a step no longer than rate * clip."""
    return rate * net.rows.dtype.type(clip / max(np.float64(clip), np.sqrt(square)))


@compiled
def input_square(inputs: SparseRows, r: Index) -> Any:
    """Return |x|^2 + 1 for the input x = inputs[r]."""
    square = 0.0
    for t in range(inputs.counts[r] + 1):
        square += np.float64(inputs.values[r, t]) * np.float64(inputs.values[r, t])
    return square


@compiled
def delta_square(net: Net, layer: Index) -> Any:
    """Return |d|^2 for a layer."""
    square = 0.0
    for u in range(net.outputs[layer]):
        square += np.float64(net.deltas[layer, u]) * np.float64(net.deltas[layer, u])
    return square


# --- steps beside the weights, and writing them


@compiled
def keep_step(
    net: Net, layer: Index, inputs: SparseRows, r: Index, deltas: Array, i: Index, j: Index, rate: float
) -> None:
    """Keep the step -rate x d' beside a layer as pending step j; x = inputs[r], d = deltas[i]."""
    keep_input(net.rows, net.outputs[layer] + j, inputs, r)
    keep_delta(net.steps, layer * PENDING + j, deltas, i, net.outputs[layer], rate)


@compiled
def keep_input(rows: Array, column: Index, inputs: SparseRows, r: Index) -> None:
    """Write the input x = inputs[r] into a column beside the weights."""
    for t in range(inputs.counts[r] + 1):
        rows[inputs.picks[r, t], column] = inputs.values[r, t]


@compiled
def keep_delta(steps: Array, at: Index, deltas: Array, i: Index, n: Index, rate: float) -> None:
    """Set steps[at] = -rate d for d = deltas[i], n numbers."""
    for u in range(n):
        steps[at, u] = -rate * deltas[i, u]


@compiled
def is_dense(table: SparseRows, r: Index, width: Index) -> bool:
    """Return whether so few entries of table row r are zero that visiting the whole first layer costs no more."""
    return bool(2 * table.counts[r] > width)


@compiled
def begin_steps(net: Net, table: SparseRows, rows: Array) -> None:
    """Begin the steps on some table rows, at most PENDING: keep their inputs and list the rows that they will change.

    Only the first layer is meant, whose inputs are known before the steps are made.
    """
    net.size_counts[:] = 0
    for group in range(table.masks.shape[1]):
        column, touched, terms = group * LANES, np.int64(0), where_bits(np.int64(0), np.uint8(0))
        for j in range(len(rows)):
            bits = np.int64(table.masks[rows[j], group])
            touched |= bits
            terms = either(terms, where_bits(bits, np.uint8(1 << j)))
        store(net.terms, 0, column, terms)
        net.changed[group] |= touched
        while touched:
            p = column + lowest(touched)
            size = np.int64(SIZES[net.terms[0, p]])
            net.by_size[size, net.size_counts[size]] = p
            net.size_counts[size] += 1
            touched &= touched - 1
    for j in range(len(rows)):
        keep_input(net.rows, net.outputs[0] + j, table, rows[j])


@compiled
def look_ahead(net: Net) -> None:
    """Set ahead = the first layer's [x'W_0, x'x_1, ...] for the inputs of all pending steps, reading W_0 once."""
    vectors = net.widths[0] // LANES
    for v in range(0, vectors - 1, 2):
        look_two_columns(net.ahead, net.rows, net.inputs[0] + 1, net.outputs[0], v * LANES)
    if vectors % 2:
        look_column(net.ahead, net.rows, net.inputs[0] + 1, net.outputs[0], (vectors - 1) * LANES)


@compiled
def look_two_columns(out: Array, matrix: Array, count: Index, n: Index, column: Index) -> None:
    """Set out[j] = sum_p matrix[p, n + j] matrix[p] for j = 0 .. 7, in two vectors of columns."""
    sums, next_sums = zeros(matrix, LIKE_EIGHT), zeros(matrix, LIKE_EIGHT)
    for p in range(count):
        x = splat_eight(matrix, p, n)
        sums = multiply_add_each(load(matrix, p, column), x, sums)
        next_sums = multiply_add_each(load(matrix, p, column + LANES), x, next_sums)
    store_eight(out, np.int64(0), column, sums)
    store_eight(out, np.int64(0), column + LANES, next_sums)


@compiled
def look_column(out: Array, matrix: Array, count: Index, n: Index, column: Index) -> None:
    """Set out[j] = sum_p matrix[p, n + j] matrix[p] for j = 0 .. 7, in one vector of columns."""
    sums = zeros(matrix, LIKE_EIGHT)
    for p in range(count):
        sums = multiply_add_each(load(matrix, p, column), splat_eight(matrix, p, n), sums)
    store_eight(out, np.int64(0), column, sums)


@compiled
def take(net: Net, j: Index) -> None:
    """Set sums[0] = [x'W, ...] for the input of pending step j, from what was computed ahead."""
    for column in range(0, net.widths[0], LANES):
        store(net.sums, 0, column, load(net.ahead, j, column))
    add_steps(net, np.int64(0))


@compiled
def keep_steps(net: Net, j: Index, rate: float) -> None:
    """Keep a step in all layers as pending step j, with the gradient that was computed last.

    The first layer's input is there already.
    """
    keep_delta(net.steps, j, net.deltas, np.int64(0), net.outputs[0], rate)
    for layer in range(1, len(net.widths)):
        keep_step(net, layer, net.active, layer, net.deltas, layer, j, rate)


@compiled
def write_steps(net: Net, beta: float) -> None:
    """Write the pending steps, W <- W_0 + beta sum_j x_j v_j' in every layer; none is pending afterwards."""
    # A row is written as a whole, rows[p] += sum_j x_j[p] steps[j], and x_j[p] is part of it, in column n + j. There
    # steps[j] is -1 and the other steps are 0, so the same sum turns x_j[p] into x_j[p] - x_j[p] = 0: the columns are
    # empty for the next steps without another pass over the rows.
    for layer in range(len(net.widths)):
        n = net.outputs[layer]
        for j in range(PENDING):
            if beta != 1:
                for u in range(n):
                    net.steps[layer * PENDING + j, u] *= beta
            net.steps[layer * PENDING + j, n + j] = -1
    rows, steps, sets, picks, counts = net.rows, net.steps, net.terms, net.by_size, net.size_counts
    write_few(rows, steps, net.outputs[0], net.widths[0], sets, picks, 1, counts[1], (0,))
    write_few(rows, steps, net.outputs[0], net.widths[0], sets, picks, 2, counts[2], (0, 0))
    write_few(rows, steps, net.outputs[0], net.widths[0], sets, picks, 4, counts[4], (0, 0, 0, 0))
    for layer in range(len(net.widths)):
        i, count = MANY, counts[MANY]
        if layer > 0:
            picks, i, count = net.every, layer, net.inputs[layer] + 1
        write_layer(net, layer, picks, i, count)
    forget_steps(net)


@compiled
def write_few(
    rows: Array, steps: Array, n: Index, width: Index, sets: Array, picks: Array, i: Index, count: Index, like: Any
) -> None:
    """Write rows[p] += sum_j x_j[p] v_j for the first layer's rows p in picks[i], each with as many terms as `like`."""
    for t in range(count):
        p = picks[i, t]
        terms = numbers(ORDERS, sets[0, p], 0, like)
        x = splats(rows, p, n, terms)
        for j in range(0, width, LANES):
            store(rows, p, j, inner(x, load_rows(steps, terms, j), load(rows, p, j)))


@compiled
def write_layer(net: Net, layer: Index, picks: Array, i: Index, count: Index) -> None:
    """Write rows[p] += sum_j x_j[p] v_j with all terms for the rows p in picks[i]."""
    vectors, n, pending = net.widths[layer] // LANES, net.outputs[layer], numbers(net.pending, layer, 0, LIKE_EIGHT)
    for v in range(0, vectors - 1, 2):
        write_two_columns(net.rows, net.steps, pending, n, picks, i, count, v * LANES)
    if vectors % 2:
        write_column(net.rows, net.steps, pending, n, picks, i, count, (vectors - 1) * LANES)


@compiled
def write_two_columns(
    rows: Array, steps: Array, pending: Any, n: Index, picks: Array, i: Index, count: Index, column: Index
) -> None:
    """Write rows[p] += sum_j x_j[p] v_j for the rows p in picks[i], in two vectors of columns."""
    next_column = column + LANES
    v, next_v = load_rows(steps, pending, column), load_rows(steps, pending, next_column)
    for t in range(count):
        p = picks[i, t]
        x = splat_eight(rows, p, n)
        store(rows, p, column, inner(x, v, load(rows, p, column)))
        store(rows, p, next_column, inner(x, next_v, load(rows, p, next_column)))


@compiled
def write_column(
    rows: Array, steps: Array, pending: Any, n: Index, picks: Array, i: Index, count: Index, column: Index
) -> None:
    """Write rows[p] += sum_j x_j[p] v_j for the rows p in picks[i], in one vector of columns."""
    v = load_rows(steps, pending, column)
    for t in range(count):
        p = picks[i, t]
        store(rows, p, column, inner(splat_eight(rows, p, n), v, load(rows, p, column)))


@compiled
def forget_steps(net: Net) -> None:
    """Forget the pending steps."""
    for j in range(len(net.steps)):
        fill(net.steps, j, net.widths[j // PENDING], net.rows.dtype.type(0))


# --- whole vectors of weights: Reptile, EWC, undoing


@compiled
def copy(net: Net, source: Array, target: Array) -> None:
    """Copy one array laid out as net.rows into another."""
    for layer in range(len(net.widths)):
        for p in range(net.firsts[layer], net.firsts[layer] + net.inputs[layer] + 1):
            for j in range(0, net.widths[layer], LANES):
                store(target, p, j, load(source, p, j))


@compiled
def reptile(net: Net, before: Array, rate: float, first_layer: Index) -> None:
    """Set W <- before + rate (W - before) in all layers from one on, and before_batch to the same."""
    for layer in range(first_layer, len(net.widths)):
        for p in range(net.firsts[layer], net.firsts[layer] + net.inputs[layer] + 1):
            reptile_row(net, before, rate, p, net.widths[layer])


@compiled
def reptile_row(net: Net, before: Array, rate: float, p: Index, width: Index) -> None:
    """Set row p of W to before + rate (W - before), and row p of before_batch to the same."""
    new, old = splat(rate), splat(net.rows.dtype.type(1) - rate)
    zero = splat(net.rows.dtype.type(0))
    for j in range(0, width, LANES):
        kept = multiply_add(old, load(before, p, j), zero)
        row = multiply_add(new, load(net.rows, p, j), kept)
        store(net.rows, p, j, row)
        store(net.before_batch, p, j, row)


@compiled
def begin_batch(net: Net) -> None:
    """Remember the weights before a batch."""
    if not net.is_copied[0]:
        copy(net, net.rows, net.before_batch)
    net.changed[:] = 0


@compiled
def reptile_batch(net: Net, rate: float) -> None:
    """Set theta <- theta_W0 + beta (theta - theta_W0), in the first layer only in rows that the batch has changed."""
    for group in range(len(net.changed)):
        bits = net.changed[group]
        while bits:
            reptile_row(net, net.before_batch, rate, group * LANES + lowest(bits), net.widths[0])
            bits &= bits - 1
    reptile(net, net.before_batch, rate, np.int64(1))
    net.is_copied[0] = True


@compiled
def all_finite(net: Net) -> bool:
    """Return whether every weight is finite: then 0 * w is 0, otherwise NaN."""
    zero = net.rows.dtype.type(0)
    size = zero
    for layer in range(len(net.widths)):
        for p in range(net.firsts[layer], net.firsts[layer] + net.inputs[layer] + 1):
            for u in range(net.outputs[layer]):
                size += zero * net.rows[p, u]
    return bool(size == 0)


@compiled
def pulled_square(net: Net, pull: PullRows) -> Any:
    """Return |gradient + pull|^2, where the gradient is the only pending step, kept with rate 1."""
    square = 0.0
    for layer in range(len(net.widths)):
        n = net.outputs[layer]
        for p in range(net.firsts[layer], net.firsts[layer] + net.inputs[layer] + 1):
            x = net.rows[p, n]
            for u in range(n):
                towards = pull.twice * (pull.importance[p, u] * net.rows[p, u] - pull.anchor[p, u])
                total = towards - x * net.steps[layer * PENDING, u]
                square += np.float64(total) * np.float64(total)
    return square


@compiled
def pull_weights(net: Net, pull: PullRows, rate: float, clip: float) -> Any:
    """Make EWC's share of a step, W <- W - rate * twice * (F W - F_theta); return the rate for the gradient's share.

    With a clip both are shortened together. The gradient's share becomes the only pending step.
    """
    if clip < np.inf:
        keep_steps(net, np.int64(0), net.rows.dtype.type(1))
        rate = clipped(net, rate, clip, pulled_square(net, pull))
    by, zero = splat(-rate * pull.twice), splat(net.rows.dtype.type(0))
    minus = splat(net.rows.dtype.type(-1))
    for layer in range(len(net.widths)):
        for p in range(net.firsts[layer], net.firsts[layer] + net.inputs[layer] + 1):
            for j in range(0, net.widths[layer], LANES):
                w = load(net.rows, p, j)
                product = multiply_add(load(pull.importance, p, j), w, zero)
                towards = multiply_add(minus, load(pull.anchor, p, j), product)
                store(net.rows, p, j, multiply_add(by, towards, w))
    return rate


# --- plans


@compiled
def step_each(
    net: Net,
    table: SparseRows,
    targets: Targets,
    steps: Steps,
    rates: KernelRates,
    pull: PullRows | None,
    batch: Index,
    own: Index,
) -> bool:
    """Make one SGD step per row of a batch, then theta <- theta_W0 + beta (theta - theta_W0).

    Return whether every loss was finite. `own` is the incoming example's row, which has a rate of its own.
    """
    start, end = steps.ends[batch], steps.ends[batch + 1]
    one = net.rows.dtype.type(1)
    whole = end - start <= PENDING and pull is None  # one write per batch: beta goes into it
    apart = rates.within != 1 and not whole
    if apart:
        begin_batch(net)
    size = PENDING if pull is None else 1  # the pull changes all weights at every step, so nothing can wait
    for first in range(start, end, size):
        rows = steps.rows[first : min(first + size, end)]
        begin_steps(net, table, rows)
        dense = is_dense(table, rows[0], net.inputs[0])
        if dense:
            look_ahead(net)
        for j in range(len(rows)):
            if dense:
                take(net, j)
            else:
                prefetch_row(table, steps.rows[min(first + size + j, len(steps.rows) - 1)])
                forward(net, np.int64(0), table, rows[j])
            if not differentiate_rest(net, targets, rows[j]):
                return False
            rate = rates.current if rows[j] == own else rates.memory
            if pull is not None:
                rate = pull_weights(net, pull, rate, rates.clip)
            elif rates.clip < np.inf:
                rate = clipped(net, rate, rates.clip, gradient_square(net, table, rows[j]))
            keep_steps(net, j, rate)
        write_steps(net, rates.within if whole else one)
    net.is_copied[0] = False
    if apart:
        reptile_batch(net, rates.within)
    return True


@compiled
def step_together(
    net: Net, table: SparseRows, targets: Targets, steps: Steps, rates: KernelRates, room: Batch, batch: Index
) -> bool:
    """Make one SGD step on the weighted loss of a batch; return whether it was finite."""
    start, end = steps.ends[batch], steps.ends[batch + 1]
    depth = len(net.widths)
    for i in range(end - start):
        if not differentiate(net, table, targets, steps.rows[start + i]):
            return False
        for layer in range(depth):
            save_gradient(net, room, layer, i)
    for first in range(0, end - start, PENDING):
        count = min(PENDING, end - start - first)
        begin_steps(net, table, steps.rows[start + first : start + first + count])
        for j in range(count):
            i = first + j
            rate = rates.memory * steps.shares[start + i]
            keep_delta(net.steps, j, room.deltas, i, net.outputs[0], rate)
            for layer in range(1, depth):
                at = layer * room.size + i
                keep_step(net, layer, room.active, at, room.deltas, at, j, rate)
        write_steps(net, net.rows.dtype.type(1))
    return True


@compiled
def save_gradient(net: Net, room: Batch, layer: Index, i: Index) -> None:
    """Copy a layer's input and delta into the room as those of the batch's example i."""
    at = layer * room.size + i
    for j in range(0, net.widths[layer], LANES):
        store(room.deltas, at, j, load(net.deltas, layer, j))
    if layer > 0:
        count = net.active.counts[layer]
        room.active.counts[at] = count
        for t in range(count + 1):
            room.active.picks[at, t] = net.active.picks[layer, t]
            room.active.values[at, t] = net.active.values[layer, t]


@compiled
def run_plan(
    net: Net,
    table: SparseRows,
    targets: Targets,
    steps: Steps,
    rates: KernelRates,
    pull: PullRows | None,
    room: Batch | None,
    careful: bool,
) -> int:
    """Learn a plan's examples; return how many were learned before one gave numbers that are not finite.

    Each combination of `pull` and `room`, None or not, is compiled separately when it is first used.

    Args:
        net: The weights, which are changed.
        table: The inputs of the table's rows.
        targets: Their targets.
        steps: The rows to visit.
        rates: How far steps and Reptile lines go.
        pull: EWC's penalty, or None.
        room: Where a batch is one step, room for its gradients; None where a batch is one step per row.
        careful: Whether to check every example and to undo the one that fails. If not, weights are checked only at the
            end: if the result is less than all, some example failed and the weights are of no use.
    """
    examples = (len(steps.ends) - 1) // steps.s
    net.is_copied[0] = False
    for i in range(examples):
        if careful or rates.across != 1:
            copy(net, net.rows, net.before_example)
        fine = True
        for b in range(i * steps.s, (i + 1) * steps.s):
            if room is not None:
                fine = fine and step_together(net, table, targets, steps, rates, room, b)
            else:
                fine = fine and step_each(net, table, targets, steps, rates, pull, b, steps.incoming + i)
        if fine and rates.across != 1:
            reptile(net, net.before_example, rates.across, np.int64(0))
        if not fine or (careful and not all_finite(net)):
            copy(net, net.before_example, net.rows)
            forget_steps(net)
            for layer in range(len(net.widths)):
                fill(net.deltas, layer, net.widths[layer], net.rows.dtype.type(0))
            return i
    return examples if careful or all_finite(net) else 0


# --- outputs, for predictions


@compiled
def outputs(net: Net, dense: Array, scale: float, one_row: SparseRows, found: Array) -> None:
    """Set found[i] to the net's outputs for the input dense[i] / scale.

    Args:
        net: The weights.
        dense: (n, inputs) the inputs.
        scale: What to divide them by.
        one_row: Room for one sparse row.
        found: (n, outputs) where the outputs go.
    """
    last = len(net.widths) - 1
    for i in range(len(dense)):
        pack_row(one_row, np.int64(0), dense, i, scale)
        forward(net, np.int64(0), one_row, np.int64(0))
        for layer in range(1, last + 1):
            relu(net, layer - 1)
            forward(net, layer, net.active, layer)
        for u in range(net.outputs[last]):
            found[i, u] = net.sums[last, u]
