"""A miniature of scripts/torture-sweep, which kills a sweep at random moments."""

import os
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts" / "torture-sweep"


@pytest.fixture(scope="module")
def script() -> Any:
    """The script as a module."""
    spec = spec_from_loader("torture_sweep", SourceFileLoader("torture_sweep", str(SCRIPT)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["torture_sweep"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_the_same() -> None:
    command = [sys.executable, str(SCRIPT), "--times", "1", "--runs", "4", "--kills", "2", "--seed", "3"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    first, _, sweep, last = found.stdout.splitlines()
    assert first.startswith("undisturbed: 3 records and 1 failures in ")
    assert "the same" in sweep
    assert last.startswith("1 sweeps on processes, ")
    assert last.endswith(" kills: none differed from the undisturbed one")


def test_every_difference_is_found(script: Any) -> None:
    records, failures = {"a": ("w", "90"), "b": ("v", "80")}, {"c": ("not finite", "why")}
    expected = script.Contents(records, failures, [], [])
    assert script.faults(expected, expected) == []
    for changed, fault in (
        (script.Contents({"a": ("w", "90")}, failures, [], []), "1 records missing"),
        (script.Contents(records | {"b": ("u", "80")}, failures, [], []), "1 records changed"),
        (script.Contents(records | {"d": ("u", "80")}, failures, [], []), "1 records added"),
        (script.Contents(records, {}, [], []), "1 failures missing"),
        (script.Contents(records, failures, ["a"], []), "twice: a"),
        (script.Contents(records, failures, [], [".a.ckpt"]), "left over: .a.ckpt"),
    ):
        assert script.faults(changed, expected) == [fault]


def test_what_is_in_a_folder(script: Any, tmp_path: Path) -> None:
    assert script.Contents.of(tmp_path / "nowhere") == script.Contents({}, {}, [], [])
    (one,) = script.experiments(1)
    script.Failure.of(one, "why").write(tmp_path)
    script.Failure.of(one, "why").write(tmp_path).rename(tmp_path / f"again-{one.key}.failed")
    (tmp_path / ".left.part").touch()
    script.Failure.of(one, "why").write(tmp_path)
    found = script.Contents.of(tmp_path)
    assert found == script.Contents({}, {one.key: ("error", "why")}, [one.key], [".left.part"])
