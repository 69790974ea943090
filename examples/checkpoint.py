"""Save a learner in the middle of a stream, load it and continue: the weights are the same as without the break.

Run it with: python examples/checkpoint.py
"""

import tempfile
from pathlib import Path

import torch
from torch import Tensor

import metareplay as mr


def stream() -> tuple[Tensor, Tensor]:
    """Return 400 points and their classes."""
    xs = torch.randn(400, 5, generator=torch.Generator().manual_seed(0))
    return xs, (xs.sum(1) > 0).long()


def learner() -> mr.MER:
    """Make a new learner; the same call gives the same first weights and draws."""
    return mr.MER(mr.networks.mlp(5, (16,), 2, seed=0), memory=mr.Reservoir(50), lr=0.1, beta=0.3, s=2, k=5, seed=0)


def main() -> None:
    """Learn the stream in one go, and again with a break in the middle."""
    xs, ys = stream()
    unbroken = learner()
    unbroken.observe_many(xs, ys)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "half.ckpt"
        first_half = learner()
        first_half.observe_many(xs[:200], ys[:200])
        first_half.save(path)  # weights, memory, counts and draws
        print(f"saved after {first_half.seen} examples: {path.stat().st_size} bytes")
        resumed = mr.load(path, mr.networks.mlp(5, (16,), 2))  # the model's own weights are replaced

    resumed.observe_many(xs[200:], ys[200:])
    pairs = zip(unbroken.model.parameters(), resumed.model.parameters(), strict=True)
    same = all(torch.equal(one, other) for one, other in pairs)
    print(f"resumed and continued to {resumed.seen} examples")
    print(f"weights identical to an unbroken run: {same}")


if __name__ == "__main__":
    main()
