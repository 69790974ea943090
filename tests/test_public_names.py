"""The public names are a contract."""

import subprocess
import sys

import metareplay as mr

CONTRACT = {
    *("MER", "MEROneBigBatch", "MERCurrentRate", "ER", "ERTasks", "Online", "Independent", "TaskInput", "EWC", "GEM"),
    *("Reptile", "Reservoir", "Ring", "Recent", "Rotations", "Permutations", "ManyPermutations"),
    *("run", "load", "networks"),
}


def test_the_contract_is_kept() -> None:
    assert set(mr.__all__) >= CONTRACT


def test_the_list_is_exact_and_sorted() -> None:
    assert sorted(mr.__all__) == sorted(set(mr.__all__))
    assert all(getattr(mr, name) is not None for name in mr.__all__)


def test_importing_is_lean() -> None:
    """Nothing heavy besides torch and numpy: no plots, no SciPy, no compiler, no command line, no Gymnasium."""
    heavy = "matplotlib plotly scipy numba typer rich PIL gymnasium"
    code = (
        "import sys, torch; before = set(sys.modules); import metareplay; "
        f"print(set('{heavy}'.split()) & (set(sys.modules) - before))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def test_games_are_there_when_they_are_asked_for() -> None:
    code = (
        "import metareplay as mr; print(callable(mr.rl.train), mr.environments.CatcherEnv.__name__, hasattr(mr, 'x'))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "True CatcherEnv False"
