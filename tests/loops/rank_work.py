"""What one of several ranks does in the tests: python rank_work.py WORK FOLDER RANK RANKS; prints one line of JSON."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

import metareplay as mr
from metareplay.loops import agree, rank_reservoir


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def rows(step: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.rand(6, 4, generator=generator, dtype=torch.float64), torch.rand(6, 2, generator=generator).double()


def uniform() -> Any:
    """Count how often each row of a short stream is held, and replayed, over many seeds."""
    held, replayed = [0] * 12, [0] * 12
    for seed in range(400):
        memory = mr.Reservoir(4)
        mer = mr.PeriodicMER(nn.Linear(1, 1), memory=memory, share=0.5, seed=seed)
        for start in range(0, 12, 3):
            mer.mix(torch.arange(start, start + 3))
        for row in memory.held()["0"].tolist():
            held[row] += 1
        for row in mer.mix(torch.arange(12, 14))[2:].tolist():
            replayed[row] += 1
    return {"held": held, "replayed": replayed}


def uneven(folder: Path, rank: int) -> Any:
    """Rank 0 has ten batches, rank 1 has four; then each closes its part and ends."""
    model, memory = network(), rank_reservoir(folder / "replay", capacity=20)
    mer = mr.PeriodicMER(model, memory=memory, share=0.25, every=2, rate=0.5)
    for step in range(4 if rank else 10):
        x, _ = mer.mix(rows(step, rank))
        assert len(x) == (6 if step == 0 else 8)
        mer.step()
    memory.close()
    return {"steps": mer.steps, "held": len(memory), "capacity": memory.capacity}


def killed(rank: int) -> Any:
    """Rank 1 dies between two checkpoints."""
    mer = mr.PeriodicMER(network(), memory=None, every=2, rate=0.5)
    mer.step()
    agree(mer.steps)
    if rank == 1:
        os._exit(1)
    mer.step()
    try:
        agree(mer.steps)
    except mr.MetareplayError as error:
        return {"message": str(error)}
    return {}


def apart(rank: int) -> Any:
    """The ranks come with different numbers of steps."""
    try:
        agree(3 + rank)
    except mr.MetareplayError as error:
        return {"message": str(error)}
    return {}


def sharded(folder: Path, rank: int) -> Any:
    """Train a model whose weights are sharded by FSDP2; save a checkpoint in the middle, and go on."""
    from torch.distributed.checkpoint.state_dict_saver import save
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = network()
    fully_shard(model, mesh=init_device_mesh("cpu", (distributed.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    mer = mr.PeriodicMER(model, memory=None, every=3, rate=0.3)
    for step in range(8):
        x, y = mer.mix(rows(step, rank))
        functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        mer.step()
        if step == 3:
            save({"mer": mer.state_dict()["before"]}, checkpoint_id=folder / "checkpoint")
    parameters: list[Any] = list(model.parameters())
    whole = [parameter.full_tensor().tolist() for parameter in parameters]
    shapes = {name: list(value.to_local().shape) for name, value in mer.state_dict()["before"].items()}
    return {"weights": whole, "shards": shapes}


def resharded(folder: Path) -> Any:
    """Load the copies that were saved by another number of ranks."""
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = network()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    fully_shard(model, mesh=init_device_mesh("cpu", (distributed.get_world_size(),)))
    mer = mr.PeriodicMER(model, memory=None, every=3, rate=0.3)
    state = mer.state_dict()
    load({"mer": state["before"]}, checkpoint_id=folder / "checkpoint")
    mer.load_state_dict(state | {"rank": [0, 2]})
    return {name: value.full_tensor().tolist() for name, value in mer.state_dict()["before"].items()}


def together(folder: Path, rank: int) -> Any:
    """Do all that needs no shards; one of the ranks does not live to the end."""
    found = {"uniform": uniform(), "uneven": uneven(folder, rank), "apart": apart(rank)}
    (folder / f"before-{rank}").write_text(json.dumps(found))
    return killed(rank)


WORK: dict[str, Callable[[Path, int], Any]] = {
    "together": together,
    "sharded": sharded,
    "resharded": lambda folder, _: resharded(folder),
}

if __name__ == "__main__":
    name, place, number, ranks = sys.argv[1:]
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{place}/meeting-{name}", rank=int(number), world_size=int(ranks)
    )
    sys.stdout.write(json.dumps(WORK[name](Path(place), int(number))) + "\n")
    sys.stdout.flush()
    os._exit(0)  # without waiting for other ranks, which may be gone
