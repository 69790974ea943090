"""The fleet's GPU kernel: one program learns one run of a two-hidden-layer MLP, draws and memory included.

Batch-1 SGD in its exact chunked form (docs/performance.md). The examples that a program visits are taken in blocks of up
to ROWS steps, whole batches each. With X the block's inputs and W, b the first layer before it,

    z_i = W x_i + b - sum_{j<i} c_ij (x_i'x_j + 1) d_j,    c_ij = 1 in the same batch, beta in an earlier one,

where d_j is the rate times the loss gradient at z_j. So P = W X' + b and G = C * (X X' + 1) are matrix products before
the steps, the steps touch the upper layers only, and W <- W - beta D X is one matrix product behind them.

Pixels are bytes, exact in float16; W and D are the sum of two float16 numbers, the second 2048 times too large: the
tensor cores then multiply exactly and add in float32.

A step is a chain of small products, so what counts is how often warps have to wait for one another. Each warp owns some
units, in every matrix the same ones, and sums over the units below stay inside a warp: a row of the second layer is
seen as (WIDTH // PLACES, PLACES), and all matrices have PLACES columns or more, which decides how Triton deals them out.
The second layer is kept twice, for the way up and, transposed, for the way down.
"""

import triton
import triton.language as tl

GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
BELOW_ONE = tl.constexpr(2.0**-53)
SMALL = tl.constexpr(2048.0)
EARLIER = tl.constexpr(64)  # earlier steps whose effect is added at a time


@triton.jit
def mix(words):
    """SplitMix64's output function, as in draws.py."""
    words = (words ^ (words >> 30)) * 0xBF58476D1CE4E5B9
    words = (words ^ (words >> 27)) * 0x94D049BB133111EB
    return words ^ (words >> 31)


@triton.jit
def fraction(key, example, number):
    """Draw `number` (from 1) for an example: `Draws.fractions`."""
    word = mix(mix(key + example.to(tl.uint64) * GOLDEN) + number.to(tl.uint64) * GOLDEN)
    return (word >> 11).to(tl.float64) * BELOW_ONE


@triton.jit
def slot_of(key, example, memory, odds):
    """Algorithm 3: where the reservoir puts an example; -1: nowhere."""
    drawn = (fraction(key, example, example * 0 + 1) * (example + odds)).to(tl.int32)
    return tl.where(example < memory, example, tl.where(drawn < memory, drawn, -1))


@triton.jit
def two_halves(values):
    """v = high + low / SMALL, both float16."""
    high = values.to(tl.float16)
    return high, ((values - high.to(tl.float32)) * SMALL).to(tl.float16)


@triton.jit
def reptile(place, theta, rate):
    """before + rate (theta - before), `before` being what is in memory."""
    before = tl.load(place)
    return before + rate * (theta - before)


@triton.jit
def learn(
    xs,  # (examples of all streams, IN) bytes
    ys,  # (examples of all streams,) int32
    order,  # (runs,) int32: which run a program takes
    whole,  # (runs, 7) int32: memory, drawn, copies, batches, place, odds of its Terms; where its stream begins in `xs`
    real,  # (runs, 3) float32: rate, rate of the current example, beta
    keys,  # (runs, 3) uint64: of the draws for KEEP, REPLAY, PLACE
    slots,  # (runs, most memory) int32: the example in each slot
    failed,  # (runs,) int32: 1 + the example whose block gave numbers that are not finite; 0: none
    theta,  # (runs, ...) float32, padded with zeros: w1 (WIDTH, IN); w2, w2' (WIDTH, WIDTH); w3' (WIDTH, OUT); b1; b2; b3
    rows,  # (runs, ROWS) int32: the block's examples
    scratch,  # (runs, ...) float32: p, d (WIDTH, ROWS), g (ROWS, ROWS), labels, rates (ROWS)
    first, last,  # learn these examples of every run's stream
    most_memory, scale,
    IN: tl.constexpr, WIDTH: tl.constexpr, PLACES: tl.constexpr, OUT: tl.constexpr, CLASSES: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Examples first .. last - 1 of one run."""
    run = tl.load(order + tl.program_id(0)).to(tl.int64)
    memory, drawn = tl.load(whole + run * 7), tl.load(whole + run * 7 + 1)
    copies, batches_each = tl.load(whole + run * 7 + 2), tl.load(whole + run * 7 + 3)
    place, odds, stream = tl.load(whole + run * 7 + 4), tl.load(whole + run * 7 + 5), tl.load(whole + run * 7 + 6)
    rate, current_rate, beta = tl.load(real + run * 3), tl.load(real + run * 3 + 1), tl.load(real + run * 3 + 2)
    keep_key, replay_key, place_key = tl.load(keys + run * 3), tl.load(keys + run * 3 + 1), tl.load(keys + run * 3 + 2)
    slots += run * most_memory
    w1 = theta + run * (WIDTH * (IN + 2 * WIDTH + OUT + 2) + OUT)
    w2 = w1 + WIDTH * IN
    w2t = w2 + WIDTH * WIDTH
    w3t = w2t + WIDTH * WIDTH
    b1 = w3t + WIDTH * OUT
    b2 = b1 + WIDTH
    b3 = b2 + WIDTH
    rows += run * ROWS
    p = scratch + run * (ROWS * (2 * WIDTH + ROWS + 2))
    d = p + WIDTH * ROWS
    g = d + WIDTH * ROWS
    labels = g + ROWS * ROWS
    rates = labels + ROWS
    STEPS: tl.constexpr = PLACES  # steps whose first-layer outputs stay in registers
    unit, klass, pixel = tl.arange(0, WIDTH), tl.arange(0, OUT), tl.arange(0, DEPTH)
    row, tile, step = tl.arange(0, ROWS), tl.arange(0, TILE), tl.arange(0, STEPS)
    earlier = tl.arange(0, EARLIER)
    cube = unit[:, None, None] * WIDTH + tl.arange(0, WIDTH // PLACES)[None, :, None] * PLACES
    cube += tl.arange(0, PLACES)[None, None, :]
    tall = unit[:, None] * OUT + klass[None, :]

    example, batch, end = tl.full((), first, tl.int32), tl.full((), 0, tl.int32), tl.full((), last, tl.int32)
    end = tl.where(tl.load(failed + run) != 0, example, end)
    while example < end:
        # The block: whole batches, as many as fit; while the memory is short of examples, those of one example.
        held = tl.minimum(example, memory)
        size = tl.minimum(drawn, held)
        length = size + copies
        left = tl.where(held < drawn, batches_each, (end - example) * batches_each) - batch
        batches = tl.minimum(ROWS // length, left)
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
        for more in range(0, following - example):
            stored = example + more
            found = tl.where((slot == slot_of(keep_key, stored, memory, odds)) & (of > stored), stored, found)
        found = stream + tl.where(valid, tl.where(current, of, found), example)
        tl.store(rows + row, found)
        tl.store(labels + row, tl.load(ys + found).to(tl.float32))
        tl.store(rates + row, tl.where(current, current_rate, rate))
        tl.debug_barrier()
        for more in range(0, following - example):
            stored = example + more
            target = slot_of(keep_key, stored, memory, odds)
            if target >= 0:
                tl.store(slots + target, stored)

        # P = W X' + b and G = C * (X X' + 1).
        bias = tl.load(b1 + unit)
        for side in range(0, ROWS, TILE):
            if side < n:
                mine = tl.load(rows + side + tile).to(tl.int64) * IN
                of_batch = (side + tile) // length
                outputs = tl.zeros((WIDTH, TILE), tl.float32)
                for start in range(0, IN, DEPTH):
                    inside = start + pixel < IN
                    x = tl.load(xs + mine[None, :] + (start + pixel)[:, None], mask=inside[:, None], other=0)
                    spot = unit[:, None] * IN + (start + pixel)[None, :]
                    high, low = two_halves(tl.load(w1 + spot, mask=inside[None, :], other=0))
                    x = x.to(tl.float16)
                    outputs = tl.dot(high, x, outputs)
                    outputs = tl.dot(low, x * (1 / SMALL), outputs)
                tl.store(p + unit[:, None] * ROWS + (side + tile)[None, :], outputs * scale + bias[:, None])
                for top in range(0, ROWS, TILE):
                    other = tl.load(rows + top + tile).to(tl.int64) * IN
                    products = tl.zeros((TILE, TILE), tl.float32)
                    for start in range(0, IN, DEPTH):
                        inside = start + pixel < IN
                        u = tl.load(xs + other[:, None] + (start + pixel)[None, :], mask=inside[None, :], other=0)
                        x = tl.load(xs + mine[None, :] + (start + pixel)[:, None], mask=inside[:, None], other=0)
                        products = tl.dot(u.to(tl.float16), x.to(tl.float16), products)
                    products = products * (scale * scale) + 1
                    same = ((top + tile) // length)[:, None] == of_batch[None, :]
                    spot = (top + tile)[:, None] * ROWS + (side + tile)[None, :]
                    tl.store(g + spot, tl.where(same, products, beta * products))
        tl.debug_barrier()

        # The steps.
        a2, a2t, a3t = tl.load(w2 + cube), tl.load(w2t + cube), tl.load(w3t + tall)
        c2, c3 = tl.load(b2 + unit), tl.load(b3 + klass)
        for begin in range(0, n, STEPS):
            block = unit[:, None] * ROWS + (begin + step)[None, :]
            if begin > 0:
                z = tl.load(p + block)
                for before in range(0, begin, EARLIER):
                    past = before + earlier
                    then = past < begin
                    deltas = tl.load(d + unit[:, None] * ROWS + past[None, :], mask=then[None, :], other=0)
                    known = tl.load(g + past[:, None] * ROWS + (begin + step)[None, :], mask=then[:, None], other=0)
                    z -= tl.dot(deltas, known, input_precision="tf32x3")
                tl.store(p + block, z)
                tl.debug_barrier()
            z = tl.load(p + block)  # of the steps to come; d of those that were taken
            for i in range(0, tl.minimum(STEPS, n - begin)):
                label, alpha = tl.load(labels + begin + i), tl.load(rates + begin + i)
                similar = tl.load(g + (begin + i) * ROWS + begin + step, mask=step > i, other=0)
                h1 = tl.maximum(tl.sum(tl.where(step[None, :] == i, z, 0.0), axis=1), 0.0)
                below = tl.reshape(h1, (WIDTH // PLACES, PLACES))[None, :, :]
                h2 = tl.maximum(c2 + tl.sum(tl.sum(a2 * below, axis=1), axis=1), 0.0)
                scores = tl.where(klass < CLASSES, c3 + tl.sum(a3t * h2[:, None], axis=0), float("-inf"))
                shares = tl.exp(scores - tl.max(scores, axis=0))
                d3 = alpha * (shares / tl.sum(shares, axis=0) - tl.where(klass == label, 1.0, 0.0))
                d2 = tl.where(h2 > 0, tl.sum(a3t * d3[None, :], axis=1), 0.0)
                above = tl.reshape(d2, (WIDTH // PLACES, PLACES))[None, :, :]
                a2 -= d2[:, None, None] * below
                d1 = tl.where(h1 > 0, tl.sum(tl.sum(a2t * above, axis=1), axis=1), 0.0)
                z = tl.where(step[None, :] == i, d1[:, None], z - d1[:, None] * similar[None, :])
                a2t -= h1[:, None, None] * above
                a3t -= h2[:, None] * d3[None, :]
                c2 -= d2
                c3 -= d3
                if (begin + i + 1) % length == 0:
                    a2, a2t = reptile(w2 + cube, a2, beta), reptile(w2t + cube, a2t, beta)
                    a3t, c2, c3 = reptile(w3t + tall, a3t, beta), reptile(b2 + unit, c2, beta), reptile(b3 + klass, c3, beta)
                    tl.debug_barrier()  # several threads may hold the same number: all have read before one writes
                    tl.store(w2 + cube, a2)
                    tl.store(w2t + cube, a2t)
                    tl.store(w3t + tall, a3t)
                    tl.store(b2 + unit, c2)
                    tl.store(b3 + klass, c3)
            tl.store(d + block, z)
            tl.debug_barrier()

        # W <- W - beta D X.
        for top in range(0, ROWS, TILE):
            if top < n:
                mine = tl.load(rows + top + tile).to(tl.int64) * IN
                taken = (top + tile < n)[None, :]
                delta = tl.load(d + unit[:, None] * ROWS + (top + tile)[None, :], mask=taken, other=0)
                bias -= beta * tl.sum(delta, axis=1)
                high, low = two_halves(delta)
                for start in range(0, IN, DEPTH):
                    inside = start + pixel < IN
                    spot = w1 + unit[:, None] * IN + (start + pixel)[None, :]
                    old = tl.load(spot, mask=inside[None, :])
                    x = tl.load(xs + mine[:, None] + (start + pixel)[None, :], mask=inside[None, :], other=0)
                    x = x.to(tl.float16)
                    change = tl.dot(high, x)
                    change = tl.dot(low, x * (1 / SMALL), change)
                    tl.store(spot, old - (beta * scale) * change, mask=inside[None, :])
        tl.store(b1 + unit, bias)
        tl.debug_barrier()
        check = tl.sum(bias, axis=0) + tl.sum(c3, axis=0)
        if check - check != 0:
            tl.store(failed + run, example + 1)
            end = tl.full((), 0, tl.int32)
        batch = (batch + batches) % batches_each
        example = following
