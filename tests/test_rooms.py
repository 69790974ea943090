"""Rooms depend in one direction only; the contracts are in pyproject.toml."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PUBLIC = {"errors", "plots"}  # modules at the top level that users import; everything else is a package or private


def test_imports_go_in_one_direction() -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "0 broken" in found.stdout


def test_few_names_at_the_top_level() -> None:
    modules = {path.stem for path in (ROOT / "metareplay").glob("*.py")}
    assert {name for name in modules if not name.startswith("_")} == PUBLIC
