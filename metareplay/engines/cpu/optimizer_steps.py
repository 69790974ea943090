"""Plans whose steps an optimizer takes, compiled, one thread: Adam, AdamW, RMSProp, SGD with momentum or weight decay.

Every step changes every weight, by an amount that depends on the weight's own past, so no step can wait as in
steps.py. A step on a single row takes its gradient x d' as it goes along: in each layer, row p of the gradient is x[p]
times the vector d. The gradient of a batch is computed by groups.py first. The formulas are those of torch.optim.
"""

from typing import Any, NamedTuple, Protocol

import numpy as np

from metareplay.engines.cpu.groups import group_gradients
from metareplay.engines.cpu.layout import (
    Array,
    Group,
    Index,
    KernelRates,
    Net,
    PullRows,
    SparseRows,
    Steps,
    Targets,
    Turned,
    aligned,
    compiled,
    inlined,
)
from metareplay.engines.cpu.simd import (
    LANES,
    add,
    divide,
    load,
    multiply,
    multiply_add,
    splat,
    square_root,
    store,
    where_large,
)
from metareplay.engines.cpu.steps import all_finite, clipped, copy, differentiate, fill, gradient_square, reptile

ADAM, RMSPROP, MOMENTUM = range(3)


class Weighted(Protocol):
    """Be a net of any kind, whose weights are `rows`."""

    @property
    def rows(self) -> Array:
        """The weights."""


class Rule(NamedTuple):
    """Say how an optimizer takes its steps; numbers that it does not use are 0."""

    kind: int  # ADAM, RMSPROP or MOMENTUM
    lr: float
    decay: float  # weight decay that is added to the gradient
    shrink: float  # AdamW's weight decay: the weights are multiplied by 1 - lr * shrink
    keep: float  # Adam's first beta, or the momentum
    keep_square: float  # Adam's second beta, or RMSProp's alpha
    damping: float  # SGD's dampening
    nesterov: bool
    epsilon: float


class Moments(NamedTuple):
    """Hold what an optimizer remembers about each weight, laid out as the net's rows, and room for a step."""

    steps: Array  # (1,) int64: how many steps it has taken
    first: Array  # Adam's average of gradients, or the momentum
    second: Array  # the average of squared gradients
    gradient: Array  # of a batch
    first_before: Array  # before the example
    second_before: Array
    ends: Array  # (2,) int64: where the rows of a batch begin and end


class Scaled(NamedTuple):
    """Hold the numbers of one step, each in the dtype of the weights."""

    rate: Any
    correction: Any  # what the root of the second moment is multiplied by
    new: Any  # the weight of the gradient in the first moment
    least: Any  # smaller first moments are set to 0
    least_square: Any  # smaller second moments are set to 0


def make_moments(net: Net) -> Moments:
    """Return room for the moments of a net's weights; they are 0, as before an optimizer's first step.

    Args:
        net: The net.
    """
    first, second, gradient, first_before, second_before = (aligned(net.rows.shape, net.rows.dtype) for _ in range(5))
    return Moments(np.zeros(1, np.int64), first, second, gradient, first_before, second_before, np.zeros(2, np.int64))


# --- one row of weights


@inlined
def adam_row(net: Weighted, rule: Rule, now: Scaled, moments: Moments, p: Index, width: Index, some: Any) -> None:
    """Take Adam's step in row p of the net's rows."""
    gradient, q, scale = some
    number = net.rows.dtype.type
    by, decay, kept = splat(scale), splat(number(rule.decay)), splat(number(1 - rule.lr * rule.shrink))
    new, keep_square = splat(now.new), splat(number(rule.keep_square))
    new_square, minus = splat(number(1 - rule.keep_square)), splat(number(-1))
    correction, epsilon, rate = splat(now.correction), splat(number(rule.epsilon)), splat(-now.rate)
    least, least_square = splat(now.least), splat(now.least_square)
    for j in range(0, width, LANES):
        w = load(net.rows, p, j)
        g = multiply_add(decay, w, multiply(by, load(gradient, q, j)))
        first, second = load(moments.first, p, j), load(moments.second, p, j)
        first = where_large(least, multiply_add(new, multiply_add(minus, first, g), first))
        second = where_large(least_square, multiply_add(keep_square, second, multiply(new_square, multiply(g, g))))
        store(moments.first, p, j, first)
        store(moments.second, p, j, second)
        below = multiply_add(square_root(second), correction, epsilon)
        store(net.rows, p, j, multiply_add(rate, divide(first, below), multiply(kept, w)))


@inlined
def rmsprop_row(net: Weighted, rule: Rule, now: Scaled, moments: Moments, p: Index, width: Index, some: Any) -> None:
    """Take RMSProp's step in row p of the net's rows."""
    gradient, q, scale = some
    number = net.rows.dtype.type
    by, decay, keep = splat(scale), splat(number(rule.decay)), splat(number(rule.keep))
    keep_square, new_square = splat(number(rule.keep_square)), splat(number(1 - rule.keep_square))
    epsilon, rate, least, least_square = (
        splat(number(rule.epsilon)),
        splat(-now.rate),
        splat(now.least),
        splat(now.least_square),
    )
    for j in range(0, width, LANES):
        w = load(net.rows, p, j)
        g = multiply_add(decay, w, multiply(by, load(gradient, q, j)))
        second = multiply_add(keep_square, load(moments.second, p, j), multiply(new_square, multiply(g, g)))
        second = where_large(least_square, second)
        store(moments.second, p, j, second)
        step = divide(g, add(square_root(second), epsilon))
        if rule.keep != 0:
            step = where_large(least, multiply_add(keep, load(moments.first, p, j), step))
            store(moments.first, p, j, step)
        store(net.rows, p, j, multiply_add(rate, step, w))


@inlined
def momentum_row(net: Weighted, rule: Rule, now: Scaled, moments: Moments, p: Index, width: Index, some: Any) -> None:
    """Take the step of SGD with momentum or weight decay in row p of the net's rows."""
    gradient, q, scale = some
    number = net.rows.dtype.type
    by, decay, keep = splat(scale), splat(number(rule.decay)), splat(number(rule.keep))
    new, rate, least = splat(now.new), splat(-now.rate), splat(now.least)
    for j in range(0, width, LANES):
        w = load(net.rows, p, j)
        g = multiply_add(decay, w, multiply(by, load(gradient, q, j)))
        if rule.keep != 0:
            first = where_large(least, multiply_add(keep, load(moments.first, p, j), multiply(new, g)))
            store(moments.first, p, j, first)
            g = multiply_add(keep, first, g) if rule.nesterov else first
        store(net.rows, p, j, multiply_add(rate, g, w))


@inlined
def step_row(net: Weighted, rule: Rule, now: Scaled, moments: Moments, p: Index, width: Index, some: Any) -> None:
    """Take a step in row p of the net's rows; with some = (matrix, row, scale), its gradient is scale * matrix[row]."""
    if rule.kind == ADAM:
        adam_row(net, rule, now, moments, p, width, some)
    elif rule.kind == RMSPROP:
        rmsprop_row(net, rule, now, moments, p, width, some)
    else:
        momentum_row(net, rule, now, moments, p, width, some)


# --- one step


@compiled
def begin_step(net: Weighted, rule: Rule, moments: Moments) -> Scaled:
    """Count a step and return its numbers."""
    # The moments of weights that no longer have a gradient shrink for ever. They would become denormal numbers, with
    # which many CPUs are a hundred times slower, so the smallest are set to 0. Such a moment moves a weight by less
    # than lr * 1e-22, and such a square is lost to rounding when epsilon is added to its root.
    number = net.rows.dtype.type
    moments.steps[0] += 1
    steps = np.float64(moments.steps[0])
    rate, correction, new, least = rule.lr, 1.0, 1 - rule.damping, 1e-30
    if rule.kind == ADAM:
        rate, correction = rule.lr / (1 - rule.keep**steps), 1 / np.sqrt(1 - rule.keep_square**steps)
        new, least = 1 - rule.keep, 1e-22 * rule.epsilon
    elif steps == 1:
        new = 1.0  # SGD's momentum begins with the first gradient
    return Scaled(number(rate), number(correction), number(new), number(least), number(1e-18 * rule.epsilon**2))


@compiled
def step_on_row(
    net: Net, table: SparseRows, targets: Targets, r: Index, clip: float, rule: Rule, moments: Moments
) -> bool:
    """Take a step on table row r; return False, without a step, if its loss is not finite."""
    if not differentiate(net, table, targets, r):
        return False
    scale = net.rows.dtype.type(1)
    if clip < np.inf:
        scale = clipped(net, scale, clip, gradient_square(net, table, r))
    now = begin_step(net, rule, moments)
    step_layer(net, np.int64(0), table, r, scale, rule, now, moments)
    for layer in range(1, len(net.widths)):
        step_layer(net, layer, net.active, layer, scale, rule, now, moments)
    return True


@compiled
def step_layer(
    net: Net, layer: Index, inputs: SparseRows, r: Index, scale: Any, rule: Rule, now: Scaled, moments: Moments
) -> None:
    """Take a step in one layer, whose gradient is scale * x d'; x = inputs[r], whose entries are in order."""
    t, first, width = np.int64(0), net.firsts[layer], net.widths[layer]
    for p in range(first, first + net.inputs[layer] + 1):
        x = net.rows.dtype.type(0)
        if inputs.picks[r, t] == p:
            x = inputs.values[r, t]
            t += 1
        step_row(net, rule, now, moments, p, width, (net.deltas, layer, scale * x))


@compiled
def step_on_batch(
    net: Net,
    table: SparseRows,
    writes: Array,
    targets: Targets,
    rows: Array,
    shares: Array,
    clip: float,
    pull: PullRows,
    rule: Rule,
    moments: Moments,
    turned: Turned,
    group: Group,
) -> bool:
    """Take a step on the weighted loss of some rows; return False, without a step, if it is not finite."""
    gradient, scale = moments.gradient, net.rows.dtype.type(1)
    moments.ends[1] = len(rows)
    if not group_gradients(net, table, writes, targets, rows, shares, moments.ends, turned, group, gradient):
        return False
    if pull.twice != 0:
        add_pull(net, pull, gradient)
    if clip < np.inf:
        scale = clipped(net, scale, clip, square(net, gradient))
    now = begin_step(net, rule, moments)
    for layer in range(len(net.widths)):
        for p in range(net.firsts[layer], net.firsts[layer] + net.inputs[layer] + 1):
            step_row(net, rule, now, moments, p, net.widths[layer], (gradient, p, scale))
    return True


@compiled
def add_pull(net: Net, pull: PullRows, gradient: Array) -> None:
    """Add the gradient of EWC's penalty, twice * (F W - F_theta)."""
    for layer in range(len(net.widths)):
        for p in range(net.firsts[layer], net.firsts[layer] + net.inputs[layer] + 1):
            for u in range(net.outputs[layer]):
                gradient[p, u] += pull.twice * (pull.importance[p, u] * net.rows[p, u] - pull.anchor[p, u])


@compiled
def square(net: Net, gradient: Array) -> Any:
    """Return the squared norm of a gradient."""
    found = 0.0
    for layer in range(len(net.widths)):
        for p in range(net.firsts[layer], net.firsts[layer] + net.inputs[layer] + 1):
            for u in range(net.outputs[layer]):
                found += np.float64(gradient[p, u]) * np.float64(gradient[p, u])
    return found


# --- plans


@compiled
def moments_finite(net: Weighted, moments: Moments) -> bool:
    """Return whether every moment is finite: then 0 * m is 0, otherwise NaN."""
    zero = net.rows.dtype.type(0)
    size = zero
    for p in range(len(net.rows)):
        for u in range(net.rows.shape[1]):
            size += zero * moments.first[p, u] + zero * moments.second[p, u]
    return bool(size == 0)


@compiled
def run_plan(
    net: Net,
    table: SparseRows,
    writes: Array,
    targets: Targets,
    steps: Steps,
    rates: KernelRates,
    pull: PullRows,
    together: bool,
    rule: Rule,
    moments: Moments,
    turned: Turned,
    group: Group,
    careful: bool,
) -> int:
    """Learn a plan's examples; return how many were learned before one gave numbers that are not finite.

    Args:
        net: The weights, which are changed.
        table: The inputs of the table's rows.
        writes: How often each table row was written.
        targets: The targets of the table's rows.
        steps: The rows to visit and the share of each in the loss of its step.
        rates: How far Reptile lines go, and the clip; the rate of a step is the optimizer's own.
        pull: EWC's penalty; twice its strength is 0 if there is none.
        together: Whether a batch is one step, instead of one step per row.
        rule: How steps are taken.
        moments: What the optimizer remembers, which is changed.
        turned: Room for the inputs of a batch sorted by pixel.
        group: Room for the gradients of GROUP examples.
        careful: Whether to check every example and to undo the one that fails. If not, weights and moments are checked
            only at the end: if the result is less than all, some example failed and they are of no use.
    """
    examples = (len(steps.ends) - 1) // steps.s
    for i in range(examples):
        count = moments.steps[0]
        if careful or rates.across != 1:
            copy(net, net.rows, net.before_example)
        if careful:
            copy(net, moments.first, moments.first_before)
            copy(net, moments.second, moments.second_before)
        fine = True
        for b in range(i * steps.s, (i + 1) * steps.s):
            start, end = steps.ends[b], steps.ends[b + 1]
            if rates.within != 1:
                copy(net, net.rows, net.before_batch)
            size = end - start if together else 1
            for t in range(start, end, size):
                if size == 1 and pull.twice == 0:
                    fine = fine and step_on_row(net, table, targets, steps.rows[t], rates.clip, rule, moments)
                else:
                    rows, shares = steps.rows[t : t + size], steps.shares[t : t + size]
                    fine = fine and step_on_batch(
                        net, table, writes, targets, rows, shares, rates.clip, pull, rule, moments, turned, group
                    )
            if fine and rates.within != 1:
                reptile(net, net.before_batch, rates.within, np.int64(0))
        if fine and rates.across != 1:
            reptile(net, net.before_example, rates.across, np.int64(0))
        if not fine or (careful and not (all_finite(net) and moments_finite(net, moments))):
            copy(net, net.before_example, net.rows)
            copy(net, moments.first_before, moments.first)
            copy(net, moments.second_before, moments.second)
            moments.steps[0] = count
            for layer in range(len(net.widths)):
                fill(net.deltas, layer, net.widths[layer], net.rows.dtype.type(0))
            return i
    return examples if careful or (all_finite(net) and moments_finite(net, moments)) else 0
