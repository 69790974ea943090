"""Kills: a run that is killed at random moments and started again ends with the same numbers, and leaves nothing."""

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, final

from metareplay.experiments import loop
from metareplay.experiments.base import BaseRecord
from metareplay.rl import training
from metareplay.runners.runner import carry_out
from torture.experiments import RUNS, same_results
from torture.trial import Torture, Try

KILLS = 5  # of one run, at most


@final
class Kills(Torture):
    """Kill runs of every learner, and of agents that play, with SIGKILL. Each is a process forked from this one."""

    name: ClassVar[str] = "a kill"
    few: ClassVar[int] = 10
    some: ClassVar[int] = 1_000
    many: ClassVar[int] = 10_000

    def tries(self, count: int, rng: random.Random, folder: Path) -> Iterator[Try]:
        """Kill until enough kills have been made; a try is a kill, and the last of a run tells how it ended."""
        save_always()
        expected = {name: undisturbed(name, folder / "undisturbed") for name in RUNS}
        made, number = 0, 0
        while made < count:
            name, place = list(RUNS)[number % len(RUNS)], folder / str(number)
            number += 1
            longest, kills = expected[name][0], 0
            for _ in range(rng.randint(1, KILLS)):
                if _killed(name, place, rng.uniform(0, 1.2 * longest)):
                    kills += 1
            made += kills
            _killed(name, place, 60.0)
            wrong = what_is_wrong(place, [expected[name][1]])
            for last in range(kills):
                yield Try(f"{name}, {kills} kills", wrong if last == kills - 1 else None)


def save_always() -> None:
    """Let runs write their checkpoint whenever they can."""
    loop.SAVE_EVERY = training.SAVE_EVERY = 0.0
    training.SAVE_SHARE = 1e9


def undisturbed(name: str, folder: Path) -> tuple[float, BaseRecord]:
    """Run once; return how long it took, and the record.

    Args:
        name: The run's name in RUNS.
        folder: Where to write the record.
    """
    carry_out(RUNS[name], folder, fresh=True)  # compiles what has to be compiled
    start = time.monotonic()
    record = carry_out(RUNS[name], folder, fresh=True)
    return time.monotonic() - start, record


def _killed(name: str, folder: Path, after: float) -> bool:
    """Run in a process of its own, which is killed after a time; return whether it had to be killed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            carry_out(RUNS[name], folder)
            code = 0
        finally:
            os._exit(code)
    end = time.monotonic() + after
    while time.monotonic() < end:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        time.sleep(0.0005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def what_is_wrong(folder: Path, expected: list[BaseRecord]) -> str | None:
    """Return what is wrong with what some runs have left in a folder.

    Args:
        folder: The folder.
        expected: The records of the same runs, undisturbed.
    """
    names = sorted(path.name for path in folder.iterdir())
    if names != sorted(f"{one.name}.json" for one in expected):
        return f"there are {', '.join(names)}"
    for one in expected:
        if not same_results(type(one).read(folder / f"{one.name}.json"), one):
            return "the numbers differ"
    return None
