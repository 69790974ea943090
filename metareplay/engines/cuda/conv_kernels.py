"""Kernels for convolutions of several networks, each with one input, with the ReLU before or after them.

They are im2col products as in `convolution.py`, by tables that say which pixels meet, but for many networks at once:
even a few networks make enough programs to fill a GPU, so that no two programs need to share the sum of a tile. The
biases are one more column of the matrices, as in `dense_kernels.py`. There are no atomic additions, so that the result
is the same in every bit each time.
"""

from typing import Any, Final

import triton
import triton.language as tl
from torch import Tensor

from metareplay.engines.cuda.triton_jit import jit

Sizes = dict[str, Any]
MOST_ROWS: Final = 64  # channels in a tile
COLUMNS: Final = 16  # pixels in a tile, or weights: few, because narrow tiles make more programs
DEPTH: Final = 64  # terms of a sum that a program takes at a time
HOW: Final[Sizes] = {"precision": "tf32x3", "num_warps": 4}  # three tf32 products give the digits of a float32 one


def forward(matrices: Tensor, images: Tensor, seen: Tensor, maps: Tensor) -> None:
    """Compute a convolution and the ReLU after it.

    Args:
        matrices: Weights and biases, of shape (networks, output channels, columns).
        images: Of shape (networks, input channels, pixels).
        seen: The input pixel that an output pixel sees through a tap, of shape (taps, output pixels).
        maps: Where to write, of shape (networks, output channels, output pixels).
    """
    (runs, outs, columns), (taps, count), (_, ins, pixels) = matrices.shape, seen.shape, images.shape
    rows = _rows(outs)
    grid = (triton.cdiv(outs, rows), triton.cdiv(count, COLUMNS), runs)
    _forward[grid](
        matrices, images, seen, maps, matrices.stride(0), images.stride(0), maps.stride(0), ins, outs, taps, pixels,
        count, columns, rows, COLUMNS, DEPTH, **HOW,
    )  # fmt: skip


def backward(matrices: Tensor, delta: Tensor, sees: Tensor, inputs: Tensor, of_inputs: Tensor) -> None:
    """Compute the gradient at what came before the ReLU that made a convolution's inputs.

    Args:
        matrices: Weights and biases, of shape (networks, output channels, columns).
        delta: The gradient at the convolution's outputs, of shape (networks, output channels, output pixels).
        sees: The output pixel that sees an input pixel through a tap, or -1, of shape (taps, input pixels).
        inputs: What the forward pass got, of shape (networks, input channels, input pixels).
        of_inputs: Where to write, of the same shape.
    """
    (runs, outs, columns), (taps, pixels), (_, ins, _) = matrices.shape, sees.shape, inputs.shape
    rows = _rows(ins)
    grid = (triton.cdiv(ins, rows), triton.cdiv(pixels, COLUMNS), runs)
    strides = matrices.stride(0), delta.stride(0), inputs.stride(0), of_inputs.stride(0)
    _backward[grid](
        matrices, delta, sees, inputs, of_inputs, *strides, ins, outs, taps, pixels, delta.shape[2], columns, rows,
        COLUMNS, DEPTH, **HOW,
    )  # fmt: skip


def descend(into: Tensor, delta: Tensor, images: Tensor, seen: Tensor, *, subtract: bool) -> None:
    """Subtract the gradient of a convolution's weights and biases, or write it.

    Args:
        into: Weights and biases to subtract from, or where to write, of shape (networks, output channels, columns).
        delta: The gradient at the convolution's outputs, times the rate if it is to be subtracted.
        images: What the forward pass got, of shape (networks, input channels, pixels).
        seen: The input pixel that an output pixel sees through a tap, of shape (taps, output pixels).
        subtract: Whether to subtract.
    """
    (runs, outs, columns), (taps, count), (_, ins, pixels) = into.shape, seen.shape, images.shape
    rows, depth = _rows(outs), min(DEPTH, max(16, triton.next_power_of_2(count)))
    grid = (triton.cdiv(outs, rows), triton.cdiv(ins * taps + 1, COLUMNS), runs)
    _descend[grid](
        into, delta, images, seen, into.stride(0), delta.stride(0), images.stride(0), ins, outs, taps, pixels, count,
        columns, subtract, rows, COLUMNS, depth, **HOW,
    )  # fmt: skip


def _rows(channels: int) -> int:
    """Return how many channels a tile has."""
    return int(min(MOST_ROWS, max(16, triton.next_power_of_2(channels))))


@jit
def _forward(
    matrices: tl.tensor,
    images: tl.tensor,
    seen: tl.tensor,
    maps: tl.tensor,
    by_matrices: tl.constexpr,
    by_images: tl.constexpr,
    by_maps: tl.constexpr,
    ins: tl.constexpr,
    outs: tl.constexpr,
    taps: tl.constexpr,
    pixels: tl.constexpr,
    count: tl.constexpr,
    columns: tl.constexpr,
    rows: tl.constexpr,
    wide: tl.constexpr,
    depth: tl.constexpr,
    precision: tl.constexpr,
) -> None:
    """Compute a tile of one network's outputs: filters times patches, biases, ReLU."""
    inner: tl.constexpr = ins * taps
    run = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * rows + tl.arange(0, rows)  # output channels
    n = tl.program_id(1) * wide + tl.arange(0, wide)  # output pixels
    total = tl.zeros((rows, wide), tl.float32)
    for start in range(0, inner, depth):
        k = start + tl.arange(0, depth)
        at = matrices + run * by_matrices + m[:, None] * columns + k[None, :]
        of = tl.load(at, mask=(m < outs)[:, None] & (k < inner)[None, :], other=0.0)
        inside = (k < inner)[:, None] & (n < count)[None, :]
        pixel = tl.load(seen + (k % taps)[:, None] * count + n[None, :], mask=inside, other=-1)
        patch = tl.load(images + run * by_images + (k // taps)[:, None] * pixels + pixel, mask=pixel >= 0, other=0.0)
        total = tl.dot(of, patch, total, input_precision=precision)
    total += tl.load(matrices + run * by_matrices + m * columns + inner, mask=m < outs, other=0.0)[:, None]
    total = tl.where(total < 0.0, 0.0, total)  # NaN stays
    inside = (m < outs)[:, None] & (n < count)[None, :]
    tl.store(maps + run * by_maps + m[:, None] * count + n[None, :], total, mask=inside)


@jit
def _backward(
    matrices: tl.tensor,
    delta: tl.tensor,
    sees: tl.tensor,
    inputs: tl.tensor,
    of_inputs: tl.tensor,
    by_matrices: tl.constexpr,
    by_delta: tl.constexpr,
    by_inputs: tl.constexpr,
    by_of_inputs: tl.constexpr,
    ins: tl.constexpr,
    outs: tl.constexpr,
    taps: tl.constexpr,
    pixels: tl.constexpr,
    count: tl.constexpr,
    columns: tl.constexpr,
    rows: tl.constexpr,
    wide: tl.constexpr,
    depth: tl.constexpr,
    precision: tl.constexpr,
) -> None:
    """Compute a tile of the inputs' gradient: transposed filters times deltas, 0 where the input is 0."""
    inner: tl.constexpr = outs * taps
    run = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * rows + tl.arange(0, rows)  # input channels
    n = tl.program_id(1) * wide + tl.arange(0, wide)  # input pixels
    total = tl.zeros((rows, wide), tl.float32)
    for start in range(0, inner, depth):
        q = start + tl.arange(0, depth)  # output channels and taps
        channel, tap = q // taps, q % taps
        inside = (q < inner)[:, None] & (n < pixels)[None, :]
        pixel = tl.load(sees + tap[:, None] * pixels + n[None, :], mask=inside, other=-1)
        found = tl.load(delta + run * by_delta + channel[:, None] * count + pixel, mask=pixel >= 0, other=0.0)
        at = matrices + run * by_matrices + channel[None, :] * columns + m[:, None] * taps + tap[None, :]
        of = tl.load(at, mask=(m < ins)[:, None] & (q < inner)[None, :], other=0.0)
        total = tl.dot(of, found, total, input_precision=precision)
    inside = (m < ins)[:, None] & (n < pixels)[None, :]
    at_inputs = m[:, None] * pixels + n[None, :]
    x = tl.load(inputs + run * by_inputs + at_inputs, mask=inside, other=0.0)
    tl.store(of_inputs + run * by_of_inputs + at_inputs, tl.where(x > 0.0, total, 0.0), mask=inside)


@jit
def _descend(
    into: tl.tensor,
    delta: tl.tensor,
    images: tl.tensor,
    seen: tl.tensor,
    by_into: tl.constexpr,
    by_delta: tl.constexpr,
    by_images: tl.constexpr,
    ins: tl.constexpr,
    outs: tl.constexpr,
    taps: tl.constexpr,
    pixels: tl.constexpr,
    count: tl.constexpr,
    columns: tl.constexpr,
    subtract: tl.constexpr,
    rows: tl.constexpr,
    wide: tl.constexpr,
    depth: tl.constexpr,
    precision: tl.constexpr,
) -> None:
    """Compute a tile of the gradient of one network's weights, deltas times patches, and subtract or write it."""
    inner: tl.constexpr = ins * taps
    run = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * rows + tl.arange(0, rows)  # output channels
    n = tl.program_id(1) * wide + tl.arange(0, wide)  # weights of an output channel, its bias last
    total = tl.zeros((rows, wide), tl.float32)
    for start in range(0, count, depth):
        r = start + tl.arange(0, depth)  # output pixels
        at = delta + run * by_delta + m[:, None] * count + r[None, :]
        found = tl.load(at, mask=(m < outs)[:, None] & (r < count)[None, :], other=0.0)
        inside = (r < count)[:, None] & (n < inner)[None, :]
        pixel = tl.load(seen + (n % taps)[None, :] * count + r[:, None], mask=inside, other=-1)
        patch = tl.load(images + run * by_images + (n // taps)[None, :] * pixels + pixel, mask=pixel >= 0, other=0.0)
        patch = tl.where((n == inner)[None, :], 1.0, patch)
        total = tl.dot(found, patch, total, input_precision=precision)
    inside = (m < outs)[:, None] & (n < inner + 1)[None, :]
    at = into + run * by_into + m[:, None] * columns + n[None, :]
    if subtract:
        total = tl.load(at, mask=inside, other=0.0) - total
    tl.store(at, total, mask=inside)
