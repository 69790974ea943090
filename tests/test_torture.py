"""How `python -m torture` counts and reports; CI runs its short form besides."""

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import metareplay as mr
from metareplay.learners import checkpoint
from metareplay.learners.checkpoint_checks import read_checkpoint
from torture.__main__ import KINDS
from torture.calls import FOR_EXTENDING, MADE_FOR_USERS, every_call, left_out, public_names
from torture.disturbance import AtLine, Disturbance, OutOfMemory, OutOfMemoryOnce
from torture.fuzz import _wrong
from torture.loops import NUMBERS, _while_mixing, _while_scoring
from torture.subjects import AGENTS, SUBJECTS, stream
from torture.works import (
    Work,
    of_changes,
    while_loading,
    while_observing,
    while_observing_many,
    while_playing,
    while_running,
)

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_kinds_are_chosen_by_words_and_shared_by_processes() -> None:
    command = [sys.executable, "-m", "torture", "--only", "a failing disk", "cut short", "--tries", "6", "--jobs", "2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    *_, first, second, last = found.stdout.splitlines()
    assert first.split()[:6] == ["a", "file", "cut", "short", "6", "0"]
    assert second.split()[:5] == ["a", "failing", "disk", "6", "0"]
    assert last == "no failures"


FAILING = """
import sys
from torture import __main__ as main, trial

class Failing(trial.Torture):
    name, few, some, many = "a failure", 1, 2, 3
    def tries(self, count, rng, folder):
        yield trial.Try("nothing")
        yield trial.Try("something", "it went wrong")

main.KINDS = (Failing,)
sys.argv = ["torture", "--short"]
sys.exit(main.main())
"""


def test_a_failure_is_shown_and_counted() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        [sys.executable, "-c", FAILING], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 1
    *_, failure, line, last = found.stdout.splitlines()
    assert failure == "  FAILED something: it went wrong"
    assert line.split() == ["a", "failure", "2", "1", line.split()[-1]]
    assert last == "1 failures"


@pytest.mark.parametrize("name", ["er", "mer"])
def test_ctrl_c_while_draws_are_made_ahead_leaves_the_memory_as_it_was(name: str, tmp_path: Path) -> None:
    work, whole = while_observing(SUBJECTS[name], tmp_path), AtLine()
    work(whole)
    times = [found for (file, _), found in whole.times.items() if Path(file).name in ("sampler.py", "replay.py")]
    assert times, "nothing is drawn ahead any more"
    numbers = [number for found in times for number in found[:: max(1, len(found) // 3)]]
    assert not [wrong for number in numbers if (wrong := work(AtLine(number)))]


def test_every_public_name_is_called_or_left_out_for_a_reason(tmp_path: Path) -> None:
    assert left_out(every_call(tmp_path)) == []
    assert public_names().keys() >= MADE_FOR_USERS | FOR_EXTENDING  # none of them has gone
    assert "DiskReservoir" in left_out({})  # a name that is not called is noticed


WRONG = (None, "\0", b"x", -1, object(), np.zeros((2, 6)), torch.tensor([0.5, 1.5]))
SLOW = ("trackers.", "plots.", "Sweep.plot", "report", "integrations.", "lm.train", "sweep")


def test_wrong_arguments_are_refused_by_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = []
    for name, call in every_call(tmp_path).items():
        for one in () if name.startswith(SLOW) else call.right:
            for value in WRONG:
                wrong = _wrong(call.function, call.given() | {one: value})
                found += [f"{name}({one}={value!r}): {wrong}"] if wrong else []
    assert found == []


@pytest.mark.parametrize("line", ["periodic_mer.py", "reptile_line.py", "row_memories.py"])
def test_ctrl_c_in_mix_and_step_leaves_everything_before_or_after(line: str) -> None:
    work, whole = _while_mixing(lambda: mr.Reservoir(7)), AtLine()
    assert work(whole) is None
    times = [found for (file, _), found in whole.times.items() if Path(file).name == line]
    assert times, "nothing of this file is executed any more"
    assert not [wrong for found in times for number in found[-2:] if (wrong := work(AtLine(number)))]


def test_ctrl_c_in_a_prequential_run_loses_no_score(tmp_path: Path) -> None:
    work, whole = _while_scoring("er", tmp_path), AtLine()
    assert work(whole) is None
    times = [
        found for (file, _), found in whole.times.items() if Path(file).name in ("prequential_run.py", "scores.py")
    ]
    assert not [wrong for found in times[::4] if (wrong := work(AtLine(found[-1])))]


def test_ctrl_c_while_a_learner_is_restored_forgets_no_label(tmp_path: Path) -> None:
    path, interrupted, whole = tmp_path / "run.ckpt", AtLine(), SUBJECTS["er, growing"]()
    mr.run(whole, stream(), checkpoint=path)
    settings = read_checkpoint(path)[0]["extra"]["settings"]
    learner = SUBJECTS["er, growing"]()
    with interrupted:
        checkpoint.restore(learner, path, settings)
    places = ("checkpoint.py", "heads.py", "interrupts.py")
    times = [number for (file, _), found in interrupted.times.items() if Path(file).name in places for number in found]
    assert times, "nothing is restored any more"
    for number in times:
        learner = SUBJECTS["er, growing"]()
        with pytest.raises(KeyboardInterrupt), AtLine(number):
            checkpoint.restore(learner, path, settings)
        assert learner.labels == (whole.labels if learner.seen else ()), number


@pytest.mark.parametrize("kind", [OutOfMemoryOnce, OutOfMemory, AtLine])
def test_a_change_that_is_disturbed_is_made_or_not(kind: type[Disturbance], tmp_path: Path) -> None:
    for name, begin in of_changes(tmp_path):
        work, whole = begin(), kind()
        assert work(whole) is None, name
        moments = whole.drawn(40, random.Random(0))
        assert not [wrong for number in moments if (wrong := work(kind(number)))], name


@pytest.mark.parametrize("kind", [OutOfMemoryOnce, OutOfMemory])
@pytest.mark.parametrize(
    ("name", "begin"),
    [
        ("er, growing, running", lambda folder: while_running(SUBJECTS["er, growing"], folder / "run.ckpt")),
        ("er, growing, loading", lambda folder: while_loading(SUBJECTS["er, growing"], folder / "run.ckpt")),
        ("ewc", lambda folder: while_observing(SUBJECTS["ewc, torch"], folder)),
        ("er, adam", lambda folder: while_observing_many(SUBJECTS["er, adam"], folder)),
        ("mer", lambda folder: while_observing_many(SUBJECTS["mer, torch"], folder)),
        ("agent", lambda _: while_playing(AGENTS["dqn, pictures, torch"])),
        ("mix, in RAM", lambda _: _while_mixing(lambda: mr.Reservoir(7))),
        ("mix, on disk", lambda folder: _while_mixing(lambda: mr.DiskReservoir(folder / str(next(NUMBERS)), 7))),
    ],
)
def test_wherever_memory_runs_out_nothing_is_half_done(
    name: str, begin: Callable[[Path], Work], kind: type[Disturbance], tmp_path: Path
) -> None:
    work, whole = begin(tmp_path), kind()
    assert work(whole) is None
    assert whole.count, f"{name}: nothing takes memory any more"
    moments = whole.drawn(1000, random.Random(0))
    assert not [wrong for number in moments[:: max(1, len(moments) // 20)] if (wrong := work(kind(number)))]


def tries(path: Path) -> dict[str, int]:
    """Return how many tries of each kind a recorded output has; there must be no failures in it."""
    *_, last = lines = path.read_text().splitlines()
    assert last == "no failures"
    found = re.findall(r"^(\S.*?) +([\d,]+) +(\d+) +[\d,]+$", "\n".join(lines), re.MULTILINE)
    assert all(failures == "0" for _, _, failures in found)
    return {kind: int(count.replace(",", "")) for kind, count, _ in found}


def test_the_page_says_what_the_last_output_says() -> None:
    page = " ".join((ROOT / "docs" / "reliability.md").read_text().split())
    found = tries(ROOT / "results" / "torture.txt")
    assert found.keys() == {kind.name for kind in KINDS}
    wanted = {"a kill": 1_000, "a flipped bit": 100_000, "a wrong call": 10_000}
    assert all(found[kind] >= least for kind, least in wanted.items())
    shown = ", ".join(f"{found[kind]:,} {kind.removeprefix('a ')}s" for kind in wanted)
    assert f"{shown} and others, without a failure" in page
