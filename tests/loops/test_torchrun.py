"""Two ranks that torchrun itself has started: equal weights, exact resume, an early end, shards, and a killed rank."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parent.parent.parent


def torchrun(work: str, folder: Path) -> tuple[subprocess.CompletedProcess[str], list[Any]]:
    """Let two ranks do some work; return what became of the processes, and what each rank found."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "examples")))
    done = subprocess.run(
        [*command, str(Path(__file__).with_name("torchrun_work.py")), work, str(folder)],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    return done, [json.loads((folder / f"{work}-{rank}.json").read_text()) for rank in range(2)]


class Runs(NamedTuple):
    """What two starts of torchrun in one folder have given."""

    first: list[Any]
    told: str
    again: list[Any]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("torchrun")
    killed, first = torchrun("first", folder)
    assert killed.returncode != 0
    done, again = torchrun("again", folder)
    assert done.returncode == 0, done.stderr
    return Runs(first, killed.stderr, again)


def test_all_ranks_have_the_same_weights(runs: Runs) -> None:
    one, other = runs.first
    assert one["unbroken"] == other["unbroken"]
    assert one["unbroken"] != one["stopped"]
    assert one["shards"] == other["shards"]


def test_a_training_that_was_stopped_goes_on_exactly(runs: Runs) -> None:
    for before, after in zip(runs.first, runs.again, strict=True):
        assert after["stopped"] == before["unbroken"]
        assert after["shards"] == before["shards"]


def test_a_loader_that_ends_early_stops_nobody(runs: Runs) -> None:
    one, other = (found["uneven"] for found in runs.first)
    assert one["weights"] == other["weights"]
    told = "the ranks are not at the same step (rank 0 at step 10, rank 1 at step 6): let all of them take the same"
    assert one["message"].startswith(told)


def test_a_killed_rank_is_named_and_training_goes_on_from_the_last_checkpoint(runs: Runs) -> None:
    """One rank had written its part of a checkpoint, and the other one was killed while it wrote."""
    told = "rank 0 of 2 is at step 30, and another rank has stopped or does not answer: look for its message, then"
    assert told in runs.told
    assert "Signal 9 (SIGKILL)" in runs.told
    for before, after in zip(runs.first, runs.again, strict=True):
        assert after["killed"] == before["unbroken"]
