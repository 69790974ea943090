"""The command line as a whole: help, errors in one line, and the small commands."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_runs import Answer, Call

import metareplay as mr
from metareplay import data as datasets
from metareplay.cli.app import make_app
from metareplay.data import download

SMALL = ["--tasks", "2", "--examples", "5", "--test-examples", "20"]
MER = ["run", "mer", "rotations", *SMALL, "--s", "2", "--k", "3"]

# Errors

ERRORS: dict[str, tuple[list[str], str]] = {
    "unknown command": (["walk"], "No such command 'walk'"),
    "unknown learner": (["run", "merlin"], "learner 'merlin': use one of online,"),
    "unknown stream": (["run", "mer", "translations"], "stream 'translations': use one of rotations,"),
    "unknown images": (["run", "--images", "cifar"], "images 'cifar': use one of mnist,"),
    "unknown option": (["run", "--zeta", "3"], "No such option: --zeta"),
    "unknown memory": (["run", "--memory-kind", "stack"], "memory kind 'stack': use one of reservoir,"),
    "unknown optimizer": (["run", "er", "--optimizer", "lion"], "optimizer='lion': use one of 'sgd',"),
    "unknown engine": (["run", "--engine", "steam"], "engine 'steam': use one of auto, torch, cpu, cuda"),
    "a fleet as an engine": (["run", "--engine", "fleet"], "a fleet is a place to run, not an engine; use --on fleet"),
    "a paper's engine": (["paper", "table-5", "--engine", "fleet"], "a fleet is a place to run, not an engine"),
    "unknown place": (["run", "--on", "mars"], "--on mars: use one of threads, processes, fleet, ray, ray:ADDRESS"),
    "a fleet without a GPU": ([*MER, "--on", "fleet"], "a fleet needs a CUDA GPU"),
    "unknown moment": (["run", "--alignment", "--past", "during"], "--past during: use before or after"),
    "no jobs": (["run", "--jobs", "0"], "jobs '0': use 'auto' or a whole number of at least 1"),
    "no such file": (["run", "nowhere.py:Mine"], "learner 'nowhere.py:Mine': cannot import nowhere.py"),
    "no such class": (["run", "metareplay:Mine"], "no subclass of metareplay.Learner called 'Mine' in metareplay"),
    "no class": (["run", "a.py:b:c"], "learner 'a.py:b:c': "),
    "another learner's option": (["run", "online", "--beta", "0.1"], "online has no option 'beta'; it takes clip,"),
    "memory kind without memory": (["run", "ewc", "--memory-kind", "ring"], "ewc has no memory"),
    "digits in Omniglot": (["run", "mer", "omniglot", "--images", "mnist"], "images 'mnist': omniglot has images of"),
    "MLPs for Omniglot": (["run", "independent", "omniglot"], "independent needs an MLP with parts for each task, and"),
    "inputs for Omniglot": (["run", "task-input", "omniglot"], "task-input needs an MLP with parts for each task, and"),
    "unknown norm": (
        ["run", "mer", "omniglot", "--norm", "layer"],
        "norm='layer': use one of 'group', 'batch', or None",
    ),
    "unknown init": (["run", "mer", "omniglot", "--init", "he"], "init='he': use 'glorot' or 'torch'"),
    "unknown order": (["run", "mer", "omniglot", "--order", "random"], "order='random': use 'given' or 'shuffled'"),
    "a norm for digits": (["run", "--norm", "group"], "the network of rotations has no option 'norm'; leave it out"),
    "an order of digits": (["run", "--order", "given"], "the stream rotations has no option 'order'; leave it out"),
    "too many alphabets": (["run", "mer", "omniglot", "--tasks", "51"], "tasks=51: use a whole number from 1 to 50"),
    "too few pixels": (["run", "mer", "omniglot", "--resolution", "8"], "resolution=8: the network halves images four"),
    "no steps": (["run", "online", "--steps", "0"], "steps=0: each example is learned by at least one step"),
    "not a number": (["run", "--lr", "much"], "Invalid value for '--lr'"),
    "not a whole number": (["run", "--k", "2.5"], "Invalid value for '--k'"),
    "a value missing": (["run", "--k"], "--k"),
    "too many words": (["run", "mer", "rotations", "fast"], "unexpected extra argument"),
    "beta too large": (["run", "--beta", "1.5"], "beta=1.5: a Reptile rate goes part of the way or all of it; use 0 <"),
    "gamma zero": (["run", "--gamma", "0"], "gamma=0.0: a Reptile rate"),
    "negative rate": (["run", "--lr", "-1"], "lr=-1.0: use a positive number"),
    "rate that is no number": (["run", "--lr", "nan"], "lr=nan: use a positive number"),
    "no batch": (["run", "--k", "0"], "k=0: a batch holds at least the incoming example"),
    "no memory": (["run", "--memory", "0"], "memory=0: "),
    "less than no memory": (["run", "--memory", "-5"], "memory=-5: "),
    "demo without memory": (["demo", "--memory", "0"], "memory=0: "),
    "no tasks": (["run", "--tasks", "0"], "tasks=0: use a whole number of at least 1"),
    "too many examples": (["run", "--examples", "60001"], "examples=60001: use a whole number from 1 to 60000"),
    "no seeds": (["run", "--seeds", "0"], "--seeds 0: run at least one"),
    "negative seed": (["run", "--seed", "-1"], "seed=-1: use a whole number"),
    "huge seed": (["run", "--seed", "99999999999999999999"], "seed=99999999999999999999: use a whole number from 0"),
    "folder that is a file": ([*MER, "--records", "file"], "cannot write file/"),
    "folder in a file": ([*MER, "--records", "file/runs"], "cannot write file/runs/"),
    "fresh in a file": ([*MER, "--records", "file", "--fresh"], "cannot write file/"),
    "demo in a file": (["demo", "--out", "file"], "cannot write file/"),
    "demo without tasks": (["demo", "--tasks", "0"], "tasks=0: use a whole number"),
    "data without a command": (["data"], "Missing command"),
    "unknown data": (["data", "fetch", "cifar"], "cifar"),
}


@pytest.mark.parametrize(("words", "message"), ERRORS.values(), ids=ERRORS.keys())
def test_every_error_is_one_line_and_exit_code_two(
    words: list[str], message: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (tmp_path / "file").touch()
    answer = call(*words)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
    assert answer.err.startswith("metareplay: ")
    assert answer.err.count("\n") == 1
    assert answer.err.endswith("\n")


def test_a_full_gpu_is_one_line(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB\nand more")

    monkeypatch.setattr("metareplay.cli.run.runner_at", full)
    answer = call(*MER)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert "not enough GPU memory: use a smaller memory, fewer runs at a time (--jobs 1), or --engine cpu" in answer.err


COLONS = {
    "run": [*MER, "--records", "runs:1"],
    "like a class": [*MER, "--records", "runs:One"],
    "in one word": [*MER, "--records=runs:One"],
    "paper": ["paper", "--list", "--records", "runs:1"],
}


@pytest.mark.parametrize("words", COLONS.values(), ids=COLONS.keys())
def test_a_colon_in_another_word_is_no_learner_of_ones_own(words: list[str], call: Call) -> None:
    answer = call(*words)
    assert (answer.code, "learner" in answer.err) == (0, False)


def test_what_was_typed_is_shown_as_it_was_typed(call: Call) -> None:
    assert "stream ':smile: [red]': use one of" in call("run", "mer", ":smile: [red]").err


# The rest


def test_without_a_command_it_shows_the_help(call: Call) -> None:
    answer = call()
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == call("--help").out
    for word in ("run", "demo", "paper", "bench", "data", "version", "Meta-Experience"):
        assert word in answer.out


def test_version_is_printed(call: Call) -> None:
    assert call("--version").out == f"{mr.__version__}\n"
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
    answer = subprocess.run(
        [command, "run", "merlin"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert (answer.returncode, answer.stdout, answer.stderr.count("\n")) == (2, "", 1)
    assert answer.stderr.startswith("metareplay: learner 'merlin': use one of ")


def test_every_command_explains_itself(call: Call) -> None:
    commands = make_app([]).registered_commands
    names = [command.name or command.callback.__name__ for command in commands if command.callback]
    assert names == ["run", "sweep", "demo", "paper", "bench", "play", "lm", "report", "watch", "version"]
    for name in (*names, "data", "data fetch"):
        answer = call(*name.split(), "--help")
        assert (answer.code, answer.err) == (0, "")
        assert f"metareplay {name}" in answer.out
        assert len(answer.out.splitlines()) > 4


# What the system refuses

HUGE = {
    "memory": "memory=1000000000000000 would need .* GiB of memory, and this machine has .*: use less",
    "k": "rows per example .* would need .* GiB of memory",
    "s": "rows per example .* would need .* GiB of memory",
    "tasks": "tasks=1000000000000000 would need .* GiB of memory",
}


@pytest.mark.parametrize(("option", "message"), HUGE.items(), ids=HUGE.keys())
def test_absurd_sizes_are_refused_in_one_line(option: str, message: str, call: Call, tmp_path: Path) -> None:
    answer = call("run", "mer", "rotations", f"--{option}", "1000000000000000", "--records", str(tmp_path))
    assert answer.code == 2
    assert len(answer.err.splitlines()) == 1
    assert re.search(message, answer.err)


def test_a_path_that_is_too_long_is_refused_in_one_line(call: Call, tmp_path: Path) -> None:
    answer = call(*MER, "--records", str(tmp_path / ("x" * 300)))
    assert answer.code == 2
    assert "File name too long" in answer.err
    assert len(answer.err.splitlines()) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_an_error_of_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "metareplay", "version"]
        found = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert found.returncode == 2
    assert found.stderr == (
        "metareplay: cannot use standard output: No space left on device; free some space or choose another place\n"
    )


def test_a_closed_standard_output_is_no_error(tmp_path: Path) -> None:
    command = f"exec {shlex.quote(sys.executable)} -m metareplay version >&- 2>{shlex.quote(str(tmp_path / 'err'))}"
    found = subprocess.run(["sh", "-c", command], check=False)
    assert (found.returncode, (tmp_path / "err").read_text()) == (0, "")


def test_ctrl_c_while_torch_is_imported_shows_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise KeyboardInterrupt\n")
    command = [sys.executable, "-m", "metareplay", "version"]
    root = Path(mr.__file__).parent.parent
    paths = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"}
    found = subprocess.run(command, cwd=tmp_path, env=os.environ | paths, capture_output=True, text=True, check=False)
    assert found.returncode != 0
    assert found.stderr == "metareplay: interrupted\n"
