"""scripts/search-table-6, which searches the settings that the paper does not list."""

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

from metareplay.experiments.names import LEARNERS_BY_NAME
from metareplay.paper.best import SEARCHED

SCRIPT = Path(__file__).parent.parent / "scripts" / "search-table-6"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module."""
    spec = spec_from_loader("search_table_6", SourceFileLoader("search_table_6", str(SCRIPT)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "search_table_6", module)
    spec.loader.exec_module(module)
    return module


def test_there_is_a_search_for_each_setting(script: Any) -> None:
    searches = list(script.searches())
    expected = [(name, stream, size) for name, at in SEARCHED.items() for stream, of in at.items() for size in of]
    assert [(one.name, one.stream, one.memory) for one in searches] == expected
    assert {one.arguments[0] for one in searches} <= LEARNERS_BY_NAME.keys()


def test_a_miniature(script: Any, tmp_path: Path) -> None:
    small = ["--tasks", "2", "--examples", "20", "--test-examples", "50", "--k", "2,3", "--lr", "0.01,0.03"]
    records = ["--seeds", "1", "--records", str(tmp_path / "runs")]
    found = script.Search("er-tasks-ring", "rotations", 200).run(tmp_path, small + records)
    assert found["settings"].keys() == {"lr", "k"}
    assert found["settings"]["k"] in (2, 3)
    (packed,) = tmp_path.glob(f"*/{script.RECORDS}")
    assert len(packed.read_text().splitlines()) == 5  # four settings, and the chosen one with all examples
    page = script.markdown([found])
    assert f"| er-tasks-ring | rotations | 200 | lr {found['settings']['lr']}, k {found['settings']['k']} |" in page
    assert "metareplay sweep er-tasks rotations --memory 200 --memory-kind ring --lr 0.003,0.01,0.03 " in page
