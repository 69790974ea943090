"""The command `lm`: a table and a picture from one command, and errors in one line."""

import json
from pathlib import Path
from threading import Thread
from time import sleep

import pytest
from small_runs import Call

from metareplay.runners.claims import Claim

SMALL = ["lm", "--steps", "4", "--rows", "4", "--context", "16", "--test-rows", "2", "--memory", "20"]


def test_a_table_a_picture_and_the_same_again(call: Call) -> None:
    answer = call(*SMALL, "--arms", "sequential,mer-0.5")
    assert answer.code == 0
    assert "sequential" in answer.out
    assert "mer-0.5" in answer.out
    assert "language 4" in answer.out
    assert Path("runs/lm/losses.png").exists()
    document = json.loads(call(*SMALL, "--arms", "sequential,mer-0.5", "--json").out)
    assert [record["arm"] for record in document["records"]] == ["sequential", "mer-0.5"]
    assert len(document["records"][0]["losses"]) == 16
    assert not Path("runs/lm/alignment.png").exists()


def test_gradients_are_compared_on_request(call: Call) -> None:
    answer = call(*SMALL, "--arms", "sequential,mer-0.5", "--alignment")
    assert answer.code == 0
    assert "cosine" in answer.out
    assert Path("runs/lm/alignment.png").exists()


def test_records_are_shown_again_without_training(call: Call) -> None:
    first = call(*SMALL, "--arms", "mer-0.5,sequential", "--seeds", "2")
    again = call("lm", "--only-records")
    assert again.code == 0
    assert sorted(again.out.splitlines()) == sorted(first.out.splitlines()), "the same, with arms in the usual order"
    call(*SMALL, "--rate", "0.5", "--arms", "mer-0.5")
    assert "different settings: put those to compare into a folder of their own" in call("lm", "--only-records").err
    Path("empty").mkdir()
    assert "there are no records in empty" in call("lm", "--only-records", "--out", "empty").err


def test_processes_share_the_runs_of_a_folder(call: Call) -> None:
    words, out = [*SMALL, "--arms", "sequential,joint"], Path("runs/lm")
    first = call(*words)
    paths = sorted(out.glob("*.json"))
    content = [json.loads(path.read_text())["losses"] for path in paths]
    for path in paths:
        path.unlink()
    other = Claim.take(out, paths[1].stem)  # another process does this run, until the other run has been done
    assert other is not None

    def leave() -> None:
        while not paths[0].exists():
            sleep(0.01)
        other.give_back()

    thread = Thread(target=leave, daemon=True)
    thread.start()
    again = call(*words)
    thread.join()
    assert (again.code, again.out.splitlines()[:3]) == (0, first.out.splitlines()[:3])
    assert [json.loads(path.read_text())["losses"] for path in paths] == content
    assert not list(out.glob(".*.claim"))


def test_a_damaged_record_is_named(call: Call) -> None:
    call(*SMALL, "--arms", "sequential")
    [path] = Path("runs/lm").glob("*.json")
    assert json.loads(path.read_text())["versions"]["torch"]
    path.write_bytes(path.read_bytes().replace(b'"steps": 4', b'"steps": 5'))
    assert f"{path} is damaged: delete it, and train again" in call("lm", "--only-records").err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--arms", "sequential,magic"], "--arms='magic': use one of 'sequential',"),
        (["--size", "7b"], "--size='7b': use one of 'mini',"),
        (["--seeds", "0"], "--seeds=0: there is one seed at least"),
        (["--copy-on", "disk"], "copy_on='disk': use 'device' or 'host'"),
        (["--device", "tpu"], "--device='tpu': use one of"),
        (["nowhere"], "there are no files in nowhere: give folders with text, one for each language"),
    ],
)
def test_errors_are_one_line(call: Call, words: list[str], message: str) -> None:
    answer = call(*SMALL, *words)
    assert answer.code == 2
    assert message in answer.err
    assert len(answer.err.strip().splitlines()) == 1
