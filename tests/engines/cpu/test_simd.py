"""Every intrinsic does what its NumPy counterpart does, for every dtype that the kernels use it with."""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st
from numba import njit
from numba.core.registry import cpu_target
from numpy.typing import NDArray

from metareplay._core.numba_private import has_avx512
from metareplay.engines.cpu import simd
from metareplay.engines.cpu.layout import OPTIONS
from metareplay.engines.cpu.simd import (
    EIGHT,
    LANES,
    LIKE_EIGHT,
    LIKE_SEVEN,
    add,
    divide,
    either,
    has_many_registers,
    inner,
    load,
    load_eight,
    load_rows,
    load_span,
    lowest,
    multiply,
    multiply_add,
    multiply_add_each,
    nonzeros,
    numbers,
    open_bits,
    prefetch,
    splat,
    splat_eight,
    splats,
    square_root,
    store,
    store_eight,
    store_span,
    store_totals,
    store_where,
    total,
    turned,
    where_bits,
    where_large,
    where_open,
    zeros,
)

Array = NDArray[Any]
ROWS, COLUMNS = 12, 160
FLOATS = pytest.mark.parametrize("dtype", [np.float32, np.float64])
places = st.tuples(st.integers(0, ROWS - EIGHT), st.integers(0, COLUMNS - EIGHT * LANES))
all_bits = st.integers(0, (1 << LANES) - 1)


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile with the options of the kernels, but keep nothing on disk."""
    return njit(**OPTIONS)(function)  # type: ignore[no-any-return]


def filled(dtype: Any, seed: int = 0) -> Array:
    """A matrix of small numbers, no two alike in a float matrix."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return rng.normal(size=(ROWS, COLUMNS)).astype(dtype)
    return rng.integers(0, 100, (ROWS, COLUMNS)).astype(dtype)


def special(dtype: Any) -> st.SearchStrategy[Array]:
    """Vectors with zeros of both signs, infinities, NaN and the smallest and largest numbers."""
    if np.dtype(dtype).kind == "u":
        return np_st.arrays(dtype, (1, LANES), elements=st.sampled_from([0, 0, 1, 200]))
    info = np.finfo(dtype)
    edges = [0.0, -0.0, np.inf, -np.inf, np.nan, float(info.tiny), -float(info.tiny), float(info.max), 1.0, -1.0]
    return np_st.arrays(dtype, (1, LANES), elements=st.sampled_from(edges))


def bits_of(mask: NDArray[np.bool_]) -> int:
    return sum(1 << lane for lane in range(LANES) if mask[lane])


def mask_of(bits: int) -> NDArray[np.bool_]:
    return np.array([bits >> lane & 1 for lane in range(LANES)], np.bool_)


def close_to(found: Array, expected: Array, size: Array) -> bool:
    """Whether numbers agree up to the rounding of a few sums whose terms add up to `size` in absolute value."""
    return bool((np.abs(found - expected) <= 20 * np.finfo(found.dtype).eps * size).all())


# --- moving numbers


@jit
def copy_vector(out: Array, o: int, p: int, matrix: Array, row: int, column: int) -> None:
    store(out, o, p, load(matrix, row, column))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8, np.uint32])
@given(there=places, here=places)
def test_load_and_store(dtype: Any, there: tuple[int, int], here: tuple[int, int]) -> None:
    matrix, out = filled(dtype), filled(dtype, 1)
    expected = out.copy()
    expected[here[0], here[1] : here[1] + LANES] = matrix[there[0], there[1] : there[1] + LANES]
    copy_vector(out, *here, matrix, *there)
    np.testing.assert_array_equal(out, expected)


@jit
def copy_span(out: Array, o: int, p: int, matrix: Array, row: int, column: int) -> None:
    store_span(out, o, p, load_span(matrix, row, column, LIKE_SEVEN))


@FLOATS
@given(there=places, here=places)
def test_load_span_and_store_span(dtype: Any, there: tuple[int, int], here: tuple[int, int]) -> None:
    matrix, out = filled(dtype), filled(dtype, 1)
    expected = out.copy()
    expected[here[0], here[1] : here[1] + 7 * LANES] = matrix[there[0], there[1] : there[1] + 7 * LANES]
    copy_span(out, *here, matrix, *there)
    np.testing.assert_array_equal(out, expected)


@jit
def copy_eight(out: Array, o: int, p: int, matrix: Array, row: int, column: int) -> None:
    store_eight(out, o, p, load_eight(matrix, row, column))


@FLOATS
@given(there=places, here=places)
def test_load_eight_and_store_eight(dtype: Any, there: tuple[int, int], here: tuple[int, int]) -> None:
    matrix, out = filled(dtype), filled(dtype, 1)
    (row, column), (o, p) = there, here
    expected = out.copy()
    expected[o : o + EIGHT, p : p + LANES] = matrix[row : row + EIGHT, column : column + LANES]
    copy_eight(out, *here, matrix, *there)
    np.testing.assert_array_equal(out, expected)


@jit
def transpose_square(out: Array, matrix: Array) -> None:
    columns = turned(load_eight(matrix, 0, 0), load_eight(matrix, EIGHT, 0))
    store_eight(out, 0, 0, columns[:EIGHT])
    store_eight(out, EIGHT, 0, columns[EIGHT:])


@FLOATS
def test_turned(dtype: Any) -> None:
    matrix, out = np.arange(LANES**2, dtype=dtype).reshape(LANES, LANES), np.zeros((LANES, LANES), dtype)
    transpose_square(out, matrix)
    np.testing.assert_array_equal(out, matrix.T)


@jit
def gather_rows(out: Array, matrix: Array, picks: Array, at: int, column: int) -> None:
    store_span(out, 0, 0, load_rows(matrix, numbers(picks, 1, at, LIKE_EIGHT), column))


@pytest.mark.parametrize("index", [np.uint32, np.uint8])
@FLOATS
@given(
    rows=st.lists(st.integers(0, ROWS - 1), min_size=EIGHT, max_size=EIGHT),
    at=st.integers(0, 5),
    column=st.integers(0, COLUMNS - LANES),
)
def test_numbers_and_load_rows(dtype: Any, index: Any, rows: list[int], at: int, column: int) -> None:
    matrix, out, picks = filled(dtype), np.zeros((1, EIGHT * LANES), dtype), np.zeros((2, 16), index)
    picks[1, at : at + EIGHT] = rows
    gather_rows(out, matrix, picks, at, column)
    np.testing.assert_array_equal(out.reshape(EIGHT, LANES), matrix[rows, column : column + LANES])


@jit
def fill_vector(out: Array, number: float) -> None:
    store(out, 0, 0, splat(number))


@FLOATS
def test_splat(dtype: Any) -> None:
    out = np.zeros((1, LANES), dtype)
    fill_vector(out, dtype(1.5))
    assert (out == 1.5).all()


@jit
def spread_four(out: Array, matrix: Array, row: int, column: int, orders: Array, i: int) -> None:
    store_span(out, 0, 0, splats(matrix, row, column, numbers(orders, i, 0, (0, 0, 0, 0))))


@FLOATS
@given(there=places, offsets=st.lists(st.integers(0, 7), min_size=4, max_size=4))
def test_splats(dtype: Any, there: tuple[int, int], offsets: list[int]) -> None:
    matrix, out = filled(dtype), np.zeros((1, 4 * LANES), dtype)
    spread_four(out, matrix, *there, np.array([offsets], np.uint8), 0)
    row, column = there
    expected = [matrix[row, column + k] for k in offsets]
    np.testing.assert_array_equal(out.reshape(4, LANES), np.tile(np.array(expected)[:, None], LANES))


@jit
def spread_eight(out: Array, matrix: Array, row: int, column: int) -> None:
    store_span(out, 0, 0, splat_eight(matrix, row, column))


@pytest.mark.parametrize("by_columns", [False, True])
@FLOATS
@given(row=st.integers(0, ROWS - 1), column=st.integers(0, ROWS - EIGHT))
def test_splat_eight(dtype: Any, by_columns: bool, row: int, column: int) -> None:
    matrix = filled(dtype)[:, :ROWS].copy()
    matrix = matrix.T if by_columns else matrix
    out = np.zeros((1, EIGHT * LANES), dtype)
    spread_eight(out, matrix, row, column)
    np.testing.assert_array_equal(out.reshape(EIGHT, LANES), np.tile(matrix[row, column : column + EIGHT, None], LANES))


@jit
def clear(out: Array) -> None:
    store_eight(out, 0, 0, zeros(out, LIKE_EIGHT))


@FLOATS
def test_zeros(dtype: Any) -> None:
    out = filled(dtype)
    clear(out)
    assert (out[:EIGHT, :LANES] == 0).all()
    assert (out[EIGHT:] != 0).all()
    assert (out[:, LANES:] != 0).all()


@jit
def ask(matrix: Array, row: int, column: int) -> None:
    prefetch(matrix, row, column)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint16, np.uint32])
def test_prefetch_changes_nothing(dtype: Any) -> None:
    matrix = filled(dtype)
    ask(matrix, 3, 5)
    np.testing.assert_array_equal(matrix, filled(dtype))


# --- arithmetic


@jit
def multiply_add_vectors(out: Array, abc: Array) -> None:
    store(out, 0, 0, multiply_add(load(abc, 0, 0), load(abc, 1, 0), load(abc, 2, 0)))


@FLOATS
@given(seed=st.integers(0, 1000))
def test_multiply_add(dtype: Any, seed: int) -> None:
    abc, out = filled(dtype, seed)[:3, :LANES].copy(), np.zeros((1, LANES), dtype)
    multiply_add_vectors(out, abc)
    a, b, c = abc.astype(np.float64)
    assert close_to(out[0], a * b + c, np.abs(a * b) + np.abs(c))


@jit
def calculate(out: Array, ab: Array) -> None:
    a, b = load(ab, 0, 0), load(ab, 1, 0)
    store(out, 0, 0, add(a, b))
    store(out, 1, 0, multiply(a, b))
    store(out, 2, 0, divide(a, b))
    store(out, 3, 0, square_root(a))


@FLOATS
@given(data=st.data())
def test_add_multiply_divide_and_square_root(dtype: Any, data: st.DataObject) -> None:
    ab, out = np.concatenate([data.draw(special(dtype)), data.draw(special(dtype))]), np.zeros((4, LANES), dtype)
    calculate(out, ab)
    with np.errstate(all="ignore"):
        expected = [ab[0] + ab[1], ab[0] * ab[1], ab[0] / ab[1], np.sqrt(ab[0])]
    np.testing.assert_array_equal(out, expected)


@jit
def keep_large(out: Array, least: float, vector: Array) -> None:
    store(out, 0, 0, where_large(splat(least), load(vector, 0, 0)))


@FLOATS
@given(data=st.data())
def test_where_large(dtype: Any, data: st.DataObject) -> None:
    vector, least, out = data.draw(special(dtype)), data.draw(st.sampled_from([1e-20, 1.0, 2.0])), np.ones((1, LANES))
    out = out.astype(dtype)
    keep_large(out, dtype(least), vector)
    np.testing.assert_array_equal(out, np.where(np.abs(vector) < least, 0, vector))


@jit
def many_registers() -> bool:
    return has_many_registers()  # type: ignore[no-any-return]


def test_has_many_registers() -> None:
    assert many_registers() is has_avx512(cpu_target.target_context)


@jit
def multiply_add_eight(out: Array, a: Array, b: Array, c: Array) -> None:
    store_eight(out, 0, 0, multiply_add_each(load(a, 0, 0), load_eight(b, 0, 0), load_eight(c, 0, 0)))


@FLOATS
@given(seed=st.integers(0, 1000))
def test_multiply_add_each(dtype: Any, seed: int) -> None:
    a, b, c = (filled(dtype, 3 * seed + i) for i in range(3))
    out = np.zeros((EIGHT, LANES), dtype)
    multiply_add_eight(out, a, b, c)
    a, b, c = a[:1, :LANES], b[:EIGHT, :LANES], c[:EIGHT, :LANES]
    assert close_to(out, a * b + c, np.abs(a * b) + np.abs(c))


@jit
def add_products(out: Array, a: Array, b: Array, c: Array, like: Any) -> None:
    store(out, 0, 0, inner(load_span(a, 0, 0, like), load_span(b, 0, 0, like), load(c, 0, 0)))


@pytest.mark.parametrize("terms", [1, 2, 4, EIGHT])
@FLOATS
@given(seed=st.integers(0, 1000))
def test_inner(dtype: Any, terms: int, seed: int) -> None:
    a, b, c = (filled(dtype, 3 * seed + i) for i in range(3))
    out = np.zeros((1, LANES), dtype)
    add_products(out, a, b, c, (0,) * terms)
    a, b = (part[0, : terms * LANES].reshape(terms, LANES) for part in (a, b))
    assert close_to(out[0], c[0, :LANES] + (a * b).sum(0), np.abs(c[0, :LANES]) + np.abs(a * b).sum(0))


@jit
def total_eight(out: Array, o: int, p: int, matrix: Array) -> None:
    store_totals(out, o, p, load_eight(matrix, 0, 0))


@FLOATS
@given(seed=st.integers(0, 1000), here=places)
def test_store_totals(dtype: Any, seed: int, here: tuple[int, int]) -> None:
    matrix, out = filled(dtype, seed), filled(dtype, 1)
    expected, (o, p) = out.copy(), here
    total_eight(out, o, p, matrix)
    vectors = matrix[:EIGHT, :LANES]
    assert close_to(out[o, p : p + EIGHT], vectors.sum(1), np.abs(vectors).sum(1))
    expected[o, p : p + EIGHT] = out[o, p : p + EIGHT]
    np.testing.assert_array_equal(out, expected)


@jit
def total_one(matrix: Array, row: int, column: int) -> Any:
    return total(load(matrix, row, column))


@FLOATS
@given(seed=st.integers(0, 1000), here=places)
def test_total(dtype: Any, seed: int, here: tuple[int, int]) -> None:
    matrix, (row, column) = filled(dtype, seed), here
    vector = matrix[row, column : column + LANES]
    assert close_to(np.array([total_one(matrix, row, column)], dtype), vector.sum(keepdims=True), np.abs(vector).sum())


# --- choosing lanes


@jit
def gate(out: Array, gates: Array, vector: Array) -> None:
    store(out, 0, 0, where_open(load(gates, 0, 0), load(vector, 0, 0)))


@FLOATS
@given(data=st.data())
def test_where_open(dtype: Any, data: st.DataObject) -> None:
    gates, vector = data.draw(special(dtype)), data.draw(special(dtype))
    out = np.full((1, LANES), 7, dtype)
    gate(out, gates, vector)
    np.testing.assert_array_equal(out, np.where((gates > 0) | np.isnan(gates), vector, 0))


@jit
def find_open(matrix: Array) -> int:
    return open_bits(load(matrix, 0, 0))  # type: ignore[no-any-return]


@FLOATS
@given(data=st.data())
def test_open_bits(dtype: Any, data: st.DataObject) -> None:
    vector = data.draw(special(dtype))
    assert find_open(vector) == bits_of((vector[0] > 0) | np.isnan(vector[0]))


@jit
def find_nonzeros(matrix: Array, row: int, column: int) -> int:
    return nonzeros(matrix, row, column)  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
@given(data=st.data())
def test_nonzeros(dtype: Any, data: st.DataObject) -> None:
    vector, (row, column) = data.draw(special(dtype)), data.draw(places)
    matrix = filled(dtype)
    matrix[row, column : column + LANES] = vector
    assert find_nonzeros(matrix, row, column) == bits_of(vector[0] != 0)


@jit
def pack(out: Array, o: int, p: int, bits: int, matrix: Array) -> int:
    return store_where(out, o, p, bits, load(matrix, 0, 0))  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint32])
@given(bits=all_bits, here=places)
def test_store_where(dtype: Any, bits: int, here: tuple[int, int]) -> None:
    matrix, out = filled(dtype), filled(dtype, 1)
    (o, p), expected = here, out.copy()
    count = pack(out, o, p, bits, matrix)
    assert count == bits.bit_count()
    np.testing.assert_array_equal(out[o, p : p + count], matrix[0, :LANES][mask_of(bits)])
    expected[o, p : p + LANES] = out[o, p : p + LANES]
    np.testing.assert_array_equal(out, expected)


@jit
def choose(out: Array, bits: int, number: int, others: Array) -> None:
    store(out, 0, 0, where_bits(bits, number))
    store(out, 1, 0, either(where_bits(bits, number), load(others, 0, 0)))


@given(bits=all_bits, number=st.integers(0, 255), seed=st.integers(0, 1000))
def test_where_bits_and_either(bits: int, number: int, seed: int) -> None:
    others, out = filled(np.uint8, seed), np.full((2, LANES), 9, np.uint8)
    choose(out, bits, np.uint8(number), others)
    chosen = np.where(mask_of(bits), number, 0)
    np.testing.assert_array_equal(out[0], chosen)
    np.testing.assert_array_equal(out[1], chosen | others[0, :LANES])


@jit
def find_lowest(bits: int) -> int:
    return lowest(bits)  # type: ignore[no-any-return]


@given(bits=st.integers(1, (1 << 63) - 1))
def test_lowest(bits: int) -> None:
    assert find_lowest(bits) == (bits & -bits).bit_length() - 1


def test_no_intrinsic_is_left_out() -> None:
    def functions(path: str) -> list[ast.FunctionDef]:
        return [part for part in ast.parse(Path(path).read_text()).body if isinstance(part, ast.FunctionDef)]

    intrinsics = {
        f.name for f in functions(simd.__file__) if any(ast.unparse(d) == "_intrinsic" for d in f.decorator_list)
    }
    used = {part.id for f in functions(__file__) for part in ast.walk(f) if isinstance(part, ast.Name)}
    assert intrinsics
    assert intrinsics <= used
