"""`--track`, `--watch` and `metareplay watch`."""

import re
import sys
from pathlib import Path

import pytest
from small_runs import Call

from metareplay.cli.following import tracker_of
from metareplay.trackers import TensorBoard

SMALL = ("--tasks", "2", "--examples", "20", "--memory", "8", "--s", "1", "--k", "2")


@pytest.mark.parametrize("text", ["tensorboard", "tensorboard:", "comet:runs", ":", "wandb"])
def test_a_tracker_that_is_not_known_is_named(call: Call, text: str) -> None:
    answer = call("run", "mer", "rotations", *SMALL, "--track", text)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == f"metareplay: --track {text}: use tensorboard:FOLDER, mlflow:FOLDER or wandb:FOLDER\n"
    assert not Path("runs").exists()


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    monkeypatch.setenv("HOME", str(tmp_path))
    made = tracker_of("tensorboard:~/tb")()
    assert isinstance(made, TensorBoard)
    assert made.folder == tmp_path / "tb"


@pytest.mark.parametrize("module", ["tensorboard", "uvicorn"])
def test_a_missing_package_is_one_line(call: Call, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(module)
    monkeypatch.setitem(sys.modules, module, None)
    words = ("--track", "tensorboard:tb") if module == "tensorboard" else ("--watch",)
    answer = call("run", "mer", "rotations", *SMALL, *words)
    assert answer.code == 2
    assert re.fullmatch(rf"metareplay: .* needs {module}: pip install 'metareplay\[\w+\]'\n", answer.err)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("words", [("run", "mer", "rotations"), ("run", "mer", "rotations", "--prequential")])
def test_runs_are_tracked_and_watched(call: Call, words: tuple[str, ...]) -> None:
    pytest.importorskip("tensorboard")
    pytest.importorskip("uvicorn")
    answer = call(*words, *SMALL, "--json", "--track", "tensorboard:tb", "--watch")
    assert answer.code == 0
    assert re.search(r"^watch it: http://127\.0\.0\.1:\d+/[\w-]{43}/$", answer.err, flags=re.MULTILINE)
    assert len(list(Path("tb").iterdir())) == 1
    assert not list(Path("runs").glob(".*.live"))


def test_the_page_is_served_until_ctrl_c(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("uvicorn")

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("metareplay.cli.watch.wait", interrupt)
    answer = call("watch")
    assert answer.code == 0
    assert answer.out.startswith("http://127.0.0.1:")
    assert "the page has ended" in answer.err


def test_what_is_no_folder_is_refused(call: Call) -> None:
    Path("file").write_text("text")
    answer = call("watch", "file")
    assert (answer.code, answer.err) == (
        2,
        "metareplay: file is not a folder: give the one with the runs, such as runs\n",
    )
