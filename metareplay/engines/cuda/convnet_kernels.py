"""Kernels that take a step of several convolutional networks of one shape at once, each on an example of its own.

On a single example a kernel does a few microseconds of work, so a step should have few of them. Each convolution is a
matrix product, filters times patches, which several programs share (split-K: each writes its part of the sums, the next
kernel adds the parts in their order, so that the result is the same in every bit each time). Everything else is done
by the kernel that adds the parts: on the way up bias, GroupNorm, ReLU and pooling; on the way down the gradient through
these, and the SGD step on the weights whose gradient is complete. The last layer, the loss and their gradients are one
program. A network with four convolutions takes 14 kernels per step.

The last index of every launch is the number of the run. A run that is not active costs next to nothing: its programs
return at once.
"""

from typing import NamedTuple

import triton.language as tl
from torch import Tensor

from metareplay.engines.cuda.triton_jit import jit, jit_for_any


class Runs(NamedTuple):
    """Hold what the runs have: weights, plans and state, one run per row."""

    theta: Tensor  # (runs, stride) float32: the weights
    grads: Tensor  # (runs, stride) float32: the gradient, where it is needed as a whole; else one number
    active: Tensor  # (runs,) int32: whether the run takes part
    fine: Tensor  # (runs,) int32: whether everything was finite since the example began
    cursor: Tensor  # (runs,) int32: the next of its planned steps
    inputs: Tensor  # (runs, steps) int64: the address of the image that each step learns from
    tasks: Tensor  # (runs, steps) int32: which head it goes through
    labels: Tensor  # (runs, steps) int32
    rates: Tensor  # (runs, steps) float32


class Signals(NamedTuple):
    """Hold what a layer computes for each run on the way up and needs on the way down."""

    outputs: Tensor  # (runs, outs, windows) float32: after pooling
    places: Tensor  # (runs, outs, windows) int8: which pixel of the window was the largest; -1: ReLU made it zero
    hats: Tensor  # (runs, outs, count) float32: normalised sums, if there is a GroupNorm
    spreads: Tensor  # (runs, groups) float32: 1 / standard deviation, likewise
    deltas: Tensor  # (runs, outs, count) float32: the gradient at the sums


class Heads(NamedTuple):
    """Hold where the output layer of each task is in theta."""

    weight: Tensor  # (tasks,) int32
    bias: Tensor  # (tasks,) int32
    classes: Tensor  # (tasks,) int32


@jit
def begin(runs: Runs, run: tl.tensor, chained: tl.constexpr) -> tl.tensor:
    """Wait for the kernel before, if kernels are chained; return whether the run takes part."""
    if chained:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    return tl.load(runs.active + run) != 0


@jit
def image(runs: Runs, at: tl.tensor, as_bytes: tl.constexpr) -> tl.tensor:
    """Return a pointer to the image of a planned step."""
    kind: tl.constexpr = tl.uint8 if as_bytes else tl.float32
    return tl.load(runs.inputs + at).to(tl.pointer_type(kind))


@jit
def look(pointer: tl.tensor, pixel: tl.tensor, as_bytes: tl.constexpr) -> tl.tensor:
    """Load pixels, 0 for those with a negative number; bytes become numbers from 0 to 1."""
    found = tl.load(pointer + pixel, mask=pixel >= 0, other=0)
    if as_bytes:
        found = found.to(tl.float32) / 255.0
    return found


@jit
def learn(
    runs: Runs,
    base: tl.tensor,
    at: tl.tensor,
    gradient: tl.tensor,
    rate: tl.tensor,
    mask: tl.tensor,
    direct: tl.constexpr,
) -> None:
    """Take the SGD step on some weights, or write their gradient if it is needed as a whole first."""
    if direct:
        weights = runs.theta + base + at
        tl.store(weights, tl.load(weights, mask=mask, other=0.0) - rate * gradient, mask=mask)
    else:
        tl.store(runs.grads + base + at, gradient, mask=mask)


@jit
def over_groups(values: tl.tensor, members: tl.constexpr) -> tl.tensor:
    """Return for each channel the sum of its group's values; the channels of a group lie side by side."""
    channels: tl.constexpr = values.shape[0]
    groups: tl.constexpr = channels // members
    sums = tl.sum(tl.reshape(values, (groups, members)), axis=1)
    return tl.reshape(tl.broadcast_to(sums[:, None], (groups, members)), (channels,))


@jit
def over_pixels(values: tl.tensor) -> tl.tensor:
    """Return for each channel the sum over all pixels of (channels, windows, window)."""
    return tl.sum(tl.sum(values, axis=2), axis=1)


@jit
def activate(
    total: tl.tensor,
    theta: tl.tensor,
    run: tl.tensor,
    first: tl.tensor,
    to: Signals,
    layer: tl.constexpr,
    channels: tl.constexpr,
    blocks: tl.constexpr,
    window: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Apply bias, GroupNorm, ReLU and pooling to some channels' sums, (channels, blocks, window).

    Returns the outputs and places, (channels, blocks), the normalised sums, and the spread of each channel's group.
    """
    c = first + tl.arange(0, channels)
    w = tl.arange(0, blocks)
    pixel = w[None, :, None] * window + tl.arange(0, window)[None, None, :]
    inside = pixel < layer.count
    total += tl.load(theta + layer.bias + c)[:, None, None]
    spread = tl.zeros((channels,), tl.float32)
    if layer.groups > 0:
        members: tl.constexpr = layer.outs // layer.groups
        share: tl.constexpr = 1.0 / (members * layer.count)
        total = tl.where(inside, total, 0.0)
        mean = over_groups(over_pixels(total), members) * share
        total = tl.where(inside, total - mean[:, None, None], 0.0)
        variance = over_groups(over_pixels(total * total), members) * share
        spread = 1.0 / tl.sqrt(variance + layer.eps)
        total = total * spread[:, None, None]
        tl.store(to.hats + (run * layer.outs + c)[:, None, None] * layer.count + pixel, total, mask=inside)
        tl.store(to.spreads + run * layer.groups + c // members, spread, mask=c % members == 0)
        shown = total * tl.load(theta + layer.scale + c)[:, None, None]
        shown += tl.load(theta + layer.shift + c)[:, None, None]
    else:
        shown = total
    if window > 1:
        best, place = tl.max(shown, axis=2, return_indices=True)
        best = tl.where(tl.max((shown != shown).to(tl.int32), axis=2) > 0, float("nan"), best)
    else:
        best = tl.sum(shown, axis=2)
        place = tl.zeros((channels, blocks), tl.int32)
    if layer.relu:
        place = tl.where(best > 0.0, place, -1)
        best = tl.where(best < 0.0, 0.0, best)  # NaN stays
    return best, place, total, spread


@jit
def keep(
    best: tl.tensor, place: tl.tensor, run: tl.tensor, first: tl.tensor, to: Signals, layer: tl.constexpr,
    channels: tl.constexpr, blocks: tl.constexpr,
) -> None:  # fmt: skip
    """Store a layer's outputs and the places of the largest pixels."""
    c, w = first + tl.arange(0, channels), tl.arange(0, blocks)
    at = (run * layer.outs + c)[:, None] * layer.windows + w[None, :]
    inside = (c < layer.outs)[:, None] & (w < layer.windows)[None, :]
    tl.store(to.outputs + at, best, mask=inside)
    tl.store(to.places + at, place.to(tl.int8), mask=inside)


@jit
def differentiate(
    of_outputs: tl.tensor,
    place: tl.tensor,
    hat: tl.tensor,
    spread: tl.tensor,
    runs: Runs,
    base: tl.tensor,
    rate: tl.tensor,
    run: tl.tensor,
    first: tl.tensor,
    to: Signals,
    layer: tl.constexpr,
    channels: tl.constexpr,
    blocks: tl.constexpr,
    window: tl.constexpr,
    direct: tl.constexpr,
) -> None:
    """Compute the gradient at some channels' sums from that at their outputs, through pooling, ReLU and GroupNorm.

    Gains and biases of the GroupNorm learn here; the biases of the convolution learn with its filters.
    """
    c, w = first + tl.arange(0, channels), tl.arange(0, blocks)
    p = tl.arange(0, window)
    pixel = w[None, :, None] * window + p[None, None, :]
    inside = pixel < layer.count
    chosen = (place[:, :, None] == p[None, None, :]) & (w < layer.windows)[None, :, None]
    delta = tl.where(chosen, of_outputs[:, :, None], 0.0)
    if layer.groups > 0:
        members: tl.constexpr = layer.outs // layer.groups
        share: tl.constexpr = 1.0 / (members * layer.count)
        of_scale, of_shift = over_pixels(delta * hat), over_pixels(delta)
        scale = tl.load(runs.theta + base + layer.scale + c)
        mean = over_groups(of_shift * scale, members) * share
        slope = over_groups(of_scale * scale, members) * share
        delta = delta * scale[:, None, None] - mean[:, None, None] - hat * slope[:, None, None]
        delta = delta * spread[:, None, None]
        tl.debug_barrier()  # other warps may still have to load the gains
        learn(runs, base, layer.scale + c, of_scale, rate, c < layer.outs, direct)
        learn(runs, base, layer.shift + c, of_shift, rate, c < layer.outs, direct)
    tl.store(to.deltas + (run * layer.outs + c)[:, None, None] * layer.count + pixel, delta, mask=inside)


@jit_for_any("step", "steps")
def first_layer(
    runs: Runs,
    to: Signals,
    seen: tl.tensor,
    step: tl.tensor,
    steps: tl.tensor,
    stride: tl.constexpr,
    layer: tl.constexpr,
    channels: tl.constexpr,
    blocks: tl.constexpr,
    as_bytes: tl.constexpr,
    chained: tl.constexpr,
) -> None:
    """Compute some output channels of the first layer, whose inputs have one channel, from the stored image."""
    window: tl.constexpr = layer.window
    taps: tl.constexpr = layer.taps
    run = tl.program_id(1)
    if begin(runs, run, chained):
        first = tl.program_id(0) * channels
        theta = runs.theta + run * stride
        source = image(runs, run * steps + tl.load(runs.cursor + run) + step, as_bytes)
        pixel = tl.arange(0, blocks)[:, None] * window + tl.arange(0, window)[None, :]
        total = tl.zeros((channels, blocks, window), tl.float32)
        for tap in tl.static_range(taps):
            at = tl.load(seen + tap * layer.count + pixel, mask=pixel < layer.count, other=-1)
            weight = tl.load(theta + layer.weight + (first + tl.arange(0, channels)) * layer.taps + tap)
            total += weight[:, None, None] * look(source, at, as_bytes)[None, :, :]
        best, place, _, _ = activate(total, theta, run, first, to, layer, channels, blocks, window)
        keep(best, place, run, first, to, layer, channels, blocks)


@jit
def convolve(
    runs: Runs,
    inputs: tl.tensor,
    seen: tl.tensor,
    sums: tl.tensor,
    stride: tl.constexpr,
    layer: tl.constexpr,
    parts: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    depth: tl.constexpr,
    turns: tl.constexpr,
    precision: tl.constexpr,
    chained: tl.constexpr,
) -> None:
    """Compute one part of the sums for a tile of output channels and pixels: filters times patches."""
    inner: tl.constexpr = layer.ins * layer.taps
    run = tl.program_id(1)
    if begin(runs, run, chained):
        part = tl.program_id(0) % parts
        m = tl.arange(0, rows)
        n = tl.program_id(0) // parts * columns + tl.arange(0, columns)
        weight, xs = runs.theta + run * stride + layer.weight, inputs + run * (layer.ins * layer.pixels)
        total = tl.zeros((rows, columns), tl.float32)
        for turn in range(turns):
            k = (part * turns + turn) * depth + tl.arange(0, depth)
            of = tl.load(
                weight + m[:, None] * inner + k[None, :],
                mask=(m < layer.outs)[:, None] & (k < inner)[None, :],
                other=0.0,
            )
            inside = (k < inner)[:, None] & (n < layer.count)[None, :]
            pixel = tl.load(seen + (k % layer.taps)[:, None] * layer.count + n[None, :], mask=inside, other=-1)
            patch = tl.load(xs + (k // layer.taps)[:, None] * layer.pixels + pixel, mask=pixel >= 0, other=0.0)
            total = tl.dot(of, patch, total, input_precision=precision)
        inside = (m < layer.outs)[:, None] & (n < layer.count)[None, :]
        at = ((run * parts + part) * layer.outs + m)[:, None] * layer.count + n[None, :]
        tl.store(sums + at, total, mask=inside)


@jit
def added(
    sums: tl.tensor,
    run: tl.tensor,
    first: tl.tensor,
    layer: tl.constexpr,
    parts: tl.constexpr,
    channels: tl.constexpr,
    blocks: tl.constexpr,
    window: tl.constexpr,
) -> tl.tensor:
    """Add the parts of some output channels' sums, in their order."""
    c = first + tl.arange(0, channels)
    pixel = tl.arange(0, blocks)[None, :, None] * window + tl.arange(0, window)[None, None, :]
    at = c[:, None, None] * layer.count + pixel
    total = tl.zeros((channels, blocks, window), tl.float32)
    for part in tl.static_range(parts):
        of = sums + (run * parts + part) * (layer.outs * layer.count)
        total += tl.load(of + at, mask=pixel < layer.count, other=0.0)
    return total


@jit
def finish(
    runs: Runs,
    to: Signals,
    sums: tl.tensor,
    stride: tl.constexpr,
    layer: tl.constexpr,
    parts: tl.constexpr,
    channels: tl.constexpr,
    blocks: tl.constexpr,
    chained: tl.constexpr,
) -> None:
    """Add the parts of some channels' sums, and apply what follows the convolution."""
    window: tl.constexpr = layer.window
    run = tl.program_id(1)
    if begin(runs, run, chained):
        first = tl.program_id(0) * channels
        total = added(sums, run, first, layer, parts, channels, blocks, window)
        best, place, _, _ = activate(total, runs.theta + run * stride, run, first, to, layer, channels, blocks, window)
        keep(best, place, run, first, to, layer, channels, blocks)


@jit_for_any("step", "steps")
def head(
    runs: Runs,
    heads: Heads,
    to: Signals,
    sums: tl.tensor,
    step: tl.tensor,
    steps: tl.tensor,
    stride: tl.constexpr,
    layer: tl.constexpr,
    parts: tl.constexpr,
    blocks: tl.constexpr,
    windows: tl.constexpr,
    classes: tl.constexpr,
    direct: tl.constexpr,
    chained: tl.constexpr,
) -> None:
    """Finish the last convolution, compute the task's logits and the cross-entropy, and go back to the convolution."""
    window: tl.constexpr = layer.window
    channels: tl.constexpr = layer.outs
    run = tl.program_id(0)
    if begin(runs, run, chained):
        base, at = run * stride, run * steps + tl.load(runs.cursor + run) + step
        theta = runs.theta + base
        total = added(sums, run, 0, layer, parts, channels, blocks, window)
        best, place, hat, spread = activate(total, theta, run, 0, to, layer, channels, blocks, window)
        j, c, w = tl.arange(0, classes), tl.arange(0, channels), tl.arange(0, windows)
        there = (w < layer.windows)[None, :]
        outer: tl.constexpr = blocks // windows  # blocks of pixels that pooling drops come after the first one
        kept = tl.where((tl.arange(0, outer) == 0)[None, :, None], tl.reshape(best, (channels, outer, windows)), 0.0)
        features = tl.where(there, tl.sum(kept, axis=1), 0.0)
        task, label, rate = tl.load(runs.tasks + at), tl.load(runs.labels + at), tl.load(runs.rates + at)
        count = tl.load(heads.classes + task)
        of_weight, of_bias = tl.load(heads.weight + task), tl.load(heads.bias + task)
        number = c[:, None] * layer.windows + w[None, :]
        place_of = of_weight + j[:, None, None] * (channels * layer.windows) + number[None, :, :]
        known = (j < count)[:, None, None] & there[None, :, :]
        weight = tl.load(theta + place_of, mask=known, other=0.0)
        logits = tl.sum(tl.sum(weight * features[None, :, :], axis=2), axis=1)
        logits += tl.load(theta + of_bias + j, mask=j < count, other=0.0)
        logits = tl.where(j < count, logits, -float("inf"))
        largest = tl.max(logits, axis=0)
        whole = tl.log(tl.sum(tl.exp(logits - largest), axis=0)) + largest
        loss = whole - tl.sum(tl.where(j == label, logits, 0.0), axis=0)
        if loss - loss != 0.0:  # not finite
            tl.store(runs.fine + run, 0)
        error = tl.exp(logits - whole) - tl.where(j == label, 1.0, 0.0)
        of_features = tl.sum(weight * error[:, None, None], axis=0)
        tl.debug_barrier()  # other warps may still have to load the head
        learn(runs, base, place_of, error[:, None, None] * features[None, :, :], rate, known, direct)
        learn(runs, base, of_bias + j, error, rate, j < count, direct)
        of_best = tl.broadcast_to(of_features[:, None, :], (channels, outer, windows))
        of_best = tl.reshape(of_best, (channels, blocks))
        differentiate(
            of_best, place, hat, spread, runs, base, rate, run, 0, to, layer, channels, blocks, window, direct
        )


@jit
def multiply_back(
    runs: Runs,
    inputs: tl.tensor,
    deltas: tl.tensor,
    seen: tl.tensor,
    sees: tl.tensor,
    sums: tl.tensor,
    i_sums: tl.tensor,
    stride: tl.constexpr,
    layer: tl.constexpr,
    tiles: tl.constexpr,
    parts: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    depth: tl.constexpr,
    turns: tl.constexpr,
    i_parts: tl.constexpr,
    i_rows: tl.constexpr,
    i_columns: tl.constexpr,
    i_depth: tl.constexpr,
    i_turns: tl.constexpr,
    precision: tl.constexpr,
    chained: tl.constexpr,
) -> None:
    """Compute parts of both gradients: the first programs those of the weights, all others those of the inputs.

    Names that begin with `i_` belong to the inputs' gradient.
    """
    run, program = tl.program_id(1), tl.program_id(0)
    if begin(runs, run, chained):
        first: tl.constexpr = tiles * parts
        if program < first:
            weights_tile(
                run, program // parts, program % parts, inputs, deltas, seen, sums, layer, parts, rows, columns, depth,
                turns, precision,
            )  # fmt: skip
        else:
            i = program - first
            inputs_tile(
                run, i // i_parts, i % i_parts, runs.theta + run * stride + layer.weight, deltas, sees, i_sums, layer,
                i_parts, i_rows, i_columns, i_depth, i_turns, precision,
            )  # fmt: skip


@jit
def weights_tile(
    run: tl.tensor,
    tile: tl.tensor,
    part: tl.tensor,
    inputs: tl.tensor,
    deltas: tl.tensor,
    seen: tl.tensor,
    sums: tl.tensor,
    layer: tl.constexpr,
    parts: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    depth: tl.constexpr,
    turns: tl.constexpr,
    precision: tl.constexpr,
) -> None:
    """Compute one part of a tile of the weights' gradient: deltas times patches. The bias' patch is always one."""
    inner: tl.constexpr = layer.ins * layer.taps
    m = tl.arange(0, rows)  # output channels
    n = tile * columns + tl.arange(0, columns)  # weights of an output channel, its bias last
    xs, of = inputs + run * (layer.ins * layer.pixels), deltas + run * (layer.outs * layer.count)
    total = tl.zeros((rows, columns), tl.float32)
    for turn in range(turns):
        q = (part * turns + turn) * depth + tl.arange(0, depth)  # output pixels
        mask = (m < layer.outs)[:, None] & (q < layer.count)[None, :]
        delta = tl.load(of + m[:, None] * layer.count + q[None, :], mask=mask, other=0.0)
        inside = (q < layer.count)[:, None] & (n < inner)[None, :]
        pixel = tl.load(seen + (n % layer.taps)[None, :] * layer.count + q[:, None], mask=inside, other=-1)
        patch = tl.load(xs + (n // layer.taps)[None, :] * layer.pixels + pixel, mask=pixel >= 0, other=0.0)
        patch = tl.where((n == inner)[None, :], 1.0, patch)
        total = tl.dot(delta, patch, total, input_precision=precision)
    inside = (m < layer.outs)[:, None] & (n <= inner)[None, :]
    at = ((run * parts + part) * layer.outs + m)[:, None] * (inner + 1) + n[None, :]
    tl.store(sums + at, total, mask=inside)


@jit
def inputs_tile(
    run: tl.tensor,
    tile: tl.tensor,
    part: tl.tensor,
    weight: tl.tensor,
    deltas: tl.tensor,
    sees: tl.tensor,
    sums: tl.tensor,
    layer: tl.constexpr,
    parts: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    depth: tl.constexpr,
    turns: tl.constexpr,
    precision: tl.constexpr,
) -> None:
    """Compute one part of a tile of the inputs' gradient: transposed filters times deltas."""
    m = tl.arange(0, rows)  # input channels
    n = tile * columns + tl.arange(0, columns)  # input pixels
    of_run = deltas + run * (layer.outs * layer.count)
    total = tl.zeros((rows, columns), tl.float32)
    for turn in range(turns):
        q = (part * turns + turn) * depth + tl.arange(0, depth)  # output channels and taps
        channel, tap = q // layer.taps, q % layer.taps
        known = q < layer.outs * layer.taps
        inside = known[:, None] & (n < layer.pixels)[None, :]
        pixel = tl.load(sees + tap[:, None] * layer.pixels + n[None, :], mask=inside, other=-1)
        delta = tl.load(of_run + channel[:, None] * layer.count + pixel, mask=pixel >= 0, other=0.0)
        of = tl.load(
            weight + channel[None, :] * (layer.ins * layer.taps) + m[:, None] * layer.taps + tap[None, :],
            mask=(m < layer.ins)[:, None] & known[None, :],
            other=0.0,
        )
        total = tl.dot(of, delta, total, input_precision=precision)
    inside = (m < layer.ins)[:, None] & (n < layer.pixels)[None, :]
    at = ((run * parts + part) * layer.ins + m)[:, None] * layer.pixels + n[None, :]
    tl.store(sums + at, total, mask=inside)


@jit_for_any("step", "steps")
def finish_back(
    runs: Runs,
    to: Signals,
    sums: tl.tensor,
    i_sums: tl.tensor,
    step: tl.tensor,
    steps: tl.tensor,
    stride: tl.constexpr,
    layer: tl.constexpr,
    below: tl.constexpr,
    first: tl.constexpr,
    parts: tl.constexpr,
    size: tl.constexpr,
    i_parts: tl.constexpr,
    channels: tl.constexpr,
    blocks: tl.constexpr,
    direct: tl.constexpr,
    chained: tl.constexpr,
) -> None:
    """Add the parts of both gradients: the first programs step on the weights, the others go back through `below`."""
    run, program = tl.program_id(1), tl.program_id(0)
    if begin(runs, run, chained):
        base = run * stride
        rate = tl.load(runs.rates + run * steps + tl.load(runs.cursor + run) + step)
        if program < first:
            step_on_weights(runs, sums, run, program, base, rate, layer, parts, size, direct)
        else:
            start = (program - first) * channels
            go_below(runs, to, i_sums, run, start, base, rate, below, i_parts, channels, blocks, direct)


@jit
def step_on_weights(
    runs: Runs,
    sums: tl.tensor,
    run: tl.tensor,
    program: tl.tensor,
    base: tl.tensor,
    rate: tl.tensor,
    layer: tl.constexpr,
    parts: tl.constexpr,
    size: tl.constexpr,
    direct: tl.constexpr,
) -> None:
    """Add the parts of some weights' gradient, and step on these weights."""
    inner: tl.constexpr = layer.ins * layer.taps
    number = program * size + tl.arange(0, size)
    inside, row, column = number < layer.outs * (inner + 1), number // (inner + 1), number % (inner + 1)
    total = tl.zeros((size,), tl.float32)
    for part in tl.static_range(parts):
        of = sums + (run * parts + part) * (layer.outs * (inner + 1))
        total += tl.load(of + number, mask=inside, other=0.0)
    at = tl.where(column < inner, layer.weight + row * inner + column, layer.bias + row)
    learn(runs, base, at, total, rate, inside, direct)


@jit
def go_below(
    runs: Runs,
    to: Signals,
    sums: tl.tensor,
    run: tl.tensor,
    first: tl.tensor,
    base: tl.tensor,
    rate: tl.tensor,
    layer: tl.constexpr,
    parts: tl.constexpr,
    channels: tl.constexpr,
    blocks: tl.constexpr,
    direct: tl.constexpr,
) -> None:
    """Add the parts of the gradient at some channels' outputs, and compute that at their sums."""
    window: tl.constexpr = layer.window
    c, w = first + tl.arange(0, channels), tl.arange(0, blocks)
    there = (c < layer.outs)[:, None] & (w < layer.windows)[None, :]
    at = c[:, None] * layer.windows + w[None, :]
    gradient = tl.zeros((channels, blocks), tl.float32)
    for part in tl.static_range(parts):
        of = sums + (run * parts + part) * (layer.outs * layer.windows)
        gradient += tl.load(of + at, mask=there, other=0.0)
    place = tl.load(to.places + run * (layer.outs * layer.windows) + at, mask=there, other=-1).to(tl.int32)
    hat = tl.zeros((channels, blocks, window), tl.float32)
    spread = tl.zeros((channels,), tl.float32)
    if layer.groups > 0:
        pixel = w[None, :, None] * window + tl.arange(0, window)[None, None, :]
        of_run = to.hats + (run * layer.outs + c)[:, None, None] * layer.count
        hat = tl.load(of_run + pixel, mask=pixel < layer.count, other=0.0)
        spread = tl.load(to.spreads + run * layer.groups + c // (layer.outs // layer.groups))
    differentiate(
        gradient, place, hat, spread, runs, base, rate, run, first, to, layer, channels, blocks, window, direct
    )


@jit_for_any("step", "steps")
def first_layer_back(
    runs: Runs,
    deltas: tl.tensor,
    seen: tl.tensor,
    step: tl.tensor,
    steps: tl.tensor,
    stride: tl.constexpr,
    layer: tl.constexpr,
    columns: tl.constexpr,
    pixels: tl.constexpr,
    as_bytes: tl.constexpr,
    direct: tl.constexpr,
    chained: tl.constexpr,
) -> None:
    """Compute the gradient of one filter of the first layer and of its bias, whose input is one; step on them."""
    run, channel = tl.program_id(1), tl.program_id(0)
    if begin(runs, run, chained):
        at = run * steps + tl.load(runs.cursor + run) + step
        rate = tl.load(runs.rates + at)
        source = image(runs, at, as_bytes)
        tap, n = tl.arange(0, columns), tl.arange(0, pixels)
        delta = tl.load(deltas + (run * layer.outs + channel) * layer.count + n, mask=n < layer.count, other=0.0)
        inside = (tap < layer.taps)[:, None] & (n < layer.count)[None, :]
        pixel = tl.load(seen + tap[:, None] * layer.count + n[None, :], mask=inside, other=-1)
        patch = tl.where((tap == layer.taps)[:, None], 1.0, look(source, pixel, as_bytes))
        total = tl.sum(patch * delta[None, :], axis=1)
        place = tl.where(tap < layer.taps, layer.weight + channel * layer.taps + tap, layer.bias + channel)
        learn(runs, run * stride, place, total, rate, tap <= layer.taps, direct)


@jit
def whole_gradient(
    runs: Runs, importance: tl.tensor, anchor: tl.tensor, strength: tl.tensor, run: tl.tensor, at: tl.tensor,
    mask: tl.tensor, stride: tl.constexpr, penalised: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return the gradient of some weights, that of EWC's penalty included."""
    found = tl.load(runs.grads + run * stride + at, mask=mask, other=0.0)
    if penalised:
        theta = tl.load(runs.theta + run * stride + at, mask=mask, other=0.0)
        pulled = tl.load(importance + run * stride + at, mask=mask, other=0.0) * theta
        pulled -= tl.load(anchor + run * stride + at, mask=mask, other=0.0)
        found += pulled * (2 * tl.load(strength + run))
    return found


@jit
def norms(
    runs: Runs,
    importance: tl.tensor,
    anchor: tl.tensor,
    strength: tl.tensor,
    squares: tl.tensor,
    stride: tl.constexpr,
    count: tl.constexpr,
    programs: tl.constexpr,
    penalised: tl.constexpr,
    size: tl.constexpr,
    chained: tl.constexpr,
) -> None:
    """Compute the sum of the squares of part of the gradient."""
    run, program = tl.program_id(1), tl.program_id(0)
    if begin(runs, run, chained):
        at = program * size + tl.arange(0, size)
        found = whole_gradient(runs, importance, anchor, strength, run, at, at < count, stride, penalised)
        tl.store(squares + run * programs + program, tl.sum(found * found, axis=0))


@jit_for_any("step", "steps")
def update(
    runs: Runs,
    importance: tl.tensor,
    anchor: tl.tensor,
    strength: tl.tensor,
    squares: tl.tensor,
    clip: tl.tensor,
    step: tl.tensor,
    steps: tl.tensor,
    stride: tl.constexpr,
    count: tl.constexpr,
    programs: tl.constexpr,
    padded: tl.constexpr,
    clipped: tl.constexpr,
    penalised: tl.constexpr,
    size: tl.constexpr,
    chained: tl.constexpr,
) -> None:
    """Take the SGD step with the whole gradient, scaled down if its norm is too large; set the gradient to zero."""
    run, program = tl.program_id(1), tl.program_id(0)
    if begin(runs, run, chained):
        at = program * size + tl.arange(0, size)
        mask = at < count
        found = whole_gradient(runs, importance, anchor, strength, run, at, mask, stride, penalised)
        if clipped:
            each = tl.arange(0, padded)
            parts = tl.load(squares + run * programs + each, mask=each < programs, other=0.0)
            norm, most = tl.sqrt(tl.sum(parts, axis=0)), tl.load(clip + run)
            found = found * tl.where(norm > most, most / norm, 1.0)
        rate = tl.load(runs.rates + run * steps + tl.load(runs.cursor + run) + step)
        weights = runs.theta + run * stride + at
        tl.store(weights, tl.load(weights, mask=mask, other=0.0) - rate * found, mask=mask)
        tl.store(runs.grads + run * stride + at, tl.zeros((size,), tl.float32), mask=mask)


@jit
def copy_weights(runs: Runs, to: tl.tensor, stride: tl.constexpr, size: tl.constexpr, chained: tl.constexpr) -> None:
    """Remember the weights."""
    run = tl.program_id(1)
    if begin(runs, run, chained):
        at = run * stride + tl.program_id(0) * size + tl.arange(0, size)
        tl.store(to + at, tl.load(runs.theta + at))


@jit
def draw_line(
    runs: Runs, before: tl.tensor, rates: tl.tensor, stride: tl.constexpr, size: tl.constexpr, chained: tl.constexpr
) -> None:
    """Draw the Reptile line: theta <- before + rate (theta - before)."""
    run = tl.program_id(1)
    if begin(runs, run, chained):
        at = run * stride + tl.program_id(0) * size + tl.arange(0, size)
        old = tl.load(before + at)
        tl.store(runs.theta + at, (tl.load(runs.theta + at) - old) * tl.load(rates + run) + old)


@jit
def check(runs: Runs, stride: tl.constexpr, size: tl.constexpr, chained: tl.constexpr) -> None:
    """Note if any weight is not finite."""
    run = tl.program_id(1)
    if begin(runs, run, chained):
        values = tl.load(runs.theta + run * stride + tl.program_id(0) * size + tl.arange(0, size))
        if tl.sum((values - values != 0.0).to(tl.int32), axis=0) > 0:
            tl.store(runs.fine + run, 0)


@jit
def settle(runs: Runs, before: tl.tensor, stride: tl.constexpr, size: tl.constexpr, chained: tl.constexpr) -> None:
    """End an example: remember the weights, or go back to those before the example if anything was not finite."""
    run = tl.program_id(1)
    if begin(runs, run, chained):
        at = run * stride + tl.program_id(0) * size + tl.arange(0, size)
        if tl.load(runs.fine + run) != 0:
            tl.store(before + at, tl.load(runs.theta + at))
        else:
            tl.store(runs.theta + at, tl.load(before + at))


@jit_for_any("taken")
def advance(runs: Runs, learned: tl.tensor, taken: tl.tensor, closes: tl.constexpr, chained: tl.constexpr) -> None:
    """Go on to the next planned steps; at the end of an example count it, or stop the run if it was not finite."""
    run = tl.program_id(0)
    if begin(runs, run, chained):
        tl.store(runs.cursor + run, tl.load(runs.cursor + run) + taken)
        if closes:
            fine = tl.load(runs.fine + run)
            tl.store(learned + run, tl.load(learned + run) + fine)
            tl.store(runs.active + run, fine)
            tl.store(runs.fine + run, 1)
