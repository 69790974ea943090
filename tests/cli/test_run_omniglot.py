"""`metareplay run` on Omniglot in miniature: three alphabets of four characters, with every learner that can."""

import json
from pathlib import Path

import numpy as np
import pytest
from small_runs import Call

import metareplay as mr

SMALL = ["--tasks", "3", "--examples", "72", "--memory", "12", "--engine", "torch", "--training", "--json"]
LEARNERS = {  # with fewer steps than the paper's, where that is many
    "online": ["--steps", "2"],
    "ewc": ["--steps", "2"],
    "gem": [],
    "er": [],
    "er-tasks": [],
    "mer": ["--s", "1", "--k", "3"],
    "mer-one-big-batch": ["--k", "3"],
    "mer-current-rate": ["--k", "3"],
}
OTHERS = [name for name in LEARNERS if name not in ("gem", "mer")]


@pytest.mark.parametrize("learner", ["gem", "mer", *(pytest.param(one, marks=pytest.mark.slow) for one in OTHERS)])
def test_every_learner_runs_once(learner: str, call: Call, tmp_path: Path) -> None:
    words = ["run", learner, "omniglot", *SMALL, *LEARNERS[learner]]
    document = json.loads(call(*words).out)
    assert document["examples"] == 3 * 4 * 18
    assert document["stream"]["stream"] == "Omniglot"
    assert "GroupNorm" in document["model"]
    assert len(document["training"]) == 3
    (path,) = (tmp_path / "runs").glob("*-Omniglot-seed0-*.json")
    record = mr.Record.read(path)
    assert record.ta == pytest.approx(np.mean(document["training"]))
    assert json.loads(call(*words).out)["date"] == document["date"], "it is not run again"


def test_the_table_shows_training_accuracy(call: Call) -> None:
    words = ["run", "online", "omniglot", "--tasks", "2", "--examples", "18", "--training", "--norm", "none"]
    printed = call(*words, "--seeds", "2").out
    assert "TA" in printed
    assert "TA: retained accuracy on training examples" in printed
    summary = json.loads(call(*words, "--seeds", "2", "--json").out)["summary"]
    assert list(summary) == ["ra", "la", "bti", "fti", "ta"]
