"""A miniature of `python -m torture`, which CI runs in its short form."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
KINDS = {
    "a flipped bit": 60,
    "a file cut short": 40,
    "a wrong call": 150,
    "a failing disk": 20,
    "Ctrl-C at a line": 6,
}


def torture(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "torture", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(("kind", "tries"), KINDS.items(), ids=KINDS.keys())
def test_nothing_fails(kind: str, tries: int) -> None:
    found = torture("--only", kind, "--tries", str(tries))
    assert found.returncode == 0, found.stdout + found.stderr
    *_, line, last = found.stdout.splitlines()
    assert line.split(kind)[1].split()[1] == "0"
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
