"""What the fleet and its kernel share: the sizes of blocks and tiles, and where each number lies in memory.

This module does not import Triton, so the fleet can use it on any machine. Each NamedTuple below names the parts of one
tensor, in their order. The same class then holds whatever belongs to these parts: their values for one run, their
positions, their shapes, views of them, or, inside the kernel, pointers to them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import Final, Generic, NamedTuple, TypeVar, final

from torch import Tensor

WIDEST: Final = 128  # units of a hidden layer, and classes: more do not fit into the registers of one multiprocessor
SHORTEST: Final = 128  # steps in a block: one whole tile of the tensor cores, so that a short batch does not waste it
LONGEST: Final = 512  # steps in a block, which also bounds a batch: the matrix G grows with the square of this
WINDOW: Final = 128  # examples: no block crosses a multiple of this, so a launch that ends there changes no sum
PLACES: Final = 16  # columns of every matrix that a step touches: with 32, they no longer fit into the registers
EDGE: Final = 128  # rows and columns of a tile of a matrix product
DEPTH: Final = 64  # pixels that a matrix product takes at a time
SMALLEST: Final = 16  # no dimension of a matrix product may be smaller

T = TypeVar("T")
Shape = tuple[int, ...]


class Place(IntEnum):
    """Say where the current example stands in its batch; the kernel relies on these numbers."""

    FIRST = 0
    LAST = 1
    ANYWHERE = 2


class Integers(NamedTuple):
    """Hold the settings of one run that are whole numbers (int32)."""

    memory: int  # slots of the reservoir
    drawn: int  # rows from memory in each batch
    copies: int  # copies of the current example in each batch
    batches: int  # batches per example
    place: int  # a Place
    odds: int  # after N examples, the reservoir draws from 0 .. N + odds - 1
    limit: int  # the most steps in one block
    stream: int  # the row of `xs` with the first example of its stream


class Floats(NamedTuple):
    """Hold the settings of one run that are real numbers (float32)."""

    rate: float  # of a step on an example from memory
    current_rate: float  # of a step on the current example
    beta: float  # how far the weights move towards those at the end of a batch


class Keys(NamedTuple):
    """Hold what the draws of one run start from (uint64), one key per `Purpose`."""

    keep: int
    replay: int
    place: int


class Theta(NamedTuple, Generic[T]):
    """Hold the weights of one run (float32), padded with zeros; a `t` at the end of a name means transposed."""

    w1: T
    w2: T
    w2t: T
    w3t: T
    b1: T
    b2: T
    b3: T


class Scratch(NamedTuple, Generic[T]):
    """Hold what the kernel computes while it works on a block (float32); the letters are those of the derivation."""

    p: T  # outputs of the first layer
    d: T  # rate times loss gradient at these outputs
    g: T  # products of inputs
    labels: T  # of each step
    rates: T  # of each step


class Examples(NamedTuple):
    """Hold the examples of all streams, one stream after the other."""

    xs: Tensor  # (examples, inputs) uint8
    ys: Tensor  # (examples,) int32


class Settings(NamedTuple):
    """Hold the settings of all runs, one run per row."""

    order: Tensor  # (runs,) int32: the run that each program takes
    integers: Tensor  # (runs, `Integers`) int32
    floats: Tensor  # (runs, `Floats`) float32
    keys: Tensor  # (runs, `Keys`) uint64


class State(NamedTuple):
    """Hold what the runs carry from one launch to the next."""

    slots: Tensor  # (runs, slots of the largest memory) int32: the example in each slot
    failed: Tensor  # (runs,) int32: 1 + first example of the block whose numbers were not finite; 0: there is none
    theta: Tensor  # (runs, `Theta`) float32


class Work(NamedTuple):
    """Hold the memory for the current block."""

    rows: Tensor  # (runs, span) int32: the row of `xs` that each step learns from
    scratch: Tensor  # (runs, `Scratch`) float32


@final
@dataclass(frozen=True)
class Layout:
    """Hold sizes and positions; the kernel takes them as one compile-time constant.

    Even those that follow from others are fields: Triton recognises a kernel that it compiled before by what this
    object prints, so nothing that the kernel reads may be missing there.

    Args:
        inputs: Pixels of an example.
        width: Units of each hidden layer, padded.
        out: Outputs, padded.
        classes: Outputs without the padding.
        span: The most steps in a block of any run.
        theta: Where each part begins among the weights of one run.
        theta_size: How many weights one run has.
        scratch: Where each part begins in the scratch memory of one run.
        scratch_size: How many numbers one run has there.
        integers: The column of each setting.
        floats: The column of each setting.
        keys: The column of each key.
        places: See `PLACES`.
        edge: See `EDGE`.
        depth: See `DEPTH`.
        window: See `WINDOW`.
    """

    inputs: int
    width: int
    out: int
    classes: int
    span: int
    theta: Theta[int]
    theta_size: int
    scratch: Scratch[int]
    scratch_size: int
    integers: Integers
    floats: Floats
    keys: Keys
    places: int
    edge: int
    depth: int
    window: int

    @staticmethod
    def of(widths: Sequence[int], span: int) -> "Layout":
        """Lay out runs of nets with these widths.

        Args:
            widths: Inputs, units of the two hidden layers, classes.
            span: The most steps in a block of any run.
        """
        inputs, below, above, classes = widths
        width, out = padded(max(below, above)), padded(classes)
        theta, theta_size = _starts(theta_shapes(inputs, width, out))
        scratch, scratch_size = _starts(scratch_shapes(width, span))
        return Layout(
            inputs=inputs,
            width=width,
            out=out,
            classes=classes,
            span=span,
            theta=Theta(*theta),
            theta_size=theta_size,
            scratch=Scratch(*scratch),
            scratch_size=scratch_size,
            integers=Integers(*range(len(Integers._fields))),
            floats=Floats(*range(len(Floats._fields))),
            keys=Keys(*range(len(Keys._fields))),
            places=PLACES,
            edge=EDGE,
            depth=DEPTH,
            window=WINDOW,
        )

    def views(self, theta: Tensor) -> Theta[Tensor]:
        """Return the parts of one run's weights, each in its own shape, as views."""
        shapes = theta_shapes(self.inputs, self.width, self.out)
        parts = theta.split([prod(shape) for shape in shapes])
        return Theta(*(part.view(shape) for part, shape in zip(parts, shapes, strict=True)))


def theta_shapes(inputs: int, width: int, out: int) -> Theta[Shape]:
    """Return the shape of each part of a run's weights."""
    square = width, width
    return Theta(w1=(width, inputs), w2=square, w2t=square, w3t=(width, out), b1=(width,), b2=(width,), b3=(out,))


def scratch_shapes(width: int, span: int) -> Scratch[Shape]:
    """Return the shape of each part of a run's scratch memory."""
    return Scratch(p=(width, span), d=(width, span), g=(span, span), labels=(span,), rates=(span,))


def padded(size: int) -> int:
    """Return the size that the kernel gives to a dimension of this size: Triton's blocks are powers of two.

    >>> padded(10), padded(100), padded(128)
    (16, 128, 128)
    """
    return max(SMALLEST, 1 << (size - 1).bit_length())


def _starts(shapes: Sequence[Shape]) -> tuple[list[int], int]:
    """Return where each part begins if they lie one after the other, and where the last one ends."""
    ends = [0]
    for shape in shapes:
        ends.append(ends[-1] + prod(shape))
    return ends[:-1], ends[-1]
