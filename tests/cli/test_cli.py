import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from small_runs import Answer, Call

import metareplay as mr
from metareplay import data as datasets
from metareplay.cli import app
from metareplay.data import download
from metareplay.experiments import loop
from metareplay.experiments.experiment import LEARNERS, Experiment
from metareplay.streams import images as image_streams

SMALL = ["--tasks", "2", "--examples", "5", "--test-examples", "20"]
MER = ["run", "mer", "rotations", *SMALL, "--s", "2", "--k", "3"]


def results(document: dict[str, Any]) -> dict[str, Any]:
    """A record but for the time it took and the date."""
    return {name: value for name, value in document.items() if name not in ("seconds", "date")}


def interrupt_after(seen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Ctrl-C be pressed once so many examples were learned; a chunk is one example, each is saved."""
    learn = loop.Run._learn

    def interrupted(self: loop.Run, chunk: mr.streams.stream.Chunk) -> None:
        if self.learner.seen == seen:
            raise KeyboardInterrupt
        learn(self, chunk)

    monkeypatch.setattr(loop.Run, "_learn", interrupted)
    monkeypatch.setattr(loop, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(image_streams, "CHUNK", 1)


# Runs


def test_run_prints_one_json_document_and_the_same_numbers_again(call: Call, tmp_path: Path) -> None:
    first, again = (call(*MER, "--json") for _ in range(2))
    assert first.code == again.code == 0
    document = json.loads(first.out)
    assert results(document) == results(json.loads(again.out))
    assert document["learner"] == "MER"
    assert (document["settings"]["s"], document["settings"]["k"], document["settings"]["lr"]) == (2, 3, 0.1)
    assert document["stream"]["test_examples"] == 20
    assert document["examples"] == 10
    (written,) = (tmp_path / "runs").iterdir()  # the same run has the same name, and no checkpoint is left
    assert mr.Record.read(written).to_json() == json.loads(again.out)


def test_run_gives_the_same_record_as_the_library(call: Call, tmp_path: Path) -> None:
    document = json.loads(call(*MER, "--seed", "3", "--json").out)
    learner, stream = Experiment(tasks=2, examples=5, test_examples=20, seed=3, options={"s": 2, "k": 3}).build()
    assert results(mr.run(learner, stream).to_json()) == results(document)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [f"MER-Rotations-seed3-{document['key']}.json"]


def test_several_seeds_are_several_records(call: Call, tmp_path: Path) -> None:
    answer = call(*MER, "--seed", "1", "--seeds", "2", "--json", "--records", "elsewhere/deep")
    document = json.loads(answer.out)
    assert [record["seed"] for record in document["records"]] == [1, 2]
    assert document["records"][0]["weights"] != document["records"][1]["weights"]
    ra = [record["ra"] for record in document["records"]]
    assert document["summary"]["ra"]["mean"] == pytest.approx(sum(ra) / 2)
    assert document["summary"]["ra"]["std"] == pytest.approx(abs(ra[0] - ra[1]) / 2**0.5)
    assert len(list((tmp_path / "elsewhere" / "deep").iterdir())) == 2
    alone = json.loads(call(*MER, "--seed", "2", "--json").out)
    assert results(alone) == results(document["records"][1])


def test_run_prints_a_table_that_is_not_cut_off(call: Call) -> None:
    words = ["run", "mer-one-big-batch", "many-permutations", *SMALL, "--seeds", "2"]
    answer = call(*words)
    assert answer.code == 0
    assert "mer-one-big-batch on many-permutations, memory 500" in answer.out
    summary = json.loads(call(*words, "--json").out)["summary"]
    (row,) = [line for line in answer.out.splitlines() if "±" in line]
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    shown = [f"{summary[name]['mean']:.2f} ± {summary[name]['std']:.2f}" for name in ("ra", "la", "bti", "fti")]
    assert cells[:6] == ["mer-one-big-batch", *shown, "2"]
    assert "…" not in answer.out
    assert answer.err.endswith("records: runs/\n")


def test_the_full_matrix_can_be_asked_for(call: Call) -> None:
    some, full = (json.loads(call(*MER, "--tasks", "3", *more, "--json").out) for more in ([], ["--full-matrix"]))
    assert sum(value is None for row in some["accuracy"] for value in row) == 2
    assert sum(value is None for row in full["accuracy"] for value in row) == 0
    assert (some["ra"], some["fti"], some["weights"]) == (full["ra"], full["fti"], full["weights"])


def test_other_images_can_be_asked_for(call: Call) -> None:
    assert json.loads(call(*MER, "--images", "fashion-mnist", "--json").out)["stream"]["images"] == "fashion-mnist"


def test_gradients_can_be_compared(call: Call, tmp_path: Path) -> None:
    answer = call(*MER, "--alignment")
    assert answer.code == 0
    picture, written = sorted((tmp_path / "runs").iterdir(), key=lambda path: path.suffix, reverse=True)
    assert (picture.suffix, written.suffix, picture.stem) == (".png", ".json", written.stem)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"picture: runs/{picture.name}\n" in answer.err
    record = mr.Record.read(written)
    assert f"{record.dot:.3f}" in answer.out
    learner, stream = Experiment(tasks=2, examples=5, test_examples=20, options={"s": 2, "k": 3}).build()
    assert results(mr.run(learner, stream, alignment=5).to_json()) == results(record.to_json())
    assert json.loads(call(*MER, "--json").out)["weights"] == record.weights
    assert "picture" not in call(*MER).err


def test_compared_gradients_of_several_seeds(call: Call, tmp_path: Path) -> None:
    document = json.loads(call(*MER, "--alignment", "--seeds", "2", "--json").out)
    dots = [record["alignment"]["mean"] for record in document["records"]]
    assert document["summary"]["dot"]["mean"] == pytest.approx(sum(dots) / 2)
    assert len(list((tmp_path / "runs").glob("*.png"))) == 2


OPTIONS = {
    "online": ["--lr", "0.2", "--clip", "1.5"],
    "independent": ["--start", "clone"],
    "task-input": ["--lr", "0.2"],
    "ewc": ["--strength", "3", "--fisher", "mean-square", "--fisher-examples", "2"],
    "gem": ["--strength", "0.5", "--memory", "10", "--memory-kind", "ring"],
    "er": ["--optimizer", "sgd", "--k", "2", "--memory-kind", "recent"],
    "er-tasks": ["--k", "2"],
    "mer": ["--beta", "0.5", "--gamma", "0.5", "--s", "1", "--k", "2"],
    "mer-one-big-batch": ["--gamma", "0.5", "--s", "2", "--k", "2"],
    "mer-current-rate": ["--gamma", "0.5", "--s", "2", "--k", "2"],
}


@pytest.mark.parametrize("learner", LEARNERS)
def test_every_learner_runs_with_its_options(learner: str, call: Call) -> None:
    document = json.loads(call("run", learner, "permutations", *SMALL, *OPTIONS[learner], "--json").out)
    words = dict(zip(OPTIONS[learner][::2], OPTIONS[learner][1::2], strict=True))
    for option, value in words.items():
        name = option.removeprefix("--").replace("-", "_")
        if name.startswith("memory"):
            assert value in str(document["settings"]["memory"]).lower()
        else:
            assert str(document["settings"][name]) in (value, f"{value}.0")


def test_every_option_field_can_be_reached() -> None:
    own = {f.name for kind in LEARNERS.values() for f in fields(kind)}
    own -= {"model", "memory", "loss", "regression", "engine", "seed"}
    assert own <= inspect.signature(app.run).parameters.keys()
    assert own == {*own, "lr", "beta", "gamma", "s", "k", "clip"}


# Interruptions


def test_an_interrupted_run_goes_on_and_ends_the_same(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = json.loads(call(*MER, "--json", "--records", "elsewhere").out)
    with monkeypatch.context() as patch:
        interrupt_after(7, patch)
        answer = call(*MER, "--json")
    assert (answer.code, answer.out) == (130, "")
    assert answer.err == "metareplay: interrupted; give the same command again to go on\n"
    (left,) = (tmp_path / "runs").iterdir()
    assert left.suffix == ".ckpt"
    learned: list[int] = []
    learn = loop.Run._learn

    def watched(self: loop.Run, chunk: mr.streams.stream.Chunk) -> None:
        learned.append(self.learner.seen)
        learn(self, chunk)

    monkeypatch.setattr(loop.Run, "_learn", watched)
    answer = call(*MER, "--json")
    assert answer.code == 0
    assert learned == [7]
    assert f"mer, seed 0: going on from {left.relative_to(tmp_path)}\n" in answer.err
    assert results(json.loads(answer.out)) == results(expected)
    assert not left.exists()


def test_fresh_begins_again(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = json.loads(call(*MER, "--records", "others", "--json").out)
    with monkeypatch.context() as patch:
        interrupt_after(7, patch)
        assert call(*MER).code == 130
    begun: list[int] = []
    steps = loop.Run.steps

    def watched(self: loop.Run) -> Iterator[loop.Progress]:
        for step in steps(self):
            begun.append(step.seen)
            yield step

    monkeypatch.setattr(loop.Run, "steps", watched)
    answer = call(*MER, "--fresh", "--json")
    assert begun[0] == 0
    assert "going on" not in answer.err
    assert results(json.loads(answer.out)) == results(expected)


def test_another_run_does_not_go_on_from_it(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        interrupt_after(7, patch)
        assert call(*MER).code == 130
    answer = call(*MER, "--lr", "0.05", "--json")
    assert answer.code == 0
    assert "going on" not in answer.err


# Errors

ERRORS: dict[str, tuple[list[str], str]] = {
    "unknown command": (["walk"], "No such command 'walk'"),
    "unknown learner": (["run", "merlin"], "learner 'merlin': use one of online,"),
    "unknown stream": (["run", "mer", "translations"], "stream 'translations': use one of rotations,"),
    "unknown images": (["run", "--images", "cifar"], "images 'cifar': use one of mnist,"),
    "unknown option": (["run", "--zeta", "3"], "No such option: --zeta"),
    "unknown memory": (["run", "--memory-kind", "stack"], "memory kind 'stack': use one of reservoir,"),
    "unknown optimizer": (["run", "er", "--optimizer", "lion"], "optimizer 'lion': use one of sgd,"),
    "unknown engine": (["run", "--engine", "steam"], "engine 'steam': use "),
    "another learner's option": (["run", "online", "--beta", "0.1"], "online has no option 'beta'; it takes clip,"),
    "memory kind without memory": (["run", "ewc", "--memory-kind", "ring"], "ewc has no memory"),
    "not a number": (["run", "--lr", "much"], "Invalid value for '--lr'"),
    "not a whole number": (["run", "--k", "2.5"], "Invalid value for '--k'"),
    "a value missing": (["run", "--k"], "--k"),
    "too many words": (["run", "mer", "rotations", "fast"], "unexpected extra argument"),
    "beta too large": (["run", "--beta", "1.5"], "beta=1.5: a Reptile rate goes part of the way or all of it; use 0 <"),
    "gamma zero": (["run", "--gamma", "0"], "gamma=0.0: a Reptile rate"),
    "negative rate": (["run", "--lr", "-1"], "lr=-1.0: use a positive number"),
    "rate that is no number": (["run", "--lr", "nan"], "lr=nan: use a positive number"),
    "no batch": (["run", "--k", "0"], "k=0: a batch holds at least the incoming example"),
    "no memory": (["run", "--memory", "0"], "capacity=0: "),
    "no tasks": (["run", "--tasks", "0"], "tasks=0: use a whole number of at least 1"),
    "too many examples": (["run", "--examples", "60001"], "examples=60001: use a whole number from 1 to 60000"),
    "no seeds": (["run", "--seeds", "0"], "--seeds 0: run at least one"),
    "negative seed": (["run", "--seed", "-1"], "seed=-1: use a whole number"),
    "huge seed": (["run", "--seed", "99999999999999999999"], "seed=99999999999999999999: use a whole number from 0"),
    "folder that is a file": ([*MER, "--records", "file"], "cannot write file/"),
    "folder in a file": ([*MER, "--records", "file/runs"], "cannot write file/runs/"),
    "fresh in a file": ([*MER, "--records", "file", "--fresh"], "cannot delete file/"),
    "demo in a file": (["demo", "--out", "file"], "cannot write file/"),
    "demo without tasks": (["demo", "--tasks", "0"], "tasks=0: use a whole number"),
    "data without a command": (["data"], "Missing command"),
    "unknown data": (["data", "fetch", "cifar"], "cifar"),
}


@pytest.mark.parametrize(("words", "message"), ERRORS.values(), ids=ERRORS.keys())
def test_every_error_is_one_line_and_exit_code_two(words: list[str], message: str, call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    answer = call(*words)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
    assert answer.err.startswith("metareplay: ")
    assert answer.err.count("\n") == 1
    assert answer.err.endswith("\n")


def test_a_full_disk_is_one_line_and_keeps_the_checkpoint(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(mr.Record, "to_json", full)
        answer = call(*MER)
    assert answer.code == 2
    assert "No space left on device; free some space or choose another place" in answer.err
    assert answer.err.count("\n") == 1
    (left,) = (tmp_path / "runs").iterdir()
    assert left.suffix == ".ckpt"
    assert "going on" in call(*MER).err


# The rest


def test_without_a_command_it_shows_the_help(call: Call) -> None:
    answer = call()
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == call("--help").out
    for word in ("run", "demo", "data", "version", "Meta-Experience"):
        assert word in answer.out


def test_the_help_speaks_the_papers_language(call: Call) -> None:
    answer = call("run", "--help")
    assert answer.code == 0
    text = " ".join(answer.out.split())
    assert "alpha: the SGD rate of each step" in text
    assert "Reptile rate within a batch (mer), 0 < beta <= 1" in text
    assert "Examples in a batch, the incoming one included (paper: k-1 + 1)" in text
    for name in inspect.signature(app.run).parameters:
        assert name.removeprefix("as_").replace("_", "-") in text.lower()


def test_version_is_printed(call: Call) -> None:
    assert call("version").out == f"{mr.__version__}\n"


def test_data_fetch_says_where_the_data_is(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fetch(name: str, report: download.Report) -> Path:
        asked.append(name)
        report(f"fetching {name}")
        return tmp_path / ("a long name " * 10) / name

    monkeypatch.setattr(datasets, "fetch", fetch)
    answer = call("data", "fetch")
    assert answer.code == 0
    assert answer.out == f"mnist: {tmp_path / ('a long name ' * 10) / 'mnist'}\n"
    assert answer.err == "fetching mnist\n"
    assert call("data", "fetch", "fashion-mnist", "mnist").out.count("\n") == 2
    assert asked == ["mnist", "fashion-mnist", "mnist"]


def test_data_that_cannot_be_fetched_is_one_line(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(name: str, report: download.Report) -> Path:
        del report
        raise mr.DataError(f"cannot fetch {name}:\nno network")

    monkeypatch.setattr(datasets, "fetch", fetch)
    assert call("data", "fetch") == Answer(2, "", "metareplay: cannot fetch mnist: no network\n")


def test_the_installed_command_works_from_outside(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("metareplay")
    answer = subprocess.run([command, "run", "merlin"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout, answer.stderr.count("\n")) == (2, "", 1)
    assert answer.stderr.startswith("metareplay: learner 'merlin': use one of ")
