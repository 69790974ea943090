"""Train one model on several processes.

The model is wrapped by DDP, each rank has its part of the memory, and PeriodicMER adds replay and the Reptile line.
After a stop, training goes on exactly from the newest checkpoint. On two processes, start it with
`torchrun --nproc-per-node 2 examples/several_ranks.py --folder run`.

Run it with: python examples/several_ranks.py
"""

import argparse
import hashlib
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import metareplay as mr

# %%
# The data changes in the middle of the training: another function of other inputs. A data loader of your own would give
# each rank its own rows, as `batch` does here.

STEPS = 40  # the data changes after half of them
SAVE_EVERY = 10  # steps between two checkpoints


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Return the new rows of one rank and their targets; this stands for your data loader."""
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(1000 * rank + step))
    return (x + 2, x[:, :2]) if step < STEPS // 2 else (x - 2, -x[:, 2:])


# %%
# Training is an ordinary loop. `mix` adds replayed rows to the new ones, and `step` counts towards the Reptile line.


def train(folder: Path, rank: int, stop: int = STEPS) -> nn.Module:
    """Train up to a step, from the newest checkpoint in a folder that all ranks see."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
    model = DistributedDataParallel(plain) if distributed.is_initialized() else plain
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with mr.loops.rank_reservoir(folder / "replay", capacity=200) as memory:
        mer = mr.PeriodicMER(model, memory=memory, share=0.25, every=8, rate=0.5, seed=0)
        load(folder, rank, model, optimizer, mer)
        while mer.steps < stop:
            x, y = mer.mix(batch(mer.steps, rank))
            functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            mer.step()
            if mer.steps % SAVE_EVERY == 0:
                save(folder, rank, model, optimizer, mer)
    return plain


# %%
# Each rank saves its own part of a checkpoint. The checkpoint counts when the last rank has written.


def save(folder: Path, rank: int, model: nn.Module, optimizer: torch.optim.Optimizer, mer: mr.PeriodicMER) -> None:
    """Save a checkpoint of all ranks; it counts when the last of them has written its part."""
    place = folder / f"step-{mer.steps}"
    place.mkdir(parents=True, exist_ok=True)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "mer": mer.state_dict()}
    torch.save(state, place / f"rank-{rank}.pt")
    mr.loops.agree(mer.steps)  # waits for the others, and says so if one of them has died
    if rank == 0:
        (folder / "newest.new").write_text(place.name)
        (folder / "newest.new").replace(folder / "newest")


def load(folder: Path, rank: int, model: nn.Module, optimizer: torch.optim.Optimizer, mer: mr.PeriodicMER) -> None:
    """Go on from the newest checkpoint, if there is one."""
    if (folder / "newest").exists():
        place = folder / (folder / "newest").read_text()
        state: dict[str, Any] = torch.load(place / f"rank-{rank}.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        mer.load_state_dict(state["mer"])


# %%
# In the end, the hash of the weights shows that all ranks agree, and the errors that the old data is not forgotten.


def digest(model: nn.Module) -> str:
    """Return a hash of all weights."""
    values = [parameter.detach().numpy().tobytes() for parameter in model.parameters()]
    return hashlib.sha256(b"".join(values)).hexdigest()[:12]


def error(model: nn.Module, step: int) -> float:
    """Return the mean squared error on rows like those of a step, which nobody has learned."""
    x, y = batch(step, rank=10_000)
    return functional.mse_loss(model(x), y).item()


def main() -> None:
    """Start the process group if torchrun has started this, train, and tell what came out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, help="where checkpoints and memory are; a temporary folder by default")
    parser.add_argument("--stop", type=int, default=STEPS, help="stop after so many steps; start again to go on")
    options = parser.parse_args()
    if distributed.is_torchelastic_launched():
        distributed.init_process_group("gloo")  # "nccl" on GPUs
    rank = distributed.get_rank() if distributed.is_initialized() else 0
    with tempfile.TemporaryDirectory() as temporary:
        model = train(options.folder or Path(temporary), rank, options.stop)
    print(f"rank {rank}: weights {digest(model)}, error {error(model, 0):.3f} on the old data, ", end="")
    print(f"{error(model, STEPS):.3f} on the new data")
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
