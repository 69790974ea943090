"""Inner products of gradients without the gradients, compiled, one thread: for GEM with many tasks and few memories.

The gradient of a layer is the outer product of its input and its delta. So the inner product of two examples' gradients
is, layer by layer, the product of two inner products: of their inputs and of their deltas. Every number is the same sum
in the same order, whatever was computed before, so that a run that was interrupted ends with the same bits.
"""

import numpy as np

from metareplay.engines.cpu.groups import (
    add_gradient,
    descend,
    differentiate_group,
    is_turned,
    transpose_weights,
    turn,
)
from metareplay.engines.cpu.layout import GROUP, Array, Group, Index, Net, SparseRows, Targets, Turned, compiled
from metareplay.engines.cpu.products import four_rows, two_columns
from metareplay.engines.cpu.simd import EIGHT, LANES, has_many_registers

CANCELLED = 0.01  # part of its terms' sizes that must be left of a squared norm, so that it has five digits in float32


@compiled
def find_factors(
    net: Net,
    table: SparseRows,
    writes: Array,
    targets: Targets,
    rows: Array,
    shares: Array,
    turned: Turned,
    group: Group,
    inputs: Array,
    deltas: Array,
) -> bool:
    """Compute the inputs and deltas of rows in all layers; return whether every loss was finite.

    The first row is in a block of its own, because it changes at every call.

    Args:
        net: The weights.
        table: The inputs of the table's rows.
        writes: How often each table row was written, to tell whether its sorted inputs are still right.
        targets: The targets of the table's rows.
        rows: The rows.
        shares: The weight of each row's loss.
        turned: Inputs sorted by pixel, kept from one call to the next.
        group: Room for the gradients of GROUP examples.
        inputs: (L, widest, rows) where each layer's inputs go, with a 1 after them; not those of the first layer.
        deltas: (L, widest, rows) where each layer's deltas go.
    """
    transpose_weights(net, group)
    start, b = 0, 0
    while start < len(rows):
        some = rows[start : 1 if start == 0 else start + GROUP]
        if not is_turned(turned, b, some, writes):
            turn(turned, b, some, writes, table)
        if not differentiate_group(net, targets, turned, b, shares[start:], group):
            return False
        for layer in range(len(net.widths)):
            for j in range(inputs.shape[1]):
                for i in range(len(some)):
                    inputs[layer, j, start + i] = group.inputs[layer * GROUP + i, j]
                    deltas[layer, j, start + i] = group.deltas[layer * GROUP + i, j]
        start += len(some)
        b += 1
    return True


@compiled
def update_first(table: SparseRows, rows: Array, changed: Array, dense: Array, products: Array) -> None:
    """Bring the inner products of the first layer's inputs up to date, those of each pair above the diagonal.

    Args:
        table: The inputs of the table's rows.
        rows: The rows.
        changed: The positions of the rows that have changed, in ascending order.
        dense: (rows, width + 1) the inputs, of which those of changed rows are overwritten.
        products: (rows, rows) the inner products.
    """
    for i in changed:
        r = rows[i]
        for p in range(dense.shape[1]):
            dense[i, p] = 0
        for t in range(table.counts[r] + 1):
            dense[i, table.picks[r, t]] = table.values[r, t]
    for i in changed:
        for j in range(len(rows)):
            low, high = min(i, j), max(i, j)
            r, total = rows[high], products.dtype.type(0)
            for t in range(table.counts[r] + 1):
                total += table.values[r, t] * dense[low, table.picks[r, t]]
            products[low, high] = total


@compiled
def products_of_groups(
    net: Net,
    first: Array,
    inputs: Array,
    deltas: Array,
    ends: Array,
    of_deltas: Array,
    of_inputs: Array,
    total: Array,
    products: Array,
) -> bool:
    """Compute the inner product of the gradients of every pair of groups; return whether they are precise.

    They are not where the gradients of a group almost cancel each other.

    Args:
        net: The weights.
        first: (rows, rows) the inner products of the first layer's inputs, above the diagonal.
        inputs: Each layer's inputs.
        deltas: Each layer's deltas.
        ends: Where groups begin and end in the rows.
        of_deltas: (rows rounded up to 2 LANES, likewise) room for the inner products of a layer's deltas.
        of_inputs: Likewise, of its inputs.
        total: Likewise, of whole gradients.
        products: (groups, groups) where the inner products go, in float64.
    """
    count = ends[-1]
    for layer in range(len(net.widths)):
        inner_products(of_deltas, deltas[layer], net.outputs[layer], count)
        if layer > 0:
            inner_products(of_inputs, inputs[layer], net.inputs[layer] + 1, count)
        for i in range(count):
            for j in range(i, count):
                found = of_deltas[i, j] * (of_inputs[i, j] if layer > 0 else first[i, j])
                total[i, j] = found if layer == 0 else total[i, j] + found
    precise = True
    for g in range(len(ends) - 1):
        for h in range(g, len(ends) - 1):
            product, size = np.float64(0), np.float64(0)
            for i in range(ends[g], ends[g + 1]):
                for j in range(ends[h], ends[h + 1]):
                    product += total[min(i, j), max(i, j)]
                    size += abs(total[min(i, j), max(i, j)])
            products[g, h] = product
            products[h, g] = product
            if h == g and product < CANCELLED * size:
                precise = False
    return precise


@compiled
def inner_products(out: Array, vectors: Array, width: Index, count: Index) -> None:
    """Set out[i, j] = sum_p vectors[p, i] vectors[p, j] for p < width and i <= j < count."""
    if has_many_registers():
        for column in range(0, count, 2 * LANES):
            for i in range(0, min(column + 2 * LANES, count), EIGHT):
                two_columns(out, i, vectors, vectors, width, column, True)
    else:
        for column in range(0, count, LANES):
            for i in range(0, min(column + LANES, count), 4):
                four_rows(out, i, vectors, vectors, width, column, True)


@compiled
def descend_by_factors(
    net: Net, rates: Array, turned: Turned, group: Group, inputs: Array, deltas: Array, found: Array, whole: Array
) -> None:
    """Set W <- W - sum_i rates[i] g_i for the gradients g_i of all rows, from what `find_factors` found.

    Args:
        net: The weights, which are changed.
        rates: How far to go along the gradient of each row.
        turned: Inputs sorted by pixel, as `find_factors` left them.
        group: Room for the gradients of GROUP examples.
        inputs: Each layer's inputs.
        deltas: Each layer's deltas.
        found: Room for one gradient, laid out as the net's rows.
        whole: (1,) the number 1.
    """
    start, b = 0, 0
    while start < len(rates):
        end = 1 if start == 0 else min(start + GROUP, len(rates))
        for layer in range(len(net.widths)):
            for j in range(inputs.shape[1]):
                for i in range(end - start):
                    group.inputs[layer * GROUP + i, j] = inputs[layer, j, start + i]
                    group.deltas[layer * GROUP + i, j] = rates[start + i] * deltas[layer, j, start + i]
        add_gradient(net, turned, b, group, found, np.int64(0), start == 0)
        start = end
        b += 1
    descend(net, found.reshape((1, -1)), whole)
