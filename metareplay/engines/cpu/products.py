"""Products and transposes of dense matrices, compiled, one thread."""

from metareplay.engines.cpu.layout import Array, Index, compiled
from metareplay.engines.cpu.simd import (
    EIGHT,
    LANES,
    LIKE_EIGHT,
    LIKE_FOUR,
    has_many_registers,
    load,
    load_eight,
    load_rows,
    multiply_add_each,
    splat,
    splat_eight,
    store,
    store_eight,
    turned,
    zeros,
)


@compiled
def product(out: Array, rows: Index, left: Array, right: Array, count: Index, width: Index, anew: bool) -> None:
    """Set out[i] = sum_p left[p, i] right[p] for p < count and i < rows, or add that to out[i] unless it starts anew.

    Eight rows and one or two vectors of columns are computed at a time, always whole ones; on a CPU with few registers
    four rows and one vector. Every number is the same sum in the same order.
    """
    vectors = (width + LANES - 1) // LANES
    if not has_many_registers():
        for v in range(vectors):
            for i in range(0, rows, 4):
                four_rows(out, i, left, right, count, v * LANES, anew)
        return
    for v in range(0, vectors - 1, 2):
        for i in range(0, rows, EIGHT):
            two_columns(out, i, left, right, count, v * LANES, anew)
    if vectors % 2:
        for i in range(0, rows, EIGHT):
            one_column(out, i, left, right, count, (vectors - 1) * LANES, anew)


@compiled
def two_columns(out: Array, i: Index, left: Array, right: Array, count: Index, column: Index, anew: bool) -> None:
    """Compute rows i to i + 7 of a `product` in two vectors of columns."""
    sums, next_sums = zeros(out, LIKE_EIGHT), zeros(out, LIKE_EIGHT)
    if not anew:
        sums, next_sums = load_eight(out, i, column), load_eight(out, i, column + LANES)
    for p in range(count):
        x = splat_eight(left, p, i)
        sums = multiply_add_each(load(right, p, column), x, sums)
        next_sums = multiply_add_each(load(right, p, column + LANES), x, next_sums)
    store_eight(out, i, column, sums)
    store_eight(out, i, column + LANES, next_sums)


@compiled
def four_rows(out: Array, i: Index, left: Array, right: Array, count: Index, column: Index, anew: bool) -> None:
    """Compute rows i to i + 3 of a `product` in one vector of columns."""
    sums = zeros(out, LIKE_FOUR)
    if not anew:
        sums = load_rows(out, (i, i + 1, i + 2, i + 3), column)
    for p in range(count):
        x = (splat(left[p, i]), splat(left[p, i + 1]), splat(left[p, i + 2]), splat(left[p, i + 3]))
        sums = multiply_add_each(load(right, p, column), x, sums)
    store(out, i, column, sums[0])
    store(out, i + 1, column, sums[1])
    store(out, i + 2, column, sums[2])
    store(out, i + 3, column, sums[3])


@compiled
def one_column(out: Array, i: Index, left: Array, right: Array, count: Index, column: Index, anew: bool) -> None:
    """Compute rows i to i + 7 of a `product` in one vector of columns."""
    sums = zeros(out, LIKE_EIGHT)
    if not anew:
        sums = load_eight(out, i, column)
    for p in range(count):
        sums = multiply_add_each(load(right, p, column), splat_eight(left, p, i), sums)
    store_eight(out, i, column, sums)


@compiled
def transpose(matrix: Array, rows: Index, columns: Index, out: Array) -> None:
    """Set out[j, i] = matrix[i, j] for i < rows and j < columns, and nothing else."""
    for i in range(0, rows - rows % LANES, LANES):
        for j in range(0, columns - columns % LANES, LANES):
            found = turned(load_eight(matrix, i, j), load_eight(matrix, i + EIGHT, j))
            store_eight(out, j, i, found[:EIGHT])
            store_eight(out, j + EIGHT, i, found[EIGHT:])
    for i in range(rows):
        whole = columns - columns % LANES if i < rows - rows % LANES else 0
        for j in range(whole, columns):
            out[j, i] = matrix[i, j]
