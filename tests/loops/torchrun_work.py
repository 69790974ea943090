"""What torchrun starts on each rank in the tests: torchrun_work.py first|again FOLDER; writes WORK-RANK.json there."""

import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import several_ranks
import torch
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import metareplay as mr


def uneven(folder: Path, rank: int) -> Any:
    """Rank 1 has six batches and rank 0 has ten; torch's `join` lets rank 0 go on alone."""
    torch.manual_seed(0)
    plain = nn.Linear(4, 2)
    model = DistributedDataParallel(plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with mr.loops.rank_reservoir(folder / "uneven", capacity=20) as memory, model.join():
        mer = mr.PeriodicMER(model, memory=memory, share=0.25, every=4, rate=0.5)
        for step in range(6 if rank else 10):
            x, y = mer.mix(several_ranks.batch(step, rank))
            functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            mer.step()
    try:
        mr.loops.agree(mer.steps)
    except mr.MetareplayError as error:
        return {"weights": several_ranks.digest(plain), "message": str(error)}
    return {}


def sharded(folder: Path, rank: int, stop: int, checkpoint: Path) -> Any:
    """Train a model that FSDP2 has sharded, with a memory; go on from a checkpoint, or write one in the end."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    fully_shard(model, mesh=init_device_mesh("cpu", (distributed.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with mr.loops.rank_reservoir(folder, capacity=20) as memory:
        mer = mr.PeriodicMER(model, memory=memory, share=0.25, every=3, rate=0.3, copy_on="host")
        if checkpoint.exists():
            state = torch.load(checkpoint, weights_only=True)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            mer.load_state_dict(state["mer"])
        while mer.steps < stop:
            x, y = mer.mix(several_ranks.batch(mer.steps, rank))
            functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            mer.step()
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "mer": mer.state_dict()}, checkpoint
        )
    parameters: list[Any] = list(model.parameters())
    return [parameter.full_tensor().tolist() for parameter in parameters]


def die(*_: object) -> None:
    """End as a process does that was killed."""
    os.kill(os.getpid(), signal.SIGKILL)


def first(folder: Path, rank: int) -> Any:
    """Train without a break and with one, unevenly and with shards; then rank 1 is killed while it saves."""
    yield "unbroken", several_ranks.digest(several_ranks.train(folder / "unbroken", rank))
    yield "stopped", several_ranks.digest(several_ranks.train(folder / "stopped", rank, stop=27))
    yield "uneven", uneven(folder, rank)
    yield "shards", sharded(folder / "shards", rank, 11, folder / f"unbroken-{rank}.pt")
    sharded(folder / "stopped-shards", rank, 5, folder / f"stopped-{rank}.pt")
    several_ranks.train(folder / "killed", rank, stop=27)
    if rank == 1:
        torch.save = die  # type: ignore[assignment]
    several_ranks.train(folder / "killed", rank)


def again(folder: Path, rank: int) -> Any:
    """Go on with what was stopped and with what was killed."""
    yield "stopped", several_ranks.digest(several_ranks.train(folder / "stopped", rank))
    yield "killed", several_ranks.digest(several_ranks.train(folder / "killed", rank))
    yield "shards", sharded(folder / "stopped-shards", rank, 11, folder / f"stopped-{rank}.pt")


if __name__ == "__main__":
    work, place = sys.argv[1], Path(sys.argv[2])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # whoever outlives another rank says so before torchrun ends it
    distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
    number, found = distributed.get_rank(), {}
    for name, value in {"first": first, "again": again}[work](place, number):
        found[name] = value
        (place / f"{work}-{number}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()
