"""The paper's whole grid for Algorithm 1 (Appendix J), run as one fleet on a GPU, and its results.

python -m metareplay.paper.grid --memory 500 --seeds 5 --out results
"""

import argparse
import json
import statistics
import time
from itertools import product
from pathlib import Path
from typing import Any, Final

import torch

from metareplay._core.files import write_text
from metareplay.errors import MetareplayError, PicturesMissingError
from metareplay.experiments.experiment import Experiment
from metareplay.experiments.record import now, versions
from metareplay.paper.best import best
from metareplay.paper.plots import plot_grid
from metareplay.runners import FleetRunner, without_failures

GRID: Final[dict[str, tuple[float, ...]]] = {
    "lr": (0.01, 0.03, 0.1),
    "beta": (0.01, 0.03, 0.1, 0.3, 1.0),
    "k": (6, 11, 26, 51, 101),
    "s": (1, 2, 5, 10),
}


def experiments(stream: str, memory: int, seeds: int, **sizes: Any) -> list[Experiment]:
    """Return an experiment for every setting of the grid and every seed.

    Args:
        stream: The stream's name, such as "rotations".
        memory: How many examples are held.
        seeds: How many seeds to run per setting.
        sizes: Other fields of the experiments, such as tasks and examples.
    """
    settings = [dict(zip(GRID, values, strict=True)) for values in product(*GRID.values())]
    return [
        Experiment(learner="mer", stream=stream, memory=memory, options=options, seed=seed, **sizes)
        for options in settings
        for seed in range(seeds)
    ]


def document(stream: str, memory: int, seeds: int, folder: Path, device: str = "cuda", **sizes: Any) -> dict[str, Any]:
    """Run the grid; return the retained accuracy of each seed of each setting, starting with the best setting.

    Args:
        stream: The stream's name, such as "rotations".
        memory: How many examples are held.
        seeds: How many seeds to run per setting.
        folder: Where records and checkpoints are.
        device: The GPU.
        sizes: Other fields of the experiments, such as tasks and examples.

    Returns:
        Plain JSON values; None for a run that did not stay finite.
    """
    wanted, start = experiments(stream, memory, seeds, **sizes), time.perf_counter()
    records = without_failures(FleetRunner(device).run(wanted, folder))
    seconds = time.perf_counter() - start
    rows = []
    for first in range(0, len(wanted), seeds):
        found = [None if record is None else round(record.ra, 3) for record in records[first : first + seeds]]
        known = [value for value in found if value is not None]
        mean = statistics.fmean(known) if len(known) == seeds else None
        rows.append(wanted[first].options | {"ra": mean, "seeds": found})
    rows.sort(key=lambda row: -(row["ra"] or 0))
    total = wanted[0].build()[1].total or 0
    steps = sum(int(one.options["k"] * one.options["s"]) for one in wanted) * total
    about = torch.cuda.get_device_name() if device == "cuda" else device
    return {
        "stream": stream,
        "memory": memory,
        "runs": len(wanted),
        "steps": steps,
        "seconds": round(seconds, 1),
        "device": about,
        "paper": best("mer", stream, memory),
        "settings": rows,
        "versions": versions(),
        "date": now(),
    }


def main() -> None:
    """Run the grid from the command line and write its results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--stream", default="rotations")
    parser.add_argument("--memory", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--records", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path, default=Path("results"))
    given = parser.parse_args()
    if given.seeds < 1:
        parser.exit(2, f"--seeds {given.seeds}: run at least one\n")
    try:
        found = document(given.stream, given.memory, given.seeds, given.records)
    except MetareplayError as error:
        parser.exit(2, f"{error}\n")
    name = f"grid-{given.stream}-{given.memory}"
    write_text(given.out / f"{name}.json", json.dumps(found, indent=1))
    try:
        plot_grid(found, given.out / f"{name}.png")
    except PicturesMissingError as error:
        parser.exit(0, f"no picture: {error}\n")


if __name__ == "__main__":
    main()
