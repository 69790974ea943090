"""Save a learner, load it and continue.

The weights are the same, bit for bit, as without the break: a checkpoint holds the model's weights, the memory, the
counts and the state of the random draws.

Run it with: python examples/checkpoint.py
"""

import tempfile
from pathlib import Path

import torch

import metareplay as mr

# %%
# The stream has 400 points of two classes. `new_learner` always gives the same first weights and draws.

xs = torch.randn(400, 5, generator=torch.Generator().manual_seed(0))
ys = (xs.sum(1) > 0).long()


def new_learner() -> mr.MER:
    """Make a learner that has not seen anything yet."""
    return mr.MER(mr.networks.mlp(5, (16,), 2, seed=0), memory=mr.Reservoir(50), lr=0.1, beta=0.3, s=2, k=5, seed=0)


# %%
# One learner sees the whole stream without a break.

unbroken = new_learner()
unbroken.observe_many(xs, ys)

# %%
# Another one is saved in the middle of the stream. `mr.load` needs a model of the same shape, whose own weights are
# replaced.

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "half.ckpt"
    first_half = new_learner()
    first_half.observe_many(xs[:200], ys[:200])
    first_half.save(path)
    print(f"saved after {first_half.seen} examples: {path.stat().st_size} bytes")
    resumed = mr.load(path, mr.networks.mlp(5, (16,), 2))

resumed.observe_many(xs[200:], ys[200:])
print(f"resumed and continued to {resumed.seen} examples")

# %%
# Both have the same weights.

pairs = zip(unbroken.model.parameters(), resumed.model.parameters(), strict=True)
print(f"weights identical to an unbroken run: {all(torch.equal(one, other) for one, other in pairs)}")
