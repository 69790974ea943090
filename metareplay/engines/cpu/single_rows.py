"""What surrounds the steps on a single example: its input is packed, and the weights are copied in and out."""

from metareplay.engines.cpu.layout import Array, Index, SparseRows, compiled, pack_row


@compiled
def begin(
    flat: Array,
    places: Array,
    theta: Array,
    dense: Array,
    row: Index,
    picks: Array,
    values: Array,
    counts: Array,
    masks: Array,
    visited: Array,
    start: Index,
    end: Index,
    copied: Array,
    writes: Array,
) -> bool:
    """Copy the weights in and pack an input; return whether it is finite and the rows to visit are up to date.

    The arrays of the packed inputs are arguments of their own, because that takes numba less time than a tuple.

    Args:
        flat: The net's rows as one vector.
        places: Where each weight is in it.
        theta: The weights in the order of the module's parameters.
        dense: (1, inputs) the input.
        row: Its row of the table.
        picks: Of the packed inputs, like the next three.
        values: Their values.
        counts: Their counts.
        masks: Their masks.
        visited: The rows that a plan visits.
        start: The first of those to visit now.
        end: The one after the last.
        copied: How often each row had been written when it was packed.
        writes: How often each row of the table has been written.
    """
    pack_row(SparseRows(picks, values, counts, masks), row, dense, 0, 1.0)
    copied[row] = writes[row]
    for i in range(start, end):
        if copied[visited[i]] != writes[visited[i]]:
            return False
    return take_weights(flat, places, theta, dense)


@compiled
def take_weights(flat: Array, places: Array, theta: Array, dense: Array) -> bool:
    """Set flat[places[i]] = theta[i] for every weight; return whether the input is finite.

    Args:
        flat: The net's rows as one vector.
        places: Where each weight is in it.
        theta: The weights in the order of the module's parameters.
        dense: (1, inputs) the input.
    """
    for i in range(len(theta)):
        flat[places[i]] = theta[i]
    zero = dense.dtype.type(0)
    size = zero
    for j in range(dense.shape[1]):
        size += zero * dense[0, j]  # NaN if the input is not finite
    return bool(size == 0)


@compiled
def give_weights(flat: Array, places: Array, theta: Array) -> None:
    """Set theta[i] = flat[places[i]] for every weight.

    Args:
        flat: The net's rows as one vector.
        places: Where each weight is in it.
        theta: The weights in the order of the module's parameters.
    """
    for i in range(len(theta)):
        theta[i] = flat[places[i]]
