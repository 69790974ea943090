"""Kernels for the convolution of one example, with the ReLU and max pooling after it: im2col with split-K.

im2col writes a convolution as a matrix product. The filters, (output channels, input channels * taps), are multiplied
by a matrix of patches, which has one column per output pixel: the input pixels that the filter sees there. We never
store that matrix; each program gathers its part of it through a table (`Geometry`). The gradients are two more such
products: that of the weights is the deltas times the patches, that of the inputs is the filters times the deltas.

One example has few pixels, so these products are small and have long inner sums: if each program computed one tile of
the result, most of the GPU would be idle. Split-K lets several programs share the inner sum of a tile. Each of them
writes its part of the sum, and a second kernel adds the parts. It adds them in their order, without atomic additions,
so that the result is the same in every bit each time.
"""

from dataclasses import dataclass
from typing import Any, Final, final

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.nn import functional

from metareplay.engines.cuda.triton_jit import jit

Sizes = dict[str, Any]
ROWS = 64  # channels in a tile: all of them in the layers of the Omniglot and DQN networks, which have up to 64
COLUMNS = 16  # pixels in a tile: few, because narrow tiles make more programs
WIDER = 32  # columns in a tile of the weights' gradient, which has many: one per input channel and tap
DEPTH = 64  # terms of the inner sum that a program takes at a time
PARTS = 16  # the most programs that share a sum: more of them would leave more parts for the second kernel to add
SUMS = 128  # sums that one program of the second kernel computes: one per thread
HOW: Final[Sizes] = {"precision": "tf32x3", "num_warps": 4}  # three tf32 products give the digits of a float32 one


@final
@dataclass(frozen=True)
class Geometry:
    """Hold tables of which pixels meet in a layer, so that the kernels need no arithmetic on rows and columns.

    (Triton 3.6 compiled that arithmetic wrongly for some shapes, see docs/performance.md.) A tap is one place of a
    filter, for instance one of nine. An output pixel is one before pooling. Input pixels are numbered row by row.
    Output pixels are numbered window by window: pixel n is at place n % pool^2 in window n // pool^2, so that the
    pixels of a pooling window lie side by side. Those that pooling drops at the edges have no number.

    A filter of two taps on an image of three pixels has two output pixels. The first one sees the input pixels 0 and 1,
    the second one 1 and 2; the last input pixel is seen by no output pixel through the first tap:

    >>> geometry = Geometry.of(nn.Conv2d(1, 1, (1, 2)), pool=1, height=1, width=3)
    >>> geometry.seen.tolist(), geometry.sees.tolist()
    ([[0, 1], [1, 2]], [[0, 1, -1], [-1, 0, 1]])

    Args:
        seen: (taps, output pixels): the input pixel that an output pixel sees through a tap, or -1 for padding. The
            forward pass and the weights' gradient gather their patches by it.
        sees: (taps, input pixels): the output pixel that sees an input pixel through a tap, or -1 for none. The
            inputs' gradient gathers its deltas by it.
        height: Rows after pooling.
        width: Columns after pooling.
    """

    seen: Tensor
    sees: Tensor
    height: int
    width: int

    @staticmethod
    def of(conv: nn.Conv2d, pool: int, height: int, width: int) -> "Geometry":
        """Make the tables for images of this size.

        Args:
            conv: The convolution.
            pool: Rows and columns of a pooling window; 1 for no pooling.
            height: Rows of an image.
            width: Columns of an image.
        """
        pixels = torch.arange(1, height * width + 1, dtype=torch.float64).view(1, 1, height, width)
        seen = functional.unfold(pixels, conv.kernel_size, conv.dilation, padding_of(conv), conv.stride)[0].long() - 1
        rows, columns = output_size(conv, height, width)
        down, across = rows // pool, columns // pool
        windows = seen.view(-1, rows, columns)[:, : down * pool, : across * pool].reshape(-1, down, pool, across, pool)
        seen = windows.transpose(2, 3).reshape(len(seen), -1)
        sees = torch.full((len(seen), height * width + 1), -1)  # the last column takes what falls on the padding
        sees.scatter_(1, seen.where(seen >= 0, height * width), torch.arange(seen.shape[1]).expand_as(seen))
        on = conv.weight.device
        return Geometry(seen.int().to(on), sees[:, :-1].int().contiguous().to(on), down, across)


def output_size(conv: nn.Conv2d, height: int, width: int) -> tuple[int, int]:
    """Return how many rows and columns a convolution gives for images of this size, before pooling."""
    layer = zip((height, width), padding_of(conv), conv.dilation, conv.kernel_size, conv.stride, strict=True)
    down, across = ((size + 2 * pad - far * (long - 1) - 1) // step + 1 for size, pad, far, long, step in layer)
    return down, across


def padding_of(conv: nn.Conv2d) -> tuple[int, ...]:
    """Return the padding in pixels; raise TypeError for "same" and "valid", which are left to torch."""
    if isinstance(conv.padding, str):
        raise TypeError(conv.padding)
    return conv.padding


def cut(down: int, across: int, wide: int, inner: int) -> tuple[int, int, int, Sizes]:
    """Divide a matrix product among programs.

    Args:
        down: Rows of the result.
        across: Columns of the result.
        wide: Columns of a tile.
        inner: Terms of the inner sum.

    Returns:
        How many tiles there are down and across, how many parts the inner sum has, and the sizes that a kernel takes.
    """
    at_once = min(DEPTH, max(16, triton.next_power_of_2(inner)))
    turns = triton.cdiv(inner, at_once * PARTS)
    sizes = {"rows": ROWS, "columns": wide, "depth": at_once, "turns": turns}
    return triton.cdiv(down, ROWS), triton.cdiv(across, wide), triton.cdiv(inner, at_once * turns), sizes


class ConvReluPool(torch.autograd.Function):
    """Compute max_pool(relu(conv(x))) for a batch of one; pool = 1 means no pooling."""

    @staticmethod
    def forward(
        ctx: Any, xs: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, pool: int, relu: bool
    ) -> Tensor:
        """Compute the parts of the sums; then add them, with bias, ReLU and pooling."""
        xs = xs.contiguous()
        outs, ins, pixels = len(weight), xs.shape[1], xs[0, 0].numel()
        taps, count = geometry.seen.shape
        sizes = {"ins": ins, "outs": outs, "taps": taps, "pixels": pixels, "count": count}
        down, across, parts, tile = cut(outs, count, COLUMNS, ins * taps)
        outputs = xs.new_empty((1, outs, geometry.height, geometry.width))
        where = torch.empty(outputs.shape, dtype=torch.int8, device=xs.device)
        sums = xs.new_empty((parts, outs, count))
        _forward[(down, across, parts)](xs, weight, geometry.seen, sums, **sizes, **tile, **HOW)
        few = SUMS // (pool * pool)
        _finish[(triton.cdiv(outputs.numel(), few),)](
            sums, weight if bias is None else bias, outputs, where, outs=outs, count=count // (pool * pool),
            window=pool * pool, parts=parts, relu=relu, biased=bias is not None, size=few,
        )  # fmt: skip
        ctx.save_for_backward(xs, weight, where)
        ctx.geometry, ctx.sizes, ctx.window, ctx.biased = geometry, sizes, pool * pool, bias is not None
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the parts of the sums, some programs for the weights and the others for the inputs; then add them."""
        xs, weight, where = ctx.saved_tensors
        outs, ins, taps, pixels, count = (ctx.sizes[name] for name in ("outs", "ins", "taps", "pixels", "count"))
        wide = ins * taps + ctx.biased  # the bias counts as a weight whose input is always one
        down, across, parts, tile = cut(outs, wide, WIDER, count)
        i_down, i_across, i_parts, i_tile = cut(ins, pixels, COLUMNS, outs * taps)
        i_parts = i_parts if ctx.needs_input_grad[0] else 0
        first, second = down * across * parts, i_down * i_across * i_parts
        sums, i_sums = xs.new_empty((parts, outs, wide)), xs.new_empty((i_parts, xs.numel()))
        _backward[(first + second,)](
            xs, weight, where, gradients[0].contiguous(), ctx.geometry.seen, ctx.geometry.sees, sums,
            i_sums if i_parts else sums, **ctx.sizes, window=ctx.window, biased=ctx.biased,
            first=first, across=across, parts=parts, **tile, i_across=i_across, i_parts=i_parts,
            **{f"i_{name}": value for name, value in i_tile.items()}, **HOW,
        )  # fmt: skip
        of_weight, of_bias = torch.empty_like(weight), weight.new_empty(outs if ctx.biased else 0)
        of_xs = torch.empty_like(xs) if i_parts else None
        first = triton.cdiv(outs * wide, SUMS)
        second = triton.cdiv(xs.numel(), SUMS) if i_parts else 0
        _sum[(first + second,)](
            sums, of_weight, of_bias if ctx.biased else of_weight, i_sums if i_parts else sums,
            of_weight if of_xs is None else of_xs, outs=outs, inner=ins * taps, wide=wide, parts=parts, first=first,
            i_count=xs.numel(), i_parts=i_parts, size=SUMS,
        )  # fmt: skip
        return of_xs, of_weight, of_bias if ctx.biased else None, None, None, None


@jit
def _look_up(table: tl.tensor, tap: tl.tensor, pixel: tl.tensor, pixels: tl.constexpr, inside: tl.tensor) -> tl.tensor:
    """Return the table's entry for a tap and a pixel, or -1 if there is none."""
    return tl.load(table + tap * pixels + pixel, mask=inside, other=-1)


@jit
def _forward(
    xs: tl.tensor,
    weight: tl.tensor,
    seen: tl.tensor,
    sums: tl.tensor,
    ins: tl.constexpr,
    outs: tl.constexpr,
    taps: tl.constexpr,
    pixels: tl.constexpr,
    count: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    depth: tl.constexpr,
    turns: tl.constexpr,
    precision: tl.constexpr,
) -> None:
    """Compute one part of the sums for a tile of output channels and pixels: filters times patches."""
    inner: tl.constexpr = ins * taps
    m = tl.program_id(0) * rows + tl.arange(0, rows)
    n = tl.program_id(1) * columns + tl.arange(0, columns)
    part = tl.program_id(2)
    total = tl.zeros((rows, columns), tl.float32)
    for turn in range(turns):
        k = (part * turns + turn) * depth + tl.arange(0, depth)
        of = tl.load(
            weight + m[:, None] * inner + k[None, :], mask=(m < outs)[:, None] & (k < inner)[None, :], other=0.0
        )
        inside = (k < inner)[:, None] & (n < count)[None, :]
        pixel = _look_up(seen, (k % taps)[:, None], n[None, :], count, inside)
        patch = tl.load(xs + (k // taps)[:, None] * pixels + pixel, mask=pixel >= 0, other=0.0)
        total = tl.dot(of, patch, total, input_precision=precision)
    inside = (m < outs)[:, None] & (n < count)[None, :]
    tl.store(sums + part * (outs * count) + m[:, None] * count + n[None, :], total, mask=inside)


@jit
def _finish(
    sums: tl.tensor,
    bias: tl.tensor,
    outputs: tl.tensor,
    where: tl.tensor,
    outs: tl.constexpr,
    count: tl.constexpr,
    window: tl.constexpr,
    parts: tl.constexpr,
    relu: tl.constexpr,
    biased: tl.constexpr,
    size: tl.constexpr,
) -> None:
    """Add the parts and the bias, then apply ReLU and pooling.

    `where` receives the place of the largest pixel in each window, or -1 if ReLU made it zero: no gradient passes.
    """
    at = tl.program_id(0) * size + tl.arange(0, size)
    inside = at < outs * count
    pixel = at[:, None] * window + tl.arange(0, window)[None, :]
    total = tl.zeros((size, window), tl.float32)
    for part in tl.static_range(parts):
        total += tl.load(sums + part * (outs * count * window) + pixel, mask=inside[:, None], other=0.0)
    if window > 1:
        best, place = tl.max(total, axis=1, return_indices=True)
        best = tl.where(tl.max((total != total).to(tl.int32), axis=1) > 0, float("nan"), best)
    else:
        best, place = tl.sum(total, axis=1), tl.zeros((size,), tl.int32)
    if biased:
        best += tl.load(bias + at // count, mask=inside, other=0.0)
    if relu:
        place = tl.where(best > 0.0, place, -1)
        best = tl.where(best < 0.0, 0.0, best)  # NaN stays
    tl.store(where + at, place.to(tl.int8), mask=inside)
    tl.store(outputs + at, best, mask=inside)


@jit
def _delta(
    of_outputs: tl.tensor, where: tl.tensor, channel: tl.tensor, pixel: tl.tensor, count: tl.constexpr,
    window: tl.constexpr, mask: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """Return the gradient at an output pixel, before ReLU and pooling."""
    at = channel * (count // window) + pixel // window
    found = tl.load(of_outputs + at, mask=mask, other=0.0)
    return tl.where(tl.load(where + at, mask=mask, other=-1).to(tl.int32) == pixel % window, found, 0.0)


@jit
def _backward(
    xs: tl.tensor,
    weight: tl.tensor,
    where: tl.tensor,
    of_outputs: tl.tensor,
    seen: tl.tensor,
    sees: tl.tensor,
    sums: tl.tensor,
    i_sums: tl.tensor,
    ins: tl.constexpr,
    outs: tl.constexpr,
    taps: tl.constexpr,
    pixels: tl.constexpr,
    count: tl.constexpr,
    window: tl.constexpr,
    biased: tl.constexpr,
    first: tl.constexpr,
    across: tl.constexpr,
    parts: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    depth: tl.constexpr,
    turns: tl.constexpr,
    i_across: tl.constexpr,
    i_parts: tl.constexpr,
    i_rows: tl.constexpr,
    i_columns: tl.constexpr,
    i_depth: tl.constexpr,
    i_turns: tl.constexpr,
    precision: tl.constexpr,
) -> None:
    """Compute parts of both gradients: programs 0 .. first - 1 those of the weights, all others those of the inputs.

    Names that begin with `i_` belong to the inputs' gradient.
    """
    program = tl.program_id(0)
    if program < first:
        _weights_tile(
            program // parts // across, program // parts % across, program % parts, xs, where, of_outputs, seen, sums,
            ins, outs, taps, pixels, count, window, biased, rows, columns, depth, turns, precision,
        )  # fmt: skip
    elif i_parts > 0:
        i = program - first
        _inputs_tile(
            i // i_parts // i_across, i // i_parts % i_across, i % i_parts, weight, where, of_outputs, sees, i_sums,
            ins, outs, taps, pixels, count, window, i_rows, i_columns, i_depth, i_turns, precision,
        )  # fmt: skip


@jit
def _weights_tile(
    down: tl.tensor,
    over: tl.tensor,
    part: tl.tensor,
    xs: tl.tensor,
    where: tl.tensor,
    of_outputs: tl.tensor,
    seen: tl.tensor,
    sums: tl.tensor,
    ins: tl.constexpr,
    outs: tl.constexpr,
    taps: tl.constexpr,
    pixels: tl.constexpr,
    count: tl.constexpr,
    window: tl.constexpr,
    biased: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    depth: tl.constexpr,
    turns: tl.constexpr,
    precision: tl.constexpr,
) -> None:
    """Compute one part of a tile of the weights' gradient: deltas times patches."""
    inner: tl.constexpr = ins * taps
    wide: tl.constexpr = inner + biased
    m = down * rows + tl.arange(0, rows)  # output channels
    n = over * columns + tl.arange(0, columns)  # weights of an output channel, its bias last
    total = tl.zeros((rows, columns), tl.float32)
    for turn in range(turns):
        r = (part * turns + turn) * depth + tl.arange(0, depth)  # output pixels
        delta = _delta(
            of_outputs, where, m[:, None], r[None, :], count, window, (m < outs)[:, None] & (r < count)[None, :]
        )
        inside = (r < count)[:, None] & (n < inner)[None, :]
        pixel = _look_up(seen, (n % taps)[None, :], r[:, None], count, inside)
        patch = tl.load(xs + (n // taps)[None, :] * pixels + pixel, mask=pixel >= 0, other=0.0)
        if biased:
            patch = tl.where((n == inner)[None, :], 1.0, patch)
        total = tl.dot(delta, patch, total, input_precision=precision)
    inside = (m < outs)[:, None] & (n < wide)[None, :]
    tl.store(sums + part * (outs * wide) + m[:, None] * wide + n[None, :], total, mask=inside)


@jit
def _inputs_tile(
    down: tl.tensor,
    over: tl.tensor,
    part: tl.tensor,
    weight: tl.tensor,
    where: tl.tensor,
    of_outputs: tl.tensor,
    sees: tl.tensor,
    sums: tl.tensor,
    ins: tl.constexpr,
    outs: tl.constexpr,
    taps: tl.constexpr,
    pixels: tl.constexpr,
    count: tl.constexpr,
    window: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    depth: tl.constexpr,
    turns: tl.constexpr,
    precision: tl.constexpr,
) -> None:
    """Compute one part of a tile of the inputs' gradient: transposed filters times deltas."""
    m = down * rows + tl.arange(0, rows)  # input channels
    n = over * columns + tl.arange(0, columns)  # input pixels
    total = tl.zeros((rows, columns), tl.float32)
    for turn in range(turns):
        q = (part * turns + turn) * depth + tl.arange(0, depth)  # output channels and taps
        channel, tap = q // taps, q % taps
        inside = (q < outs * taps)[:, None] & (n < pixels)[None, :]
        pixel = _look_up(sees, tap[:, None], n[None, :], pixels, inside)
        delta = _delta(of_outputs, where, channel[:, None], pixel, count, window, pixel >= 0)
        of = tl.load(
            weight + channel[None, :] * (ins * taps) + m[:, None] * taps + tap[None, :],
            mask=(m < ins)[:, None] & (q < outs * taps)[None, :],
            other=0.0,
        )
        total = tl.dot(of, delta, total, input_precision=precision)
    inside = (m < ins)[:, None] & (n < pixels)[None, :]
    tl.store(sums + part * (ins * pixels) + m[:, None] * pixels + n[None, :], total, mask=inside)


@jit
def _sum(
    sums: tl.tensor,
    of_weight: tl.tensor,
    of_bias: tl.tensor,
    i_sums: tl.tensor,
    of_xs: tl.tensor,
    outs: tl.constexpr,
    inner: tl.constexpr,
    wide: tl.constexpr,
    parts: tl.constexpr,
    first: tl.constexpr,
    i_count: tl.constexpr,
    i_parts: tl.constexpr,
    size: tl.constexpr,
) -> None:
    """Add the parts of both gradients: programs 0 .. first - 1 those of the weights, all others those of the inputs."""
    program = tl.program_id(0)
    total = tl.zeros((size,), tl.float32)
    if program < first:
        at = program * size + tl.arange(0, size)
        inside, row, column = at < outs * wide, at // wide, at % wide
        for part in tl.static_range(parts):
            total += tl.load(sums + part * (outs * wide) + at, mask=inside, other=0.0)
        tl.store(of_weight + row * inner + column, total, mask=inside & (column < inner))
        if wide > inner:
            tl.store(of_bias + row, total, mask=inside & (column == inner))
    elif i_parts > 0:
        at = (program - first) * size + tl.arange(0, size)
        for part in tl.static_range(i_parts):
            total += tl.load(i_sums + part * i_count + at, mask=at < i_count, other=0.0)
        tl.store(of_xs + at, total, mask=at < i_count)
