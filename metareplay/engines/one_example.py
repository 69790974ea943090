"""Kernels for a step on one example: Conv2d with ReLU and pooling, Linear with ReLU, cross-entropy.

On a single example a layer's arithmetic takes a microsecond or two and every launch about as long, so what counts is
how few kernels a step has. torch needs about a dozen for a convolution with ReLU and pooling, forward and backward;
here it is one each. Full float32, and no atomic additions: the same numbers every time.
"""

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

Sizes = dict[str, Any]
TILE: Final[Sizes] = {"BM": 16, "BN": 32, "BK": 32, "PREC": "ieee", "num_warps": 4, "num_stages": 3}
PRODUCTS: Final[Sizes] = {"BM": 4, "BK": 512, "BO": 32, "num_warps": 4}  # of a matrix and a vector


def sizes_of(xs: Tensor, weight: Tensor, stride: int, padding: int, pool: int, relu: bool) -> Sizes:
    """The layer's shape, as the kernels want it; PH and PW count what comes out of the pooling."""
    _, channels, height, width = xs.shape
    outputs, _, kernel_height, kernel_width = weight.shape
    return {
        "C": channels,
        "H": height,
        "W": width,
        "OC": outputs,
        "KH": kernel_height,
        "KW": kernel_width,
        "PH": ((height + 2 * padding - kernel_height) // stride + 1) // pool,
        "PW": ((width + 2 * padding - kernel_width) // stride + 1) // pool,
        "STRIDE": stride,
        "PAD": padding,
        "POOL": pool,
        "RELU": relu,
    }


class ConvReluPool(torch.autograd.Function):
    """max_pool(relu(conv(x))) of a batch of one; pool = 1: none."""

    @staticmethod
    def forward(
        ctx: Any, xs: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int, pool: int, relu: bool
    ) -> Tensor:
        """One launch."""
        xs = xs.contiguous()
        sizes = sizes_of(xs, weight, stride, padding, pool, relu)
        outputs = xs.new_empty((1, sizes["OC"], sizes["PH"], sizes["PW"]))
        where = torch.empty(outputs.shape if pool > 1 else 0, dtype=torch.int8, device=xs.device)
        count = sizes["PH"] * sizes["PW"] * pool * pool
        grid = (triton.cdiv(sizes["OC"], TILE["BM"]), triton.cdiv(count, TILE["BN"]))
        given = (xs, weight, weight if bias is None else bias, outputs, where)
        _forward[grid](*given, BIAS=bias is not None, **sizes, **TILE)
        ctx.save_for_backward(xs, weight, outputs, where)
        ctx.sizes, ctx.bias = sizes, bias is not None
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """One launch: some programs do the weights', the others the inputs' gradient."""
        xs, weight, outputs, where = ctx.saved_tensors
        sizes, wanted = ctx.sizes, ctx.needs_input_grad
        of_outputs = gradients[0].contiguous()
        of_weight = torch.empty_like(weight)
        of_bias = weight.new_empty(sizes["OC"] if ctx.bias else 0)
        of_xs = torch.empty_like(xs) if wanted[0] else None
        inner = sizes["C"] * sizes["KH"] * sizes["KW"]
        first = triton.cdiv(sizes["OC"], TILE["BM"]) * triton.cdiv(inner, TILE["BN"])
        pixels = triton.cdiv(sizes["H"] * sizes["W"], TILE["BN"])
        second = triton.cdiv(sizes["C"], TILE["BM"]) * pixels if of_xs is not None else 0
        given = (xs, weight, outputs, where, of_outputs, of_weight, of_bias, of_weight if of_xs is None else of_xs)
        _backward[(first + second,)](*given, BIAS=ctx.bias, FIRST=first, **sizes, **TILE)
        return of_xs, of_weight, of_bias if ctx.bias else None, None, None, None, None


class LinearRelu(torch.autograd.Function):
    """relu(W x + b) of a batch of one."""

    @staticmethod
    def forward(ctx: Any, xs: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
        """One launch."""
        xs = xs.contiguous()
        wide, long = weight.shape
        outputs = xs.new_empty((1, wide))
        sizes = {"WIDE": wide, "LONG": long, "RELU": relu, "BIAS": bias is not None}
        given = (xs, weight, weight if bias is None else bias, outputs)
        _linear[(triton.cdiv(wide, PRODUCTS["BM"]),)](*given, **sizes, **_without(PRODUCTS, "BO"))
        ctx.save_for_backward(xs, weight, outputs)
        ctx.sizes = sizes
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """One launch: some programs do the weights', the others the inputs' gradient."""
        xs, weight, outputs = ctx.saved_tensors
        wide, long = weight.shape
        of_weight = torch.empty_like(weight)
        of_bias = weight.new_empty(wide if ctx.sizes["BIAS"] else 0)
        of_xs = torch.empty_like(xs) if ctx.needs_input_grad[0] else None
        first = triton.cdiv(wide, PRODUCTS["BM"]) * triton.cdiv(long, PRODUCTS["BK"])
        second = triton.cdiv(long, PRODUCTS["BO"]) if of_xs is not None else 0
        given = (xs, weight, outputs, gradients[0].contiguous(), of_weight, of_bias)
        _linear_backward[(first + second,)](
            *given, of_weight if of_xs is None else of_xs, FIRST=first, **ctx.sizes, **PRODUCTS
        )
        return of_xs, of_weight, of_bias if ctx.sizes["BIAS"] else None, None


class CrossEntropy(torch.autograd.Function):
    """The cross-entropy of a batch of one."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        """One launch."""
        logits = logits.contiguous()
        loss, whole = logits.new_empty(()), logits.new_empty(())
        count = logits.shape[1]
        _cross_entropy[(1,)](logits, labels, loss, whole, COUNT=count, SIZE=triton.next_power_of_2(count), num_warps=1)
        ctx.save_for_backward(logits, labels, whole)
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """One launch."""
        logits, labels, whole = ctx.saved_tensors
        found, count = torch.empty_like(logits), logits.shape[1]
        sizes = {"COUNT": count, "SIZE": triton.next_power_of_2(count)}
        _cross_entropy_backward[(1,)](logits, labels, whole, gradients[0], found, **sizes, num_warps=1)
        return found, None


def _without(sizes: Sizes, name: str) -> Sizes:
    return {key: value for key, value in sizes.items() if key != name}


@triton.jit
def _forward(
    xs, weight, bias, outputs, where,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OC: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, POOL: tl.constexpr,
    RELU: tl.constexpr, BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PREC: tl.constexpr,
):  # fmt: skip
    """A tile of output channels and pixels; the pixels of one pooling window lie side by side."""
    WINDOW: tl.constexpr = POOL * POOL
    K: tl.constexpr = C * KH * KW
    COUNT: tl.constexpr = PH * PW * WINDOW
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    y = ((n // WINDOW // PW) * POOL + n % WINDOW // POOL) * STRIDE - PAD
    x = ((n // WINDOW % PW) * POOL + n % WINDOW % POOL) * STRIDE - PAD
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        of = tl.load(weight + m[:, None] * K + k[None, :], mask=(m < OC)[:, None] & (k < K)[None, :], other=0.0)
        down, right = y[None, :] + (k % (KH * KW) // KW)[:, None], x[None, :] + (k % KW)[:, None]
        there = (k < K)[:, None] & (n < COUNT)[None, :] & (down >= 0) & (down < H) & (right >= 0) & (right < W)
        part = tl.load(xs + (k // (KH * KW) * (H * W))[:, None] + down * W + right, mask=there, other=0.0)
        total = tl.dot(of, part, total, input_precision=PREC)
    if BIAS:
        total += tl.load(bias + m, mask=m < OC, other=0.0)[:, None]
    window = tl.program_id(1) * (BN // WINDOW) + tl.arange(0, BN // WINDOW)
    at = m[:, None] * (PH * PW) + window[None, :]
    inside = (m < OC)[:, None] & (window < PH * PW)[None, :]
    if POOL > 1:
        best, place = tl.max(tl.reshape(total, (BM, BN // WINDOW, WINDOW)), axis=2, return_indices=True)
        tl.store(where + at, place.to(tl.int8), mask=inside)
    else:
        best = total
    if RELU:
        best = tl.where(best < 0.0, 0.0, best)  # NaN stays
    tl.store(outputs + at, best, mask=inside)


@triton.jit
def _delta(
    of_outputs, outputs, where, at, place, mask, POOL: tl.constexpr, RELU: tl.constexpr
):  # fmt: skip
    """The gradient before ReLU and pooling, of the pixel at `place` in window `at`."""
    found = tl.load(of_outputs + at, mask=mask, other=0.0)
    if RELU:
        found = tl.where(tl.load(outputs + at, mask=mask, other=0.0) > 0.0, found, 0.0)
    if POOL > 1:
        found = tl.where(tl.load(where + at, mask=mask, other=-1).to(tl.int32) == place, found, 0.0)
    return found


@triton.jit
def _backward(
    xs, weight, outputs, where, of_outputs, of_weight, of_bias, of_xs,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OC: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, POOL: tl.constexpr,
    RELU: tl.constexpr, BIAS: tl.constexpr, FIRST: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PREC: tl.constexpr,
):  # fmt: skip
    """Programs 0 .. FIRST - 1: a tile of the weights' gradient; the others: a tile of the inputs'."""
    program = tl.program_id(0)
    if program < FIRST:
        _weights_tile(
            program, xs, outputs, where, of_outputs, of_weight, of_bias,
            C, H, W, OC, KH, KW, PH, PW, STRIDE, PAD, POOL, RELU, BIAS, BM, BN, BK, PREC,
        )  # fmt: skip
    else:
        _inputs_tile(
            program - FIRST, weight, outputs, where, of_outputs, of_xs,
            C, H, W, OC, KH, KW, PH, PW, STRIDE, PAD, POOL, RELU, BM, BN, BK, PREC,
        )  # fmt: skip


@triton.jit
def _weights_tile(
    program, xs, outputs, where, of_outputs, of_weight, of_bias,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OC: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, POOL: tl.constexpr,
    RELU: tl.constexpr, BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    WINDOW: tl.constexpr = POOL * POOL
    K: tl.constexpr = C * KH * KW
    COUNT: tl.constexpr = PH * PW * WINDOW
    WIDE: tl.constexpr = (K + BN - 1) // BN
    m = program // WIDE * BM + tl.arange(0, BM)  # output channels
    n = program % WIDE * BN + tl.arange(0, BN)  # weights of one
    total = tl.zeros((BM, BN), tl.float32)
    whole = tl.zeros((BM,), tl.float32)
    for start in range(0, COUNT, BK):
        r = start + tl.arange(0, BK)
        inside = (m < OC)[:, None] & (r < COUNT)[None, :]
        at, place = m[:, None] * (PH * PW) + (r // WINDOW)[None, :], (r % WINDOW)[None, :]
        delta = _delta(of_outputs, outputs, where, at, place, inside, POOL, RELU)
        whole += tl.sum(delta, axis=1)
        y = ((r // WINDOW // PW) * POOL + r % WINDOW // POOL) * STRIDE - PAD
        x = ((r // WINDOW % PW) * POOL + r % WINDOW % POOL) * STRIDE - PAD
        down, right = y[:, None] + (n % (KH * KW) // KW)[None, :], x[:, None] + (n % KW)[None, :]
        there = (r < COUNT)[:, None] & (n < K)[None, :] & (down >= 0) & (down < H) & (right >= 0) & (right < W)
        part = tl.load(xs + (n // (KH * KW) * (H * W))[None, :] + down * W + right, mask=there, other=0.0)
        total = tl.dot(delta, part, total, input_precision=PREC)
    tl.store(of_weight + m[:, None] * K + n[None, :], total, mask=(m < OC)[:, None] & (n < K)[None, :])
    if BIAS:  # noqa: SIM102 (one is decided when compiling)
        if program % WIDE == 0:
            tl.store(of_bias + m, whole, mask=m < OC)


@triton.jit
def _inputs_tile(
    program, weight, outputs, where, of_outputs, of_xs,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OC: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, POOL: tl.constexpr,
    RELU: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    PIXELS: tl.constexpr = (H * W + BN - 1) // BN
    COUNT: tl.constexpr = OC * KH * KW
    m = program // PIXELS * BM + tl.arange(0, BM)  # input channels
    n = program % PIXELS * BN + tl.arange(0, BN)  # pixels
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, COUNT, BK):
        q = start + tl.arange(0, BK)
        channel, tap = q // (KH * KW), q % (KH * KW)
        down = (n // W)[None, :] + PAD - (tap // KW)[:, None]
        right = (n % W)[None, :] + PAD - (tap % KW)[:, None]
        y, x = down // STRIDE, right // STRIDE
        there = (q < COUNT)[:, None] & (n < H * W)[None, :] & (down >= 0) & (right >= 0)
        there = there & (y < PH * POOL) & (x < PW * POOL) & (down % STRIDE == 0) & (right % STRIDE == 0)
        at = channel[:, None] * (PH * PW) + y // POOL * PW + x // POOL
        delta = _delta(of_outputs, outputs, where, at, y % POOL * POOL + x % POOL, there, POOL, RELU)
        of = tl.load(
            weight + channel[None, :] * (C * KH * KW) + m[:, None] * (KH * KW) + tap[None, :],
            mask=(m < C)[:, None] & (q < COUNT)[None, :],
            other=0.0,
        )
        total = tl.dot(of, delta, total, input_precision=PREC)
    tl.store(of_xs + m[:, None] * (H * W) + n[None, :], total, mask=(m < C)[:, None] & (n < H * W)[None, :])


@triton.jit
def _linear(
    xs, weight, bias, outputs, WIDE: tl.constexpr, LONG: tl.constexpr, RELU: tl.constexpr, BIAS: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """BM outputs."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    total = tl.zeros((BM, BK), tl.float32)
    for start in range(0, LONG, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(xs + k, mask=k < LONG, other=0.0)
        of = tl.load(weight + m[:, None] * LONG + k[None, :], mask=(m < WIDE)[:, None] & (k < LONG)[None, :], other=0.0)
        total += of * x[None, :]
    found = tl.sum(total, axis=1)
    if BIAS:
        found += tl.load(bias + m, mask=m < WIDE, other=0.0)
    if RELU:
        found = tl.where(found < 0.0, 0.0, found)  # NaN stays
    tl.store(outputs + m, found, mask=m < WIDE)


@triton.jit
def _linear_delta(of_outputs, outputs, m, WIDE: tl.constexpr, RELU: tl.constexpr):
    """The gradient before ReLU."""
    found = tl.load(of_outputs + m, mask=m < WIDE, other=0.0)
    if RELU:
        found = tl.where(tl.load(outputs + m, mask=m < WIDE, other=0.0) > 0.0, found, 0.0)
    return found


@triton.jit
def _linear_backward(
    xs, weight, outputs, of_outputs, of_weight, of_bias, of_xs, WIDE: tl.constexpr, LONG: tl.constexpr,
    RELU: tl.constexpr, BIAS: tl.constexpr, FIRST: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """Programs 0 .. FIRST - 1: a tile of the weights' gradient; the others: BO of the inputs'."""
    program = tl.program_id(0)
    if program < FIRST:
        _outer(program, xs, outputs, of_outputs, of_weight, of_bias, WIDE, LONG, RELU, BIAS, BM, BK)
    else:
        _transposed(program - FIRST, weight, outputs, of_outputs, of_xs, WIDE, LONG, RELU, BO)


@triton.jit
def _outer(
    program, xs, outputs, of_outputs, of_weight, of_bias, WIDE: tl.constexpr, LONG: tl.constexpr,
    RELU: tl.constexpr, BIAS: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    ACROSS: tl.constexpr = (LONG + BK - 1) // BK
    m = program // ACROSS * BM + tl.arange(0, BM)
    k = program % ACROSS * BK + tl.arange(0, BK)
    delta = _linear_delta(of_outputs, outputs, m, WIDE, RELU)
    x = tl.load(xs + k, mask=k < LONG, other=0.0)
    inside = (m < WIDE)[:, None] & (k < LONG)[None, :]
    tl.store(of_weight + m[:, None] * LONG + k[None, :], delta[:, None] * x[None, :], mask=inside)
    if BIAS:  # noqa: SIM102 (one is decided when compiling)
        if program % ACROSS == 0:
            tl.store(of_bias + m, delta, mask=m < WIDE)


@triton.jit
def _transposed(
    program, weight, outputs, of_outputs, of_xs, WIDE: tl.constexpr, LONG: tl.constexpr, RELU: tl.constexpr,
    BO: tl.constexpr,
):  # fmt: skip
    DEEP: tl.constexpr = 64
    k = program * BO + tl.arange(0, BO)
    total = tl.zeros((DEEP, BO), tl.float32)
    for start in range(0, WIDE, DEEP):
        m = start + tl.arange(0, DEEP)
        delta = _linear_delta(of_outputs, outputs, m, WIDE, RELU)
        of = tl.load(weight + m[:, None] * LONG + k[None, :], mask=(m < WIDE)[:, None] & (k < LONG)[None, :], other=0.0)
        total += of * delta[:, None]
    tl.store(of_xs + k, tl.sum(total, axis=0), mask=k < LONG)


@triton.jit
def _cross_entropy(logits, labels, loss, whole, COUNT: tl.constexpr, SIZE: tl.constexpr):
    """log sum exp z - z_y."""
    n = tl.arange(0, SIZE)
    z = tl.load(logits + n, mask=n < COUNT, other=-float("inf"))
    largest = tl.max(z, axis=0)
    total = tl.log(tl.sum(tl.exp(z - largest), axis=0)) + largest
    tl.store(whole, total)
    tl.store(loss, total - tl.load(logits + tl.load(labels)))


@triton.jit
def _cross_entropy_backward(logits, labels, whole, of_loss, found, COUNT: tl.constexpr, SIZE: tl.constexpr):
    """softmax(z) - e_y."""
    n = tl.arange(0, SIZE)
    z = tl.load(logits + n, mask=n < COUNT, other=-float("inf"))
    share = tl.exp(z - tl.load(whole))
    share = tl.where(n == tl.load(labels), share - 1.0, share)
    tl.store(found + n, share * tl.load(of_loss), mask=n < COUNT)
