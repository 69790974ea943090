import signal
import sys
from importlib import import_module
from pathlib import Path
from threading import Timer

import pytest

from metareplay._core.imports import import_whole


def test_ctrl_c_does_not_leave_half_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "slow_to_import.py").write_text("first = 1\nimport time\ntime.sleep(0.5)\nlast = 2\n")
    press = Timer(0.1, signal.raise_signal, [signal.SIGINT])
    press.start()
    with pytest.raises(KeyboardInterrupt):
        import_whole("slow_to_import")
    assert import_module("slow_to_import").last == 2
    del sys.modules["slow_to_import"]


def test_what_goes_wrong_is_raised() -> None:
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        import_whole("json", "not_there_at_all")
