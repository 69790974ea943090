"""Plans on chains of any known layers, compiled, one thread: plain loops over one flat vector of weights.

The weights lie as torch has them, the trained ones first and the frozen ones after them. A row's gradient is never
written down where a plain SGD step can be taken along the way; otherwise it is one more flat vector, and steps,
penalties, Reptile lines and optimizers work on whole vectors. Chains of Linear and ReLU layers have a faster kernel in
steps.py.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from metareplay.engines.cpu.layout import (
    Array,
    Index,
    KernelRates,
    PullRows,
    Steps,
    Targets,
    aligned,
    compiled,
    inlined,
)
from metareplay.engines.cpu.optimizer_steps import Moments, Rule, begin_step, moments_finite, step_row
from metareplay.engines.cpu.simd import LANES, load, multiply_add, splat, store
from metareplay.engines.cpu.steps import loss_gradient

# The kinds of layers; engines/layers.py has the same numbers.
LINEAR, LAYER_NORM, DROPOUT, RELU, LEAKY_RELU, ELU, TANH, SIGMOID, GELU, GELU_TANH, SILU = range(11)
SGD = 3  # a kind of `Rule`, besides those of optimizer_steps.py: the plan's own rates
ROOT_HALF, ROOT_TWO_OVER_PI, CUBE = math.sqrt(0.5), math.sqrt(2 / math.pi), 0.044715


class LayerNet(NamedTuple):
    """Hold the layers, their weights and room to work; N is the number of layers."""

    kinds: Array  # (N,)
    inputs: Array  # (N,) how many inputs each layer has
    outputs: Array  # (N,) how many outputs
    weights_at: Array  # (N,) where its weights begin in rows; -1 if it has none
    biases_at: Array  # (N,) where its bias begins; -1 if it has none
    options: Array  # (N,) a slope, an alpha, an eps or the scale of what Dropout keeps
    masks_at: (
        Array  # (N,) how many numbers of masks an input needs before this Dropout layer; -1 if it keeps everything
    )
    mask_width: int  # how many numbers of masks an input needs
    first: int  # the first layer with trained weights
    trained: int  # how many numbers of rows are trained weights, rounded up to whole vectors
    rows: Array  # (1, all) the weights, trained ones first
    gradient: Array  # (1, trained)
    before_batch: Array  # (1, trained) the weights before the current batch
    before_example: Array  # (1, trained) the weights before the current example
    values: Array  # (N + 1, widest) each layer's inputs; the last row is the outputs
    deltas: Array  # (N + 1, widest) the gradients at each of them
    slopes: Array  # (N, widest) the slopes of activations; what LayerNorm has normalised
    scales: Array  # (N,) by which LayerNorm has multiplied


def make_layer_net(
    kinds: Sequence[int],
    widths: Sequence[int],
    options: Sequence[float],
    places: Sequence[tuple[int, int]],
    masks_at: Sequence[int],
    mask_width: int,
    trained: int,
    frozen: int,
    dtype: Any,
) -> LayerNet:
    """Return room for a chain of layers.

    Args:
        kinds: What each layer does.
        widths: The number of inputs, then the number of outputs of each layer.
        options: Each layer's option.
        places: Where each layer's weights and bias begin; from `trained` on they are frozen. -1 for none.
        masks_at: How many numbers of masks an input needs before each Dropout layer; -1 for no mask.
        mask_width: How many numbers of masks it needs for all of them.
        trained: How many weights are trained, rounded up to whole vectors.
        frozen: How many are not.
        dtype: The type of the weights, float32 or float64.
    """
    count, widest = len(kinds), -(-max(widths) // LANES) * LANES
    first = min(i for i, place in enumerate(places) if any(0 <= at < trained for at in place))
    weights_at, biases_at = np.array(places, np.int64).T.copy()
    return LayerNet(
        kinds=np.array(kinds, np.int64),
        inputs=np.array(widths[:-1], np.int64),
        outputs=np.array(widths[1:], np.int64),
        weights_at=weights_at,
        biases_at=biases_at,
        options=np.array(options, dtype),
        masks_at=np.array(masks_at, np.int64),
        mask_width=mask_width,
        first=first,
        trained=trained,
        rows=aligned((1, trained + frozen), dtype),
        gradient=aligned((1, trained), dtype),
        before_batch=aligned((1, trained), dtype),
        before_example=aligned((1, trained), dtype),
        values=aligned((count + 1, widest), dtype),
        deltas=aligned((count + 1, widest), dtype),
        slopes=aligned((count, widest), dtype),
        scales=np.zeros(count, dtype),
    )


# --- one layer forwards


@compiled
def linear(values: Array, i: Index, weights: Array, at: Index, bias: Index, n: Index, m: Index) -> None:
    """Set values[i + 1] = W values[i] + b."""
    for u in range(m):
        total = weights.dtype.type(0)
        for p in range(n):
            total += weights[0, at + u * n + p] * values[i, p]
        values[i + 1, u] = total
    if bias >= 0:
        for u in range(m):
            values[i + 1, u] += weights[0, bias + u]


@compiled
def normalise(values: Array, i: Index, hats: Array, n: Index, epsilon: Any) -> Any:
    """Set hats[i] and values[i + 1] to values[i] with mean 0 and variance 1; return what it was multiplied by."""
    number = values.dtype.type
    mean, variance = number(0), number(0)
    for p in range(n):
        mean += values[i, p]
    mean /= number(n)
    for p in range(n):
        variance += (values[i, p] - mean) * (values[i, p] - mean)
    scale = number(1) / np.sqrt(variance / number(n) + epsilon)
    for p in range(n):
        hats[i, p] = (values[i, p] - mean) * scale
        values[i + 1, p] = hats[i, p]
    return scale


@compiled
def scale_and_shift(values: Array, i: Index, weights: Array, at: Index, bias: Index, n: Index) -> None:
    """Set values[i + 1] = values[i + 1] * w + b."""
    if at >= 0:
        for p in range(n):
            values[i + 1, p] *= weights[0, at + p]
    if bias >= 0:
        for p in range(n):
            values[i + 1, p] += weights[0, bias + p]


@compiled
def drop(values: Array, i: Index, slopes: Array, n: Index, scale: Any, masks: Array, at: Index) -> None:
    """Set values[i + 1] to values[i], scaled where the mask is 1 and otherwise 0; all of it if there is no mask."""
    for p in range(n):
        slopes[i, p] = values.dtype.type(1)
        if at >= 0:
            slopes[i, p] = masks[at + p] * scale
        values[i + 1, p] = values[i, p] * slopes[i, p]


@compiled
def activate(values: Array, i: Index, slopes: Array, n: Index, kind: Index, option: Any) -> None:
    """Set values[i + 1] to an activation of values[i] and slopes[i] to its derivative."""
    number = values.dtype.type
    one, half = number(1), number(0.5)
    for p in range(n):
        x = values[i, p]
        if kind == RELU:
            slope = number(0) if x <= 0 else one
            y = number(0) if x <= 0 else x  # NaN stays and reaches the loss
        elif kind == LEAKY_RELU:
            slope = one if x > 0 else option
            y = x * slope
        elif kind == ELU:
            y = x if x > 0 else option * np.expm1(x)
            slope = one if x > 0 else option * np.exp(x)
        elif kind == TANH:
            y = np.tanh(x)
            slope = one - y * y
        elif kind == GELU:
            below = half * (one + math.erf(x * number(ROOT_HALF)))
            y = x * below
            slope = below + x * number(ROOT_TWO_OVER_PI) * half * np.exp(-half * x * x)
        elif kind == GELU_TANH:
            t = np.tanh(number(ROOT_TWO_OVER_PI) * (x + number(CUBE) * x * x * x))
            y = half * x * (one + t)
            inner = number(ROOT_TWO_OVER_PI) * (one + number(3 * CUBE) * x * x)
            slope = half * (one + t) + half * x * (one - t * t) * inner
        else:
            s = one / (one + np.exp(-x))
            y = s if kind == SIGMOID else x * s
            slope = s * (one - s) if kind == SIGMOID else s * (one + x * (one - s))
        values[i + 1, p], slopes[i, p] = y, slope


# --- one layer backwards


@compiled
def linear_back(deltas: Array, i: Index, weights: Array, at: Index, n: Index, m: Index) -> None:
    """Set deltas[i] = W' deltas[i + 1]."""
    for p in range(n):
        deltas[i, p] = 0
    for u in range(m):
        d = deltas[i + 1, u]
        if d != 0:
            for p in range(n):
                deltas[i, p] += d * weights[0, at + u * n + p]


@compiled
def normalise_back(deltas: Array, i: Index, hats: Array, weights: Array, at: Index, n: Index, scale: Any) -> None:
    """Set deltas[i] to the gradient at the inputs of LayerNorm."""
    number = deltas.dtype.type
    mean, along = number(0), number(0)
    for p in range(n):
        d = deltas[i + 1, p]
        if at >= 0:
            d *= weights[0, at + p]
        deltas[i, p] = d
        mean += d
        along += d * hats[i, p]
    mean, along = mean / number(n), along / number(n)
    for p in range(n):
        deltas[i, p] = scale * (deltas[i, p] - mean - hats[i, p] * along)


@compiled
def slopes_back(deltas: Array, i: Index, slopes: Array, n: Index) -> None:
    """Set deltas[i] = deltas[i + 1] * slopes[i]."""
    for p in range(n):
        deltas[i, p] = deltas[i + 1, p] * slopes[i, p]


@compiled
def add_outer(
    out: Array, at: Index, deltas: Array, d: Index, values: Array, v: Index, n: Index, m: Index, by: Any
) -> None:
    """Add by * deltas[d] values[v]' to the matrix that begins at out[0, at]."""
    for u in range(m):
        c = by * deltas[d, u]
        if c != 0:
            for p in range(n):
                out[0, at + u * n + p] += c * values[v, p]


@compiled
def add_products(out: Array, at: Index, deltas: Array, d: Index, hats: Array, v: Index, n: Index, by: Any) -> None:
    """Add by * deltas[d] * hats[v], number by number, to what begins at out[0, at]."""
    for p in range(n):
        out[0, at + p] += by * deltas[d, p] * hats[v, p]


@compiled
def add_scaled(out: Array, at: Index, deltas: Array, d: Index, n: Index, by: Any) -> None:
    """Add by * deltas[d] to what begins at out[0, at]."""
    for p in range(n):
        out[0, at + p] += by * deltas[d, p]


# --- one row


@inlined
def differentiate(
    net: LayerNet, xs: Array, targets: Targets, r: Index, masks: Array, t: Index, start: Index, size: Index
) -> bool:
    """Set values and deltas for table row r; return whether its loss is finite.

    It is visit t of the plan; the masks of its forward pass, for the visits from start on, were drawn layer by layer.
    """
    count, values, deltas, weights = len(net.kinds), net.values, net.deltas, net.rows
    for p in range(net.inputs[0]):
        values[0, p] = xs[r, p]
    for i in range(count):
        kind, n, m, at, bias = net.kinds[i], net.inputs[i], net.outputs[i], net.weights_at[i], net.biases_at[i]
        if kind == LINEAR:
            linear(values, i, weights, at, bias, n, m)
        elif kind == LAYER_NORM:
            net.scales[i] = normalise(values, i, net.slopes, n, net.options[i])
            scale_and_shift(values, i, weights, at, bias, n)
        elif kind == DROPOUT:
            place = np.int64(-1)
            if net.masks_at[i] >= 0:
                place = start * net.mask_width + size * net.masks_at[i] + (t - start) * n
            drop(values, i, net.slopes, n, net.options[i], masks, place)
        else:
            activate(values, i, net.slopes, n, kind, net.options[i])
    finite = loss_gradient(values, count, deltas, count, net.outputs[count - 1], targets, r)
    for i in range(count - 1, net.first, -1):
        kind, n, m, at = net.kinds[i], net.inputs[i], net.outputs[i], net.weights_at[i]
        if kind == LINEAR:
            linear_back(deltas, i, weights, at, n, m)
        elif kind == LAYER_NORM:
            normalise_back(deltas, i, net.slopes, weights, at, n, net.scales[i])
        else:
            slopes_back(deltas, i, net.slopes, n)
    return finite


@inlined
def add_gradient(net: LayerNet, out: Array, by: Any) -> None:
    """Add the gradient of the row that was differentiated last, times a number, to a vector."""
    for i in range(net.first, len(net.kinds)):
        at, bias = net.weights_at[i], net.biases_at[i]
        if 0 <= at < net.trained:
            if net.kinds[i] == LINEAR:
                add_outer(out, at, net.deltas, i + 1, net.values, i, net.inputs[i], net.outputs[i], by)
            else:
                add_products(out, at, net.deltas, i + 1, net.slopes, i, net.inputs[i], by)
        if 0 <= bias < net.trained:
            add_scaled(out, bias, net.deltas, i + 1, net.outputs[i], by)


# --- whole vectors


@compiled
def copy(source: Array, target: Array, size: Index) -> None:
    """Copy the first numbers of one vector to another."""
    for j in range(0, size, LANES):
        store(target, 0, j, load(source, 0, j))


@compiled
def reptile(rows: Array, before: Array, size: Index, rate: Any) -> None:
    """Set w <- before + rate (w - before)."""
    new, minus = splat(rate), splat(rows.dtype.type(-1))
    for j in range(0, size, LANES):
        old = load(before, 0, j)
        store(rows, 0, j, multiply_add(new, multiply_add(minus, old, load(rows, 0, j)), old))


@compiled
def add_pull(rows: Array, gradient: Array, pull: PullRows, size: Index) -> None:
    """Add the gradient of EWC's penalty, twice * (F w - F_theta)."""
    for j in range(size):
        gradient[0, j] += pull.twice * (pull.importance[0, j] * rows[0, j] - pull.anchor[0, j])


@compiled
def norm(gradient: Array, size: Index) -> Any:
    """Return the norm of a gradient."""
    square = 0.0
    for j in range(size):
        square += np.float64(gradient[0, j]) * np.float64(gradient[0, j])
    return np.sqrt(square)


@compiled
def is_finite(rows: Array, size: Index) -> bool:
    """Return whether the first numbers are all finite: then 0 * w is 0, otherwise NaN."""
    zero = rows.dtype.type(0)
    total = zero
    for j in range(size):
        total += zero * rows[0, j]
    return bool(total == 0)


# --- plans


@inlined
def finish_step(net: LayerNet, pull: PullRows, rate: Any, clip: Any, rule: Rule, moments: Moments) -> None:
    """Take a step along the gradient."""
    number = net.rows.dtype.type
    if pull.twice != 0:
        add_pull(net.rows, net.gradient, pull, net.trained)
    scale = number(1)
    if clip < np.inf:
        scale = number(clip / max(np.float64(clip), norm(net.gradient, net.trained)))
    if rule.kind == SGD:
        by = splat(-rate * scale)
        for j in range(0, net.trained, LANES):
            store(net.rows, 0, j, multiply_add(by, load(net.gradient, 0, j), load(net.rows, 0, j)))
    else:
        now = begin_step(net, rule, moments)
        step_row(net, rule, now, moments, np.int64(0), net.trained, (net.gradient, np.int64(0), scale))


@compiled
def run_plan(
    net: LayerNet,
    xs: Array,
    targets: Targets,
    steps: Steps,
    rates: KernelRates,
    pull: PullRows,
    together: bool,
    rule: Rule,
    moments: Moments,
    masks: Array,
    careful: bool,
) -> int:
    """Learn a plan's examples; return how many were learned before one gave numbers that are not finite.

    Args:
        net: The weights, which are changed.
        xs: The inputs of the table's rows.
        targets: Their targets.
        steps: The rows to visit and the share of each in the loss of its step.
        rates: How far steps and Reptile lines go.
        pull: EWC's penalty; twice its strength is 0 if there is none.
        together: Whether a batch is one step, instead of one step per row.
        rule: How steps are taken: by the rates, or by an optimizer.
        moments: What an optimizer remembers, which is changed.
        masks: Dropout's masks for all visits, pass by pass and layer by layer.
        careful: Whether to check every example and to undo the one that fails. If not, weights and moments are checked
            only at the end: if the result is less than all, some example failed and they are of no use.
    """
    examples, size, zero = (len(steps.ends) - 1) // steps.s, net.trained, net.rows.dtype.type(0)
    straight = not together and rule.kind == SGD and pull.twice == 0 and rates.clip == np.inf
    for i in range(examples):
        count = moments.steps[0]
        if careful or rates.across != 1:
            copy(net.rows, net.before_example, size)
        if careful:
            copy(moments.first, moments.first_before, size)
            copy(moments.second, moments.second_before, size)
        fine = True
        for b in range(i * steps.s, (i + 1) * steps.s):
            if rates.within != 1:
                copy(net.rows, net.before_batch, size)
            begin, end = steps.ends[b], steps.ends[b + 1]
            if together:
                net.gradient[:] = zero
            for t in range(begin, end):
                r = steps.rows[t]
                start, together_with = (begin, end - begin) if together else (t, 1)
                fine = fine and differentiate(net, xs, targets, r, masks, t, start, together_with)
                rate = rates.current if r == steps.incoming + i and not together else rates.memory
                if straight:
                    add_gradient(net, net.rows, -rate)
                    continue
                if not together:
                    net.gradient[:] = zero
                add_gradient(net, net.gradient, steps.shares[t])
                if fine and (not together or t == end - 1):
                    finish_step(net, pull, rate, rates.clip, rule, moments)
            if rates.within != 1:
                reptile(net.rows, net.before_batch, size, rates.within)
        if rates.across != 1:
            reptile(net.rows, net.before_example, size, rates.across)
        if not fine or (careful and not (is_finite(net.rows, size) and moments_finite(net, moments))):
            copy(net.before_example, net.rows, size)
            copy(moments.first_before, moments.first, size)
            copy(moments.second_before, moments.second, size)
            moments.steps[0] = count
            return i
    return examples if careful or (is_finite(net.rows, size) and moments_finite(net, moments)) else 0


@compiled
def gradients(
    net: LayerNet, xs: Array, targets: Targets, rows: Array, shares: Array, ends: Array, masks: Array, found: Array
) -> bool:
    """Set found[g] to the gradient of the weighted loss of rows[ends[g] : ends[g + 1]]; return whether all are finite.

    Args:
        net: The weights.
        xs: The inputs of the table's rows.
        targets: Their targets.
        rows: The rows of all groups.
        shares: The weight of each row's loss in its group.
        ends: Where groups begin and end in `rows`.
        masks: Dropout's masks, group by group and layer by layer.
        found: Where the gradients go.
    """
    fine = True
    for g in range(len(ends) - 1):
        found[g] = 0
        for t in range(ends[g], ends[g + 1]):
            fine = differentiate(net, xs, targets, rows[t], masks, t, ends[g], ends[g + 1] - ends[g]) and fine
            add_gradient(net, found[g : g + 1], shares[t])
    return fine
