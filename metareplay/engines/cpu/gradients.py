"""The gradients of groups of rows by the kernel for MLPs: as a matrix, or as factors that nobody has multiplied."""

import threading
from typing import final

import numpy as np
import torch
from torch import Tensor

from metareplay.engines.cpu.factors import Factors
from metareplay.engines.cpu.mlp_kernel import Groups, MlpKernel
from metareplay.engines.engine import Gradients
from metareplay.engines.torch_engine import in_range


@final
class PackedGradients(Gradients):
    """Hold gradients as rows of one matrix, each laid out as the kernel's weights."""

    def __init__(self, kernel: MlpKernel, asked: Groups, lock: threading.RLock) -> None:
        self._kernel, self._chain, self._lock = kernel, asked.chain, lock
        self._rows = kernel.gradients(asked)

    def each(self) -> Tensor:
        """Return the gradients in the order of the module's parameters."""
        return torch.stack([self._kernel.flat(row, self._chain) for row in self._rows])

    def products(self) -> Tensor:
        """Return G G', computed in float64 where float32 does not have the range."""
        products = self._kernel.inner_products(self._rows)
        if in_range(products) or self._rows.dtype == np.float64:
            return products
        rows = self.each().double()
        return rows @ rows.T

    def descend(self, rates: Tensor) -> None:
        """Take the step theta <- theta - G' rates."""
        with self._lock:
            self._kernel.descend(self._rows, rates, self._chain)


@final
class FactoredGradients(Gradients):
    """Hold gradients as the inputs and deltas of rows, as long as nobody asks for the gradients themselves."""

    def __init__(self, kernel: MlpKernel, asked: Groups, lock: threading.RLock) -> None:
        self._kernel, self._asked, self._lock = kernel, asked, lock
        self._factors: Factors | None = None
        self._matrix: PackedGradients | None = None

    def each(self) -> Tensor:
        """Return the gradients in the order of the module's parameters."""
        return self._as_matrix().each()

    def products(self) -> Tensor:
        """Return G G', computed from the gradients themselves where factors are not precise."""
        with self._lock:
            found = self._kernel.factors(self._asked) if self._matrix is None else None
            if found is None:
                return self._as_matrix().products()
            self._factors, products = found
            return products

    def descend(self, rates: Tensor) -> None:
        """Take the step theta <- theta - G' rates."""
        with self._lock:
            if self._factors is None:
                self._as_matrix().descend(rates)
            else:
                by_row = np.repeat(rates.numpy(), np.diff(self._asked.ends))
                self._kernel.descend_by(self._factors, by_row, self._asked.chain)

    def _as_matrix(self) -> PackedGradients:
        """Compute the gradients, which takes the place of the factors."""
        with self._lock:
            if self._matrix is None:
                self._factors, self._matrix = None, PackedGradients(self._kernel, self._asked, self._lock)
            return self._matrix
