"""Steps of deep Q-learning, compiled, one thread: values of actions, targets, SGD or Adam, Reptile lines.

The network is an MLP, or convolutions with an MLP on top of them (`convolutions.py`).

Weights are kept as vectors of LANES numbers, padded with zeros. In a layer before the last, the weights from one input
to all outputs are neighbours, and the bias belongs to one more input, which is always 1: the sum over inputs, the
gradient and the step then skip every input that is 0, as about half of them are after a ReLU. In the last layer the
weights from all inputs to one output (an action) are neighbours, and the bias comes after them: a transition has only
one action, so only its weights have a gradient.

A row of zeros, the idle row, stands in where a list of inputs is filled up to a multiple of EIGHT.

An MLP has no `eye`. Where a function asks whether its argument `eye` is None, numba compiles only the branch that
holds, so the convolutions cost an MLP nothing.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metareplay.engines.cpu.convolutions import (
    Eye,
    Filters,
    bring,
    descend,
    filters_in,
    look,
    make_eye,
    room_for,
    turn,
)
from metareplay.engines.cpu.layout import Index, aligned
from metareplay.engines.cpu.products import transpose
from metareplay.engines.cpu.q_compiling import compiled, inlined
from metareplay.engines.cpu.simd import (
    EIGHT,
    LANES,
    LIKE_EIGHT,
    LIKE_FOUR,
    inner,
    load,
    load_rows,
    load_span,
    multiply_add,
    multiply_add_each,
    numbers,
    open_bits,
    splat,
    splat_eight,
    store,
    store_span,
    store_totals,
    total,
    where_open,
    zeros,
)
from metareplay.engines.q_shape import Conv

Array = NDArray[Any]

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8  # Adam's, as in torch.optim.Adam

# Moments of weights without a gradient shrink for ever and become denormal numbers, with which many CPUs are a hundred
# times slower. Below these limits they are set to 0. Such a moment moves a weight by less than lr * 1e-22, and such a
# square is lost to rounding when EPSILON is added to its root.
LEAST_MOMENT, LEAST_SQUARE = np.float32(1e-30), np.float32(1e-34)
ZERO, ONE = np.float32(0), np.float32(1)


class Packed(NamedTuple):
    """Hold one number per weight, as vectors and as a flat view of the same memory."""

    rows: Array  # (V, LANES) float32
    flat: Array  # (V * LANES,)
    filters: Filters  # the part of it that belongs to convolutions, at its end


class QNet(NamedTuple):
    """Hold the shape of an MLP with L layers, its weights, then those of the convolutions, and room to work."""

    widths: Array  # (L + 1,) int64: inputs, hidden widths, actions
    firsts: Array  # (L,) int64: the first vector of each layer
    spans: Array  # (L,) int64: vectors per input of a layer, or per action in the last layer
    idle: int  # the first vector of the idle row
    inputs: Array  # (L, longest): the last layer's input in its row, and a 1 after it; sums of layers in theirs
    deltas: Array  # (L, longest): the gradient of the loss at each layer's outputs, for layers before the last
    counts: Array  # (L,) int64: how many inputs of a layer are listed, the constant 1 included
    picks: Array  # (L, longest) int64: the first vector of each input that is listed
    places: Array  # (L, longest) int64: which inputs these are
    terms: Array  # (L, longest): their values
    outputs: Array  # (1, actions): the values of all actions
    dots: Array  # (1, longest)
    targets: Array  # (1, longest batch): y for each transition of a batch
    weights: Packed
    target: Packed  # the target network's weights
    gradient: Packed
    moments: Packed  # Adam's first moments; empty for SGD
    squares: Packed  # Adam's second moments; empty for SGD
    steps: Array  # (1,) int64: how many steps Adam has taken
    learned: Array  # (1,) int64: how many examples were learned
    before_batch: Packed
    before_frame: Packed
    moments_before: Packed  # before the frame
    squares_before: Packed
    eye: Eye | None  # the convolutions below the MLP, if there are some


class Transitions(NamedTuple):
    """Hold a table's columns."""

    x: Array  # (R, inputs) float32; in front of convolutions, all pictures of an input side by side
    action: Array  # (R,) int64
    reward: Array  # (R,) float32
    next_x: Array
    over: Array  # (R,) bool


class QRates(NamedTuple):
    """Say how steps are taken and how far they go."""

    memory: np.float32  # alpha, for a step on a stored transition or a batch
    current: np.float32  # for a step on the incoming transition alone
    within: np.float32  # beta, the Reptile line after each batch
    across: np.float32  # gamma, the Reptile line after the batches of one frame
    clip: float  # the largest norm of a gradient; infinity for no limit
    discount: np.float32
    double: bool  # whether the weights before the batch choose the action that the target network evaluates
    together: bool  # whether a batch is one step
    adam: bool  # whether Adam takes the steps, at the rate lr
    lr: float


def packed(vectors: int, convs: Sequence[Conv] = ()) -> Packed:
    """Return zeros for as many vectors, which start on a cache line; the last ones are those of the convolutions."""
    flat = aligned((vectors * LANES,), np.float32)
    return Packed(flat.reshape(vectors, LANES), flat, filters_in(flat, convs))


def make_net(widths: Sequence[int], batch: int, adam: bool, convs: Sequence[Conv] = ()) -> QNet:
    """Return room for a network; `pack` fills in weights.

    Args:
        widths: The number of inputs, or of what the convolutions give, the width of each hidden layer, and the number
            of actions.
        batch: The largest number of transitions in a batch.
        adam: Whether to make room for Adam's moments.
        convs: The convolutions below.
    """
    sizes, depth = np.asarray(widths, np.int64), len(widths) - 1
    spans = -(-sizes[1:] // LANES)
    spans[-1] = sizes[-2] // LANES + 1
    rows = sizes[:-1] + 1
    rows[-1] = sizes[-1]
    ends = np.cumsum(rows * spans)
    vectors, longest = int(ends[-1] + spans.max()), (int(sizes.max()) // LANES + 2) * LANES
    vectors += room_for(convs) // LANES
    weights = packed(vectors, convs)
    none = weights._replace(rows=weights.rows[:0], flat=weights.flat[:0])
    return QNet(
        widths=sizes,
        firsts=np.concatenate(([0], ends[:-1])),
        spans=spans,
        idle=int(ends[-1]),
        inputs=aligned((depth, longest), np.float32),
        deltas=aligned((depth, longest), np.float32),
        counts=np.zeros(depth, np.int64),
        picks=aligned((depth, longest), np.int64),
        places=aligned((depth, longest), np.int64),
        terms=aligned((depth, longest), np.float32),
        outputs=aligned((1, widths[-1]), np.float32),
        dots=aligned((1, longest), np.float32),
        targets=aligned((1, batch), np.float32),
        weights=weights,
        target=packed(vectors, convs),
        gradient=packed(vectors, convs),
        moments=packed(vectors, convs) if adam else none,
        squares=packed(vectors, convs) if adam else none,
        steps=np.zeros(1, np.int64),
        learned=np.zeros(1, np.int64),
        before_batch=packed(vectors),
        before_frame=packed(vectors),
        moments_before=packed(vectors if adam else 0),
        squares_before=packed(vectors if adam else 0),
        eye=make_eye(convs, vectors * LANES) if convs else None,
    )


@compiled
def pack(net: QNet, theta: Array, out: Packed) -> None:
    """Write a vector in torch's order of the parameters into vectors of LANES."""
    k, depth = convolutions_packed(net.eye, theta, out), len(net.spans)
    for layer in range(depth):
        fan_in, fan_out, first, wide = net.widths[layer], net.widths[layer + 1], net.firsts[layer], net.spans[layer]
        rows = fan_in + 1 if layer < depth - 1 else fan_out
        ours = out.flat[first * LANES : (first + rows * wide) * LANES].reshape(rows, wide * LANES)
        theirs = theta[k : k + fan_in * fan_out].reshape(fan_out, fan_in)
        k += theirs.size
        if layer < depth - 1:
            transpose(theirs, fan_out, fan_in, ours)
            for o in range(fan_out):
                ours[fan_in, o] = theta[k + o]
        else:
            for o in range(fan_out):
                for i in range(fan_in):
                    ours[o, i] = theirs[o, i]
                ours[o, fan_in] = theta[k + o]
        k += fan_out


@compiled
def unpack(net: QNet, given: Packed, theta: Array) -> None:
    """Do the reverse of `pack`."""
    k, depth = convolutions_unpacked(net.eye, given, theta), len(net.spans)
    for layer in range(depth):
        fan_in, fan_out, first, wide = net.widths[layer], net.widths[layer + 1], net.firsts[layer], net.spans[layer]
        rows = fan_in + 1 if layer < depth - 1 else fan_out
        ours = given.flat[first * LANES : (first + rows * wide) * LANES].reshape(rows, wide * LANES)
        theirs = theta[k : k + fan_in * fan_out].reshape(fan_out, fan_in)
        k += theirs.size
        if layer < depth - 1:
            transpose(ours, fan_in, fan_out, theirs)
            for o in range(fan_out):
                theta[k + o] = ours[fan_in, o]
        else:
            for o in range(fan_out):
                for i in range(fan_in):
                    theirs[o, i] = ours[o, i]
                theta[k + o] = ours[o, fan_in]
        k += fan_out


@inlined
def convolutions_packed(eye: Eye | None, theta: Array, out: Packed) -> int:
    """Pack the convolutions, if there are some; return how many weights these are."""
    if eye is None:
        return 0
    for k in range(len(eye.places)):
        out.flat[eye.places[k]] = theta[k]
    return len(eye.places)


@inlined
def convolutions_unpacked(eye: Eye | None, given: Packed, theta: Array) -> int:
    """Do the reverse of `convolutions_packed`."""
    if eye is None:
        return 0
    for k in range(len(eye.places)):
        theta[k] = given.flat[eye.places[k]]
    return len(eye.places)


@compiled
def same(one: Array, other: Array) -> bool:
    """Return whether two vectors have the same numbers."""
    different = 0
    for i in range(len(one)):
        different += one[i] != other[i]
    return different == 0


# --- the values of actions


@inlined
def close(net: QNet, layer: Index, count: Index) -> None:
    """End the list of a layer's inputs with the constant 1, and fill it up to a multiple of EIGHT."""
    fan_in = net.widths[layer]
    net.picks[layer, count] = net.firsts[layer] + fan_in * net.spans[layer]
    net.places[layer, count] = fan_in
    net.terms[layer, count] = ONE
    count += 1
    net.counts[layer] = count
    while count % EIGHT:
        net.picks[layer, count] = net.idle
        net.terms[layer, count] = ZERO
        count += 1


@inlined
def take_input(net: QNet, eye: Eye | None, weights: Packed, xs: Array, r: Index) -> None:
    """List the inputs of the first layer that are not 0: a vector, or what the convolutions make of pictures."""
    if eye is None:
        list_inputs(net, xs, r)
    else:
        bring(eye, xs, r)
        look(eye, weights.filters)
        list_inputs(net, eye.features, np.int64(0))


@inlined
def list_inputs(net: QNet, values: Array, r: Index) -> None:
    """List those of the numbers values[r] that are not 0 as the inputs of the first layer."""
    fan_in, count = net.widths[0], 0
    if len(net.spans) == 1:
        for i in range(fan_in):
            net.inputs[0, i] = values[r, i]
        net.inputs[0, fan_in] = ONE
        return
    for i in range(fan_in):
        net.picks[0, count] = net.firsts[0] + i * net.spans[0]
        net.places[0, count] = i
        net.terms[0, count] = values[r, i]
        count += values[r, i] != 0
    close(net, np.int64(0), np.int64(count))


@inlined
def forward(net: QNet, weights: Packed, xs: Array, r: Index) -> None:
    """Compute the last layer's input for the input xs[r]."""
    take_input(net, net.eye, weights, xs, r)
    last = len(net.spans) - 1
    for layer in range(last):
        span, above = net.spans[layer], layer + 1
        for j in range(0, span - span % 4, 4):  # four sums at a time stay in registers
            four = zeros(net.inputs, LIKE_FOUR)
            for t in range(net.counts[layer]):
                row = load_span(weights.rows, net.picks[layer, t], j * LANES, LIKE_FOUR)
                four = multiply_add_each(splat(net.terms[layer, t]), row, four)
            store_span(net.inputs, above, j * LANES, four)
        for j in range(span - span % 4, span):
            store(net.inputs, above, j * LANES, splat(ZERO))
        for t in range(0, net.counts[layer] if span % 4 else 0, EIGHT):
            picks, terms = numbers(net.picks, layer, t, LIKE_EIGHT), splat_eight(net.terms, layer, t)
            for j in range(span - span % 4, span):
                rows = load_rows(weights.rows, picks, j * LANES)
                store(net.inputs, above, j * LANES, inner(terms, rows, load(net.inputs, above, j * LANES)))
        if above < last:
            count, first, stride = 0, net.firsts[above], net.spans[above]
            for j in range(span):
                is_open = open_bits(load(net.inputs, above, j * LANES))
                is_open &= (1 << min(LANES, net.widths[above] - j * LANES)) - 1  # the padding may be NaN
                for k in range(LANES):
                    i = j * LANES + k
                    net.picks[above, count] = first + i * stride
                    net.places[above, count] = i
                    net.terms[above, count] = net.inputs[above, i]
                    count += (is_open >> k) & 1
            close(net, above, np.int64(count))
        else:
            for j in range(span):
                value = load(net.inputs, above, j * LANES)
                store(net.inputs, above, j * LANES, where_open(value, value))
            net.inputs[above, net.widths[above]] = ONE


@inlined
def value_of(net: QNet, weights: Packed, action: Index) -> Any:
    """Return the value of one action; `forward` comes first."""
    last = len(net.spans) - 1
    row, sums = net.firsts[last] + action * net.spans[last], splat(ZERO)
    for j in range(net.spans[last]):
        sums = multiply_add(load(net.inputs, last, j * LANES), load(weights.rows, row, j * LANES), sums)
    return total(sums)


@inlined
def best_action(net: QNet, weights: Packed, xs: Array, r: Index) -> Any:
    """Compute the values of all actions for xs[r]; return the first action with the greatest value, or with NaN."""
    forward(net, weights, xs, r)
    best = 0
    for action in range(net.widths[-1]):
        value = value_of(net, weights, action)
        net.outputs[0, action] = value
        greatest = net.outputs[0, best]
        if value > greatest or (value != value and greatest == greatest):
            best = action
    return best


@compiled
def outputs(net: QNet, xs: Array, found: Array) -> None:
    """Compute the values of all actions for several inputs."""
    for r in range(len(found)):
        best_action(net, net.weights, xs, r)
        for action in range(net.widths[-1]):
            found[r, action] = net.outputs[0, action]


@inlined
def set_targets(net: QNet, table: Transitions, rows: Array, start: Index, end: Index, rates: QRates) -> None:
    """Set y for each row of a batch: the reward, plus what the target network expects unless the episode was over."""
    for t in range(start, end):
        row, chosen = rows[t], 0
        y = table.reward[row]
        if not table.over[row]:
            for by_target in range(0 if rates.double else 1, 2):
                best = best_action(net, net.target if by_target else net.weights, table.next_x, row)
                chosen = chosen if by_target and rates.double else best
            y += rates.discount * net.outputs[0, chosen]
        net.targets[0, t - start] = y


# --- steps


@inlined
def backward(net: QNet, action: Index, slope: Any) -> None:
    """Compute the gradients at the outputs of all layers before the last; `slope` is that of the loss at the value."""
    last = len(net.spans) - 1
    if last == 0:
        return
    row, by = net.firsts[last] + action * net.spans[last], splat(slope)
    for j in range(net.spans[last]):
        product = multiply_add(by, load(net.weights.rows, row, j * LANES), splat(ZERO))
        store(net.deltas, last - 1, j * LANES, where_open(load(net.inputs, last, j * LANES), product))
    net.deltas[last - 1, net.widths[last]] = ZERO  # the constant 1 is no output of the layer below
    for layer in range(last - 1, 0, -1):
        dot_inputs(net, layer)
        for j in range(net.spans[layer - 1]):
            store(net.deltas, layer - 1, j * LANES, splat(ZERO))
        for t in range(net.counts[layer] - 1):
            net.deltas[layer - 1, net.places[layer, t]] = net.dots[0, t]


@inlined
def dot_inputs(net: QNet, layer: Index) -> None:
    """Set dots to the gradients at the inputs of a layer that are listed."""
    for t in range(0, net.counts[layer], EIGHT):
        picks, sums = numbers(net.picks, layer, t, LIKE_EIGHT), zeros(net.dots, LIKE_EIGHT)
        for j in range(net.spans[layer]):
            rows = load_rows(net.weights.rows, picks, j * LANES)
            sums = multiply_add_each(load(net.deltas, layer, j * LANES), rows, sums)
        store_totals(net.dots, 0, t, sums)


@inlined
def backward_below(net: QNet, eye: Eye | None, action: Index, slope: Any) -> None:
    """Compute the gradients at the outputs of the last convolution, if there are convolutions."""
    if eye is not None:
        gradient, order = eye.gradient, eye.order
        fill_zero(gradient)
        if len(net.spans) == 1:
            first = (net.firsts[0] + action * net.spans[0]) * LANES
            for i in range(net.widths[0]):
                if net.inputs[0, i] > ZERO:
                    gradient[order[i]] = slope * net.weights.flat[first + i]
        else:
            dot_inputs(net, np.int64(0))
            for t in range(net.counts[0] - 1):
                gradient[order[net.places[0, t]]] = net.dots[0, t]


@inlined
def add_below(eye: Eye | None, out: Packed, factor: Any) -> None:
    """Add the gradient of one transition's loss with respect to the convolutions times a factor."""
    if eye is not None:
        descend(eye, out.filters, factor)


@inlined
def turn_below(eye: Eye | None, weights: Packed) -> None:
    """Bring the transposed weights of the convolutions up to date, if there are convolutions."""
    if eye is not None:
        turn(eye, weights.filters)


@inlined
def has_no_eye(eye: Eye | None) -> bool:
    """Return whether there are no convolutions."""
    return eye is None


@inlined
def add_outer(net: QNet, out: Packed, action: Index, slope: Any, factor: Any) -> None:
    """Add the gradient of one transition's loss times a factor."""
    last = len(net.spans) - 1
    row, by = net.firsts[last] + action * net.spans[last], splat(factor * slope)
    for j in range(net.spans[last]):
        new = multiply_add(by, load(net.inputs, last, j * LANES), load(out.rows, row, j * LANES))
        store(out.rows, row, j * LANES, new)
    for layer in range(last):
        for t in range(net.counts[layer]):
            row, by = net.picks[layer, t], splat(factor * net.terms[layer, t])
            for j in range(net.spans[layer]):
                new = multiply_add(by, load(net.deltas, layer, j * LANES), load(out.rows, row, j * LANES))
                store(out.rows, row, j * LANES, new)


@inlined
def norm_of_one(net: QNet, slope: Any) -> float:
    """Return the norm of the gradient of one transition's loss: in each layer |x d'| = |x| |d|."""
    last = len(net.spans) - 1
    square = 0.0
    for i in range(net.widths[last] + 1):
        square += np.float64(net.inputs[last, i]) ** 2
    square *= np.float64(slope) ** 2
    for layer in range(last):
        x, d = 0.0, 0.0
        for t in range(net.counts[layer]):
            x += np.float64(net.terms[layer, t]) ** 2
        for j in range(net.widths[layer + 1]):
            d += np.float64(net.deltas[layer, j]) ** 2
        square += x * d
    return float(np.sqrt(square))


@compiled
def norm_of(vector: Array) -> float:
    """Return the norm of a vector."""
    square = 0.0
    for i in range(len(vector)):
        square += np.float64(vector[i]) ** 2
    return float(np.sqrt(square))


@inlined
def scale_for(norm: float, clip: float) -> Any:
    """Return what a gradient is multiplied by so that its norm is at most `clip`."""
    return np.float32(clip / norm) if norm > clip else ONE


@inlined
def adam(net: QNet, scale: Any, lr: float) -> None:
    """Take a step of Adam with the gradient times a scale, as torch.optim.Adam does."""
    net.steps[0] += 1
    steps = np.float64(net.steps[0])
    rate = np.float32(lr / (1 - BETA_1**steps))
    correction = np.float32(1 / np.sqrt(1 - BETA_2**steps))
    new, kept, new_square = np.float32(1 - BETA_1), np.float32(BETA_2), np.float32(1 - BETA_2)
    epsilon = np.float32(EPSILON)
    weights, moments, squares = net.weights.flat, net.moments.flat, net.squares.flat
    gradient = net.gradient.flat
    for i in range(len(weights)):
        g = gradient[i] * scale
        moment = moments[i] + new * (g - moments[i])
        square = kept * squares[i] + new_square * (g * g)
        moment = ZERO if abs(moment) < LEAST_MOMENT else moment
        square = ZERO if square < LEAST_SQUARE else square
        moments[i] = moment
        squares[i] = square
        weights[i] -= rate * (moment / (np.sqrt(square) * correction + epsilon))


@inlined
def step(
    net: QNet, table: Transitions, rows: Array, start: Index, some: Index, end: Index, rate: Any, rates: QRates
) -> bool:
    """Take a step on the mean loss of rows[some:end]; return False, without a step, if the loss is not finite.

    The batch begins at `start`. A plain step on a single transition goes directly into the weights.
    """
    is_mlp, unlimited = has_no_eye(net.eye), rates.clip == np.inf
    share, loss, scale = np.float32(1 / (end - some)), ZERO, ONE
    directly = end - some == 1 and not rates.adam and (is_mlp or unlimited)
    if not directly:
        fill_zero(net.gradient.flat)
    turn_below(net.eye, net.weights)
    for t in range(some, end):
        row = rows[t]
        action = table.action[row]
        forward(net, net.weights, table.x, row)
        error = value_of(net, net.weights, action) - net.targets[0, t - start]
        loss += abs(error)
        if not np.isfinite(loss):
            return False
        slope = min(max(error, -ONE), ONE)  # of Huber's loss
        backward(net, action, slope)
        backward_below(net, net.eye, action, slope)
        if end - some == 1 and is_mlp and not unlimited:
            scale = scale_for(norm_of_one(net, slope), rates.clip)
        factor = -rate * scale if directly else share
        add_outer(net, net.weights if directly else net.gradient, action, slope, factor)
        add_below(net.eye, net.weights if directly else net.gradient, factor)
    if not unlimited and (end - some > 1 or not is_mlp):
        scale = scale_for(norm_of(net.gradient.flat), rates.clip)
    if rates.adam:
        adam(net, scale, rates.lr)
    elif not directly:
        weights, gradient, by = net.weights.flat, net.gradient.flat, rate * scale
        for i in range(len(weights)):
            weights[i] -= by * gradient[i]
    return True


# --- frames


@inlined
def fill_zero(vector: Array) -> None:
    """Set a vector to zero."""
    for i in range(len(vector)):
        vector[i] = ZERO


@inlined
def copy(source: Array, out: Array) -> None:
    """Copy a vector."""
    for i in range(len(source)):
        out[i] = source[i]


@inlined
def reptile(theta: Array, before: Array, rate: Any) -> None:
    """Move along Reptile's line: theta <- before + rate * (theta - before)."""
    if rate != ONE:
        for i in range(len(theta)):
            theta[i] = (theta[i] - before[i]) * rate + before[i]


@inlined
def is_finite(vector: Array) -> bool:
    """Return whether every number is finite."""
    wrong = 0
    for i in range(len(vector)):
        wrong += vector[i] - vector[i] != 0
    return wrong == 0


@inlined
def take_steps(
    net: QNet, table: Transitions, rows: Array, ends: Array, batch: Index, s: Index, incoming: Index, rates: QRates
) -> bool:
    """Learn from the batches of one frame; return False if a loss was not finite."""
    for b in range(batch, batch + s):
        start, end = ends[b], ends[b + 1]
        if rates.within != ONE:
            copy(net.weights.flat, net.before_batch.flat)
        set_targets(net, table, rows, start, end, rates)
        size = end - start if rates.together else 1
        for some in range(start, end, size):
            alone = not rates.together and rows[some] == incoming
            rate = rates.current if alone else rates.memory
            if not step(net, table, rows, start, some, some + size, rate, rates):
                return False
        reptile(net.weights.flat, net.before_batch.flat, rates.within)
    reptile(net.weights.flat, net.before_frame.flat, rates.across)
    return True


@inlined
def learn(
    net: QNet, table: Transitions, rows: Array, ends: Array, batch: Index, s: Index, incoming: Index, rates: QRates
) -> bool:
    """Learn from the batches of one frame, or undo everything and return False if a loss or weight is not finite.

    Args:
        net: The network.
        table: The transitions by row.
        rows: The rows of all batches.
        ends: Batch b has rows[ends[b] : ends[b + 1]].
        batch: The first of the frame's batches.
        s: How many batches the frame has.
        incoming: The row of the frame's own transition.
        rates: How steps are taken.
    """
    steps = net.steps[0]
    copy(net.weights.flat, net.before_frame.flat)
    copy(net.moments.flat, net.moments_before.flat)
    copy(net.squares.flat, net.squares_before.flat)
    finite = take_steps(net, table, rows, ends, batch, s, incoming, rates)
    if finite and is_finite(net.weights.flat) and is_finite(net.moments.flat) and is_finite(net.squares.flat):
        net.learned[0] += 1
        return True
    net.steps[0] = steps
    copy(net.before_frame.flat, net.weights.flat)
    copy(net.moments_before.flat, net.moments.flat)
    copy(net.squares_before.flat, net.squares.flat)
    return False


@compiled
def run_plan(
    net: QNet, table: Transitions, rows: Array, ends: Array, count: Index, s: Index, incoming: Index, rates: QRates
) -> int:
    """Learn a plan's examples; return how many there were before the first that is not finite, which is undone."""
    for i in range(count):
        if not learn(net, table, rows, ends, i * s, s, incoming + i, rates):
            return i
    return int(count)
