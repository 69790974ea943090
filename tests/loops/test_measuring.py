"""The script that measures PeriodicMER runs in miniature, so that it does not fail on the machine with the GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_script_prints_one_json_document() -> None:
    small = "--json --size mini --context 8 --steps 2 --rounds 1 --capacity 2048 --open-rows 500"
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "measure-periodic-mer", *small.split()],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
    )
    found = json.loads(done.stdout)
    assert [cost["copy_on"] for cost in found["costs"]] == ["device", "host"]
    assert all(cost["plain_ms"] > 0 and cost["line_ms"] > 0 for cost in found["costs"])
    assert found["offered"]["while_it_fills"] > 0
    assert found["opening"]["rows"] == 500
