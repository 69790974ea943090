"""scripts/measure-pool finds in records what the documentation says, and in a folder how long workers waited."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import torch

import metareplay as mr

ROOT = Path(__file__).parent.parent


def measured(*options: str) -> str:
    command, environment = [sys.executable, "scripts/measure-pool", *options], os.environ | {"PYTHONPATH": str(ROOT)}
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_what_the_documentation_says_is_in_the_records() -> None:
    options = ["results/sweep-rotations-500.jsonl", "--jobs", "9", "--held-out", "0.1"]
    assert measured(*options) == "282 runs in 8.9 minutes: 9 workers were busy 97.5 % of the time\n"
    page = " ".join((ROOT / "docs" / "sweeps.md").read_text().split())
    assert f"scripts/measure-pool {' '.join(options)}" in page
    assert "busy 97.5 % of the time with the 282 runs that finished" in page


def test_in_a_folder_the_times_of_the_files_say_how_long_workers_waited(tmp_path: Path) -> None:
    """Two workers: one waits 1 s; after a run that failed, the other waits 2 s."""
    stream = mr.OwnStream.from_tensors(torch.rand(2, 3), torch.zeros(2, dtype=torch.int64), tasks=[0, 0])
    for seed, (begin, end) in enumerate([(0.0, 10.0), (0.0, 12.0), (11.0, 20.0), (17.0, 30.0)]):
        record = mr.run(mr.Online(mr.networks.mlp(3, (2,), 2), lr=0.1, seed=seed), stream)
        path = replace(record, seconds={"learn": end - begin, "evaluate": 0.0}).write(tmp_path)
        os.utime(path, (1000 + end, 1000 + end))
    (tmp_path / "one.failed").touch()
    os.utime(tmp_path / "one.failed", (1015, 1015))
    found = measured(str(tmp_path), "--jobs", "2")
    assert found.splitlines()[1] == "between two runs a worker waited 1.50 s (median), 3.0 s in all"
