"""`metareplay run`: records, options, interruptions, and where it runs."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_runs import RECORD, Call

import metareplay as mr
from metareplay.cli import run as command
from metareplay.experiments import Experiment, loop
from metareplay.experiments.names import LEARNERS_BY_NAME, STREAMS_BY_NAME
from metareplay.paper.best import WITH_MEMORY, WITHOUT_MEMORY, best
from metareplay.runners import Runner
from metareplay.streams import images as image_streams

SMALL = ["--tasks", "2", "--examples", "5", "--test-examples", "20"]
MER = ["run", "mer", "rotations", *SMALL, "--s", "2", "--k", "3"]


def results(document: dict[str, Any]) -> dict[str, Any]:
    """A record but for the time it took and the date."""
    return {name: value for name, value in document.items() if name not in ("seconds", "date")}


def interrupt_after(seen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Ctrl-C be pressed once this many examples were learned; a chunk is one example, each is saved."""
    learn = loop.Run._learn

    def interrupted(self: loop.Run, chunk: mr.streams.stream.Chunk) -> Iterator[None]:
        if self.learner.seen == seen:
            raise KeyboardInterrupt
        yield from learn(self, chunk)

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


def test_past_gradients_can_be_taken_after_learning(call: Call) -> None:
    before, after = (
        json.loads(call(*MER, "--alignment", "--past", past, "--json").out) for past in ("before", "after")
    )
    assert after["alignment"]["past"] == "after"
    assert before["weights"] == after["weights"]
    assert before["key"] != after["key"]
    assert before["alignment"]["mean"] != after["alignment"]["mean"]
    usual = json.loads(call(*MER, "--alignment", "--json").out)
    assert usual["key"] == before["key"]
    learner, stream = Experiment(tasks=2, examples=5, test_examples=20, options={"s": 2, "k": 3}).build()
    assert results(mr.run(learner, stream, alignment=5, past="after").to_json()) == results(after)


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


@pytest.mark.parametrize("learner", LEARNERS_BY_NAME)
def test_every_learner_runs_with_its_options(learner: str, call: Call) -> None:
    document = json.loads(call("run", learner, "permutations", *SMALL, *OPTIONS[learner], "--json").out)
    words = dict(zip(OPTIONS[learner][::2], OPTIONS[learner][1::2], strict=True))
    for option, value in words.items():
        name = option.removeprefix("--").replace("-", "_")
        if name.startswith("memory"):
            assert value in str(document["settings"]["memory"]).lower()
        else:
            assert str(document["settings"][name]) in (value, f"{value}.0")


# What is not given


class Noting(Runner):
    """Writes down what it is given and runs nothing."""

    def __init__(self) -> None:
        self.given: list[Experiment] = []

    def run(self, experiments: Sequence[Any], folder: Path, **options: Any) -> list[Any]:
        del folder, options
        self.given.extend(experiments)
        return [RECORD] * len(experiments)


@pytest.fixture
def noting(monkeypatch: pytest.MonkeyPatch) -> Noting:
    runner = Noting()
    monkeypatch.setattr(command, "runner_at", lambda *_, **__: runner)
    return runner


@pytest.mark.parametrize("learner", LEARNERS_BY_NAME)
@pytest.mark.parametrize("stream", STREAMS_BY_NAME)
def test_what_is_not_given_is_the_papers_best(learner: str, stream: str, call: Call, noting: Noting) -> None:
    if stream == "omniglot" and learner in ("independent", "task-input"):
        pytest.skip("refused: see test_app")
    for memory in (200, 500, 5120):
        assert call("run", learner, stream, "--memory", str(memory), "--json").code == 0
        if learner in WITHOUT_MEMORY:
            expected = WITHOUT_MEMORY[learner][stream]
        else:
            sizes = WITH_MEMORY[learner][stream]
            expected = sizes.get(memory, sizes[500])  # 200 was not tried on Many Permutations
        assert noting.given[-1] == Experiment(learner=learner, stream=stream, memory=memory, options=expected)
        assert expected.items() <= noting.given[-1].identity.settings.items()
        assert expected.keys() >= {"lr"}


def test_the_default_is_the_papers_mer_on_rotations(call: Call, noting: Noting) -> None:
    assert call("run").code == 0
    (given,) = noting.given
    learner, stream = given.build()
    assert isinstance(learner, mr.MER)
    assert (learner.lr, learner.beta, learner.gamma, learner.s, learner.k) == (0.1, 0.01, 1.0, 10, 11)
    assert learner.memory.settings() == {"kind": "Reservoir", "capacity": 500, "rule": "paper"}
    assert isinstance(stream, mr.Rotations)
    assert (stream.tasks, stream.examples, stream.test_examples) == (20, 1000, None)


def test_options_come_before_the_papers(call: Call, noting: Noting) -> None:
    assert call("run", "mer", "--s", "3", "--clip", "2").code == 0
    assert noting.given[-1].options == best("mer", "rotations", 500) | {"s": 3, "clip": 2.0}


def test_every_word_for_omniglot_reaches_the_experiment(call: Call, noting: Noting) -> None:
    words = ["run", "mer", "omniglot", "--tasks", "2", "--norm", "none", "--init", "torch", "--order", "shuffled"]
    words += ["--split", "drawers", "--resolution", "32", "--pixels", "binary", "--labels", "all", "--training"]
    assert call(*words).code == 0
    assert noting.given[-1] == Experiment(
        learner="mer",
        stream="omniglot",
        options=best("mer", "omniglot", 500),
        tasks=2,
        network={"norm": None, "init": "torch"},
        stream_options={
            "order": "shuffled",
            "split": "drawers",
            "resolution": 32,
            "pixels": "binary",
            "labels": "all",
        },
        training=True,
    )


def test_every_word_reaches_the_experiment(call: Call, noting: Noting) -> None:
    words = ["run", "er", "permutations", *SMALL, "--memory", "60", "--memory-kind", "ring", "--seed", "4"]
    words += ["--seeds", "2", "--images", "fashion-mnist", "--engine", "torch", "--full-matrix", "--optimizer", "adam"]
    assert call(*words).code == 0
    expected = Experiment(
        learner="er",
        stream="permutations",
        memory=60,
        memory_kind="ring",
        options=best("er", "permutations", 60) | {"optimizer": "adam"},
        tasks=2,
        examples=5,
        images="fashion-mnist",
        test_examples=20,
        engine="torch",
        full_matrix=True,
        seed=4,
    )
    assert noting.given == [expected, replace(expected, seed=5)]


# Where it runs


def test_a_fleet_flies_them(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    flown: list[Experiment] = []

    def fly(experiments: list[Experiment], *_: object, **__: object) -> list[mr.Record | None]:
        flown.extend(experiments)
        return [RECORD] * len(experiments)

    monkeypatch.setattr("metareplay.runners.fleet.runner.fly", fly)
    monkeypatch.setattr("metareplay.runners.fleet.runner.check_device", lambda _: None)
    answer = call(*MER, "--seeds", "3", "--on", "fleet", "--json")
    assert answer.code == 0
    assert [one.seed for one in flown] == [0, 1, 2]
    refused = call("run", "gem", *SMALL, "--on", "fleet")
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert "not GEM" in refused.err
    compared = call(*MER, "--alignment", "--on", "fleet")
    assert (compared.code, compared.err.count("\n")) == (2, 1)
    assert "a fleet does not compare gradients" in compared.err
    assert len(flown) == 3


def test_what_a_fleet_lost_is_named(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "metareplay.runners.fleet.runner.fly", lambda some, *_, **__: [RECORD, *[None] * (len(some) - 1)]
    )
    monkeypatch.setattr("metareplay.runners.fleet.runner.check_device", lambda _: None)
    answer = call(*MER, "--seeds", "3", "--on", "fleet")
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    message = "2 of 3 runs left the range of a fleet's numbers (seeds 1, 2): use a smaller lr, or --on threads; the"
    assert message in answer.err
    some = [Experiment(seed=seed) for seed in range(3)]
    assert command._all_of(some[:1], [RECORD], tmp_path) == [RECORD]
    with pytest.raises(mr.NonFiniteError, match=r"2 of 3 runs .*seeds 0, 2.*use a smaller lr, or --on threads"):
        command._all_of(some, [None, RECORD, None], tmp_path)


# Interruptions


def test_an_interrupted_run_goes_on_and_ends_the_same(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = json.loads(call(*MER, "--json", "--records", "elsewhere").out)
    with monkeypatch.context() as patch:
        interrupt_after(7, patch)
        answer = call(*MER, "--json")
    assert (answer.code, answer.out) == (130, "")
    assert answer.err == "metareplay: interrupted; give the same command again to continue\n"
    (left,) = (tmp_path / "runs").glob(".*.ckpt")
    assert left.suffix == ".ckpt"
    learned: list[int] = []
    learn = loop.Run._learn

    def watched(self: loop.Run, chunk: mr.streams.stream.Chunk) -> Iterator[None]:
        learned.append(self.learner.seen)
        yield from learn(self, chunk)

    monkeypatch.setattr(loop.Run, "_learn", watched)
    answer = call(*MER, "--json")
    assert answer.code == 0
    assert learned == [7]
    assert f"mer 500, rotations, seed 0: continuing from {left.relative_to(tmp_path)}\n" in answer.err
    assert results(json.loads(answer.out)) == results(expected)
    assert not left.exists()


def test_fresh_begins_again(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = json.loads(call(*MER, "--records", "others", "--json").out)
    with monkeypatch.context() as patch:
        interrupt_after(7, patch)
        assert call(*MER).code == 130
    begun: list[int] = []
    steps = loop.Run.steps

    def watched(self: loop.Run) -> Iterator[mr.Progress]:
        for step in steps(self):
            begun.append(step.seen)
            yield step

    monkeypatch.setattr(loop.Run, "steps", watched)
    answer = call(*MER, "--fresh", "--json")
    assert begun[0] == 0
    assert "continuing from" not in answer.err
    assert results(json.loads(answer.out)) == results(expected)


def test_another_run_does_not_go_on_from_it(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        interrupt_after(7, patch)
        assert call(*MER).code == 130
    answer = call(*MER, "--lr", "0.05", "--json")
    assert answer.code == 0
    assert "continuing from" not in answer.err


# Trouble


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
    (left,) = (tmp_path / "runs").glob(".*.ckpt")
    assert left.suffix == ".ckpt"
    assert "continuing from" in call(*MER).err


def test_prequential(call: Call) -> None:
    words = ("run", "mer", "rotations", "--tasks", "2", "--examples", "20", "--prequential", "--every", "10")
    answer = call(*words, "--seeds", "2")
    assert answer.code == 0, answer.err
    assert "kappa" in answer.out
    assert "picture: " in answer.err
    record = json.loads(call(*words, "--json").out)
    assert record["kind"] == "prequential"
    assert record["points"]["examples"] == [10, 20, 30, 40]
    assert json.loads(call(*words, "--json", "--seeds", "2").out)["summary"]["accuracy"]["std"] is not None
    assert len(list(Path("runs").glob("*.json"))) == 2
    for wrong in (("--every", "0"), ("--alignment",), ("--on", "fleet")):
        assert call(*words, *wrong).code == 2
    assert "--prequential" in call("run", "--every", "10").err
