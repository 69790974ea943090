"""Everything that lies in a folder is shown or named as broken; nothing is believed, and nothing is fatal."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import ALIGNED, DEADLINE, RECORD

from metareplay._core.files import MACHINE
from metareplay.experiments import Experiment
from metareplay.runners import Failure
from metareplay.runners.claims import Claim
from metareplay.watch.curves import curves_of
from metareplay.watch.finished import Finished
from metareplay.watch.folder import WatchedFolder
from metareplay.watch.plain import plain

DEAD = 2**22 + 1  # larger than the number of any process
CURVES = {"accuracy of task 1": [[0, 10.0], [50, 80.0]], "examples per second": [[5, 1.0], [30, 8.0], [50, 12.0]]}
SCRIPT = "<script>alert(1)</script>"


def live(folder: Path, key: str = "aaaa", **parts: Any) -> dict[str, Any]:
    said = {
        "format": 1,
        "key": key,
        "label": f"run {key}",
        "learner": "MER",
        "state": "running",
        "tasks": 3,
        "task": 1,
        "machine": MACHINE,
        "process": os.getpid(),
        "written": time.time(),
        "seen": 50,
        "total": 150,
        "per_second": 10.0,
        "accuracy": [80.0, 20.0, None],
        "curves": CURVES,
        "settings": {"learner": "MER", "settings": {"lr": 0.1}},
        **parts,
    }
    (folder / f".{key}.live").write_text(json.dumps(said))
    return said


def states(folder: Path) -> dict[str, str]:
    return {run["label"]: run["state"] for run in WatchedFolder(folder).look()["runs"]}


def test_an_empty_folder_and_none_at_all(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        found = WatchedFolder(folder).look()
        assert (found["runs"], found["chosen"], found["best"]) == ([], None, None)


def test_a_running_run(tmp_path: Path) -> None:
    live(tmp_path)
    found = WatchedFolder(tmp_path).look()
    (run,) = found["runs"]
    assert (run["state"], run["left"], run["accuracy"], run["learner"]) == ("running", 10.0, 80.0, "mer")
    assert found["chosen"]["curves"] == CURVES
    assert found["counts"]["running"] == 1


def test_a_run_whose_process_has_died_was_interrupted(tmp_path: Path) -> None:
    live(tmp_path, "aaaa", process=DEAD)
    live(tmp_path, "bbbb", state="failed", reason="no room", process=DEAD)
    live(tmp_path, "cccc", machine="another", process=DEAD)
    live(tmp_path, "dddd", written=time.time() - 100)
    assert states(tmp_path) == {
        "run aaaa": "stopped",
        "run bbbb": "failed",
        "run cccc": "running",
        "run dddd": "running",
    }
    quiet = {run["label"]: run["quiet"] for run in WatchedFolder(tmp_path).look()["runs"] if run["state"] == "running"}
    assert quiet == {"run cccc": None, "run dddd": 100.0}


def test_other_machines_are_believed_while_they_write_or_hold_a_claim(tmp_path: Path) -> None:
    old = time.time() - 10_000
    live(tmp_path, "aaaa", machine="another", written=old)
    live(tmp_path, "bbbb", machine="another", written=old)
    for name, key in (("x", "cccc"), ("y", "dddd")):
        runs = [{"key": key, "label": key}, {"key": f"{key}2", "label": f"{key}2"}]
        said = {"format": 1, "machine": "another", "process": 1, "written": old, "runs": runs}
        (tmp_path / f".{name}.waiting").write_text(json.dumps(said))
    claims = [Claim.take(tmp_path, key) for key in ("bbbb", "dddd")]
    expected = {"run aaaa": "stopped", "run bbbb": "running", "dddd": "waiting", "dddd2": "waiting"}
    assert states(tmp_path) == expected
    for claim in claims:
        assert claim is not None
        claim.give_back()
    assert states(tmp_path) == {"run aaaa": "stopped", "run bbbb": "stopped"}


def test_finished_failed_and_waiting_runs(tmp_path: Path) -> None:
    RECORD.write(tmp_path)
    failed = Failure.of(Experiment(learner="er"), ValueError("it is\nbad"))
    failed.write(tmp_path)
    listed = [{"key": key, "label": f"run {key}", "settings": {"lr": 0.1}} for key in (RECORD.key, failed.key, "wwww")]
    for name, process in (("1", os.getpid()), ("2", DEAD)):
        said = {
            "format": 1,
            "machine": MACHINE,
            "process": process,
            "runs": [*listed, {"key": f"x{name}", "label": name}],
        }
        (tmp_path / f".{MACHINE}-{name}.waiting").write_text(json.dumps(said))
    found = WatchedFolder(tmp_path).look(RECORD.key)
    by_state = [(run["state"], run["label"]) for run in found["runs"]]
    waiting = [("waiting", "1"), ("waiting", "run wwww")]
    assert by_state == [("failed", failed.label), ("done", "mer 5, rotations, seed 3"), *waiting]
    assert found["counts"] == {"running": 0, "failed": 1, "stopped": 0, "broken": 0, "waiting": 2, "done": 1}
    assert found["chosen"]["results"]["ra"] == RECORD.ra
    assert found["chosen"]["curves"]["accuracy of task 1"] == [(0, 10.0), (10, 90.0), (20, 70.0)]
    assert next(run for run in found["runs"] if run["state"] == "failed")["reason"] == "ValueError: it is"


def test_a_run_that_is_done_again_is_running(tmp_path: Path) -> None:
    RECORD.write(tmp_path)
    live(tmp_path, RECORD.key)
    assert list(states(tmp_path).values()) == ["running"]
    live(tmp_path, RECORD.key, state="stopped")
    assert list(states(tmp_path).values()) == ["done"]


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    folder = WatchedFolder(tmp_path)
    path = RECORD.write(tmp_path)
    assert folder.look()["counts"]["done"] == 1
    path.write_text("{")
    assert folder.look()["counts"] == {"running": 0, "failed": 0, "stopped": 0, "broken": 1, "waiting": 0, "done": 0}
    path.unlink()
    assert folder.look()["runs"] == []


def test_the_best_settings_are_means_over_seeds(tmp_path: Path) -> None:
    for lr, gain in ((0.1, 0.0), (0.2, 5.0)):
        for seed in (1, 2):
            settings = {**RECORD.settings, "lr": lr, "seed": seed}
            replace(RECORD, settings=settings, seed=seed, accuracy=RECORD.accuracy + gain).write(tmp_path)
    found = WatchedFolder(tmp_path).look()
    assert found["best"] == {
        "measure": "retained accuracy",
        "fields": ["lr"],
        "rows": [{"values": ["0.2"], "mean": 80.0, "seeds": 2}, {"values": ["0.1"], "mean": 75.0, "seeds": 2}],
    }
    assert {run["apart"] for run in found["runs"]} == {"lr 0.1", "lr 0.2"}


def test_the_best_settings_count_each_seed_once_and_compare_like_with_like(tmp_path: Path) -> None:
    def write(part: str, lr: float, gain: float, written: int, **parts: Any) -> None:
        settings = {**RECORD.settings, "lr": lr, "part": part}
        changed = replace(RECORD, settings=settings, accuracy=RECORD.accuracy + gain, **parts)
        content = changed.to_json() | {"settings": {**RECORD.settings, "lr": lr}, "key": part}
        (tmp_path / f"{part}.json").write_text(json.dumps(content))
        os.utime(tmp_path / f"{part}.json", (written, written))

    write("elsewhere", 0.1, 20.0, 1, stream={**RECORD.stream, "stream": "Permutations"})
    write("before", 0.1, 10.0, 2)
    write("again", 0.1, 0.0, 3)
    write("wider", 0.1, 5.0, 4, model="Linear(in_features=9, out_features=3, bias=True)")
    best = WatchedFolder(tmp_path).look()["best"]
    assert best["fields"] == ["network"]
    assert [(row["mean"], row["seeds"]) for row in best["rows"]] == [(80.0, 1), (75.0, 1)]


def test_what_has_not_changed_is_not_worked_out_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(3):
        replace(RECORD, settings={**RECORD.settings, "seed": seed}, seed=seed).write(tmp_path)
    folder, made = WatchedFolder(tmp_path), list[str]()
    first = folder.look()
    summary = Finished.summary

    def counted(one: Finished) -> dict[str, Any]:
        made.append(one.key)
        return summary(one)

    monkeypatch.setattr(Finished, "summary", counted)
    monkeypatch.setattr("metareplay.watch.folder.best_of", lambda _: pytest.fail("nothing has changed"))
    monkeypatch.setattr(Finished, "details", lambda _: pytest.fail("nothing has changed"))
    monkeypatch.setattr("metareplay.watch.folder.LISTED", 2)
    again = folder.look()
    assert (len(made), again["more"], again["chosen"]) == (2, 1, first["chosen"])


def test_many_runs_are_counted_and_some_are_listed(tmp_path: Path) -> None:
    for number in range(210):
        live(tmp_path, f"{number:04d}")
    found = WatchedFolder(tmp_path).look("0209")
    assert (found["counts"]["running"], len(found["runs"]), found["more"]) == (210, 200, 10)
    assert found["chosen"]["label"] == "run 0209"


@pytest.mark.parametrize("key", ["../../etc/passwd", "", SCRIPT, "\ud800", "a" * 10_000])
def test_any_key_may_be_asked_for(tmp_path: Path, key: str) -> None:
    live(tmp_path)
    assert WatchedFolder(tmp_path).look(key)["chosen"]["key"] == "aaaa"


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    live(tmp_path, label=SCRIPT, learner=SCRIPT, settings={SCRIPT: SCRIPT})
    (tmp_path / "x-bbbb.json").write_text(json.dumps(RECORD.to_json() | {"learner": SCRIPT}))
    labels = [run["label"] for run in WatchedFolder(tmp_path).look()["runs"]]
    assert labels == [SCRIPT, f"{SCRIPT} 5, rotations, seed 3"]


NUMBERS = st.integers() | st.floats() | st.sampled_from([10**400, -(10**400)])
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)
PARTS = st.sampled_from(
    [
        *("format", "key", "label", "learner", "state", "tasks", "task", "machine", "process", "written", "seen"),
        *("total", "per_second", "accuracy", "curves", "settings", "memory", "seconds", "reason"),
    ]
)


@given(changes=st.dictionaries(PARTS, JSON, max_size=4))
def test_a_broken_live_file_is_never_fatal(changes: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("runs")
    said = live(folder)
    (folder / ".aaaa.live").write_text(json.dumps(said | changes))
    json.dumps(WatchedFolder(folder).look("aaaa"), allow_nan=False).encode()


@given(name=st.sampled_from(sorted(ALIGNED.to_json())), value=JSON)
def test_a_broken_record_is_never_fatal(name: str, value: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "x-aaaa.json").write_text(json.dumps(ALIGNED.to_json() | {name: value}))
    found = WatchedFolder(folder).look()
    json.dumps(found, allow_nan=False).encode()
    assert len(found["runs"]) == 1


@pytest.mark.parametrize("part", ["accuracy", "examples", "seconds"])
def test_a_record_with_enormous_numbers_is_shown(part: str, tmp_path: Path) -> None:
    value: Any = {"accuracy": [[10**400]], "examples": 10**400, "seconds": {"learn": 10**400}}[part]
    (tmp_path / "x-aaaa.json").write_text(json.dumps(RECORD.to_json() | {part: value}))
    assert len(WatchedFolder(tmp_path).look()["runs"]) == 1


@pytest.mark.parametrize("content", ["[" * 100_000, '{"format": 1, "kind": "error", "settings": 3, %s}'])
def test_a_broken_failure_is_named(content: str, tmp_path: Path) -> None:
    others = '"key": "a", "label": "b", "reason": "c", "seed": 0, "date": "", "versions": {}'
    (tmp_path / "x-aaaa.failed").write_text(content.replace("%s", others))
    assert states(tmp_path) == {"x-aaaa.failed": "broken"}


def test_the_time_left_is_a_number_or_nothing(tmp_path: Path) -> None:
    slow = {"examples per second": [[1, 1.0], [2, 1e-300]]}
    live(tmp_path, total=10**299, curves=slow)
    assert WatchedFolder(tmp_path).look()["runs"][0]["left"] is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    names = (".aaaa.live", f".{MACHINE}-1-0.waiting", "x-bbbb.failed", "x-cccc.json", "packed.jsonl")
    for name in names:
        os.mkfifo(tmp_path / name)
    found: list[dict[str, str]] = []
    thread = Thread(target=lambda: found.append(states(tmp_path)), daemon=True)  # it may wait for ever
    thread.start()
    thread.join(DEADLINE)
    assert found == [{".aaaa.live": "broken", "x-bbbb.failed": "broken"}]


@given(content=st.binary(max_size=50))
def test_any_bytes_are_never_fatal(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("runs")
    for name in (".aaaa.live", f".{MACHINE}-1-0.waiting", "x-bbbb.failed", "x-cccc.json", "packed.jsonl"):
        (folder / name).write_bytes(content)
    json.dumps(WatchedFolder(folder).look(), allow_nan=False).encode()


def test_records_of_every_kind_have_curves() -> None:
    assert set(curves_of(ALIGNED.to_json())) == {"accuracy of task 1", "accuracy of task 2", "gradient alignment"}
    points = {"examples": [10, 20], "window_accuracy": [50.0, None]}
    assert curves_of({"kind": "prequential", "points": points}) == {"prequential window accuracy": [(10, 50.0)]}
    game = {"kind": "game", "frames": [0, 5], "scores": [[[1, 3], [5]], [[2, 2], [6]]]}
    assert curves_of(game) == {"score of task 1": [(0, 2.0), (5, 2.0)], "score of task 2": [(0, 5.0), (5, 6.0)]}
    assert curves_of({"kind": "from the future"}) == {}


def test_what_is_nested_too_deeply_is_cut_off() -> None:
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    json.dumps(plain(deep))
