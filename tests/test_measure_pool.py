"""scripts/measure-pool finds in the committed records what the documentation says."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_what_the_documentation_says_is_in_the_records() -> None:
    options = ["results/sweep-rotations-500.jsonl", "--jobs", "9", "--held-out", "0.1"]
    command = [sys.executable, "scripts/measure-pool", *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout == "282 runs in 8.9 minutes: 9 workers were busy 97.5 % of the time\n"
    page = " ".join((ROOT / "docs" / "sweeps.md").read_text().split())
    assert f"scripts/measure-pool {' '.join(options)}" in page
    assert "busy 97.5 % of the time with the 282 runs that finished" in page
