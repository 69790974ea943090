"""Small images, streams and learners, for tests of whole runs; nothing is read or fetched."""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest
from small_characters import instead_of_omniglot
from torch import nn

import metareplay as mr
from metareplay import cli
from metareplay.data import Images
from metareplay.experiments import loop, names
from metareplay.experiments.record import versions
from metareplay.streams import images as image_streams

TASKS, EXAMPLES, HELD = 3, 20, 8
DEADLINE = 120.0  # seconds that another process may take


@dataclass(frozen=True)
class Answer:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


Call = Callable[..., Answer]  # words of a command


@cache
def small_images(name: str = "small") -> Images:
    """Ten kinds of spots, mostly black, with noise on them, which a small net can learn to tell apart."""
    rng = np.random.default_rng(3)
    spots = rng.integers(0, 200, (10, 28, 28), np.uint8) * (rng.random((10, 28, 28)) < 0.15)

    def draw(count: int) -> tuple[mr.data.Bytes, mr.data.Bytes]:
        ys = rng.integers(0, 10, count, np.uint8)
        return spots[ys] + rng.integers(0, 20, (count, 28, 28), np.uint8), ys

    return Images(name, *draw(200), *draw(30))


def instead_of_mnist(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything that asks for MNIST or Fashion-MNIST by name get the small images."""
    monkeypatch.setattr(image_streams, "mnist", small_images)
    monkeypatch.setitem(names.IMAGES_BY_NAME, "fashion-mnist", lambda: small_images("fashion-mnist"))


def instead_of_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything that asks for a dataset by name get small images; Omniglot has 50 small alphabets."""
    instead_of_mnist(monkeypatch)
    instead_of_omniglot(monkeypatch, alphabets=50)


def rotations(seed: int = 0, tasks: int = TASKS) -> mr.Rotations:
    return mr.Rotations(tasks, EXAMPLES, seed, images=small_images())


def mer(seed: int = 0, lr: float = 0.1) -> mr.Learner:
    return mr.MER(_net(), memory=mr.Reservoir(HELD), lr=lr, beta=0.3, gamma=0.8, s=2, k=3, seed=seed)


def er_adam() -> mr.Learner:
    return mr.ER(_net(), memory=mr.Reservoir(HELD), lr=0.01, k=3, optimizer="adam")


def ewc() -> mr.Learner:
    return mr.EWC(_net(), lr=0.05, strength=3.0, fisher_examples=4)


RECORD = mr.Record(
    learner="MER",
    settings={"lr": 0.1, "seed": 3, "engine": "auto", "loss": None, "memory": {"kind": "Reservoir", "capacity": 5}},
    model="Linear(in_features=4, out_features=3, bias=True)",
    stream={"stream": "Rotations", "tasks": 2, "shape": [784]},
    seed=3,
    engine="torch",
    examples=20,
    accuracy=np.array([[10.0, 10.0], [90.0, 30.0], [70.0, 80.0]]),
    weights="ab" * 32,
    seconds={"learn": 1.25, "evaluate": 0.5},
    versions=versions(),
    date="2026-01-02T03:04:05+00:00",
)

ALIGNED = replace(
    RECORD,
    alignment={
        "samples": 5,
        "mean": -0.125,
        "count": 94,
        "not_finite": 1,
        "bounds": [1, 7, 14, 20],
        "means": [-2.0, None, 0.5],
        "quantiles": {q: [float(q) - 30, None, float(q) / 100] for q in ("5", "25", "50", "75", "95")},
        "edges": [-1.0, -0.01, 0.01, 1.0],
        "counts": [4, 30, 40, 15, 5],
        "changes": [10],
    },
)

MAKE: dict[str, Callable[[], mr.Learner]] = {"mer": mer, "er-adam": er_adam, "ewc": ewc}


def run_saving_always(name: str, folder: Path) -> None:
    """A run in chunks of 3 examples, saved after each, with its record and its learner written at the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "SAVE_EVERY", 0.0)
        patch.setattr(image_streams, "CHUNK", 3)
        learner = MAKE[name]()
        mr.run(learner, rotations(), checkpoint=folder / "run.ckpt").write(folder)
        learner.save(folder / "learner.ckpt")


def command_saving_always(words: list[str], folder: Path) -> None:
    """A `metareplay` command in that folder, every run of which is saved after every 3 examples."""
    with pytest.MonkeyPatch.context() as patch:
        instead_of_data(patch)
        patch.setattr(loop, "SAVE_EVERY", 0.0)
        patch.setattr(image_streams, "CHUNK", 3)
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["metareplay", *words])
        cli.main()


def server_of_processes(monkeypatch: pytest.MonkeyPatch) -> ForkServerContext:
    """Where processes begin quickly, with this module and the package under test already there."""
    folders = (Path(__file__).parent, Path(mr.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, folders)))
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["small_runs"])
    return server


def wait_until(there: Callable[[], bool], process: BaseProcess) -> None:
    """Wait until a process has done something; kill it and fail if it takes too long, fail if it ends before that."""
    deadline = time.monotonic() + DEADLINE
    while not there():
        if not process.is_alive():
            raise AssertionError(f"the process ended too early, with exit code {process.exitcode}")
        if time.monotonic() > deadline:
            kill(process)
            raise AssertionError(f"the process did not get there in {DEADLINE:.0f} seconds")
        time.sleep(0.0005)


def wait_for_end(process: BaseProcess) -> None:
    """Wait until a process has ended by itself; kill it and fail if it takes too long."""
    process.join(DEADLINE)
    if process.is_alive():
        kill(process)
        raise AssertionError(f"the process did not end in {DEADLINE:.0f} seconds")


def kill(process: BaseProcess) -> None:
    """Kill a process, whatever it is doing, and wait until it is gone."""
    process.kill()
    process.join()


def _net() -> nn.Sequential:
    return mr.networks.mlp(784, (8,), 10, seed=1)
