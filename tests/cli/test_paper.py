"""`metareplay paper`: miniatures of every table and figure, through the code that makes the real ones."""

import csv
import json
import logging
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from small_runs import Answer, Call, command_saving_always, kill, server_of_processes, wait_until

import metareplay as mr
from metareplay import data as datasets
from metareplay._core.seal import opened_json, sealed_json
from metareplay.data import sources
from metareplay.data.omniglot import ALPHABETS
from metareplay.experiments import Experiment, unpack
from metareplay.paper.cells import SETTINGS
from metareplay.paper.figures import FIGURES, PICTURES, full_runs
from metareplay.paper.games import game_figures
from metareplay.paper.results import needed_runs, shown_cells
from metareplay.paper.tables import TABLES
from metareplay.rl import GameRecord
from metareplay.runners import Runner, Threads, carry_out, threads
from metareplay.streams import images as image_streams

SIZES: dict[str, Any] = {"tasks": 2, "examples": 20, "test_examples": 5}
MINIATURE = ["--seeds", "1", "--tasks", "2", "--examples", "20", "--test-examples", "5"]
FIVE = ["paper", "table-5", *MINIATURE]  # five runs


def pictures(folder: Path) -> set[str]:
    for path in folder.glob("*.png"):
        with Image.open(path) as picture:
            assert picture.format == "PNG"
    return {path.stem for path in folder.glob("*.png")}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def full(record: mr.Record) -> bool:
    return not np.isnan(record.accuracy).any()


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def unasked(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(threads, "carry_out", unasked)


# Names


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--on", "cpu"], "--on cpu: use one of threads, processes, fleet, ray, ray:ADDRESS"),
        (["--on", "fleet", "--fresh"], "use one of them"),
        (["--on", "fleet"], "needs a CUDA GPU"),
    ],
)
def test_a_fleet_that_cannot_fly_says_so(
    words: list[str], wanted: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    answer = call(*FIVE, "--records", str(tmp_path), *words)
    assert answer.code == 2
    assert wanted in answer.err
    assert not list(tmp_path.iterdir())


def test_a_fleet_flies_first_what_it_can(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, str]] = []

    def fly(experiments: list[Experiment], folder: Path, **_: object) -> list[mr.Record | None]:
        done.extend(("flown", one.learner) for one in experiments)
        return [carry_out(one, folder) if one.learner == "online" else None for one in experiments]

    def run(experiment: Experiment, *given: Any, **options: Any) -> mr.Record:
        done.append(("run", experiment.learner))
        return carry_out(experiment, *given, **options)

    monkeypatch.setattr("metareplay.runners.fleet.runner.fly", fly)
    monkeypatch.setattr("metareplay.runners.fleet.runner.check_device", lambda _: None)
    monkeypatch.setattr(threads, "carry_out", run)
    answer = call(*FIVE, "--records", "runs", "--out", "out", "--on", "fleet", "--jobs", "1")
    assert answer.code == 0
    assert set(done[:2]) == {("flown", "online"), ("flown", "mer")}
    assert sorted(done[2:]) == [("run", name) for name in ("ewc", "gem", "mer", "task-input")]  # mer came back
    assert len(list((tmp_path / "runs").iterdir())) == 5


@pytest.mark.parametrize("words", [[], ["--list"], ["--list", "table-1"]])
def test_everything_there_is_can_be_listed(words: list[str], call: Call, tmp_path: Path) -> None:
    answer = call("paper", *words)
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert [line.split()[0] for line in lines] == [*TABLES, *FIGURES, *game_figures()]
    assert all(len(line) > 30 for line in lines)
    assert not list(tmp_path.iterdir())


ERRORS = {
    "unknown": (["paper", "table-10"], "no 'table-10' in the paper: use one of table-1, table-2,"),
    "one unknown of two": (["paper", "table-1", "figure"], "no 'figure' in the paper: use one of table-1,"),
    "unknown beside all": (["paper", "all", "tabel-1"], "no 'tabel-1' in the paper: use one of table-1,"),
    "no seeds": (["paper", "table-1", "--seeds", "0"], "--seeds 0: run at least one"),
    "fewer than no seeds": (["paper", "table-1", "--seeds", "-1"], "--seeds -1: run at least one"),
    "no tasks": (["paper", "table-1", "--tasks", "0"], "tasks=0: use a whole number of at least 1"),
    "no jobs": (["paper", "table-1", "--jobs", "0"], "jobs '0': use 'auto' or a whole number of at least 1"),
    "records in a file": ([*FIVE, "--records", "file"], "cannot write file/"),
    "tables in a file": ([*FIVE, "--out", "file"], "cannot write file/"),
}


@pytest.mark.parametrize(("words", "message"), ERRORS.values(), ids=ERRORS.keys())
def test_an_error_is_one_line_and_exit_code_two(words: list[str], message: str, call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    answer = call(*words)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("metareplay: ")
    assert message in answer.err
    assert answer.err.count("\n") == 1


# Miniatures


def test_a_miniature_of_every_table_is_one_document_and_the_same_again(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"test_share": 0.95, "resolution": 16}.items():  # one small training image of each character
        monkeypatch.setitem(SETTINGS["omniglot"]["stream_options"], name, value)
    answer = call("paper", *TABLES, *FIGURES, *MINIATURE, "--json")
    assert answer.code == 0
    assert answer.err == "tables and pictures: paper/; records: runs/\n"
    documents = {one["table"]: one for one in json.loads(answer.out)["tables"]}
    assert list(documents) == list(TABLES)
    written = contents(tmp_path / "paper")
    for name, document in documents.items():
        cells = shown_cells(TABLES[name]())
        assert [(one["model"], one["memory"], one["column"], one["metric"]) for one in document["numbers"]] == [
            (cell.model, cell.memory, cell.column, cell.metric) for cell in cells
        ]
        assert all(one["seeds"] == len(one["values"]) == 1 for one in document["numbers"])
        assert json.loads(written[f"{name}.json"]) == document
        rows = list(csv.DictReader(written[f"{name}.csv"].decode().splitlines()))
        assert [float(row["mean"]) for row in rows] == [one["mean"] for one in document["numbers"]]
        page = written[f"{name}.md"].decode()
        assert page.startswith(f"# {name}: {TABLES[name]().title}\n")
    assert pictures(tmp_path / "paper") == {*FIGURES, *PICTURES}
    assert len(written) == 3 * len(TABLES) + len(FIGURES) + len(PICTURES)
    for run in needed_runs(full_runs(), 1, **SIZES):
        (found,) = (tmp_path / "runs").glob(f"*-{run.key}.json")
        assert full(mr.Record.read(found))
    runs = {run.key for make in TABLES.values() for run in needed_runs(make(), 1, **SIZES)}
    assert len(list((tmp_path / "runs").iterdir())) == len(runs)  # the figures have no runs of their own

    with monkeypatch.context() as patch:
        patch.setattr(threads, "carry_out", None)
        again = call("paper", *TABLES, *FIGURES, *MINIATURE, "--json")
        recorded = call("paper", "table-2", *FIGURES, *MINIATURE, "--json", "--only-records", "--out", "again")
    assert (again.code, again.out) == (0, answer.out)
    assert f"{len(runs)} of {len(runs)} runs are in runs already\n" in again.err
    assert contents(tmp_path / "paper") == written
    assert json.loads(recorded.out)["tables"] == [documents["table-2"]]
    assert contents(tmp_path / "again").items() <= written.items()
    assert pictures(tmp_path / "again") == {"table-2", *FIGURES}


def test_a_table_is_printed_with_its_notes_and_a_miniature_without_verdicts(call: Call) -> None:
    answer = call(*FIVE)
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert lines[0].strip() == f"table-5: {TABLES['table-5']().title}"
    for cell in TABLES["table-5"]().cells:
        assert cell.published is not None
        assert f"paper {cell.published.mean:.2f} ± {cell.published.std:.2f}" in answer.out
    note = "A miniature (tasks 2, examples 20, test_examples 5): not to be compared with the paper's."
    assert lines[-3:] == [note, *TABLES["table-5"]().notes, "0 numbers: 0 within, 0 better, 0 worse"]
    assert not any("worse" in line for line in lines[:-1])
    assert "…" not in answer.out


class AtOnce(Runner):
    """Gives one record for everything, and runs nothing."""

    def __init__(self, record: mr.Record) -> None:
        self.record = record
        self.given: list[Experiment] = []

    def run(self, experiments: Sequence[Any], folder: Path, **options: Any) -> list[Any]:
        del folder, options
        self.given.extend(experiments)
        return [self.record] * len(experiments)


def test_a_table_at_its_full_size_has_verdicts(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, stream = replace(needed_runs(TABLES["table-5"](), 1, **SIZES)[0], hidden=(6,)).build()
    runner = AtOnce(mr.run(learner, stream))
    monkeypatch.setattr("metareplay.cli.paper.runner_at", lambda *_, **__: runner)
    answer = call("paper", "table-5")
    assert answer.out.splitlines()[-1].startswith("5 numbers: ")
    assert " worse" in answer.out
    assert [run.seed for run in runner.given] == [*range(5)] * 5
    assert all((run.tasks, run.examples, run.test_examples) == (20, 1000, None) for run in runner.given)


def test_a_figure_before_the_table_of_the_same_runs_has_whole_matrices(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[mr.Record] = []
    monkeypatch.setattr("metareplay.paper.figures.plot_matrices", lambda records, *_: drawn.extend(records.values()))
    words = ["--seeds", "1", "--tasks", "3", "--examples", "4", "--test-examples", "5"]
    assert call("paper", "figure-tasks", "table-2", *words).code == 0
    assert len(drawn) == 4
    assert all(map(full, drawn))
    assert not list((tmp_path / "runs").glob(".*"))


def test_recorded_runs_without_the_whole_matrix_do_not_serve_the_figure(call: Call, tmp_path: Path) -> None:
    words = ["--seeds", "1", "--tasks", "3", "--examples", "4", "--test-examples", "5"]
    assert call("paper", "table-2", *words).code == 0
    answer = call("paper", "figure-tasks", *words, "--only-records")
    assert (answer.code, answer.out) == (0, "")
    assert "figure-tasks: none of its runs is in runs yet\n" in answer.err
    assert "figure-tasks" not in pictures(tmp_path / "paper")


# Pictures are extra


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if matplotlib were not installed."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.mark.usefixtures("no_pictures")
def test_without_matplotlib_there_are_tables_and_a_remark(call: Call, tmp_path: Path) -> None:
    words = ["paper", "table-2", "figure-tasks", *MINIATURE, "--json", "--document", "page.md", "--pack", "all.jsonl"]
    answer = call(*words)
    assert answer.code == 0
    (document,) = json.loads(answer.out)["tables"]
    assert len(document["numbers"]) == len(shown_cells(TABLES["table-2"]()))
    assert answer.err == (
        "table-2: no picture (pictures need matplotlib: pip install 'metareplay[plots]')\n"
        "figure-tasks: no picture (pictures need matplotlib: pip install 'metareplay[plots]')\n"
        "tables and pictures: paper/; records: runs/\n"
    )
    assert {path.name for path in (tmp_path / "paper").iterdir()} == {"table-2.md", "table-2.csv", "table-2.json"}
    assert json.loads((tmp_path / "paper" / "table-2.json").read_text()) == document
    assert "## Table 2" in (tmp_path / "page.md").read_text()
    assert unpack(tmp_path / "all.jsonl", mr.Record)


def test_without_matplotlib_the_program_starts(tmp_path: Path) -> None:
    program = "import sys; sys.modules['matplotlib'] = None; from metareplay.cli import main; main()"
    words = ["paper", "table-2", "--only-records", "--json"]
    answer = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["tables"][0]["numbers"] == []


# Records


@pytest.mark.usefixtures("nothing_runs")
def test_without_records_nothing_is_shown_and_nothing_written(call: Call, tmp_path: Path) -> None:
    answer = call("paper", "all", *MINIATURE, "--only-records")
    assert (answer.code, answer.out) == (0, "")
    for name in (*TABLES, *FIGURES, "figure-catcher", "alone-flappy-25k-states"):
        assert f"{name}: none of its runs is in runs yet\n" in answer.err
    assert not list(tmp_path.iterdir())
    document = json.loads(call("paper", "table-5", "table-4", "--only-records", "--json").out)
    assert [(one["table"], one["numbers"]) for one in document["tables"]] == [("table-5", []), ("table-4", [])]


def test_of_what_is_recorded_in_part_that_part_is_shown(call: Call, tmp_path: Path) -> None:
    for number, (name, gone) in enumerate({"table-4": "*-Rotations-*", "table-2": "MER-Permutations-*"}.items()):
        folder = tmp_path / f"runs{number}"
        assert call("paper", name, *MINIATURE, "--records", str(folder)).code == 0
        for path in folder.glob(gone):
            path.unlink()
        words = ["paper", name, *MINIATURE, "--records", str(folder), "--only-records", "--json", "--out", f"{number}"]
        answer = call(*words)
        assert answer.code == 0
        (document,) = json.loads(answer.out)["tables"]
        assert 0 < len(document["numbers"]) < len(shown_cells(TABLES[name]()))


def test_fresh_runs_everything_again(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    first = call(*FIVE, "--json")
    ran: list[object] = []

    def noted(experiment: Experiment, *rest: Any, **options: Any) -> mr.Record:
        ran.append(experiment)
        return carry_out(experiment, *rest, **options)

    monkeypatch.setattr(threads, "carry_out", noted)
    assert call(*FIVE, "--json", "--fresh").out == first.out
    assert len(ran) == 5


def spoil(content: bytes, how: str) -> bytes:
    if how == "damaged":
        return content[: len(content) // 2]
    return sealed_json(opened_json(content)[0] | {"format": 7})


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("damaged", "is damaged or not a record: delete it and run again; it is left alone"),
        ("of another format", "is a record of format 7: this version reads format 1; it is left alone"),
    ],
)
def test_a_record_that_cannot_be_read_is_named_and_left_alone_and_the_run_is_done(
    how: str, message: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("metareplay"), "propagate", False)  # as without pytest: on stderr
    first = call(*FIVE, "--json")
    path = next((tmp_path / "runs").glob("MER-*.json"))
    path.write_bytes(spoiled := spoil(path.read_bytes(), how))
    some = call(*FIVE, "--json", "--only-records")
    assert f"{path.relative_to(tmp_path)} {message}\n" in some.err
    assert len(json.loads(some.out)["tables"][0]["numbers"]) == 4
    again = call(*FIVE, "--json")
    assert again.err.splitlines()[:3] == [
        "5 of 5 runs are in runs already",
        f"{path.relative_to(tmp_path)} {message}",
        "1 of these records cannot be read: running again what they are of",
    ]
    assert (again.code, again.out) == (0, first.out)
    assert path.read_bytes() == spoiled
    last = call(*FIVE, "--json")
    assert last == Answer(
        0, first.out, "5 of 5 runs are in runs already\ntables and pictures: paper/; records: runs/\n"
    )


def test_missing_data_says_how_to_fetch_it(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("METAREPLAY_DATA", str(tmp_path / "empty"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    nowhere = replace(sources.MNIST, mirrors=(), npm=None)
    monkeypatch.setattr(image_streams, "mnist", lambda: datasets.load(nowhere))
    answer = call(*FIVE)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("metareplay: mnist could not be fetched")
    assert "run `metareplay data fetch mnist` when online, or put " in answer.err
    assert answer.err.count("\n") == 1
    assert call(*FIVE, "--only-records").code == 0  # what is recorded needs no data


# Games

STATES = ["figure-catcher-states", "search-catcher-states", "alone-flappy-150k-states"]


def test_a_miniature_of_every_figure_of_games(call: Call, tmp_path: Path) -> None:
    answer = call("paper", *game_figures(), "--frames", "5", "--seeds", "1", "--json", "--document", "page.md")
    assert answer.code == 0
    assert answer.err == "tables and pictures: paper/; records: runs/\n"
    games = {one["name"]: one for one in json.loads(answer.out)["games"]}
    assert list(games) == list(game_figures())
    for name, figure in game_figures().items():
        assert list(games[name]["agents"]) == list(figure.arms)
        assert all(len(one["final"]) == 1 == len(one["seeds"]) for one in games[name]["agents"].values())
        assert json.loads((tmp_path / "paper" / f"{name}.json").read_text()) == games[name]
        page = (tmp_path / "paper" / f"{name}.md").read_text()
        assert page.startswith(f"# {figure.title}\n")
        assert "A miniature: not to be compared with anything." in page
        assert f"## {figure.title}\n" in (tmp_path / "page.md").read_text()
    assert pictures(tmp_path / "paper") == {name for name, figure in game_figures().items() if figure.curves}
    changed = [GameRecord.read(path) for path in (tmp_path / "runs").glob("*.json")]
    assert {one.engine for one in changed} == {"cpu"}
    assert all(one.settings["warmup"] < one.frames[-1] for one in changed if one.game["task"] is None)  # they learn


def test_games_from_records_and_from_a_packed_file(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = ["--frames", "20", "--seeds", "1"]
    nothing = call("paper", *STATES, *small, "--only-records")
    assert (nothing.code, nothing.out) == (0, "")
    assert "figure-catcher-states: none of its runs is in runs yet" in nothing.err
    first = call("paper", *STATES, "table-5", *small, *MINIATURE[2:], "--pack", "kept/all.jsonl")
    assert first.code == 0
    assert "hours" not in first.err
    assert first.out.count("figure-catcher-states: Catcher from states, published order") == 1
    packed = (tmp_path / "kept" / "all.jsonl").read_text().splitlines()
    assert len(packed) == len(list((tmp_path / "runs").glob("*.json"))) == 6 + 36 + 6 + 5
    monkeypatch.setattr(threads, "carry_out", None)
    for words in (["--only-records"], ["--only-records", "--records", "kept"], ["--records", "kept"]):
        again = call("paper", *STATES, "table-5", *small, *MINIATURE[2:], *words, "--out", "again")
        assert (again.code, again.out) == (0, first.out)
        assert contents(tmp_path / "again") == contents(tmp_path / "paper")
        assert "cannot be read" not in again.err
    rows = (tmp_path / "again" / "search-catcher-states.md").read_text().splitlines()
    areas = [float(row.split("|")[9]) for row in rows if row.startswith("| DQN")]
    assert len(areas) == 36
    assert areas == sorted(areas, reverse=True)


def test_bad_numbers_for_games_are_one_line(call: Call, tmp_path: Path) -> None:
    for words, message in (
        (["--frames", "0"], "--frames 0: play at least one frame per task"),
        (["--frames", "5", "--seeds", "0"], "--seeds 0: run at least one"),
        (["--frames", "5", "--engine", "abacus"], "abacus"),
    ):
        answer = call("paper", "figure-catcher-states", *words)
        assert (answer.code, answer.out) == (2, "")
        assert message in answer.err
        assert answer.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_whole_figure_from_pictures_says_how_long_it_takes(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Threads, "run", lambda _, experiments, *__, **___: [None] * len(experiments))
    assert "games from pictures without a GPU take hours per run" in call("paper", "figure-flappy").err
    assert "hours" not in call("paper", "figure-flappy-states").err


# On one page and in one file


def test_a_page_and_a_file_of_records_are_written_if_asked_for(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = call("paper", "table-5", "figure-tasks", *MINIATURE, "--pack", "kept/all.jsonl", "--document", "page.md")
    assert first.code == 0
    packed = unpack(tmp_path / "kept" / "all.jsonl", mr.Record)
    assert {record.key for record in packed} == {
        mr.Record.read(path).key for path in (tmp_path / "runs").glob("*.json")
    }
    page = (tmp_path / "page.md").read_text()
    assert f"## Table 5: {TABLES['table-5']().title}\n" in page
    assert "(../results/figure-tasks.png)" in page
    monkeypatch.setattr(threads, "carry_out", None)
    again = call("paper", "table-5", *MINIATURE, "--records", "kept")  # a file of records is as good as a folder
    assert again.code == 0
    assert again.out == first.out


# Killed


def changes(folder: Path) -> set[tuple[str, int, int]]:
    found = set()
    for path in folder.glob("*"):
        try:
            about = path.stat()
        except FileNotFoundError:
            continue
        if path.suffix in (".ckpt", ".json"):
            found.add((path.name, about.st_ino, about.st_mtime_ns))
    return found


def wait_for_changes(folder: Path, count: int, process: BaseProcess) -> None:
    """Wait until the process has written this many files."""
    before = changes(folder)
    seen = set(before)

    def enough() -> bool:
        seen.update(changes(folder))
        return len(seen) >= len(before) + count

    wait_until(enough, process)


@pytest.mark.slow
def test_killed_at_random_moments_the_table_is_the_same(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes do the work; they are killed after this many files were written, whatever they are doing."""
    expected = call(*FIVE, "--json", "--records", "undisturbed")
    server = server_of_processes(monkeypatch)
    moments = random.Random(0)
    for _ in range(4):
        process = server.Process(target=command_saving_always, args=([*FIVE, "--jobs", "2"], tmp_path))
        process.start()
        wait_for_changes(tmp_path / "runs", moments.randint(4, 12), process)
        time.sleep(moments.uniform(0, 0.01))
        kill(process)
        assert process.exitcode == -signal.SIGKILL
    assert list((tmp_path / "runs").glob(".*.ckpt"))
    answer = call(*FIVE, "--json")
    assert (answer.code, answer.out) == (0, expected.out)
    assert "continuing from runs/." in answer.err
    killed, undisturbed = (
        {record.key: record for record in map(mr.Record.read, (tmp_path / name).glob("*.json"))}
        for name in ("runs", "undisturbed")
    )
    assert killed.keys() == undisturbed.keys()
    for key, record in killed.items():
        assert record.weights == undisturbed[key].weights
        np.testing.assert_array_equal(record.accuracy, undisturbed[key].accuracy)
    assert not list((tmp_path / "runs").glob(".*.ckpt"))


@pytest.mark.slow
def test_the_results_page_is_what_the_committed_records_give(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(__file__).parents[2]
    monkeypatch.setattr(
        sys.modules["metareplay.streams.omniglot"], "SIZES", tuple(ALPHABETS.values())
    )  # not small ones
    answer = call(
        *("paper", "all", "--only-records", "--records", str(root / "results")),
        *("--out", "out", "--document", "page.md"),
    )
    assert answer.code == 0
    assert (tmp_path / "page.md").read_text() == (root / "docs" / "results.md").read_text()
