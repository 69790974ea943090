"""Every script in examples/ runs by itself, leaves no files behind and prints what it promises."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
QUICK = [script for script in SCRIPTS if script.stem in ("compare", "own_model")]
LATER = [pytest.param(script, marks=pytest.mark.slow) for script in SCRIPTS if script not in QUICK]
PERCENT = r"(\d+\.?\d*)%"

PRINTED = {
    "against_others": r"metareplay \| MER, Reservoir \| \d+.*river \| LogisticRegression \| \d+",
    "checkpoint": "saved after 200 examples.*continued to 400 examples.*weights identical to an unbroken run: True",
    "compare": r"RA +LA +BTI.*Online +\d+\.\d.*ER +\d+\.\d.*MER +\d+\.\d +\d+\.\d +-?\d+\.\d",
    "drift": rf"Online( +{PERCENT}){{4}}.*MER, reservoir( +{PERCENT}){{4}}.*MER, recent( +{PERCENT}){{4}}",
    "own_memory": rf"Recent .*accuracy: {PERCENT}.*Spaced .*accuracy: {PERCENT}.*Reservoir .*accuracy: {PERCENT}",
    "own_model": rf"Online +horizontal 0%.*MER +horizontal {PERCENT}, vertical {PERCENT}, falling {PERCENT}, rising",
    "recurring_drift": rf"Online.( +{PERCENT}){{2}}.*Reservoir( +{PERCENT}){{2}}.*Mixed, half recent( +{PERCENT}){{2}}",
    "regression": r"squared error mean absolute error \d\.\d+.*Huber loss +mean absolute error \d\.\d+",
    "several_ranks": r"rank 0: weights [0-9a-f]{12}, error 0\.\d+ on the old data, 0\.\d+ on the new data",
    "several_heads": rf"task 0, 2 classes: {PERCENT}.*task 1, 3 classes: {PERCENT}.*task 2, 5 classes: {PERCENT}",
}


@pytest.mark.parametrize("script", [*QUICK, *LATER], ids=lambda script: script.stem)
def test_an_example_runs(script: Path, tmp_path: Path) -> None:
    environment = os.environ | {"MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)}  # no windows
    command = [sys.executable, str(script)]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert re.search(PRINTED[script.stem], ran.stdout, flags=re.DOTALL), ran.stdout
    assert list(tmp_path.iterdir()) == []


def test_every_example_says_what_it_shows_and_how_to_run_it() -> None:
    assert {script.stem for script in SCRIPTS} == PRINTED.keys()
    for script in SCRIPTS:
        assert f"\nRun it with: python examples/{script.name}\n" in script.read_text()
