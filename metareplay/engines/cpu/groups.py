"""Gradients of groups of rows at the same weights, compiled, one thread: for GEM, and for steps on whole batches.

GROUP examples go through the net together. The first layer takes their inputs sorted by pairs of pixels, so that two
rows of weights, or of the gradient, stay in registers for all examples and zeros are skipped; the layers above are
products of dense matrices. The memory of a past task does not change, so its inputs are sorted once and kept.
"""

from typing import Any

import numpy as np

from metareplay.engines.cpu.layout import GROUP, Array, Group, Index, Net, SparseRows, Targets, Turned, compiled
from metareplay.engines.cpu.products import product
from metareplay.engines.cpu.simd import (
    EIGHT,
    LANES,
    LIKE_EIGHT,
    LIKE_FOUR,
    LIKE_SEVEN,
    has_many_registers,
    load,
    load_rows,
    load_span,
    multiply_add,
    multiply_add_each,
    numbers,
    splat,
    store,
    store_span,
    store_totals,
    where_open,
    zeros,
)
from metareplay.engines.cpu.steps import SPAN, fill, loss_gradient

BLOCK = 512  # columns taken at a time: those of a few dozen vectors fit into the fastest cache
LIKE_ONE = (0,)
LIKE_TWO = (0,) * 2


@compiled
def group_gradients(
    net: Net,
    table: SparseRows,
    writes: Array,
    targets: Targets,
    rows: Array,
    shares: Array,
    ends: Array,
    turned: Turned,
    group: Group,
    found: Array,
) -> bool:
    """Compute the gradient of each group's weighted loss; return whether every loss was finite.

    If not, what was found is of no use.

    Args:
        net: The weights.
        table: The inputs of the table's rows.
        writes: How often each table row was written, to tell whether its sorted inputs are still right.
        targets: The targets of the table's rows.
        rows: The rows of all groups: group g has rows[ends[g] : ends[g + 1]].
        shares: The weight of each row's loss in its group.
        ends: Where groups begin and end in `rows`.
        turned: Inputs sorted by pixel, kept from one call to the next.
        group: Room for the gradients of GROUP examples.
        found: Where the gradients go: row p of group g's, laid out as the net's rows, is g * len(net.rows) + p.
    """
    transpose_weights(net, group)
    b = np.int64(0)
    for g in range(len(ends) - 1):
        for start in range(ends[g], ends[g + 1], GROUP):
            some = rows[start : min(start + GROUP, ends[g + 1])]
            if not is_turned(turned, b, some, writes):
                turn(turned, b, some, writes, table)
            if not differentiate_group(net, targets, turned, b, shares[start:], group):
                return False
            add_gradient(net, turned, b, group, found, g * len(net.rows), start == ends[g])
            b += 1
    return True


# --- inputs by pixel


@compiled
def is_turned(turned: Turned, b: Index, rows: Array, writes: Array) -> bool:
    """Return whether block b holds the inputs of these table rows as they are now."""
    if turned.counts[b] != len(rows):
        return False
    same = True
    for i in range(len(rows)):
        same = same and turned.rows[b, i] == rows[i] and turned.writes[b, i] == writes[rows[i]]
    return same


@compiled
def turn(turned: Turned, b: Index, rows: Array, writes: Array, table: SparseRows) -> None:
    """Sort the inputs of these table rows by pixel into block b."""
    starts, items, values, picks = turned.starts[b], turned.items[b], turned.values[b], table.picks
    turned.counts[b] = len(rows)
    starts[:] = 0
    for i in range(len(rows)):
        r = rows[i]
        turned.rows[b, i], turned.writes[b, i] = r, writes[r]
        for t in range(table.counts[r] + 1):
            starts[picks[r, t] // 2 + 2] += is_new_pair(picks, r, t)
    for q in range(2, len(starts)):
        starts[q] += starts[q - 1]
    for i in range(len(rows)):
        r = rows[i]
        for t in range(table.counts[r] + 1):
            q = picks[r, t] // 2
            if is_new_pair(picks, r, t):
                e = starts[q + 1]
                starts[q + 1] += 1
                items[e], values[2 * e], values[2 * e + 1] = i, 0, 0
            values[2 * e + picks[r, t] % 2] = table.values[r, t]


@compiled
def is_new_pair(picks: Array, r: Index, t: Index) -> bool:
    """Return whether entry t of a row belongs to another pair of pixels than the entry before it."""
    return t == 0 or picks[r, t] // 2 != picks[r, t - 1] // 2


# --- a group's inputs and deltas in all layers


@compiled
def differentiate_group(net: Net, targets: Targets, turned: Turned, b: Index, shares: Array, group: Group) -> bool:
    """Set group.inputs and group.deltas for block b, each loss weighted by its share; return whether all are finite."""
    depth, count = len(net.widths), turned.counts[b]
    first_layer(net, turned, b, group)
    for layer in range(1, depth):
        n, at = net.inputs[layer], layer * GROUP
        for i in range(at, at + count):
            open_gates(group.inputs, i, group.inputs, i, n)
            group.inputs[i, n] = 1
        weights = net.rows[net.firsts[layer] :]
        product(group.inputs[at + GROUP :], count, group.inputs[at:].T, weights, n + 1, net.outputs[layer], True)
    n, at, finite = net.outputs[depth - 1], (depth - 1) * GROUP, True
    for i in range(count):
        r = turned.rows[b, i]
        finite = loss_gradient(group.inputs, at + GROUP + i, group.deltas, at + i, n, targets, r) and finite
        for u in range(n):
            group.deltas[at + i, u] *= shares[i]
    longest = len(group.transposed) // depth
    for layer in range(depth - 1, 0, -1):
        n, at = net.inputs[layer], layer * GROUP
        weights = group.transposed[layer * longest :]
        product(group.deltas[at - GROUP :], count, group.deltas[at:].T, weights, net.outputs[layer], n, True)
        for i in range(count):
            open_gates(group.deltas, at - GROUP + i, group.inputs, at + i, n)
    return finite


@compiled
def transpose_weights(net: Net, group: Group) -> None:
    """Set transposed[u] = W[:, u] for the layers above the first."""
    depth = len(net.widths)
    longest = len(group.transposed) // depth
    for layer in range(1, depth):
        for p in range(net.inputs[layer]):
            for u in range(net.outputs[layer]):
                group.transposed[layer * longest + u, p] = net.rows[net.firsts[layer] + p, u]


@compiled
def open_gates(out: Array, o: Index, gates: Array, g: Index, width: Index) -> None:
    """Set out[o] = 0 where gates[g] is neither positive nor NaN."""
    for j in range(0, width, LANES):
        store(out, o, j, where_open(load(gates, g, j), load(out, o, j)))


@compiled
def first_layer(net: Net, turned: Turned, b: Index, group: Group) -> None:
    """Set inputs[GROUP + i] = x_i'W, the first layer's outputs, for the examples i of block b."""
    width, column = net.outputs[0], np.int64(0)
    for i in range(turned.counts[b]):
        fill(group.inputs, GROUP + i, width, net.rows.dtype.type(0))
    while has_many_registers() and column + SPAN <= width + LANES - 1:
        first_layer_span(net, turned, b, group, column, LIKE_SEVEN)
        column += SPAN
    while column + LANES < width:
        first_layer_span(net, turned, b, group, column, LIKE_TWO)
        column += 2 * LANES
    while column < width:
        first_layer_span(net, turned, b, group, column, LIKE_ONE)
        column += LANES


@compiled
def first_layer_span(net: Net, turned: Turned, b: Index, group: Group, column: Index, like: Any) -> None:
    """Add x_i'W to inputs[GROUP + i] for block b, in as many vectors of columns as `like` has entries."""
    for q in range(net.inputs[0] // 2 + 1):
        weights = load_span(net.rows, 2 * q, column, like)
        next_weights = load_span(net.rows, 2 * q + 1, column, like)
        for e in range(turned.starts[b, q], turned.starts[b, q + 1]):
            at = GROUP + np.int64(turned.items[b, e])
            sums = load_span(group.inputs, at, column, like)
            sums = multiply_add_each(splat(turned.values[b, 2 * e]), weights, sums)
            sums = multiply_add_each(splat(turned.values[b, 2 * e + 1]), next_weights, sums)
            store_span(group.inputs, at, column, sums)


# --- weight gradients


@compiled
def add_gradient(net: Net, turned: Turned, b: Index, group: Group, found: Array, first: Index, anew: bool) -> None:
    """Set found[first + p] to row p of block b's gradient, or add it to what is there unless the group starts anew."""
    width, column = net.outputs[0], np.int64(0)
    while has_many_registers() and column + SPAN <= width + LANES - 1:
        add_first_span(net, turned, b, group, found, first, anew, column, LIKE_SEVEN)
        column += SPAN
    while column + LANES < width:
        add_first_span(net, turned, b, group, found, first, anew, column, LIKE_TWO)
        column += 2 * LANES
    while column < width:
        add_first_span(net, turned, b, group, found, first, anew, column, LIKE_ONE)
        column += LANES
    for layer in range(1, len(net.widths)):
        inputs, deltas = group.inputs[layer * GROUP :], group.deltas[layer * GROUP :]
        part = found[first + net.firsts[layer] :]
        product(part, net.inputs[layer] + 1, inputs, deltas, turned.counts[b], net.outputs[layer], anew)


@compiled
def add_first_span(
    net: Net,
    turned: Turned,
    b: Index,
    group: Group,
    found: Array,
    first: Index,
    anew: bool,
    column: Index,
    like: Any,
) -> None:
    """Set or add the first layer's gradient in as many vectors of columns as `like` has entries."""
    for q in range(net.inputs[0] // 2 + 1):
        p = first + 2 * q
        sums, next_sums = zeros(found, like), zeros(found, like)
        if not anew:
            sums, next_sums = load_span(found, p, column, like), load_span(found, p + 1, column, like)
        for e in range(turned.starts[b, q], turned.starts[b, q + 1]):
            there = load_span(group.deltas, turned.items[b, e], column, like)
            sums = multiply_add_each(splat(turned.values[b, 2 * e]), there, sums)
            next_sums = multiply_add_each(splat(turned.values[b, 2 * e + 1]), there, next_sums)
        store_span(found, p, column, sums)
        store_span(found, p + 1, column, next_sums)


# --- all gradients


@compiled
def inner_products(vectors: Array, eights: Array, block: Array, products: Array) -> None:
    """Add the inner products of all pairs of vectors: products[a, b] += vectors[a] . vectors[b].

    BLOCK columns, two a and eight b are taken at a time; one a and four b on a CPU with few registers. Every product is
    the same sum in the same order.

    Args:
        vectors: (n, width) the vectors.
        eights: (n / 8 rounded up, 8) the numbers of all vectors in order, the last one repeated to fill up.
        block: (2, 8) room.
        products: (n, n rounded up to eights) where the inner products go, zeros before.
    """
    count, width = vectors.shape
    for start in range(0, width, BLOCK):
        for a in range(0, count, 2):
            next_a = min(a + 1, count - 1)
            for e in range(a // EIGHT, len(eights)):
                others = numbers(eights, e, np.int64(0), LIKE_EIGHT)
                end = min(start + BLOCK, width)
                if has_many_registers():
                    sums, next_sums = zeros(vectors, LIKE_EIGHT), zeros(vectors, LIKE_EIGHT)
                    for j in range(start, end, LANES):
                        there = load_rows(vectors, others, j)
                        sums = multiply_add_each(load(vectors, a, j), there, sums)
                        next_sums = multiply_add_each(load(vectors, next_a, j), there, next_sums)
                    store_totals(block, np.int64(0), np.int64(0), sums)
                    store_totals(block, np.int64(1), np.int64(0), next_sums)
                else:
                    dot_eight(vectors, a, others, start, end, block, np.int64(0))
                    dot_eight(vectors, next_a, others, start, end, block, np.int64(1))
                for i in range(EIGHT):
                    products[a, e * EIGHT + i] += block[0, i]
                    if next_a > a:
                        products[next_a, e * EIGHT + i] += block[1, i]
    for a in range(count):
        for b in range(a):
            products[a, b] = products[b, a]


@compiled
def dot_eight(vectors: Array, a: Index, others: Any, start: Index, end: Index, block: Array, row: Index) -> None:
    """Set block[row] to the inner products of vectors[a] with eight others in the columns from start to end."""
    sums, more = zeros(vectors, LIKE_FOUR), zeros(vectors, LIKE_FOUR)
    for j in range(start, end, LANES):
        sums = multiply_add_each(load(vectors, a, j), load_rows(vectors, others[:4], j), sums)
    for j in range(start, end, LANES):
        more = multiply_add_each(load(vectors, a, j), load_rows(vectors, others[4:], j), more)
    store_totals(block, row, np.int64(0), sums + more)


@compiled
def descend(net: Net, vectors: Array, rates: Array) -> None:
    """Set W <- W - sum_i rates[i] vectors[i].

    Args:
        net: The weights, which are changed.
        vectors: (n, rows * columns) vectors laid out as the net's rows.
        rates: (n,) how far to go along each.
    """
    width = net.rows.shape[1]
    for p in range(len(net.rows)):
        for j in range(0, width, LANES):
            sum_ = load(net.rows, p, j)
            for i in range(len(vectors)):
                sum_ = multiply_add(splat(-rates[i]), load(vectors, i, p * width + j), sum_)
            store(net.rows, p, j, sum_)
