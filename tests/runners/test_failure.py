"""What is written about a run that failed."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

import metareplay as mr
from metareplay.experiments import Experiment
from metareplay.experiments.record import versions
from metareplay.runners import Failure, forget_failures
from metareplay.runners.failure import failures, kind_of_error

ONE = Experiment(learner="mer", memory=20, tasks=2, options={"lr": np.float32(0.5)}, hidden=(5,), seed=3)


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (mr.NonFiniteError("the loss\nis huge"), "not finite", "the loss"),
        (MemoryError(), "memory", "MemoryError: MemoryError"),
        (torch.cuda.OutOfMemoryError("8 GiB"), "memory", "OutOfMemoryError: 8 GiB"),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
            "memory",
            "RuntimeError",
        ),
        (RuntimeError("shapes"), "error", "RuntimeError: shapes"),
        (mr.InputError("lr=-1: use more"), "error", "lr=-1: use more"),
    ],
)
def test_an_error_becomes_a_failure(error: Exception, kind: str, reason: str, tmp_path: Path) -> None:
    failure = Failure.of(ONE, error)
    assert (failure.kind, failure.key, failure.seed, failure.label) == (kind, ONE.key, 3, ONE.label)
    assert failure.reason.startswith(reason)
    assert "\n" not in failure.reason
    assert failure.versions == versions()
    assert failure.settings["options"] == {"lr": 0.5}
    path = failure.write(tmp_path / "new")
    assert path.name == f"mer-20-rotations-seed-3-{ONE.key}.failed"
    assert Failure.read(path) == failure
    assert failures(tmp_path / "new", [ONE.key, "other"]) == {ONE.key: failure}
    assert failures(tmp_path / "new", ["other"]) == {}


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = Failure.of(ONE, "its numbers left the range").write(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"its numbers", b"its nunbers"))
    with pytest.raises(mr.MetareplayError, match="is damaged or not a failure: delete it"):
        Failure.read(path)


def test_a_failure_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    path, failure = tmp_path / "old.failed", Failure.of(ONE, "why")
    path.write_text(json.dumps({"format": 1, **asdict(failure)}))
    assert Failure.read(path) == failure


def test_a_failure_in_words() -> None:
    failure = Failure.of(ONE, "its process ended three times", "lost")
    assert (failure.kind, failure.reason, failure.can_continue) == ("lost", "its process ended three times", True)
    assert Failure.of(ONE, "why").kind == "error"
    assert not Failure.of(ONE, "why").can_continue
    assert kind_of_error(KeyboardInterrupt()) == "error"


def test_only_those_asked_for_are_forgotten(tmp_path: Path) -> None:
    other = replace(ONE, seed=4)
    for one in (ONE, other):
        Failure.of(one, "why").write(tmp_path)
    (tmp_path / "notes.failed").write_text("the user's own")
    assert forget_failures([ONE, ONE, replace(ONE, seed=5)], tmp_path) == 1
    assert failures(tmp_path, [ONE.key, other.key]).keys() == {other.key}
    assert forget_failures([ONE, other], str(tmp_path)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["notes.failed"]
    assert forget_failures([ONE], tmp_path / "nowhere") == 0


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"format": 2}', '{"format": 1, "kind": "bad luck"}'])
def test_a_damaged_one_does_not_count(content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = Failure.of(ONE, "why").write(tmp_path)
    path.write_text(content)
    with pytest.raises(mr.MetareplayError, match="damaged or not a failure: delete it"):
        Failure.read(path)
    assert failures(tmp_path, [ONE.key]) == {}
    assert str(path) in caplog.text
