"""`metareplay sweep`: lists of values, the report, the command for the winner, and bad words."""

import io
import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress as RichProgress
from small_runs import Answer, Call, instead_of_mnist

from metareplay._core.seal import opened_json
from metareplay.cli.lists import values_of
from metareplay.cli.sweep_view import SweepView, sweep_view
from metareplay.errors import InputError
from metareplay.experiments import Experiment, Progress
from metareplay.runners import Failure
from metareplay.sweeps import Case

SMALL = ["--tasks", "2", "--examples", "10", "--test-examples", "12"]
HERE = ["--on", "threads"]  # other processes would not have the small images
GRID = ["--memory", "8", "--lr", "0.01,0.1", "--k", "2,3", "--s", "1"]


def small(call: Call, *words: str) -> Answer:
    return call("sweep", *words, *SMALL, "--seeds", "2", *HERE)


def records(folder: Path = Path("runs")) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_lists_make_a_grid_and_the_winner_s_command_runs_nothing_new(call: Call) -> None:
    answer = small(call, "mer", "rotations", *GRID)
    assert answer.code == 0, answer.err
    assert "the best of 4 settings" in answer.out
    assert "Chosen by validation accuracy: 10 %" in answer.out
    before = records()
    assert len(before) == 4 * 2 + 2
    document, is_sealed = opened_json(Path("sweep/sweep.json").read_bytes())
    assert is_sealed
    assert document["command"] in answer.out
    assert list(document["grid"])[:3] == ["memory", "lr", "k"]  # in the order in which they were typed
    words = shlex.split(document["command"])
    assert words[:4] == ["metareplay", "run", "mer", "rotations"]
    run = call(*words[1:], "--json")
    assert run.code == 0, run.err
    assert records() == before
    found = json.loads(run.out)["summary"]["ra"]["mean"]
    assert found == pytest.approx(document["result"]["ra"]["mean"])
    page = Path("sweep/sweep.md").read_text()
    assert f"```sh\n{document['command']}\n```" in page
    assert Path("sweep/sweep.png").exists()
    again = small(call, "mer", "rotations", *GRID, "--json")
    assert json.loads(again.out)["ranking"] == document["ranking"]
    assert "8 of 8 runs are in runs already" in again.err
    assert records() == before


def test_the_options_of_the_command_reach_the_winner_s(call: Call) -> None:
    answer = small(call, "gem", "permutations", "--memory", "4,8", "--seed", "3", "--engine", "torch", "--records", "r")
    assert answer.code == 0, answer.err
    command = json.loads(Path("sweep/sweep.json").read_text())["command"]
    assert command.endswith("--seeds 2 --seed 3 --engine torch --records r")
    before = records(Path("r"))
    assert call(*shlex.split(command)[1:]).code == 0
    assert records(Path("r")) == before


def test_what_somebody_prints_during_the_runs_is_not_among_the_results(call: Call) -> None:
    Path("loud.py").write_text(
        "import metareplay as mr\n"
        "class Loud(mr.Online):\n"
        "    def __post_init__(self):\n"
        "        super().__post_init__()\n"
        "        print('here I am')\n"
    )
    answer = small(call, "loud.py:Loud", "rotations", "--lr", "0.01,0.1", "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["settings"] == 2
    assert "here I am" in answer.err


def test_the_paper_s_grid(call: Call) -> None:
    few = ["--k", "6", "--seeds", "1", "--random", "3"]
    answer = call("sweep", "--paper", "er", "rotations-500", *few, *SMALL, *HERE, "--json")
    assert answer.code == 0, answer.err
    document = json.loads(answer.out)
    assert document["grid"]["lr"] == [0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1]
    assert (document["settings"], document["combinations"]) == (3, 8)
    assert document["grid"]["memory"] == [500]
    assert document["published"]["settings"] == {"lr": 0.1, "k": 6}


def test_packed_records_are_found_again(call: Call) -> None:
    words = ["online", "rotations", "--lr", "0.01,0.1"]
    assert small(call, *words, "--pack", "packed/all.jsonl").code == 0
    assert len(Path("packed/all.jsonl").read_text().splitlines()) == 2 * 2 + 2
    again = small(call, *words, "--records", "packed")
    assert "4 of 4 runs are in packed already" in again.err
    assert records(Path("packed")) == {"all.jsonl"}


def test_choosing_by_test_accuracy_is_labelled(call: Call) -> None:
    answer = small(call, "online", "--lr", "0.01,0.1", "--select", "test")
    assert answer.code == 0, answer.err
    assert "Chosen by TEST accuracy, as in the paper" in answer.out
    assert "TEST accuracy" in Path("sweep/sweep.md").read_text()
    assert len(records()) == 4


def test_games_are_scored(call: Call) -> None:
    sizes = ["--frames", "20", "--every", "60", "--episodes", "1", "--cap", "20", "--warmup", "10", "--memory", "50"]
    answer = call("sweep", "dqn-mer", "catcher", "--quick", "--lr", "0.001,0.01", *sizes, "--seeds", "1", *HERE)
    assert answer.code == 0, answer.err
    assert "mean final score in evaluation episodes" in answer.out
    command = json.loads(Path("sweep/sweep.json").read_text())["command"]
    before = {name for name in records() if name.endswith(".json")}
    assert call(*shlex.split(command)[1:]).code == 0
    assert {name for name in records() if name.endswith(".json")} == before


def test_a_learner_of_one_s_own(call: Call) -> None:
    """Its options take lists, too."""
    mine = f"{Path(__file__).parents[1]}/seams/der_plus_plus.py:DERPlusPlus"
    answer = small(call, mine, "rotations", "--memory", "8", "--alpha", "0.1,0.5")
    assert answer.code == 0, answer.err
    document = json.loads(Path("sweep/sweep.json").read_text())
    assert document["grid"]["alpha"] == [0.1, 0.5]
    before = records()
    assert call(*shlex.split(document["command"])[1:]).code == 0
    assert records() == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["mer", "rotations", "--lr", "0.1,fast"], "--lr 0.1,fast: 'fast' is not a number"),
        (["mer", "rotations", "--k", "3,,4"], "--k 3,,4: a value is missing"),
        (["mer", "rotations", "--k", "3,3"], "--k 3,3: 3 is there twice"),
        (["mer", "rotations", "--k", "0,3"], "k=0: a batch holds"),
        (["mer", "rotations", "--memory", "5,0"], "memory=0"),
        (["online", "rotations", "--beta", "0.1,1"], "online has no option 'beta'"),
        (["mer", "tides"], "stream 'tides': use one of"),
        (["mer", "rotations", "--select", "both"], "--select both: use validation or test"),
        (["mer", "rotations", "--held-out", "1.5"], "held_out=1.5"),
        (["mer", "rotations", "--random", "9", "--lr", "0.1,1"], "the grid has 2"),
        (["mer", "rotations", "--seeds", "0"], "--seeds 0: run at least one"),
        (["mer", "rotations", "--on", "moon"], "--on moon: use one of"),
        (["--paper", "mer", "rotations-many"], "--paper rotations-many: use a stream and a memory size"),
        (["--paper", "reptile", "rotations"], "the paper lists no grid for 'reptile'"),
    ],
)
def test_bad_words_get_one_line_before_anything_starts(words: list[str], says: str, call: Call) -> None:
    answer = call("sweep", *words)
    assert answer.code == 2
    assert says in answer.err
    assert answer.err.count("\n") == 1
    assert not Path("runs").exists()


def test_values() -> None:
    assert values_of("double", bool, "true,no") == [True, False]
    assert values_of("norm", str, "group, none") == ["group", None]
    with pytest.raises(InputError, match="'maybe' is neither true nor false"):
        values_of("double", bool, "maybe")


def cases() -> list[Case]:
    def at(lr: float) -> Experiment:
        return Experiment(learner="online", options={"lr": lr}, tasks=2, examples=10, test_examples=5, hidden=(4,))

    return [Case(number, {"lr": lr}, (at(lr),)) for number, lr in enumerate((0.01, 0.1, 0.3, 1.0))]


def test_the_live_view_counts_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    view = SweepView(console, RichProgress(console=console), "online on rotations", ["lr"])
    experiments: Sequence[Experiment] = [case.experiments[0] for case in cases()]  # type: ignore[misc]
    assert view.lines() == ["online on rotations: checking the settings"]
    view.round("settings", cases(), tmp_path, "va")
    view.begin(experiments[1:])  # the first one has a record already
    assert view.lines() == ["online on rotations, settings: 1 done, 0 running, 0 failed, 3 left"]
    view.step(experiments[1], Progress("learning", 0, 10, 20), 2)
    assert view.lines()[0].endswith("1 running, 0 failed, 2 left")  # too early to say how long it takes
    now[0] = 30.0
    [line] = view.lines()
    assert line.endswith("1 done, 1 running, 0 failed, 2 left; about 2 min 30 s left")
    view.end(experiments[1], finished=True)
    view.end(experiments[2], finished=False)
    view.failed(experiments[2], Failure.of(experiments[2], "it was bad"))
    [line] = view.lines()
    assert line.endswith("2 done, 0 running, 1 failed, 1 left; about 15.0 s left")
    view.round("settings", cases(), tmp_path, "va")
    Failure.of(experiments[0], "it was bad before").write(tmp_path)
    view.begin(experiments[1:])
    assert view.lines() == ["online on rotations, settings: 0 done, 0 running, 1 failed, 3 left"]
    now[0] = 60.0
    view.together(3, 5, 20)  # a fleet has come a quarter of the way
    assert view.lines()[0].endswith("3 left; about 1 min 30 s left")


def test_the_live_view_shows_the_best_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instead_of_mnist(monkeypatch)
    monkeypatch.setattr("metareplay.cli.sweep_view.LOOK", -1.0)
    console = Console(file=(out := io.StringIO()), force_terminal=True, width=120)
    with sweep_view(console, "online on rotations", ["lr"]) as view:
        view.round("settings", cases(), tmp_path, "ra")
        assert isinstance(view, SweepView)
        assert len(view.lines()) == 1
        run = cases()[1].experiments[0].start()
        for _ in run.steps():
            pass
        run.record().write(tmp_path)
        view.__rich__()
        assert view.lines()[1].startswith("best so far: test accuracy ")
        assert view.lines()[1].endswith("with lr=0.1")
        view.remark("a remark")
    assert "best so far" in out.getvalue()
    quiet = Console(file=(silent := io.StringIO()))
    with sweep_view(quiet, "online on rotations", ["lr"]) as view:
        view.begin([cases()[0].experiments[0]])
    assert silent.getvalue() == ""
