"""Kernels for a step on one example: Linear with ReLU, and cross-entropy.

On a single example a layer's arithmetic takes a microsecond or two and every launch about as long, so what counts is
how few kernels a step has: here it is one for each layer, forward and backward. Full float32, and no atomic additions:
the same numbers every time.
"""

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

Sizes = dict[str, Any]
PRODUCTS: Final[Sizes] = {"BM": 4, "BK": 512, "BO": 32, "num_warps": 4}  # of a matrix and a vector


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
