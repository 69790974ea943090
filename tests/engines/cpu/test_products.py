"""Products and transposes of dense matrices are those of NumPy, and nothing else is written."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from metareplay.engines.cpu.products import product, transpose
from metareplay.engines.cpu.simd import EIGHT, LANES

sizes = st.integers(1, 40)


def up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


@given(rows=sizes, columns=sizes)
def test_transpose(rows: int, columns: int) -> None:
    matrix = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    out = np.full((columns + 3, rows + 5), -1, np.float32)
    expected = out.copy()
    expected[:columns, :rows] = matrix.T
    transpose(matrix, rows, columns, out)
    np.testing.assert_array_equal(out, expected)


@given(rows=sizes, count=sizes, width=sizes, anew=st.booleans())
def test_product(rows: int, count: int, width: int, anew: bool) -> None:
    rng = np.random.default_rng(0)
    left, right = np.zeros((count, up(rows, EIGHT)), np.float32), np.zeros((count, up(width, LANES)), np.float32)
    left[:, :rows], right[:, :width] = rng.normal(size=(count, rows)), rng.normal(size=(count, width))
    out = np.zeros((up(rows, EIGHT), up(width, LANES)), np.float32)
    out[:rows, :width] = rng.normal(size=(rows, width))
    expected = left.T.astype(np.float64) @ right + (0 if anew else out)
    product(out, rows, left, right, count, width, anew)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
