"""Make the tries of one kind of torture, in this process or in several side by side."""

import contextlib
import logging
import random
import signal
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

from torture.trial import Torture

SHOWN = 20  # failures of one kind to print


def prepare() -> None:
    """Prepare a process for being tortured."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which the background of a shell ignores
    torch.set_num_threads(1)  # processes are forked from this one
    logging.disable(logging.WARNING)


def torture(kind: type[Torture], count: int, seed: int, jobs: int) -> tuple[int, int]:
    """Let some processes share the tries of one kind; return how many they were, and how many failed.

    Args:
        kind: What to try.
        count: How many tries to make, about.
        seed: Decides everything that is drawn.
        jobs: The number of processes.
    """
    if jobs == 1:
        return _tortured(kind(), count, seed)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=prepare) as pool:
        parts = [pool.submit(_tortured, kind(part, jobs), -(-count // jobs), seed + part) for part in range(jobs)]
        found = [part.result() for part in parts]
    return sum(tries for tries, _ in found), sum(failures for _, failures in found)


def _tortured(kind: Torture, count: int, seed: int) -> tuple[int, int]:
    """Make the tries of one kind; return how many they were, and how many failed."""
    tries, failures = 0, 0
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        for one in kind.tries(count, random.Random(seed), Path(name)):
            tries += 1
            if one.wrong is not None:
                failures += 1
                if failures <= SHOWN:
                    print(f"  FAILED {one.what}: {one.wrong}", flush=True)
    return tries, failures
