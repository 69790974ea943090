"""Room for the inputs and deltas of rows in all layers, from which `factor_steps.py` makes inner products and steps."""

from itertools import pairwise
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from metareplay._core.draws import Ints
from metareplay.engines.torch_engine import in_range

MOST = 2048  # rows; four numbers are kept for each pair of them


def pays(rows: int, groups: int, widths: tuple[int, ...]) -> bool:
    """Return whether factors are faster than gradients: where there are many groups of few rows each.

    Args:
        rows: How many rows all groups have.
        groups: How many groups there are.
        widths: Inputs, hidden widths and outputs of the net.
    """
    weights = sum((inputs + 1) * outputs for inputs, outputs in pairwise(widths))
    by_factors = 2 * rows**2 * sum(widths[1:])  # inner products of inputs and deltas, half of all pairs
    by_gradients = groups * (groups + 8) * weights  # likewise of gradients; and these are written and read
    return rows <= MOST and by_factors < by_gradients


@final
class Factors:
    """Hold the inputs and deltas of rows in all layers.

    Args:
        rows: How many rows there are.
        widths: Inputs, hidden widths and outputs of the net.
        columns: The number of columns, of which a layer uses as many as it needs.
        dtype: The type of all numbers.

    Attributes:
        inputs: (layers, columns, rows) the inputs of each layer but the first, with a 1 after them.
        deltas: (layers, columns, rows) the deltas of each layer.
    """

    def __init__(self, rows: int, widths: tuple[int, ...], columns: int, dtype: Any) -> None:
        from metareplay.engines.cpu import factor_steps, layout, simd  # here, because numba takes long to import

        self._code = factor_steps
        self._count, room = rows, -(-rows // (2 * simd.LANES)) * 2 * simd.LANES
        self.inputs = layout.aligned((len(widths) - 1, columns, room), dtype)
        self.deltas = layout.aligned((len(widths) - 1, columns, room), dtype)
        self._first = np.zeros((rows, widths[0] + 1), dtype)  # the inputs of the first layer, with a 1 after them
        self._first_products = np.zeros((rows, rows), dtype)
        self._rows, self._writes = np.full(rows, -1), np.full(rows, -1)  # which table rows those are
        self._rooms = [layout.aligned((room, room), dtype) for _ in range(3)]

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._count

    def take(self, rows: Ints, writes: Ints, table: Any) -> None:
        """Bring the inner products of the first layer's inputs up to date.

        Args:
            rows: The table rows.
            writes: How often each of them was written.
            table: All rows as `SparseRows`.
        """
        changed = np.flatnonzero((self._rows != rows) | (self._writes != writes))
        self._rows[changed] = -1  # as long as this is not done
        self._code.update_first(table, rows, changed, self._first, self._first_products)
        self._rows[changed], self._writes[changed] = rows[changed], writes[changed]

    def products(self, net: Any, ends: Ints) -> Tensor | None:
        """Compute the inner product of the gradients of every pair of groups, in float64; None if that is not precise.

        Args:
            net: The weights.
            ends: Group g has the rows from ends[g] to ends[g + 1].
        """
        products = np.empty((len(ends) - 1, len(ends) - 1))
        of_deltas, of_inputs, total = self._rooms
        precise = self._code.products_of_groups(
            net, self._first_products, self.inputs, self.deltas, ends, of_deltas, of_inputs, total, products
        )
        found = torch.from_numpy(products)
        return found if precise and in_range(found) else None
