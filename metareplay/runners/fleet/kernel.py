"""The fleet's GPU kernel: each program learns one run of an MLP with two hidden layers, draws and memory included.

It does batch-1 SGD in its exact chunked form, which docs/architecture.md derives ("The exact chunked form"). A program
takes its steps in blocks, each of which is a whole number of batches. With X the inputs of a block and W, b the first
layer before it, the first layer's outputs are

    z_i = W x_i + b - sum_{j<i} c_ij (x_i'x_j + 1) d_j,    c_ij = 1 in the same batch, beta in an earlier one,

where d_j is the rate times the loss gradient at z_j. So P = W X' + b and G = C * (X X' + 1) are matrix products before
the steps, the steps touch only the upper layers, and W <- W - beta D X is one matrix product after them.

Pixels are bytes, which float16 holds exactly. W and D are written as the sum of two float16 numbers, the second of them
scaled up by 2048, which keeps 22 of float32's 24 bits: the tensor cores then multiply exactly and add in float32.
Numbers beyond 65,504, the range of float16, count as not finite.

A step is a chain of small products, so what costs time is how often warps have to wait for one another. Each warp owns
some units, the same ones in every matrix, and sums over the units below stay inside a warp. For that, a row of the
second layer is seen as (width // places, places), and all matrices have `places` columns: this decides how Triton
distributes them over the threads. The second layer is kept twice: as it is for the forward pass, and transposed for the
backward pass.

`layout.py` names the parts of every tensor and says where they lie. Triton inlines all functions below, so structs and
calls cost nothing. Shapes are made of local constexprs because Triton 3.6 does not accept attributes there.
"""

from typing import NamedTuple

import triton.language as tl

from metareplay.engines.cuda.triton_jit import jit, jit_for_any
from metareplay.runners.fleet.layout import (
    Examples,
    Floats,
    Integers,
    Keys,
    Place,
    Scratch,
    Settings,
    State,
    Theta,
    Work,
)

GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)  # SplitMix64's increment, as in draws.py
BELOW_ONE = tl.constexpr(2.0**-53)  # turns 53 random bits into a number in [0, 1)
SMALL = tl.constexpr(2048.0)  # scale of the second float16 number: 2**11, the precision of the first
EARLIER = tl.constexpr(64)  # earlier steps whose effect on the first layer is added at a time
ANYWHERE = tl.constexpr(int(Place.ANYWHERE))


class Run(NamedTuple):
    """Hold what a program knows about its run: settings as numbers, everything else as pointers."""

    integers: Integers
    floats: Floats
    keys: Keys
    slots: tl.tensor
    weights: Theta[tl.tensor]
    rows: tl.tensor
    scratch: Scratch[tl.tensor]


class Block(NamedTuple):
    """Describe the steps that are taken together: whole batches, all of the same length."""

    example: tl.tensor  # the example of its first batch
    batch: tl.tensor  # which of that example's batches comes first
    batches: tl.tensor  # how many batches it has
    drawn: tl.tensor  # rows from memory in each batch
    length: tl.tensor  # steps in each batch
    steps: tl.tensor  # steps in all
    following: tl.tensor  # the example whose batches come after the block


class Upper(NamedTuple):
    """Hold the layers above the first, or pointers to them; w2 and w2t as (width, width // places, places)."""

    w2: tl.tensor
    w2t: tl.tensor
    w3t: tl.tensor
    b2: tl.tensor
    b3: tl.tensor


@jit_for_any("first", "last", "most_memory")
def learn(
    examples: Examples,
    settings: Settings,
    state: State,
    work: Work,
    first: tl.tensor,
    last: tl.tensor,
    most_memory: tl.tensor,
    scale: tl.tensor,
    layout: tl.constexpr,
) -> None:
    """Learn the examples first .. last - 1 of one run's stream.

    Args:
        examples: The examples of all streams.
        settings: The settings of all runs.
        state: Memories and weights of all runs, which are updated.
        work: Memory to work in.
        first: The first example to learn.
        last: The example after the last one to learn.
        most_memory: Slots of the largest memory.
        scale: What pixels are multiplied by.
        layout: A `Layout`.
    """
    number = tl.load(settings.order + tl.program_id(0)).to(tl.int64)
    run = find_run(number, settings, state, work, most_memory, layout)
    example, batch, end = tl.full((), first, tl.int32), tl.full((), 0, tl.int32), tl.full((), last, tl.int32)
    end = tl.where(tl.load(state.failed + number) != 0, example, end)
    while example < end:
        block = choose_block(run, example, batch, end, layout)
        draw_rows(run, block, examples, layout)
        tl.debug_barrier()
        store_examples(run, block)
        bias = tl.load(run.weights.b1 + tl.arange(0, layout.width))
        multiply_before_steps(run, block, bias, examples.xs, scale, layout)
        tl.debug_barrier()
        top_bias = take_steps(run, block, layout)
        bias = write_first_layer(run, block, bias, examples.xs, scale, layout)
        tl.debug_barrier()
        check = tl.sum(bias, axis=0) + tl.sum(top_bias, axis=0)
        if check - check != 0:  # not finite
            tl.store(state.failed + number, example + 1)
            end = tl.full((), 0, tl.int32)
        batch = (batch + block.batches) % run.integers.batches
        example = block.following


# What a program reads at the start.


@jit
def find_run(
    number: tl.tensor, settings: Settings, state: State, work: Work, most_memory: tl.tensor, layout: tl.constexpr
) -> Run:
    """Load a run's settings and find its part of every tensor."""
    return Run(
        integers=load_integers(settings.integers + number * len(layout.integers), layout),
        floats=load_floats(settings.floats + number * len(layout.floats), layout),
        keys=load_keys(settings.keys + number * len(layout.keys), layout),
        slots=state.slots + number * most_memory,
        weights=find_weights(state.theta + number * layout.theta_size, layout),
        rows=work.rows + number * layout.span,
        scratch=find_scratch(work.scratch + number * layout.scratch_size, layout),
    )


@jit
def load_integers(row: tl.tensor, layout: tl.constexpr) -> Integers:
    """Load the whole numbers among a run's settings."""
    return Integers(
        memory=tl.load(row + layout.integers.memory),
        drawn=tl.load(row + layout.integers.drawn),
        copies=tl.load(row + layout.integers.copies),
        batches=tl.load(row + layout.integers.batches),
        place=tl.load(row + layout.integers.place),
        odds=tl.load(row + layout.integers.odds),
        limit=tl.load(row + layout.integers.limit),
        stream=tl.load(row + layout.integers.stream),
    )


@jit
def load_floats(row: tl.tensor, layout: tl.constexpr) -> Floats:
    """Load the real numbers among a run's settings."""
    return Floats(
        rate=tl.load(row + layout.floats.rate),
        current_rate=tl.load(row + layout.floats.current_rate),
        beta=tl.load(row + layout.floats.beta),
    )


@jit
def load_keys(row: tl.tensor, layout: tl.constexpr) -> Keys:
    """Load the keys of a run's draws."""
    return Keys(
        keep=tl.load(row + layout.keys.keep),
        replay=tl.load(row + layout.keys.replay),
        place=tl.load(row + layout.keys.place),
    )


@jit
def find_weights(theta: tl.tensor, layout: tl.constexpr) -> Theta[tl.tensor]:
    """Point to each part of a run's weights."""
    return Theta(
        w1=theta + layout.theta.w1,
        w2=theta + layout.theta.w2,
        w2t=theta + layout.theta.w2t,
        w3t=theta + layout.theta.w3t,
        b1=theta + layout.theta.b1,
        b2=theta + layout.theta.b2,
        b3=theta + layout.theta.b3,
    )


@jit
def find_scratch(scratch: tl.tensor, layout: tl.constexpr) -> Scratch[tl.tensor]:
    """Point to each part of a run's scratch memory."""
    return Scratch(
        p=scratch + layout.scratch.p,
        d=scratch + layout.scratch.d,
        g=scratch + layout.scratch.g,
        labels=scratch + layout.scratch.labels,
        rates=scratch + layout.scratch.rates,
    )


# The block: which steps, and on which rows.


@jit
def choose_block(run: Run, example: tl.tensor, batch: tl.tensor, end: tl.tensor, layout: tl.constexpr) -> Block:
    """Take as many whole batches as fit; while the memory is short of examples, only batches of one example.

    No block crosses a multiple of `window`, so a program that is launched for one window after the other does the same
    sums as one that is launched once.
    """
    batches_each = run.integers.batches
    held = tl.minimum(example, run.integers.memory)
    drawn = tl.minimum(run.integers.drawn, held)
    length = drawn + run.integers.copies
    until = tl.minimum(end, (example // layout.window + 1) * layout.window)
    left = tl.where(held < run.integers.drawn, batches_each, (until - example) * batches_each) - batch
    batches = tl.minimum(run.integers.limit // length, left)
    return Block(
        example=example,
        batch=batch,
        batches=batches,
        drawn=drawn,
        length=length,
        steps=batches * length,
        following=(batch + batches) // batches_each + example,
    )


@jit
def draw_rows(run: Run, block: Block, examples: Examples, layout: tl.constexpr) -> None:
    """Write down the row, label and rate of each step of the block."""
    copies, batches_each = run.integers.copies, run.integers.batches
    step = tl.arange(0, layout.span)
    number = block.batch + step // block.length  # of the batch, counted from the first one of `block.example`
    at = step % block.length  # the place in the batch
    of = block.example + number // batches_each  # the example that the batch is for
    start = tl.where(
        run.integers.place == ANYWHERE,
        (fraction(run.keys.place, of, of * 0 + 1) * (block.drawn + 1)).to(tl.int32),
        run.integers.place * block.drawn,  # FIRST is 0 and LAST is 1
    )
    current = (at >= start) & (at < start + copies)
    # Draws are counted from 1 over all batches of an example; the copies of the current example need none.
    draw = (number % batches_each) * block.drawn + at - tl.where(at >= start + copies, copies, 0) + 1
    slot = (fraction(run.keys.replay, of, draw) * tl.minimum(of, run.integers.memory)).to(tl.int32)
    valid = step < block.steps
    found = tl.load(run.slots + slot, mask=valid & ~current, other=0)
    for more in range(block.following - block.example):  # examples that the slot receives within this block
        stored = block.example + more
        found = tl.where((slot == slot_of(run, stored)) & (of > stored), stored, found)
    row = run.integers.stream + tl.where(valid, tl.where(current, of, found), block.example)
    tl.store(run.rows + step, row)
    tl.store(run.scratch.labels + step, tl.load(examples.ys + row).to(tl.float32))
    tl.store(run.scratch.rates + step, tl.where(current, run.floats.current_rate, run.floats.rate))


@jit
def store_examples(run: Run, block: Block) -> None:
    """Store those examples of the block that the reservoir keeps."""
    for more in range(block.following - block.example):
        stored = block.example + more
        slot = slot_of(run, stored)
        if slot >= 0:
            tl.store(run.slots + slot, stored)


@jit
def slot_of(run: Run, example: tl.tensor) -> tl.tensor:
    """Return the slot in which the reservoir stores an example (Algorithm 3), or -1 if it does not."""
    memory = run.integers.memory
    drawn = (fraction(run.keys.keep, example, example * 0 + 1) * (example + run.integers.odds)).to(tl.int32)
    return tl.where(example < memory, example, tl.where(drawn < memory, drawn, -1))


@jit
def fraction(key: tl.tensor, example: tl.tensor, number: tl.tensor) -> tl.tensor:
    """Draw `number` (counted from 1) for an example, as `Draws.fractions` does."""
    word = mix(mix(key + example.to(tl.uint64) * GOLDEN) + number.to(tl.uint64) * GOLDEN)
    return (word >> 11).to(tl.float64) * BELOW_ONE


@jit
def mix(words: tl.tensor) -> tl.tensor:
    """Apply SplitMix64's output function, as in draws.py."""
    words = (words ^ (words >> 30)) * 0xBF58476D1CE4E5B9
    words = (words ^ (words >> 27)) * 0x94D049BB133111EB
    return words ^ (words >> 31)


# Before the steps: P and G.


@jit
def multiply_before_steps(
    run: Run, block: Block, bias: tl.tensor, xs: tl.tensor, scale: tl.tensor, layout: tl.constexpr
) -> None:
    """Compute P = W X' + b and, above its diagonal, G = C * (X X' + 1)."""
    unit, tile = tl.arange(0, layout.width), tl.arange(0, layout.edge)
    for side in range(0, layout.span, layout.edge):
        if side < block.steps:
            mine = pixels_of(run, side, layout)
            outputs, products = multiply_tile(run, mine, xs, layout)
            spot = run.scratch.p + unit[:, None] * layout.span + (side + tile)[None, :]
            tl.store(spot, outputs * scale + bias[:, None])
            keep_products(run, block, products, side, side, scale, layout)
            for top in range(0, side, layout.edge):
                products = multiply_inputs(pixels_of(run, top, layout), mine, xs, layout)
                keep_products(run, block, products, top, side, scale, layout)


@jit
def pixels_of(run: Run, start: tl.tensor, layout: tl.constexpr) -> tl.tensor:
    """Return where the pixels of one tile's inputs begin, from step `start` on."""
    return tl.load(run.rows + start + tl.arange(0, layout.edge)).to(tl.int64) * layout.inputs


@jit
def multiply_tile(run: Run, mine: tl.tensor, xs: tl.tensor, layout: tl.constexpr) -> tl.tensor:
    """Return W X' and X X' for one tile of inputs, both in one pass over the pixels."""
    width: tl.constexpr = layout.width
    edge: tl.constexpr = layout.edge
    unit, pixel = tl.arange(0, width), tl.arange(0, layout.depth)
    outputs, products = tl.zeros((width, edge), tl.float32), tl.zeros((edge, edge), tl.float32)
    for start in range(0, layout.inputs, layout.depth):
        inside = start + pixel < layout.inputs
        x = tl.load(xs + mine[None, :] + (start + pixel)[:, None], mask=inside[:, None], other=0)
        spot = unit[:, None] * layout.inputs + (start + pixel)[None, :]
        high, low = two_halves(tl.load(run.weights.w1 + spot, mask=inside[None, :], other=0))
        x = x.to(tl.float16)
        outputs = tl.dot(high, x, outputs)
        outputs = tl.dot(low, x * (1 / SMALL), outputs)
        products = tl.dot(tl.trans(x), x, products)
    return outputs, products


@jit
def multiply_inputs(other: tl.tensor, mine: tl.tensor, xs: tl.tensor, layout: tl.constexpr) -> tl.tensor:
    """Return X X' for two different tiles of inputs."""
    edge: tl.constexpr = layout.edge
    pixel = tl.arange(0, layout.depth)
    products = tl.zeros((edge, edge), tl.float32)
    for start in range(0, layout.inputs, layout.depth):
        inside = start + pixel < layout.inputs
        u = tl.load(xs + other[:, None] + (start + pixel)[None, :], mask=inside[None, :], other=0)
        x = tl.load(xs + mine[None, :] + (start + pixel)[:, None], mask=inside[:, None], other=0)
        products = tl.dot(u.to(tl.float16), x.to(tl.float16), products)
    return products


@jit
def keep_products(
    run: Run,
    block: Block,
    products: tl.tensor,
    top: tl.tensor,
    side: tl.tensor,
    scale: tl.tensor,
    layout: tl.constexpr,
) -> None:
    """Store a tile of G = C * (X X' + 1)."""
    above, beside = top + tl.arange(0, layout.edge), side + tl.arange(0, layout.edge)
    products = products * (scale * scale) + 1
    same = (above // block.length)[:, None] == (beside // block.length)[None, :]
    spot = run.scratch.g + above[:, None] * layout.span + beside[None, :]
    tl.store(spot, tl.where(same, products, run.floats.beta * products))


@jit
def two_halves(values: tl.tensor) -> tl.tensor:
    """Split v into high + low / SMALL, both float16."""
    high = values.to(tl.float16)
    return high, ((values - high.to(tl.float32)) * SMALL).to(tl.float16)


# The steps.


@jit
def take_steps(run: Run, block: Block, layout: tl.constexpr) -> tl.tensor:
    """Take the steps of a block, which change the upper layers; write down D and return b3.

    The first layer's outputs of `places` steps are in registers at a time.
    """
    upper = load_upper(run, layout)
    unit, step = tl.arange(0, layout.width), tl.arange(0, layout.places)
    for begin in range(0, block.steps, layout.places):
        spot = unit[:, None] * layout.span + (begin + step)[None, :]
        if begin > 0:
            add_earlier_steps(run, spot, begin, layout)
        z = tl.load(run.scratch.p + spot)  # z of the steps to come, d of those that were taken
        next_label, next_rate = tl.load(run.scratch.labels + begin), tl.load(run.scratch.rates + begin)
        next_similar = tl.load(run.scratch.g + begin * layout.span + begin + step)
        for i in range(tl.minimum(layout.places, block.steps - begin)):
            label, rate, similar = next_label, next_rate, tl.where(step > i, next_similar, 0.0)
            following = tl.minimum(begin + i + 1, layout.span - 1)  # what the next step needs is requested now
            next_label, next_rate = tl.load(run.scratch.labels + following), tl.load(run.scratch.rates + following)
            next_similar = tl.load(run.scratch.g + following * layout.span + begin + step)
            upper, z = take_step(upper, z, i, label, rate, similar, layout)
            if (begin + i + 1) % block.length == 0:
                upper = end_batch(run, upper, layout)
        tl.store(run.scratch.d + spot, z)
        tl.debug_barrier()
    return upper.b3


@jit
def add_earlier_steps(run: Run, spot: tl.tensor, begin: tl.tensor, layout: tl.constexpr) -> None:
    """Add to P, for the steps from `begin` on, what the steps before `begin` did: z -= D G."""
    unit, step, earlier = tl.arange(0, layout.width), tl.arange(0, layout.places), tl.arange(0, EARLIER)
    z = tl.load(run.scratch.p + spot)
    for before in range(0, begin, EARLIER):
        past = before + earlier
        then = past < begin
        deltas = tl.load(run.scratch.d + unit[:, None] * layout.span + past[None, :], mask=then[None, :], other=0)
        known = tl.load(
            run.scratch.g + past[:, None] * layout.span + (begin + step)[None, :], mask=then[:, None], other=0
        )
        z -= tl.dot(deltas, known, input_precision="tf32x3")
    tl.store(run.scratch.p + spot, z)
    tl.debug_barrier()


@jit
def take_step(
    upper: Upper,
    z: tl.tensor,
    i: tl.tensor,
    label: tl.tensor,
    rate: tl.tensor,
    similar: tl.tensor,
    layout: tl.constexpr,
) -> tl.tensor:
    """Take step i: forward, softmax, backward. In z, column i becomes d, and later columns move by this step."""
    width: tl.constexpr = layout.width
    places: tl.constexpr = layout.places
    klass, step = tl.arange(0, layout.out), tl.arange(0, places)
    w2, w2t, w3t, b2, b3 = upper.w2, upper.w2t, upper.w3t, upper.b2, upper.b3
    h1 = relu(tl.sum(tl.where(step[None, :] == i, z, 0.0), axis=1))
    below = tl.reshape(h1, (width // places, places))[None, :, :]
    h2 = relu(b2 + tl.sum(tl.sum(w2 * below, axis=1), axis=1))
    scores = tl.where(klass < layout.classes, b3 + tl.sum(w3t * h2[:, None], axis=0), float("-inf"))
    shares = tl.exp(scores - tl.max(scores, axis=0))
    d3 = rate * (shares / tl.sum(shares, axis=0) - tl.where(klass == label, 1.0, 0.0))
    d2 = tl.where(h2 > 0, tl.sum(w3t * d3[None, :], axis=1), 0.0)
    above = tl.reshape(d2, (width // places, places))[None, :, :]
    w2 -= d2[:, None, None] * below
    d1 = tl.where(h1 > 0, tl.sum(tl.sum(w2t * above, axis=1), axis=1), 0.0)
    z = tl.where(step[None, :] == i, d1[:, None], z - d1[:, None] * similar[None, :])
    w2t -= h1[:, None, None] * above
    w3t -= h2[:, None] * d3[None, :]
    return Upper(w2=w2, w2t=w2t, w3t=w3t, b2=b2 - d2, b3=b3 - d3), z


@jit
def end_batch(run: Run, upper: Upper, layout: tl.constexpr) -> Upper:
    """Move the upper layers back towards those before the batch, and store them as those before the next one."""
    at, beta = find_upper(run, layout), run.floats.beta
    upper = Upper(
        w2=reptile(at.w2, upper.w2, beta),
        w2t=reptile(at.w2t, upper.w2t, beta),
        w3t=reptile(at.w3t, upper.w3t, beta),
        b2=reptile(at.b2, upper.b2, beta),
        b3=reptile(at.b3, upper.b3, beta),
    )
    tl.debug_barrier()  # several threads may hold the same number: all have to read it before one writes it
    tl.store(at.w2, upper.w2)
    tl.store(at.w2t, upper.w2t)
    tl.store(at.w3t, upper.w3t)
    tl.store(at.b2, upper.b2)
    tl.store(at.b3, upper.b3)
    tl.debug_barrier()
    return upper


@jit
def find_upper(run: Run, layout: tl.constexpr) -> Upper:
    """Point to every number of the upper layers."""
    width: tl.constexpr = layout.width
    places: tl.constexpr = layout.places
    unit, klass = tl.arange(0, width), tl.arange(0, layout.out)
    cube = unit[:, None, None] * width + tl.arange(0, width // places)[None, :, None] * places
    cube += tl.arange(0, places)[None, None, :]
    return Upper(
        w2=run.weights.w2 + cube,
        w2t=run.weights.w2t + cube,
        w3t=run.weights.w3t + (unit[:, None] * layout.out + klass[None, :]),
        b2=run.weights.b2 + unit,
        b3=run.weights.b3 + klass,
    )


@jit
def load_upper(run: Run, layout: tl.constexpr) -> Upper:
    """Load the upper layers into registers."""
    at = find_upper(run, layout)
    return Upper(w2=tl.load(at.w2), w2t=tl.load(at.w2t), w3t=tl.load(at.w3t), b2=tl.load(at.b2), b3=tl.load(at.b3))


@jit
def reptile(place: tl.tensor, theta: tl.tensor, rate: tl.tensor) -> tl.tensor:
    """Return before + rate (theta - before), where `before` is what is in memory."""
    before = tl.load(place)
    return before + rate * (theta - before)


@jit
def relu(values: tl.tensor) -> tl.tensor:
    """Return max(v, 0); NaN stays NaN."""
    return tl.where(values < 0, 0.0, values)


# After the steps: the first layer.


@jit
def write_first_layer(
    run: Run, block: Block, bias: tl.tensor, xs: tl.tensor, scale: tl.tensor, layout: tl.constexpr
) -> tl.tensor:
    """Apply W <- W - beta D X and the same to b, which is returned; one tile of steps after the other."""
    unit, tile, pixel = tl.arange(0, layout.width), tl.arange(0, layout.edge), tl.arange(0, layout.depth)
    beta = run.floats.beta
    for top in range(0, layout.span, layout.edge):
        if top < block.steps:
            mine = pixels_of(run, top, layout)
            taken = (top + tile < block.steps)[None, :]
            spot = run.scratch.d + unit[:, None] * layout.span + (top + tile)[None, :]
            delta = tl.load(spot, mask=taken, other=0)
            bias -= beta * tl.sum(delta, axis=1)
            high, low = two_halves(delta)
            corner = run.weights.w1 + unit[:, None] * layout.inputs + pixel[None, :]
            ahead = tl.load(corner, mask=(pixel < layout.inputs)[None, :], other=0)
            for start in range(0, layout.inputs, layout.depth):
                inside = start + pixel < layout.inputs
                old = ahead  # the next weights are requested before these are used
                inside_ahead = (start + layout.depth + pixel < layout.inputs)[None, :]
                ahead = tl.load(corner + start + layout.depth, mask=inside_ahead, other=0)
                x = tl.load(xs + mine[:, None] + (start + pixel)[None, :], mask=inside[None, :], other=0)
                x = x.to(tl.float16)
                change = tl.dot(high, x)
                change = tl.dot(low, x * (1 / SMALL), change)
                tl.store(corner + start, old - (beta * scale) * change, mask=inside[None, :])
            tl.debug_barrier()
    tl.store(run.weights.b1 + unit, bias)
    return bias
