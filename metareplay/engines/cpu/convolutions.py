"""The convolutions of a Q-network, compiled, one thread: forward and backward, one input at a time.

A convolution is a product of matrices. Its inputs are cut into patches, one row per output pixel, with everything that
the filters see there; its weights W have one row per number of a patch and one column per filter. With Z = X W + b:

    forward           Z = X W + b, then ReLU
    weight gradient   X'D, where D is the gradient at Z
    input gradient    D W', whose rows are added where the patches were cut from

`products.py` multiplies at nearly the full speed of a core, so what counts is that cutting is cheap. Outputs are kept
pixel by pixel, all channels of a pixel side by side, so a row of a patch is one contiguous run of numbers in the layer
below. The pictures themselves are kept channel by channel, as they come.

The input gradient needs W', which is written anew for every step: that takes far less time than the products.

Channels are padded with zeros to whole vectors, patches likewise. Padding stays 0 in weights, values and gradients.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metareplay.engines.cpu.layout import Index, aligned
from metareplay.engines.cpu.products import product, transpose
from metareplay.engines.cpu.q_compiling import compiled
from metareplay.engines.cpu.simd import EIGHT, LANES, add, load, multiply, splat, store, where_open
from metareplay.engines.q_shape import Conv

Array = NDArray[Any]
ZERO = np.float32(0)


class Filters(NamedTuple):
    """Hold the weights of convolutions: parts of a flat vector, seen as matrices."""

    weights: tuple[Array, ...]  # (numbers in a patch, rounded up to EIGHT; channels in whole vectors)
    biases: tuple[Array, ...]  # (1, channels in whole vectors)


class Eye(NamedTuple):
    """Hold the shapes of L convolutions, and room to work.

    Entry 0 of `values` is the input, entry l + 1 has the outputs of convolution l: a row per pixel, in whole vectors.
    """

    planes: Array  # (L,) int64: parts of a convolution's input that lie one after the other: channels, or one
    planes_apart: Array  # (L,) how far apart they are
    rows_apart: Array  # (L,) how far apart neighbouring rows of the input are
    down: Array  # (L,) how far apart the patches of neighbouring output rows are
    across: Array  # (L,) how far apart the patches of neighbouring output columns are
    tall: Array  # (L,) rows of a patch
    run: Array  # (L,) numbers in each row of a patch
    heights: Array  # (L,) output rows
    widths: Array  # (L,) output columns
    filters: Array  # (L,) output channels
    sizes: Array  # (L,) numbers in a patch
    values: tuple[Array, ...]
    patches: tuple[Array, ...]  # a row per pixel; a vector of room behind each
    deltas: tuple[Array, ...]  # gradients at the outputs
    turned: tuple[Array, ...]  # the weights transposed; unused for the first convolution
    returned: tuple[Array, ...]  # gradients at the patches; unused for the first convolution
    places: Array  # (weights,) int64: where the weights are in a vector of the whole network, in torch's order
    order: Array  # (features,) int64: where the last convolution has its outputs, in the order of torch's Flatten
    features: Array  # (1, features) its outputs in that order
    gradient: Array  # (all,) the gradients at its outputs side by side, as it has them


def make_eye(convs: Sequence[Conv], length: int) -> Eye:
    """Return room for convolutions.

    Args:
        convs: The convolutions, at least one.
        length: The length of a vector of the whole network's weights.
    """
    shapes, below = list[dict[str, int]](), 1  # numbers per pixel of a plane
    values = [aligned((1, _up(convs[0].ins * convs[0].height * convs[0].width, LANES) + LANES), np.float32)]
    patches, deltas, turned, returned = list[Array](), list[Array](), list[Array](), list[Array]()
    for conv, (size, room) in zip(convs, _sizes(convs), strict=True):
        run, (height, width) = conv.kernel[1] * below, conv.size
        is_first, pixels, columns = conv is convs[0], _up(conv.pixels, EIGHT), _up(size, LANES) + LANES
        shapes.append(
            {
                "planes": conv.ins if is_first else 1,
                "planes_apart": conv.height * conv.width,
                "rows_apart": conv.width * below,
                "down": conv.stride[0] * conv.width * below,
                "across": conv.stride[1] * below,
                "tall": conv.kernel[0],
                "run": run,
                "heights": height,
                "widths": width,
                "filters": conv.outs,
                "sizes": size,
            }
        )
        patches.append(aligned((pixels, columns), np.float32))
        values.append(aligned((pixels, room), np.float32))
        deltas.append(aligned((pixels, room), np.float32))
        turned.append(aligned((1, LANES) if is_first else (room, columns), np.float32))
        returned.append(aligned((1, LANES) if is_first else (pixels, columns), np.float32))
        below = room
    numbers: dict[str, Any] = {name: np.array([shape[name] for shape in shapes], np.int64) for name in shapes[0]}
    return Eye(
        **numbers,
        values=tuple(values),
        patches=tuple(patches),
        deltas=tuple(deltas),
        turned=tuple(turned),
        returned=tuple(returned),
        places=_places(convs, length),
        order=_order(convs),
        features=aligned((1, features_of(convs)), np.float32),
        gradient=deltas[-1].reshape(-1),
    )


def filters_in(flat: Array, convs: Sequence[Conv]) -> Filters:
    """Return the weights of convolutions that lie at the end of a vector.

    Args:
        flat: The vector; `room_for` says how many numbers of it they take up.
        convs: The convolutions.
    """
    at, weights, biases = len(flat) - room_for(convs), list[Array](), list[Array]()
    for size, room in _sizes(convs):
        rows = _up(size, EIGHT)
        weights.append(flat[at : at + rows * room].reshape(rows, room))
        at += rows * room
        biases.append(flat[at : at + room].reshape(1, room))
        at += room
    return Filters(tuple(weights), tuple(biases))


def room_for(convs: Sequence[Conv]) -> int:
    """Return how many numbers the weights of convolutions take up, in whole vectors.

    Args:
        convs: The convolutions.
    """
    return sum((_up(size, EIGHT) + 1) * room for size, room in _sizes(convs))


def features_of(convs: Sequence[Conv]) -> int:
    """Return how many numbers the last convolution gives.

    Args:
        convs: The convolutions.
    """
    return convs[-1].pixels * convs[-1].outs


def _places(convs: Sequence[Conv], length: int) -> Array:
    """Return where the weights are in a vector, in torch's order: filter by filter, then the biases."""
    there, found, below = filters_in(np.arange(length), convs), list[Array](), 0
    for conv, weights, bias in zip(convs, there.weights, there.biases, strict=True):
        rows, columns = conv.kernel
        channels = np.arange(conv.ins)[:, np.newaxis, np.newaxis]
        inside = np.arange(rows)[:, np.newaxis] * columns + np.arange(columns)  # where a pixel of the patch is
        numbers_in = inside * below + channels if below else channels * rows * columns + inside
        found += [np.moveaxis(weights[numbers_in, : conv.outs], -1, 0).ravel(), bias[0, : conv.outs]]
        below = weights.shape[1]
    return np.concatenate(found)


def _order(convs: Sequence[Conv]) -> Array:
    """Return where the outputs of the last convolution are, in the order of torch's Flatten: channel by channel."""
    pixels, room = convs[-1].pixels, _sizes(convs)[-1][1]
    return (np.arange(pixels) * room + np.arange(convs[-1].outs)[:, np.newaxis]).ravel()


def _sizes(convs: Sequence[Conv]) -> list[tuple[int, int]]:
    """Return the numbers in a patch of each convolution, and its output channels in whole vectors."""
    found, below = list[tuple[int, int]](), 0
    for conv in convs:
        found.append(((below or conv.ins) * conv.kernel[0] * conv.kernel[1], _up(conv.outs, LANES)))
        below = found[-1][1]
    return found


def _up(number: int, unit: int) -> int:
    """Round up to a multiple of a unit."""
    return -(-number // unit) * unit


# --- forward


@compiled
def bring(eye: Eye, xs: Array, r: Index) -> None:
    """Set the input to xs[r]."""
    given, room = xs[r], eye.values[0][0]
    for i in range(len(given)):
        room[i] = given[i]


@compiled
def cut(eye: Eye, layer: Index) -> None:
    """Cut the input of a convolution into patches."""
    values, patches, run, p = eye.values[layer], eye.patches[layer], eye.run[layer], np.int64(0)
    for y in range(eye.heights[layer]):
        for x in range(eye.widths[layer]):
            corner, to = y * eye.down[layer] + x * eye.across[layer], np.int64(0)
            for plane in range(eye.planes[layer]):
                for i in range(eye.tall[layer]):
                    source = corner + plane * eye.planes_apart[layer] + i * eye.rows_apart[layer]
                    for j in range(0, run, LANES):  # what goes beyond the run is overwritten by the next one
                        store(patches, p, to + j, load(values, np.int64(0), source + j))
                    to += run
            if run % LANES:
                store(patches, p, to, splat(ZERO))
            p += 1


@compiled
def look(eye: Eye, filters: Filters) -> None:
    """Compute the outputs of all convolutions for the input that was brought, and the features, with these weights."""
    for layer in range(len(eye.filters)):
        cut(eye, layer)
        pixels, outs = eye.heights[layer] * eye.widths[layer], eye.filters[layer]
        values, bias = eye.values[layer + 1], filters.biases[layer]
        product(values, pixels, eye.patches[layer].T, filters.weights[layer], eye.sizes[layer], outs, True)
        for p in range(pixels):
            for j in range(0, outs, LANES):
                value = add(load(values, p, j), load(bias, np.int64(0), j))
                store(values, p, j, where_open(value, value))
            for j in range(outs, values.shape[1]):
                values[p, j] = ZERO  # not NaN either, if inputs are infinite
    found, order, features = eye.values[-1].reshape(-1), eye.order, eye.features[0]
    for i in range(len(order)):
        features[i] = found[order[i]]


# --- backward


@compiled
def turn(eye: Eye, filters: Filters) -> None:
    """Transpose the weights of all but the first convolution, before a step."""
    for layer in range(1, len(eye.filters)):
        transpose(filters.weights[layer], eye.sizes[layer], eye.filters[layer], eye.turned[layer])


@compiled
def spread(eye: Eye, layer: Index) -> None:
    """Set the gradient at the outputs of the convolution below from that at the patches, where its ReLUs are open."""
    returned, below, values, p = eye.returned[layer], eye.deltas[layer - 1], eye.values[layer], np.int64(0)
    pixels, outs = eye.heights[layer - 1] * eye.widths[layer - 1], eye.filters[layer - 1]
    for q in range(pixels):
        for j in range(0, outs, LANES):
            store(below, q, j, splat(ZERO))
    for y in range(eye.heights[layer]):
        for x in range(eye.widths[layer]):
            corner, source = y * eye.down[layer] + x * eye.across[layer], np.int64(0)
            for i in range(eye.tall[layer]):
                to = corner + i * eye.rows_apart[layer]
                for j in range(0, eye.run[layer], LANES):
                    sums = add(load(below, np.int64(0), to + j), load(returned, p, source + j))
                    store(below, np.int64(0), to + j, sums)
                source += eye.run[layer]
            p += 1
    for q in range(pixels):
        for j in range(0, outs, LANES):
            store(below, q, j, where_open(load(values, q, j), load(below, q, j)))


@compiled
def descend(eye: Eye, out: Filters, factor: Any) -> None:
    """Add the gradient for the input that was looked at last, times a factor.

    `eye.gradient` must hold the gradient at the outputs of the last convolution, and `turn` must have been called.

    Args:
        eye: The convolutions.
        out: What to add to.
        factor: What the gradient is multiplied by.
    """
    by = splat(factor)
    for layer in range(len(eye.filters) - 1, -1, -1):
        pixels, size, outs = eye.heights[layer] * eye.widths[layer], eye.sizes[layer], eye.filters[layer]
        deltas, patches, bias = eye.deltas[layer], eye.patches[layer], out.biases[layer]
        if layer > 0:
            product(eye.returned[layer], pixels, deltas.T, eye.turned[layer], outs, size, True)
            spread(eye, layer)
        for j in range(0, outs, LANES):
            sums = load(bias, np.int64(0), j)
            for p in range(pixels):
                scaled = multiply(by, load(deltas, p, j))
                store(deltas, p, j, scaled)
                sums = add(sums, scaled)
            store(bias, np.int64(0), j, sums)
        product(out.weights[layer], size, patches, deltas, pixels, outs, False)
