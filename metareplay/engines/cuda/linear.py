"""Kernels for a step on one example: Linear with ReLU, and cross-entropy.

On a single example, a layer's arithmetic takes a microsecond or two and a launch takes about as long, so a step should
have as few kernels as possible: here it has one per layer and direction. They compute in full float32, without atomic
additions, so that the result is the same in every bit each time.
"""

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from metareplay.engines.cuda.triton_jit import jit

Sizes = dict[str, Any]
PRODUCTS: Final[Sizes] = {
    "bm": 4,  # outputs per program: few, so that even a small layer makes many programs
    "bk": 512,  # inputs that a program takes at a time
    "bo": 32,  # input gradients per program: 128 bytes, one line of the cache, in each row of the weights
    "num_warps": 4,
}


class LinearRelu(torch.autograd.Function):
    """Compute relu(W x + b) for a batch of one."""

    @staticmethod
    def forward(ctx: Any, xs: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
        """Compute the outputs in one launch."""
        xs = xs.contiguous()
        wide, long = weight.shape
        outputs = xs.new_empty((1, wide))
        sizes = {"wide": wide, "long": long, "relu": relu, "biased": bias is not None}
        given = (xs, weight, weight if bias is None else bias, outputs)
        _linear[(triton.cdiv(wide, PRODUCTS["bm"]),)](*given, **sizes, **_without(PRODUCTS, "bo"))
        ctx.save_for_backward(xs, weight, outputs)
        ctx.sizes = sizes
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Compute both gradients in one launch, some programs the weights' and the others the inputs'."""
        xs, weight, outputs = ctx.saved_tensors
        wide, long = weight.shape
        of_weight = torch.empty_like(weight)
        of_bias = weight.new_empty(wide if ctx.sizes["biased"] else 0)
        of_xs = torch.empty_like(xs) if ctx.needs_input_grad[0] else None
        first = triton.cdiv(wide, PRODUCTS["bm"]) * triton.cdiv(long, PRODUCTS["bk"])
        second = triton.cdiv(long, PRODUCTS["bo"]) if of_xs is not None else 0
        given = (xs, weight, outputs, gradients[0].contiguous(), of_weight, of_bias)
        _linear_backward[(first + second,)](
            *given, of_weight if of_xs is None else of_xs, first=first, **ctx.sizes, **PRODUCTS
        )
        return of_xs, of_weight, of_bias if ctx.sizes["biased"] else None, None


class CrossEntropy(torch.autograd.Function):
    """Compute the cross-entropy for a batch of one."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss in one launch."""
        logits = logits.contiguous()
        loss, whole = logits.new_empty(()), logits.new_empty(())
        count = logits.shape[1]
        _cross_entropy[(1,)](logits, labels, loss, whole, count=count, size=triton.next_power_of_2(count), num_warps=1)
        ctx.save_for_backward(logits, labels, whole)
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradient in one launch."""
        logits, labels, whole = ctx.saved_tensors
        found, count = torch.empty_like(logits), logits.shape[1]
        sizes = {"count": count, "size": triton.next_power_of_2(count)}
        _cross_entropy_backward[(1,)](logits, labels, whole, gradients[0], found, **sizes, num_warps=1)
        return found, None


def _without(sizes: Sizes, name: str) -> Sizes:
    """Return all sizes but the one with this name."""
    return {key: value for key, value in sizes.items() if key != name}


@jit
def _linear(
    xs: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    outputs: tl.tensor,
    wide: tl.constexpr,
    long: tl.constexpr,
    relu: tl.constexpr,
    biased: tl.constexpr,
    bm: tl.constexpr,
    bk: tl.constexpr,
) -> None:
    """Compute bm outputs."""
    m = tl.program_id(0) * bm + tl.arange(0, bm)
    total = tl.zeros((bm, bk), tl.float32)
    for start in range(0, long, bk):
        k = start + tl.arange(0, bk)
        x = tl.load(xs + k, mask=k < long, other=0.0)
        of = tl.load(weight + m[:, None] * long + k[None, :], mask=(m < wide)[:, None] & (k < long)[None, :], other=0.0)
        total += of * x[None, :]
    found = tl.sum(total, axis=1)
    if biased:
        found += tl.load(bias + m, mask=m < wide, other=0.0)
    if relu:
        found = tl.where(found < 0.0, 0.0, found)  # NaN stays
    tl.store(outputs + m, found, mask=m < wide)


@jit
def _linear_delta(
    of_outputs: tl.tensor, outputs: tl.tensor, m: tl.tensor, wide: tl.constexpr, relu: tl.constexpr
) -> tl.tensor:
    """Return the gradient at the outputs, before ReLU."""
    found = tl.load(of_outputs + m, mask=m < wide, other=0.0)
    if relu:
        found = tl.where(tl.load(outputs + m, mask=m < wide, other=0.0) > 0.0, found, 0.0)
    return found


@jit
def _linear_backward(
    xs: tl.tensor,
    weight: tl.tensor,
    outputs: tl.tensor,
    of_outputs: tl.tensor,
    of_weight: tl.tensor,
    of_bias: tl.tensor,
    of_xs: tl.tensor,
    wide: tl.constexpr,
    long: tl.constexpr,
    relu: tl.constexpr,
    biased: tl.constexpr,
    first: tl.constexpr,
    bm: tl.constexpr,
    bk: tl.constexpr,
    bo: tl.constexpr,
) -> None:
    """Compute both gradients: programs 0 .. first - 1 a tile of the weights' each, all others bo inputs' each."""
    program = tl.program_id(0)
    if program < first:
        _outer(program, xs, outputs, of_outputs, of_weight, of_bias, wide, long, relu, biased, bm, bk)
    else:
        _transposed(program - first, weight, outputs, of_outputs, of_xs, wide, long, relu, bo)


@jit
def _outer(
    program: tl.tensor,
    xs: tl.tensor,
    outputs: tl.tensor,
    of_outputs: tl.tensor,
    of_weight: tl.tensor,
    of_bias: tl.tensor,
    wide: tl.constexpr,
    long: tl.constexpr,
    relu: tl.constexpr,
    biased: tl.constexpr,
    bm: tl.constexpr,
    bk: tl.constexpr,
) -> None:
    """Compute a tile of the weights' gradient, the outer product of delta and x, and of the bias' gradient."""
    across: tl.constexpr = (long + bk - 1) // bk
    m = program // across * bm + tl.arange(0, bm)
    k = program % across * bk + tl.arange(0, bk)
    delta = _linear_delta(of_outputs, outputs, m, wide, relu)
    x = tl.load(xs + k, mask=k < long, other=0.0)
    inside = (m < wide)[:, None] & (k < long)[None, :]
    tl.store(of_weight + m[:, None] * long + k[None, :], delta[:, None] * x[None, :], mask=inside)
    if biased:  # noqa: SIM102 (this condition is known when compiling, the next one is not)
        if program % across == 0:
            tl.store(of_bias + m, delta, mask=m < wide)


@jit
def _transposed(
    program: tl.tensor,
    weight: tl.tensor,
    outputs: tl.tensor,
    of_outputs: tl.tensor,
    of_xs: tl.tensor,
    wide: tl.constexpr,
    long: tl.constexpr,
    relu: tl.constexpr,
    bo: tl.constexpr,
) -> None:
    """Compute bo numbers of the inputs' gradient, the transposed weights times delta."""
    deep: tl.constexpr = 64  # outputs that the program takes at a time
    k = program * bo + tl.arange(0, bo)
    total = tl.zeros((deep, bo), tl.float32)
    for start in range(0, wide, deep):
        m = start + tl.arange(0, deep)
        delta = _linear_delta(of_outputs, outputs, m, wide, relu)
        of = tl.load(weight + m[:, None] * long + k[None, :], mask=(m < wide)[:, None] & (k < long)[None, :], other=0.0)
        total += of * delta[:, None]
    tl.store(of_xs + k, tl.sum(total, axis=0), mask=k < long)


@jit
def _cross_entropy(
    logits: tl.tensor, labels: tl.tensor, loss: tl.tensor, whole: tl.tensor, count: tl.constexpr, size: tl.constexpr
) -> None:
    """Compute log sum exp z - z_y, and keep the first term in `whole` for the backward pass."""
    n = tl.arange(0, size)
    z = tl.load(logits + n, mask=n < count, other=-float("inf"))
    largest = tl.max(z, axis=0)
    total = tl.log(tl.sum(tl.exp(z - largest), axis=0)) + largest
    tl.store(whole, total)
    tl.store(loss, total - tl.load(logits + tl.load(labels)))


@jit
def _cross_entropy_backward(
    logits: tl.tensor,
    labels: tl.tensor,
    whole: tl.tensor,
    of_loss: tl.tensor,
    found: tl.tensor,
    count: tl.constexpr,
    size: tl.constexpr,
) -> None:
    """Compute softmax(z) - e_y, times the gradient at the loss."""
    n = tl.arange(0, size)
    z = tl.load(logits + n, mask=n < count, other=-float("inf"))
    share = tl.exp(z - tl.load(whole))
    share = tl.where(n == tl.load(labels), share - 1.0, share)
    tl.store(found + n, share * tl.load(of_loss), mask=n < count)
