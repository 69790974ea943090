"""Kernels for linear layers of several networks, each with one input: every weight is read once per direction.

A linear layer with one input does two operations per weight, so the time goes into reading weights. Backward, one pass
over them gives the gradient of the inputs and takes the SGD step, because the gradient of the weights is an outer
product that need not be stored. Matrices have the biases as one more column, and inputs a one in its place. There are
no atomic additions, so that the result is the same in every bit each time.
"""

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from metareplay.engines.cuda.triton_jit import jit

OUTPUTS: Final = 4  # per program of the forward pass: few, so that even one small layer makes many programs
INPUTS: Final = 512  # that such a program takes at a time
COLUMNS: Final = 16  # of the matrix per program of the backward pass: rows of 64 bytes
ROWS: Final = 128  # of the matrix that such a program takes at a time


def forward(matrices: Tensor, inputs: Tensor, outputs: Tensor, *, relu: bool) -> None:
    """Compute a layer of every network.

    Args:
        matrices: Weights and biases, of shape (networks, outputs, columns).
        inputs: Of shape (networks, columns), with a one for the biases.
        outputs: Where to write, of shape (networks, outputs).
        relu: Whether a ReLU follows.
    """
    runs, outs, columns = matrices.shape
    strides = matrices.stride(0), inputs.stride(0), outputs.stride(0)
    grid = (triton.cdiv(outs, OUTPUTS), runs)
    _forward[grid](matrices, inputs, outputs, *strides, outs, columns, relu, OUTPUTS, INPUTS, num_warps=4)


def backward(matrices: Tensor, into: Tensor, inputs: Tensor, slope: Tensor, of_inputs: Tensor) -> None:
    """Subtract the gradient of a layer's weights, or write it, and compute that at what came before its ReLU.

    Args:
        matrices: Weights and biases, of shape (networks, outputs, columns).
        into: Where to write the gradient of the weights; if these are the weights themselves, it is subtracted.
        inputs: What the forward pass got, of shape (networks, columns): not negative, because a ReLU made them.
        slope: The gradient at the outputs, times the rate if it is to be subtracted, of shape (networks, outputs).
        of_inputs: Where to write the gradient at the inputs, of shape (networks, inputs), 0 where an input is 0.
    """
    runs, outs, columns = matrices.shape
    strides = matrices.stride(0), into.stride(0), inputs.stride(0), slope.stride(0), of_inputs.stride(0)
    grid = (triton.cdiv(columns, COLUMNS), runs)
    _backward[grid](
        matrices, into, inputs, slope, of_inputs, *strides, outs, columns, of_inputs.shape[1], into is matrices, ROWS,
        COLUMNS, num_warps=4,
    )  # fmt: skip


@jit
def _forward(
    matrices: tl.tensor,
    inputs: tl.tensor,
    outputs: tl.tensor,
    of_matrices: tl.constexpr,
    of_inputs: tl.constexpr,
    of_outputs: tl.constexpr,
    outs: tl.constexpr,
    columns: tl.constexpr,
    relu: tl.constexpr,
    few: tl.constexpr,
    at_once: tl.constexpr,
) -> None:
    """Compute a few outputs of one network."""
    run = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * few + tl.arange(0, few)
    total = tl.zeros((few, at_once), tl.float32)
    for start in range(0, columns, at_once):
        k = start + tl.arange(0, at_once)
        x = tl.load(inputs + run * of_inputs + k, mask=k < columns, other=0.0)
        inside = (m < outs)[:, None] & (k < columns)[None, :]
        of = tl.load(matrices + run * of_matrices + m[:, None] * columns + k[None, :], mask=inside, other=0.0)
        total += of * x[None, :]
    found = tl.sum(total, axis=1)
    if relu:
        found = tl.where(found < 0.0, 0.0, found)  # NaN stays
    tl.store(outputs + run * of_outputs + m, found, mask=m < outs)


@jit
def _backward(
    matrices: tl.tensor,
    into: tl.tensor,
    inputs: tl.tensor,
    slope: tl.tensor,
    of_inputs: tl.tensor,
    by_matrices: tl.constexpr,
    by_into: tl.constexpr,
    by_inputs: tl.constexpr,
    by_slope: tl.constexpr,
    by_of_inputs: tl.constexpr,
    outs: tl.constexpr,
    columns: tl.constexpr,
    count: tl.constexpr,
    subtract: tl.constexpr,
    rows: tl.constexpr,
    few: tl.constexpr,
) -> None:
    """Go once through a few columns of one network's matrix."""
    run = tl.program_id(1).to(tl.int64)
    k = tl.program_id(0) * few + tl.arange(0, few)
    x = tl.load(inputs + run * by_inputs + k, mask=k < columns, other=0.0)
    total = tl.zeros((rows, few), tl.float32)
    for start in range(0, outs, rows):
        m = start + tl.arange(0, rows)
        delta = tl.load(slope + run * by_slope + m, mask=m < outs, other=0.0)
        at = m[:, None] * columns + k[None, :]
        inside = (m < outs)[:, None] & (k < columns)[None, :]
        of = tl.load(matrices + run * by_matrices + at, mask=inside, other=0.0)
        total += of * delta[:, None]
        change = delta[:, None] * x[None, :]
        if subtract:
            change = of - change
        tl.store(into + run * by_into + at, change, mask=inside)
    found = tl.where(x > 0.0, tl.sum(total, axis=0), 0.0)
    tl.store(of_inputs + run * by_of_inputs + k, found, mask=k < count)
