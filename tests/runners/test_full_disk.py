"""A disk that is full, or a folder that cannot be written: one clear line, and earlier records stay valid."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_sweep import Small

import metareplay as mr
from metareplay.runners import Runner, Threads

FOLDERS = (Path(__file__).parents[1], Path(__file__).parents[2])

FULL = """
import resource, signal, sys
from pathlib import Path
from small_sweep import Small
import metareplay as mr
from metareplay.runners import Processes, Threads

if __name__ == "__main__":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing beyond the limit is an error, as on a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))  # a record fits, a checkpoint does not
    try:
        {runner}.run([Small(seed=seed) for seed in range(3)], Path("runs"), keep_going=True)
    except mr.MetareplayError as error:
        print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no such limit")
@pytest.mark.parametrize("runner", ["Threads(2)", pytest.param("Processes(2)", marks=pytest.mark.slow)])
def test_on_a_full_disk_it_stops_with_one_line_and_records_stay(runner: str, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    before = Threads(1).run([Small(seed=0)], folder)
    (tmp_path / "script.py").write_text(FULL.format(runner=runner))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, FOLDERS))}
    command = [sys.executable, "script.py"]
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    (said,) = found.stdout.splitlines()
    assert said.startswith("cannot write runs/.")
    assert said.endswith(": File too large; free some space or choose another place")
    assert [path.suffix for path in folder.iterdir() if path.suffix != ".live"] == [".json"]
    assert Threads(1).run([Small(seed=0)], folder) == before


@pytest.mark.parametrize("keep_going", [False, True])
def test_a_folder_that_cannot_be_written(keep_going: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner: Runner = Threads(2)
    before = runner.run([Small(seed=0)], tmp_path)
    opened = os.open

    def read_only(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT and tmp_path in Path(path).parents:
            raise OSError(30, "Read-only file system")
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(
        mr.MetareplayError, match=r"^cannot write .*/: Read-only file system; free some space or choose"
    ):
        runner.run([Small(seed=0), Small(seed=1)], tmp_path, keep_going=keep_going)
    assert runner.run([Small(seed=0)], tmp_path, keep_going=keep_going) == before  # nothing has to be written
