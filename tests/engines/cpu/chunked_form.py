import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Layers = list[tuple[Array, Array]]  # (W, b) of each layer; W has one row per output


def learn(layers: Layers, xs: Array, ys: NDArray[np.int64], size: int, rate: float, beta: float) -> Layers:
    """Learn batches of `size` rows of xs: one SGD step per row, one Reptile line per batch.

    The net has two hidden layers, the loss is the cross-entropy. The first layer is written once, at the end.
    """
    (w1, b1), (w2, b2), (w3, b3) = layers
    before = layers[1:]
    batch = np.arange(len(xs)) // size
    p = xs @ w1.T + b1  # row i: what z_i would be if the first layer never changed
    g = xs @ xs.T + 1  # entry i, j: how much of d_j the step on x_j takes from z_i; the 1 is for the bias
    g *= np.where(batch[:, None] == batch, 1, beta)  # of an earlier batch's step only the share beta is left
    d1 = np.zeros_like(p)  # row j: d_j, the gradient of the loss at z_j
    for i in range(len(xs)):
        z1 = p[i] - rate * g[i, :i] @ d1[:i]  # the only line that is not plain SGD
        h1 = np.maximum(z1, 0)
        z2 = w2 @ h1 + b2
        h2 = np.maximum(z2, 0)
        z3 = w3 @ h2 + b3
        d3 = np.exp(z3 - z3.max())
        d3 /= d3.sum()  # softmax
        d3[ys[i]] -= 1
        d2 = w3.T @ d3 * (z2 > 0)
        d1[i] = w2.T @ d2 * (z1 > 0)
        w3, b3 = w3 - rate * np.outer(d3, h2), b3 - rate * d3
        w2, b2 = w2 - rate * np.outer(d2, h1), b2 - rate * d2
        if (i + 1) % size == 0:  # the upper layers' Reptile line
            after = [(w2, b2), (w3, b3)]
            before = [(u + beta * (w - u), c + beta * (b - c)) for (u, c), (w, b) in zip(before, after, strict=True)]
            (w2, b2), (w3, b3) = before
    return [(w1 - beta * rate * d1.T @ xs, b1 - beta * rate * d1.sum(0)), *before]
