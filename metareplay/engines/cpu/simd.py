"""Vectors of sixteen numbers inside compiled functions.

Plain loops would leave it to LLVM to find the vectors: it then adds tests whether arrays overlap, and loops for the
numbers left over. Here every load, store and multiply-add is one of a whole vector, so there is nothing to find.

The functions are numba intrinsics: a docstring says what happens where a compiled function calls it; the body, which
runs while that function is compiled, writes the LLVM instructions. A vector lives in registers and never leaves a
compiled function; several vectors or numbers are a tuple. Where no other argument tells how many there are, the length
of the tuple `like` does; its entries do not matter. A matrix is a two-dimensional array that is contiguous by rows (or,
where the docstring says so, by columns). Indices are not checked.

LANES is 16: sixteen float32 numbers are 64 bytes, which is a cache line and a register of AVX-512. LLVM splits a vector
into the registers that the machine has: two of AVX2, four of SSE or NEON, and twice as many for float64.

EIGHT is how many rows an operation takes at a time. A multiply-add takes about four cycles and a core can begin two in
each cycle, so eight independent sums keep it busy.
"""

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, models, register_model

from metareplay._core.numba_private import has_avx512

LANES = 16
EIGHT = 8
LIKE_EIGHT = (0,) * EIGHT
LIKE_SEVEN = (0,) * 7
LIKE_FOUR = (0,) * 4
CONTRACT = ("contract",)  # a * b + c may be one rounding; NaN and infinity keep their meaning

Made = tuple[Any, Callable[..., Any]]  # what an intrinsic returns: its signature and the function that writes its code


def _intrinsic(write: Callable[..., Made]) -> Callable[..., Any]:
    """Return a function that compiled functions can call, given one that writes its code."""
    return cast(Callable[..., Any], intrinsic(write))


class Vector(types.Type):
    """Be the numba type of LANES numbers of a dtype."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(f"Vector({dtype}, {LANES})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        lanes = ir.VectorType(manager.lookup(kind.dtype).get_value_type(), LANES)
        models.PrimitiveModel.__init__(self, manager, kind, lanes)


@_intrinsic
def load(_typing: Any, matrix: Any, row: Any, column: Any) -> Made:
    """Load matrix[row, column : column + LANES]."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _load(builder, _address(context, builder, signature, args))

    return Vector(matrix.dtype)(matrix, row, column), codegen


@_intrinsic
def store(_typing: Any, matrix: Any, row: Any, column: Any, vector: Any) -> Made:
    """Store a vector: matrix[row, column : column + LANES] = vector."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _store(builder, args[3], _address(context, builder, signature, args))
        return context.get_dummy_value()

    return types.void(matrix, row, column, vector), codegen


@_intrinsic
def splat(_typing: Any, number: Any) -> Made:
    """Return the vector with a number in every lane."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return _splat(builder, args[0])

    return Vector(number)(number), codegen


@_intrinsic
def where_open(_typing: Any, gate: Any, vector: Any) -> Made:
    """Return the vector with 0 in the lanes where the gate, another vector, is neither positive nor NaN."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        zero = ir.Constant(args[1].type, None)
        return builder.select(builder.fcmp_ordered("<=", args[0], zero), zero, args[1])

    return vector(gate, vector), codegen


@_intrinsic
def multiply_add(_typing: Any, a: Any, b: Any, c: Any) -> Made:
    """Return a * b + c, lane by lane."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return _multiply_add(builder, *args)

    return c(a, b, c), codegen


@_intrinsic
def add(_typing: Any, a: Any, b: Any) -> Made:
    """Return a + b, lane by lane."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.fadd(*args, flags=CONTRACT)

    return a(a, b), codegen


@_intrinsic
def multiply(_typing: Any, a: Any, b: Any) -> Made:
    """Return a * b, lane by lane."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.fmul(*args, flags=CONTRACT)

    return a(a, b), codegen


@_intrinsic
def divide(_typing: Any, a: Any, b: Any) -> Made:
    """Return a / b, lane by lane."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.fdiv(*args)

    return a(a, b), codegen


@_intrinsic
def square_root(_typing: Any, vector: Any) -> Made:
    """Return the square root, lane by lane."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return _call_lanes(builder, "llvm.sqrt", args[0])

    return vector(vector), codegen


@_intrinsic
def where_large(_typing: Any, least: Any, vector: Any) -> Made:
    """Return the vector with 0 in the lanes where it is smaller than `least`, another vector; NaN stays."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        small = builder.fcmp_ordered("<", _call_lanes(builder, "llvm.fabs", args[1]), args[0])
        return builder.select(small, ir.Constant(args[1].type, None), args[1])

    return vector(least, vector), codegen


@_intrinsic
def numbers(_typing: Any, matrix: Any, row: Any, column: Any, like: Any) -> Made:
    """Load the numbers matrix[row, column], matrix[row, column + 1], ..., as many as `like` has entries."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first = _address(context, builder, signature, args)
        found = [builder.load(builder.gep(first, [_int(k)])) for k in range(len(like))]
        return context.make_tuple(builder, signature.return_type, found)

    return types.UniTuple(matrix.dtype, len(like))(matrix, row, column, like), codegen


@_intrinsic
def splats(_typing: Any, matrix: Any, row: Any, column: Any, offsets: Any) -> Made:
    """Return a vector for each of the offsets k, with matrix[row, column + k] in every lane."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first = _address(context, builder, signature, args)
        places = [builder.zext(builder.extract_value(args[3], k), ir.IntType(64)) for k in range(len(offsets))]
        vectors = [_splat(builder, builder.load(builder.gep(first, [place]))) for place in places]
        return context.make_tuple(builder, signature.return_type, vectors)

    return types.UniTuple(Vector(matrix.dtype), len(offsets))(matrix, row, column, offsets), codegen


@_intrinsic
def splat_eight(_typing: Any, matrix: Any, row: Any, column: Any) -> Made:
    """Return eight vectors, vector k with matrix[row, column + k] in every lane.

    The matrix may also be contiguous by columns.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first = _address(context, builder, signature, args)
        step = _step(context, builder, signature, args)
        places = [builder.gep(first, [builder.mul(_int(k), step)]) for k in range(EIGHT)]
        vectors = [_splat(builder, builder.load(place)) for place in places]
        return context.make_tuple(builder, signature.return_type, vectors)

    return types.UniTuple(Vector(matrix.dtype), EIGHT)(matrix, row, column), codegen


@_intrinsic
def zeros(_typing: Any, matrix: Any, like: Any) -> Made:
    """Return vectors of zeros of the matrix's dtype, as many as `like` has entries."""

    def codegen(context: Any, builder: Any, signature: Any, _args: Any) -> Any:
        vector = ir.VectorType(context.get_value_type(matrix.dtype), LANES)
        return context.make_tuple(builder, signature.return_type, [ir.Constant(vector, None)] * len(like))

    return types.UniTuple(Vector(matrix.dtype), len(like))(matrix, like), codegen


@_intrinsic
def load_span(_typing: Any, matrix: Any, row: Any, column: Any, like: Any) -> Made:
    """Load neighbouring vectors of a row from matrix[row, column] on, as many as `like` has entries."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first = _address(context, builder, signature, args)
        vectors = [_load(builder, builder.gep(first, [_int(k * LANES)])) for k in range(len(like))]
        return context.make_tuple(builder, signature.return_type, vectors)

    return types.UniTuple(Vector(matrix.dtype), len(like))(matrix, row, column, like), codegen


@_intrinsic
def store_span(_typing: Any, matrix: Any, row: Any, column: Any, vectors: Any) -> Made:
    """Store vectors side by side from matrix[row, column] on."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first = _address(context, builder, signature, args)
        for k in range(len(vectors)):
            _store(builder, builder.extract_value(args[3], k), builder.gep(first, [_int(k * LANES)]))
        return context.get_dummy_value()

    return types.void(matrix, row, column, vectors), codegen


@_intrinsic
def load_rows(_typing: Any, matrix: Any, rows: Any, column: Any) -> Made:
    """Load matrix[p, column : column + LANES] for each of the rows p."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        matrix, picked, column = args
        one = signature.return_type.dtype(signature.args[0], signature.args[1].dtype, signature.args[2])
        vectors = [
            _load(builder, _address(context, builder, one, (matrix, row, column)))
            for row in (builder.extract_value(picked, k) for k in range(len(rows)))
        ]
        return context.make_tuple(builder, signature.return_type, vectors)

    return types.UniTuple(Vector(matrix.dtype), len(rows))(matrix, rows, column), codegen


@_intrinsic
def multiply_add_each(_typing: Any, a: Any, b: Any, c: Any) -> Made:
    """Return a * b_k + c_k for each k; a is one vector, b and c are tuples of vectors."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a, b, c = args
        vectors = [
            _multiply_add(builder, a, builder.extract_value(b, k), builder.extract_value(c, k))
            for k in range(len(signature.return_type))
        ]
        return context.make_tuple(builder, signature.return_type, vectors)

    return c(a, b, c), codegen


@_intrinsic
def load_eight(_typing: Any, matrix: Any, row: Any, column: Any) -> Made:
    """Load matrix[row + k, column : column + LANES] for k = 0 .. 7."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        addresses = _eight_rows(context, builder, signature, args)
        return context.make_tuple(builder, signature.return_type, [_load(builder, address) for address in addresses])

    return types.UniTuple(Vector(matrix.dtype), EIGHT)(matrix, row, column), codegen


@_intrinsic
def store_eight(_typing: Any, matrix: Any, row: Any, column: Any, vectors: Any) -> Made:
    """Store eight vectors: matrix[row + k, column : column + LANES] = vector k."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        for k, address in enumerate(_eight_rows(context, builder, signature, args)):
            _store(builder, builder.extract_value(args[3], k), address)
        return context.get_dummy_value()

    return types.void(matrix, row, column, vectors), codegen


@_intrinsic
def turned(_typing: Any, low: Any, high: Any) -> Made:
    """Return the columns of a square of LANES vectors, of which `low` has the first eight and `high` the others."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        rows = [builder.extract_value(half, k) for half in args for k in range(EIGHT)]
        for step in (8, 4, 2, 1):  # rows and columns that far apart change places
            keep = _lanes(LANES + lane - step if lane & step else lane for lane in range(LANES))
            swap = _lanes(LANES + lane if lane & step else lane + step for lane in range(LANES))
            for k in (row for row in range(LANES) if not row & step):
                one, other = rows[k], rows[k + step]
                rows[k] = builder.shuffle_vector(one, other, keep)
                rows[k + step] = builder.shuffle_vector(one, other, swap)
        return context.make_tuple(builder, signature.return_type, rows)

    return types.UniTuple(low.dtype, LANES)(low, high), codegen


@_intrinsic
def inner(_typing: Any, a: Any, b: Any, c: Any) -> Made:
    """Return c + a_1 b_1 + a_2 b_2 + ..., as two sums (odd and even terms) that do not wait for each other."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        chains = [args[2], ir.Constant(args[2].type, None)]
        for k in range(len(a)):
            x, y = builder.extract_value(args[0], k), builder.extract_value(args[1], k)
            chains[k % 2] = _multiply_add(builder, x, y, chains[k % 2])
        return builder.fadd(*chains) if len(a) > 1 else chains[0]

    return c(a, b, c), codegen


@_intrinsic
def store_totals(_typing: Any, matrix: Any, row: Any, column: Any, vectors: Any) -> Made:
    """Store the sum of the lanes of each of eight vectors in matrix[row, column : column + 8]."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        sums, width = [builder.extract_value(args[3], k) for k in range(EIGHT)], LANES
        while len(sums) > 1:  # a sum is spread over `width` lanes of its vector; two vectors become one
            sums = [_add_halves(builder, x, y, width) for x, y in zip(sums[::2], sums[1::2], strict=True)]
            width //= 2
        even, odd = (builder.shuffle_vector(sums[0], sums[0], _lanes(range(k, LANES, 2))) for k in (0, 1))
        _store(builder, builder.fadd(even, odd), _address(context, builder, signature, args))
        return context.get_dummy_value()

    return types.void(matrix, row, column, vectors), codegen


@_intrinsic
def total(_typing: Any, vector: Any) -> Made:
    """Return the sum of the lanes of a vector: the halves are added, then the halves of that, and so on."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        found, width = args[0], LANES
        while width > 1:
            width //= 2
            low, high = (builder.shuffle_vector(found, found, _lanes(range(k, k + width))) for k in (0, width))
            found = builder.fadd(low, high)
        return builder.extract_element(found, _int(0))

    return vector.dtype(vector), codegen


@_intrinsic
def prefetch(_typing: Any, matrix: Any, row: Any, column: Any) -> Made:
    """Ask for the cache line of matrix[row, column], which will be read soon."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        address = builder.bitcast(_address(context, builder, signature, args), byte)
        builder.call(ask, [address, flag(0), flag(3), flag(1)])  # to read, into all caches, data
        return context.get_dummy_value()

    return types.void(matrix, row, column), codegen


@_intrinsic
def nonzeros(_typing: Any, matrix: Any, row: Any, column: Any) -> Made:
    """Return LANES bits that say which of the numbers matrix[row, column : column + LANES] are not zero."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = _load(builder, _address(context, builder, signature, args))
        whole = isinstance(vector.type.element, ir.IntType)
        compare = builder.icmp_unsigned if whole else builder.fcmp_unordered
        bits = builder.bitcast(compare("!=", vector, ir.Constant(vector.type, None)), ir.IntType(LANES))
        return builder.zext(bits, ir.IntType(64))

    return types.int64(matrix, row, column), codegen


@_intrinsic
def open_bits(_typing: Any, vector: Any) -> Made:
    """Return LANES bits that say which numbers of a vector are positive or NaN."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        is_open = builder.fcmp_unordered(">", args[0], ir.Constant(args[0].type, None))
        return builder.zext(builder.bitcast(is_open, ir.IntType(LANES)), ir.IntType(64))

    return types.int64(vector), codegen


@_intrinsic
def store_where(_typing: Any, matrix: Any, row: Any, column: Any, _bits: Any, vector: Any) -> Made:
    """Store the numbers of a vector whose bits are set side by side from matrix[row, column] on; return how many.

    The rest of matrix[row, column : column + LANES] may be overwritten. With AVX-512 one or two compress instructions
    do it. Elsewhere each number is stored in turn, and the address moves on only where its bit is set.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, bits, vector = _address(context, builder, signature, args), args[3], args[4]
        count = builder.ctpop(bits)
        if has_avx512(context):
            _compress(builder, address, bits, vector)
            return count
        for k in range(LANES):
            builder.store(builder.extract_element(vector, _int(k)), address)
            bit = builder.and_(builder.lshr(bits, _int(k)), _int(1))
            address = builder.gep(address, [bit])
        return count

    return types.int64(matrix, row, column, types.int64, vector), codegen


@_intrinsic
def has_many_registers(_typing: Any) -> Made:
    """Return whether the CPU has AVX-512, and so 32 registers of a whole vector each; AVX2 has room for 8 vectors."""

    def codegen(context: Any, _builder: Any, _signature: Any, _args: Any) -> Any:
        return ir.Constant(ir.IntType(1), int(has_avx512(context)))

    return types.boolean(), codegen


@_intrinsic
def where_bits(_typing: Any, _bits: Any, number: Any) -> Made:
    """Return the vector with a number in the lanes whose bits are set and 0 in the others."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        mask = builder.bitcast(builder.trunc(args[0], ir.IntType(LANES)), ir.VectorType(ir.IntType(1), LANES))
        vector = _splat(builder, args[1])
        return builder.select(mask, vector, ir.Constant(vector.type, None))

    return Vector(number)(types.int64, number), codegen


@_intrinsic
def either(_typing: Any, a: Any, b: Any) -> Made:
    """Return the bitwise or of two vectors of integers."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.or_(*args)

    return a(a, b), codegen


@_intrinsic
def lowest(_typing: Any, _bits: Any) -> Made:
    """Return the place of the lowest bit that is set; at least one must be."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), codegen


# --- helpers that write LLVM instructions


def _int(k: Any) -> Any:
    """Return a 64-bit integer constant."""
    return ir.Constant(ir.IntType(64), k)


def _lanes(numbers: Any) -> Any:
    """Return lane numbers as the constant vector that a shuffle takes."""
    numbers = list(numbers)
    return ir.Constant(ir.VectorType(ir.IntType(32), len(numbers)), numbers)


def _address(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Return the address of matrix[row, column], which are the first three arguments."""
    array = context.make_array(signature.args[0])(context, builder, args[0])
    row, column = (context.cast(builder, args[k], signature.args[k], types.intp) for k in (1, 2))
    if signature.args[0].layout == "F":
        item = builder.add(row, builder.mul(column, builder.extract_value(array.shape, 0)))
    else:
        item = builder.add(builder.mul(row, builder.extract_value(array.shape, 1)), column)
    return builder.gep(array.data, [item])


def _step(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Return how many numbers lie between matrix[row, column] and matrix[row, column + 1]."""
    if signature.args[0].layout == "C":
        return _int(1)
    return builder.extract_value(context.make_array(signature.args[0])(context, builder, args[0]).shape, 0)


def _eight_rows(context: Any, builder: Any, signature: Any, args: Any) -> list[Any]:
    """Return the addresses of matrix[row + k, column] for k = 0 .. 7."""
    first = _address(context, builder, signature, args)
    width = builder.extract_value(context.make_array(signature.args[0])(context, builder, args[0]).shape, 1)
    return [builder.gep(first, [builder.mul(_int(k), width)]) for k in range(EIGHT)]


def _load(builder: Any, address: Any) -> Any:
    """Load a vector from an address that is aligned as a single number is."""
    number = address.type.pointee
    vector = ir.VectorType(number, LANES)
    return builder.load(builder.bitcast(address, vector.as_pointer()), align=_bytes(number))


def _store(builder: Any, vector: Any, address: Any) -> Any:
    """Store a vector at an address that is aligned as a single number is."""
    builder.store(vector, builder.bitcast(address, vector.type.as_pointer()), align=_bytes(vector.type.element))


def _compress(builder: Any, address: Any, bits: Any, vector: Any) -> None:
    """Write `store_where` with AVX-512's compress, one register of 64 bytes at a time."""
    number = vector.type.element
    lanes = 64 // _bytes(number)
    part_type, mask_type = ir.VectorType(number, lanes), ir.VectorType(ir.IntType(1), lanes)
    kind = ir.FunctionType(part_type, [part_type, part_type, mask_type])
    suffix = f"v{lanes}{'i' if isinstance(number, ir.IntType) else 'f'}{8 * _bytes(number)}"
    compress = cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.avx512.mask.compress.{suffix}")
    for first in range(0, LANES, lanes):
        some = builder.trunc(builder.lshr(bits, _int(first)), ir.IntType(lanes))
        part = builder.shuffle_vector(vector, vector, _lanes(range(first, first + lanes)))
        zero = ir.Constant(part_type, None)
        _store(builder, builder.call(compress, [part, zero, builder.bitcast(some, mask_type)]), address)
        address = builder.gep(address, [builder.zext(builder.ctpop(some), ir.IntType(64))])


def _bytes(number: Any) -> Any:
    """Return the size of a number of this LLVM type."""
    return number.width // 8 if isinstance(number, ir.IntType) else 4 if isinstance(number, ir.FloatType) else 8


def _splat(builder: Any, number: Any) -> Any:
    """Put a number into every lane of a vector."""
    vector = ir.VectorType(number.type, LANES)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), number, _int(0))
    return builder.shuffle_vector(one, one, _lanes([0] * LANES))


def _multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c, which may be rounded once or twice."""
    return builder.fadd(builder.fmul(a, b, flags=CONTRACT), c, flags=CONTRACT)


def _call_lanes(builder: Any, name: str, vector: Any) -> Any:
    """Apply one of LLVM's functions of a single number, lane by lane."""
    suffix = f"v{LANES}f{8 * _bytes(vector.type.element)}"
    kind = ir.FunctionType(vector.type, [vector.type])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"{name}.{suffix}"), [vector])


def _add_halves(builder: Any, x: Any, y: Any, width: Any) -> Any:
    """Add the two halves of every run of width lanes, first of x, then of y."""
    low = [k for k in range(2 * LANES) if k % width < width // 2]
    high = [k + width // 2 for k in low]
    return builder.fadd(builder.shuffle_vector(x, y, _lanes(low)), builder.shuffle_vector(x, y, _lanes(high)))
