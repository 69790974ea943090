"""The fleet's GPU kernel: one program learns one run of a two-hidden-layer MLP, draws and memory included.

Batch-1 SGD in its exact chunked form (docs/performance.md). The examples that a program visits are taken in blocks of
up to `span` steps, whole batches each. With X the block's inputs and W, b the first layer before it,

    z_i = W x_i + b - sum_{j<i} c_ij (x_i'x_j + 1) d_j,    c_ij = 1 in the same batch, beta in an earlier one,

where d_j is the rate times the loss gradient at z_j. So P = W X' + b and G = C * (X X' + 1) are matrix products before
the steps, the steps touch the upper layers only, and W <- W - beta D X is one matrix product behind them.

Pixels are bytes, exact in float16; W and D are the sum of two float16 numbers, the second 2048 times too large, which
keeps 22 of float32's 24 bits: tensor cores then multiply exactly and add in float32. Beyond 65,504, float16's range,
numbers count as not finite.

A step is a chain of small products, so what counts is how often warps have to wait for one another. Each warp owns some
units, in every matrix the same ones, and sums over the units below stay inside a warp: a row of the second layer is
seen as (width // places, places), and all matrices have `places` columns, which decides how Triton deals them out. The
second layer is kept twice, for the way up and, transposed, for the way down.
"""

import triton.language as tl

from metareplay.engines.cuda.triton_jit import jit, jit_for_any

GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
BELOW_ONE = tl.constexpr(2.0**-53)
SMALL = tl.constexpr(2048.0)
WINDOW = tl.constexpr(128)
EARLIER = tl.constexpr(64)  # earlier steps whose effect is added at a time


@jit
def mix(words: tl.tensor) -> tl.tensor:
    """SplitMix64's output function, as in draws.py."""
    words = (words ^ (words >> 30)) * 0xBF58476D1CE4E5B9
    words = (words ^ (words >> 27)) * 0x94D049BB133111EB
    return words ^ (words >> 31)


@jit
def fraction(key: tl.tensor, example: tl.tensor, number: tl.tensor) -> tl.tensor:
    """Draw `number` (from 1) for an example: `Draws.fractions`."""
    word = mix(mix(key + example.to(tl.uint64) * GOLDEN) + number.to(tl.uint64) * GOLDEN)
    return (word >> 11).to(tl.float64) * BELOW_ONE


@jit
def slot_of(key: tl.tensor, example: tl.tensor, memory: tl.tensor, odds: tl.tensor) -> tl.tensor:
    """Algorithm 3: where the reservoir puts an example; -1: nowhere."""
    drawn = (fraction(key, example, example * 0 + 1) * (example + odds)).to(tl.int32)
    return tl.where(example < memory, example, tl.where(drawn < memory, drawn, -1))


@jit
def two_halves(values: tl.tensor) -> tl.tensor:
    """v = high + low / SMALL, both float16."""
    high = values.to(tl.float16)
    return high, ((values - high.to(tl.float32)) * SMALL).to(tl.float16)


@jit
def relu(values: tl.tensor) -> tl.tensor:
    """max(v, 0); NaN stays."""
    return tl.where(values < 0, 0.0, values)


@jit
def keep_products(
    g: tl.tensor,
    products: tl.tensor,
    top: tl.tensor,
    side: tl.tensor,
    length: tl.tensor,
    beta: tl.tensor,
    scale: tl.tensor,
    span: tl.constexpr,
    edge: tl.constexpr,
) -> None:
    """A tile of G = C * (X X' + 1)."""
    above, beside = top + tl.arange(0, edge), side + tl.arange(0, edge)
    products = products * (scale * scale) + 1
    same = (above // length)[:, None] == (beside // length)[None, :]
    tl.store(g + above[:, None] * span + beside[None, :], tl.where(same, products, beta * products))


@jit
def reptile(place: tl.tensor, theta: tl.tensor, rate: tl.tensor) -> tl.tensor:
    """before + rate (theta - before), `before` being what is in memory."""
    before = tl.load(place)
    return before + rate * (theta - before)


@jit_for_any("first", "last", "most_memory")
def learn(
    xs: tl.tensor,  # (examples of all streams, inputs) bytes
    ys: tl.tensor,  # (examples of all streams,) int32
    order: tl.tensor,  # (runs,) int32: which run a program takes
    whole: tl.tensor,  # (runs, 8) int32: memory ... odds, limit of its Terms; where its stream begins in `xs`
    real: tl.tensor,  # (runs, 3) float32: rate, rate of the current example, beta
    keys: tl.tensor,  # (runs, 3) uint64: of the draws for KEEP, REPLAY, PLACE
    slots: tl.tensor,  # (runs, most memory) int32: the example in each slot
    failed: tl.tensor,  # (runs,) int32: 1 + the example whose block gave numbers that are not finite; 0: none
    theta: tl.tensor,  # (runs, ...): w1 (width, inputs), w2, w2' (width, width), w3' (width, out), b1, b2, b3
    rows: tl.tensor,  # (runs, span) int32: the block's examples
    scratch: tl.tensor,  # (runs, ...) float32: p, d (width, span), g (span, span), labels, rates (span)
    first: tl.tensor,  # learn the examples first .. last - 1 of every run's stream
    last: tl.tensor,
    most_memory: tl.tensor,
    scale: tl.tensor,  # what pixels are multiplied by
    inputs: tl.constexpr,
    width: tl.constexpr,
    places: tl.constexpr,
    out: tl.constexpr,
    classes: tl.constexpr,
    span: tl.constexpr,
    edge: tl.constexpr,  # of a tile of a matrix product
    depth: tl.constexpr,  # pixels that a matrix product takes at a time
) -> None:
    """One run."""
    run = tl.load(order + tl.program_id(0)).to(tl.int64)
    memory, drawn = tl.load(whole + run * 8), tl.load(whole + run * 8 + 1)
    copies, batches_each = tl.load(whole + run * 8 + 2), tl.load(whole + run * 8 + 3)
    place, odds, stream = tl.load(whole + run * 8 + 4), tl.load(whole + run * 8 + 5), tl.load(whole + run * 8 + 7)
    limit = tl.load(whole + run * 8 + 6)
    rate, current_rate, beta = tl.load(real + run * 3), tl.load(real + run * 3 + 1), tl.load(real + run * 3 + 2)
    keep_key, replay_key, place_key = tl.load(keys + run * 3), tl.load(keys + run * 3 + 1), tl.load(keys + run * 3 + 2)
    slots += run * most_memory
    w1 = theta + run * (width * (inputs + 2 * width + out + 2) + out)
    w2 = w1 + width * inputs
    w2t = w2 + width * width
    w3t = w2t + width * width
    b1 = w3t + width * out
    b2 = b1 + width
    b3 = b2 + width
    rows += run * span
    p = scratch + run * (span * (2 * width + span + 2))
    d = p + width * span
    g = d + width * span
    labels = g + span * span
    rates = labels + span
    steps: tl.constexpr = places  # steps whose first-layer outputs stay in registers
    unit, klass, pixel = tl.arange(0, width), tl.arange(0, out), tl.arange(0, depth)
    row, tile, step = tl.arange(0, span), tl.arange(0, edge), tl.arange(0, steps)
    earlier = tl.arange(0, EARLIER)
    cube = unit[:, None, None] * width + tl.arange(0, width // places)[None, :, None] * places
    cube += tl.arange(0, places)[None, None, :]
    tall = unit[:, None] * out + klass[None, :]

    example, batch, end = tl.full((), first, tl.int32), tl.full((), 0, tl.int32), tl.full((), last, tl.int32)
    end = tl.where(tl.load(failed + run) != 0, example, end)
    while example < end:
        # The block: whole batches, as many as fit; while the memory is short of examples, those of one example. No
        # block goes on beyond a multiple of WINDOW: called for one window after the other it does the same sums.
        held = tl.minimum(example, memory)
        size = tl.minimum(drawn, held)
        length = size + copies
        until = tl.minimum(end, (example // WINDOW + 1) * WINDOW)
        left = tl.where(held < drawn, batches_each, (until - example) * batches_each) - batch
        batches = tl.minimum(limit // length, left)
        n = batches * length

        # Its rows.
        number = batch + row // length
        at = row % length
        of = example + number // batches_each
        where = tl.where(place == 2, (fraction(place_key, of, of * 0 + 1) * (size + 1)).to(tl.int32), place * size)
        current = (at >= where) & (at < where + copies)
        count = (number % batches_each) * size + at - tl.where(at >= where + copies, copies, 0) + 1
        slot = (fraction(replay_key, of, count) * tl.minimum(of, memory)).to(tl.int32)
        valid = row < n
        found = tl.load(slots + slot, mask=valid & ~current, other=0)
        following = (batch + batches) // batches_each + example
        for more in range(following - example):
            stored = example + more
            found = tl.where((slot == slot_of(keep_key, stored, memory, odds)) & (of > stored), stored, found)
        found = stream + tl.where(valid, tl.where(current, of, found), example)
        tl.store(rows + row, found)
        tl.store(labels + row, tl.load(ys + found).to(tl.float32))
        tl.store(rates + row, tl.where(current, current_rate, rate))
        tl.debug_barrier()
        for more in range(following - example):
            stored = example + more
            target = slot_of(keep_key, stored, memory, odds)
            if target >= 0:
                tl.store(slots + target, stored)

        # P = W X' + b and, above its diagonal, G = C * (X X' + 1).
        bias = tl.load(b1 + unit)
        for side in range(0, span, edge):
            if side < n:
                mine = tl.load(rows + side + tile).to(tl.int64) * inputs
                outputs, products = tl.zeros((width, edge), tl.float32), tl.zeros((edge, edge), tl.float32)
                for start in range(0, inputs, depth):
                    inside = start + pixel < inputs
                    x = tl.load(xs + mine[None, :] + (start + pixel)[:, None], mask=inside[:, None], other=0)
                    spot = unit[:, None] * inputs + (start + pixel)[None, :]
                    high, low = two_halves(tl.load(w1 + spot, mask=inside[None, :], other=0))
                    x = x.to(tl.float16)
                    outputs = tl.dot(high, x, outputs)
                    outputs = tl.dot(low, x * (1 / SMALL), outputs)
                    products = tl.dot(tl.trans(x), x, products)
                tl.store(p + unit[:, None] * span + (side + tile)[None, :], outputs * scale + bias[:, None])
                keep_products(g, products, side, side, length, beta, scale, span, edge)
                for top in range(0, side, edge):
                    other = tl.load(rows + top + tile).to(tl.int64) * inputs
                    products = tl.zeros((edge, edge), tl.float32)
                    for start in range(0, inputs, depth):
                        inside = start + pixel < inputs
                        u = tl.load(xs + other[:, None] + (start + pixel)[None, :], mask=inside[None, :], other=0)
                        x = tl.load(xs + mine[None, :] + (start + pixel)[:, None], mask=inside[:, None], other=0)
                        products = tl.dot(u.to(tl.float16), x.to(tl.float16), products)
                    keep_products(g, products, top, side, length, beta, scale, span, edge)
        tl.debug_barrier()

        # The steps.
        a2, a2t, a3t = tl.load(w2 + cube), tl.load(w2t + cube), tl.load(w3t + tall)
        c2, c3 = tl.load(b2 + unit), tl.load(b3 + klass)
        for begin in range(0, n, steps):
            block = unit[:, None] * span + (begin + step)[None, :]
            if begin > 0:
                z = tl.load(p + block)
                for before in range(0, begin, EARLIER):
                    past = before + earlier
                    then = past < begin
                    deltas = tl.load(d + unit[:, None] * span + past[None, :], mask=then[None, :], other=0)
                    known = tl.load(g + past[:, None] * span + (begin + step)[None, :], mask=then[:, None], other=0)
                    z -= tl.dot(deltas, known, input_precision="tf32x3")
                tl.store(p + block, z)
                tl.debug_barrier()
            z = tl.load(p + block)  # of the steps to come; d of those that were taken
            next_label, next_alpha = tl.load(labels + begin), tl.load(rates + begin)
            next_similar = tl.load(g + begin * span + begin + step)
            for i in range(tl.minimum(steps, n - begin)):
                label, alpha, similar = next_label, next_alpha, tl.where(step > i, next_similar, 0.0)
                following_row = tl.minimum(begin + i + 1, span - 1)  # what the next step needs is asked for now
                next_label, next_alpha = tl.load(labels + following_row), tl.load(rates + following_row)
                next_similar = tl.load(g + following_row * span + begin + step)
                h1 = relu(tl.sum(tl.where(step[None, :] == i, z, 0.0), axis=1))
                below = tl.reshape(h1, (width // places, places))[None, :, :]
                h2 = relu(c2 + tl.sum(tl.sum(a2 * below, axis=1), axis=1))
                scores = tl.where(klass < classes, c3 + tl.sum(a3t * h2[:, None], axis=0), float("-inf"))
                shares = tl.exp(scores - tl.max(scores, axis=0))
                d3 = alpha * (shares / tl.sum(shares, axis=0) - tl.where(klass == label, 1.0, 0.0))
                d2 = tl.where(h2 > 0, tl.sum(a3t * d3[None, :], axis=1), 0.0)
                above = tl.reshape(d2, (width // places, places))[None, :, :]
                a2 -= d2[:, None, None] * below
                d1 = tl.where(h1 > 0, tl.sum(tl.sum(a2t * above, axis=1), axis=1), 0.0)
                z = tl.where(step[None, :] == i, d1[:, None], z - d1[:, None] * similar[None, :])
                a2t -= h1[:, None, None] * above
                a3t -= h2[:, None] * d3[None, :]
                c2 -= d2
                c3 -= d3
                if (begin + i + 1) % length == 0:
                    a2, a2t = reptile(w2 + cube, a2, beta), reptile(w2t + cube, a2t, beta)
                    a3t, c2, c3 = (
                        reptile(w3t + tall, a3t, beta),
                        reptile(b2 + unit, c2, beta),
                        reptile(b3 + klass, c3, beta),
                    )
                    tl.debug_barrier()  # several threads may hold the same number: all have read before one writes
                    tl.store(w2 + cube, a2)
                    tl.store(w2t + cube, a2t)
                    tl.store(w3t + tall, a3t)
                    tl.store(b2 + unit, c2)
                    tl.store(b3 + klass, c3)
                    tl.debug_barrier()
            tl.store(d + block, z)
            tl.debug_barrier()

        # W <- W - beta D X.
        for top in range(0, span, edge):
            if top < n:
                mine = tl.load(rows + top + tile).to(tl.int64) * inputs
                taken = (top + tile < n)[None, :]
                delta = tl.load(d + unit[:, None] * span + (top + tile)[None, :], mask=taken, other=0)
                bias -= beta * tl.sum(delta, axis=1)
                high, low = two_halves(delta)
                corner = w1 + unit[:, None] * inputs + pixel[None, :]
                ahead = tl.load(corner, mask=(pixel < inputs)[None, :], other=0)
                for start in range(0, inputs, depth):
                    inside = start + pixel < inputs
                    old = ahead
                    ahead = tl.load(corner + start + depth, mask=(start + depth + pixel < inputs)[None, :], other=0)
                    x = tl.load(xs + mine[:, None] + (start + pixel)[None, :], mask=inside[None, :], other=0)
                    x = x.to(tl.float16)
                    change = tl.dot(high, x)
                    change = tl.dot(low, x * (1 / SMALL), change)
                    tl.store(corner + start, old - (beta * scale) * change, mask=inside[None, :])
                tl.debug_barrier()
        tl.store(b1 + unit, bias)
        tl.debug_barrier()
        check = tl.sum(bias, axis=0) + tl.sum(c3, axis=0)
        if check - check != 0:
            tl.store(failed + run, example + 1)
            end = tl.full((), 0, tl.int32)
        batch = (batch + batches) % batches_each
        example = following
