"""`metareplay run dqn-mer catcher` and `metareplay play --agent`: records, agents, pictures, options, interruptions."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from small_runs import Call

import metareplay as mr
from metareplay.environments import CATCHER_SPEEDS_640
from metareplay.experiments.store import pack
from metareplay.paper.games import game_figures
from metareplay.rl import GameExperiment, GameRecord, Training
from metareplay.runners import threads

SMALL = ["--frames", "20", "--every", "60", "--episodes", "2", "--cap", "40", "--warmup", "20", "--memory", "50"]
QUICK = ["run", "dqn-mer", "catcher", "--quick", *SMALL]


def result(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in ("seconds", "date")}


def test_a_miniature_leaves_a_table_a_record_an_agent_and_a_picture(call: Call, tmp_path: Path) -> None:
    answer = call(*QUICK)
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert lines[0].strip() == "dqn-mer on catcher: published order, state"
    for head in ("agent", *(f"task {task}" for task in range(1, 7)), "mean", "area", "lost", "seeds"):
        assert head in lines[2]
    assert "scores at the end; area" in answer.out
    assert "…" not in answer.out
    (path,) = (tmp_path / "runs").glob("*.json")
    record = GameRecord.read(path)
    assert (record.frames, record.seed, record.learner) == ([0, 60, 120], 0, "DQNMER")
    assert (record.settings["lr"], record.settings["optimizer"]) == (0.015, "sgd")  # ours
    names = {one.name for one in (tmp_path / "runs").iterdir()}
    assert names == {f"{record.name}{end}" for end in (".json", ".agent", ".png")}
    with Image.open(path.with_suffix(".png")) as picture:
        assert picture.format == "PNG"
    assert f"watch it: metareplay play catcher --agent runs/{record.name}.agent\n" in answer.err
    assert f"picture: runs/{record.name}.png\n" in answer.err
    assert "hours" not in answer.err


def test_json_is_one_document_and_the_same_again_runs_nothing(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = call(*QUICK, "--json")
    document = json.loads(first.out)
    assert document["kind"] == "game"
    assert GameRecord.from_json(document).key == document["key"]
    assert {path.suffix for path in (tmp_path / "runs").iterdir()} == {".json", ".agent"}
    monkeypatch.setattr(threads, "carry_out", None)
    again = call(*QUICK, "--json")
    assert (again.code, again.out) == (0, first.out)
    assert "1 of 1 runs are in runs already" in again.err


def test_fresh_runs_again_with_the_same_result(call: Call) -> None:
    first, again = (json.loads(call(*QUICK, "--json", "--fresh").out) for _ in range(2))
    assert first["date"] <= again["date"]
    assert result(first) == result(again)


def test_several_seeds(call: Call, tmp_path: Path) -> None:
    answer = call(*QUICK, "--seeds", "2", "--seed", "3", "--jobs", "2", "--json")
    document = json.loads(answer.out)
    records = [GameRecord.from_json(one) for one in document["records"]]
    assert [one.seed for one in records] == [3, 4]
    assert records[0].weights != records[1].weights
    means = [one.final_mean for one in records]
    assert document["summary"]["mean"] == pytest.approx(sum(means) / 2)
    assert document["summary"]["std"] == pytest.approx(abs(means[0] - means[1]) / 2**0.5)
    assert len(list((tmp_path / "runs").glob("*.agent"))) == 2
    alone = json.loads(call(*QUICK, "--seed", "4", "--json", "--records", "alone").out)
    assert result(alone) == result(document["records"][1])
    table = call(*QUICK, "--seeds", "2", "--seed", "3")
    assert "±" in table.out


def test_options_reach_the_experiment(call: Call) -> None:
    words = ["run", "dqn", "flappy-bird", "--quick", *SMALL, "--order", "reversed", "--memory-kind", "reservoir"]
    document = json.loads(call(*words, "--lr", "0.02", "--double", "--seed", "2", "--engine", "torch", "--json").out)
    expected = GameExperiment(
        learner="dqn", game="flappy-bird", observation="state", memory=50, memory_kind="reservoir", order="reversed",
        frames=20, every=60, episodes=2, cap=40, seed=2, options={
            "lr": 0.02, "double": True, "warmup": 20, "k": 17, "optimizer": "adam", "target_every": 100,
            "epsilon_end": 0.02, "reward_clip": 1.0,
        },
    )  # fmt: skip
    assert document["key"] == expected.key
    assert document["engine"] == "torch"
    alone = call(*QUICK, "--task", "2")
    assert "task 2 alone, state" in alone.out


def test_published_settings_are_those_of_the_figures(call: Call) -> None:
    document = json.loads(call(*QUICK, "--published", "--json").out)
    arm = game_figures()["figure-catcher-states"].arms["DQN-MER, published settings"]
    assert {name: document["settings"][name] for name in arm.options} == arm.options


def test_pictures_are_learned_from(call: Call, tmp_path: Path) -> None:
    words = ["run", "dqn", "catcher", "--size", "36", "--frames", "4", "--every", "24", "--episodes", "1"]
    answer = call(*words, "--cap", "5", "--warmup", "10", "--k", "2", "--memory", "20")
    assert answer.code == 0
    assert "learning from pictures takes 15 minutes or more per seed on a CPU: --quick takes seconds" in answer.err
    assert "published order, pixels" in answer.out
    (agent,) = (tmp_path / "runs").glob("*.agent")
    shown = call("play", "catcher", "--agent", str(agent), "--frames", "5", "--out", "game.gif")
    assert shown.code == 0
    with Image.open("game.gif") as picture:
        assert picture.format == "GIF"


def test_interrupted_and_continued(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play = Training._play

    def interrupted(self: Training) -> None:
        if self.agent.seen >= 60:
            self.save()
            raise KeyboardInterrupt
        play(self)

    with monkeypatch.context() as patched:
        patched.setattr(Training, "_play", interrupted)
        stopped = call(*QUICK, "--json")
    assert (stopped.code, stopped.out) == (130, "")
    assert "give the same command again to continue" in stopped.err
    answer = call(*QUICK, "--json")
    assert "dqn-mer, catcher, published, seed 0: continuing from runs/." in answer.err
    assert result(json.loads(answer.out)) == result(json.loads(call(*QUICK, "--json", "--records", "other").out))
    assert not list((tmp_path / "runs").glob(".*"))


def test_without_matplotlib_only_the_picture_is_missing(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    answer = call(*QUICK)
    assert answer.code == 0
    assert "no picture: pictures need matplotlib" in answer.err


def test_a_packed_record_has_no_agent_to_watch(call: Call, tmp_path: Path) -> None:
    call(*QUICK, "--json")
    (path,) = (tmp_path / "runs").glob("*.json")
    pack([GameRecord.read(path)], tmp_path / "packed" / "all.jsonl")
    answer = call(*QUICK, "--records", "packed")
    assert answer.code == 0
    assert "watch it" not in answer.err


# Bad options

ERRORS: dict[str, tuple[list[str], str]] = {
    "no such task": ([*QUICK, "--task", "7"], "task 7: catcher has tasks 1 to 6"),
    "no such order": (
        [*QUICK, "--order", "upside-down"],
        "order='upside-down': use one of 'published', 'reversed', or",
    ),
    "no frames": ([*QUICK, "--frames", "0"], "frames=0: every value holds for at least one frame; use frames >= 1"),
    "no memory": ([*QUICK, "--memory", "0"], "memory=0"),
    "no seeds": ([*QUICK, "--seeds", "0"], "--seeds 0: run at least one"),
    "no episodes": ([*QUICK, "--episodes", "0"], "episodes=0: a score needs at least one episode"),
    "no such memory": ([*QUICK, "--memory-kind", "ring"], "memory kind 'ring': use one of recent, reservoir"),
    "no such game": (["run", "dqn", "pong", "--quick"], "game 'pong': use one of catcher, flappy-bird"),
    "a learner that does not act": (["run", "mer", "catcher"], "learner 'mer': use one of dqn, dqn-mer"),
    "a stream that is no game": (["run", "dqn", "rotations"], "game 'rotations': use one of catcher, flappy-bird"),
    "too small": (
        ["run", "dqn", "catcher", "--size", "20"],
        "size=20: three convolutions need frames of at least 36x36",
    ),
    "pictures of numbers": ([*QUICK, "--size", "64"], "--size 64 and --quick, which learns without pictures: use one"),
    "no such screen": ([*QUICK, "--screen", "1"], "screen=1"),
    "another game's option": (["run", "dqn", "flappy-bird", "--screen", "640"], "flappy-bird has no option 'screen'"),
    "another agent's option": (["run", "dqn", "catcher", "--beta", "0.5"], "dqn has no option 'beta'"),
    "a stream's option": ([*QUICK, "--tasks", "2"], "No such option: --tasks"),
    "no such engine": ([*QUICK, "--engine", "abacus"], "abacus"),
    "no jobs": ([*QUICK, "--jobs", "0"], "jobs '0'"),
    "a seed that is too large": ([*QUICK, "--seed", str(2**32)], "seed=4294967296"),
    "records in a file": ([*QUICK, "--records", "file"], "cannot write file/"),
    "a rate that is none": ([*QUICK, "--lr", "-1"], "lr=-1"),
}


@pytest.mark.parametrize(("words", "message"), ERRORS.values(), ids=ERRORS.keys())
def test_an_error_is_one_line_and_exit_code_two(words: list[str], message: str, call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    answer = call(*words)
    assert (answer.code, answer.out) == (2, "")
    *remarks, last = answer.err.splitlines()
    assert last.startswith("metareplay: ")
    assert message in last
    assert all("takes 15 minutes" in one for one in remarks)
    assert not (tmp_path / "runs").exists()


def test_without_gymnasium_there_is_one_line(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    answer = call(*QUICK)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == "metareplay: environments need gymnasium: pip install 'metareplay[rl]'\n"


def test_without_a_gpu_cuda_is_refused(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    answer = call(*QUICK, "--engine", "cuda")
    assert answer.code == 2
    assert answer.err.count("\n") == 1


def test_help_mentions_games(call: Call) -> None:
    assert "metareplay run dqn-mer catcher --help" in call("run", "--help").out
    shown = " ".join(call("run", "dqn-mer", "catcher", "--help").out.split())
    for word in ("--quick", "--published", "--order", "--target-every", "--gamma", "metareplay play GAME"):
        assert word in shown


@pytest.mark.parametrize(
    ("words", "known"),
    [
        (["run", "mer", "rotations", "--records", "catcher"], False),
        (["run", "mer", "rotations", "--records=catcher"], False),
        (["run", "--memory=9", "dqn"], True),
        (["run", "--quick", "dqn"], True),
        (["run", "--double", "dqn-mer"], True),
        (["run", "--seed", "1", "dqn", "catcher"], True),
    ],
)
def test_only_what_is_named_decides_which_options_there_are(words: list[str], known: bool, call: Call) -> None:
    assert ("--quick" in call(*words, "--help").out) == known


# Agents that play


@pytest.fixture
def agent(call: Call, tmp_path: Path) -> Path:
    call(*QUICK, "--json")
    (path,) = (tmp_path / "runs").glob("*.agent")
    return path


def test_a_trained_agent_plays(agent: Path, call: Call) -> None:
    answer = call("play", "catcher", "--agent", str(agent), "--frames", "30", "--episodes", "2", "--json")
    assert answer.code == 0
    document = json.loads(answer.out)
    assert document["player"] == str(agent)
    assert len(document["episodes"]) == 2


def test_an_agent_plays_the_game_that_it_has_learned(agent: Path, call: Call) -> None:
    answer = call("play", "flappy-bird", "--agent", str(agent))
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == f"metareplay: --agent {agent}: it has learned catcher, not flappy-bird\n"


def test_tasks_are_those_of_the_agent_s_screen(call: Call, tmp_path: Path) -> None:
    call(*QUICK, "--screen", "640", "--json")
    (path,) = (tmp_path / "runs").glob("*.agent")
    answer = call("play", "catcher", "--agent", str(path), "--task", "3", "--frames", "3", "--json")
    assert json.loads(answer.out)["pellet_speed"] == CATCHER_SPEEDS_640[2]


def test_files_that_are_no_agents_are_one_line(agent: Path, call: Call, tmp_path: Path) -> None:
    foreign = tmp_path / "learner.ckpt"
    mr.MER(mr.networks.mlp(4, (8,), 3), memory=mr.Reservoir(5)).save(foreign)
    damaged = tmp_path / "damaged.agent"
    damaged.write_bytes(agent.read_bytes()[:500])
    for path, message in (
        (foreign, "is damaged (experiment is missing)"),
        (damaged, "is damaged or not a metareplay checkpoint"),
        (tmp_path / "nowhere.agent", "no checkpoint at"),
        (agent.with_suffix(".json"), "is damaged or not a metareplay checkpoint"),
    ):
        answer = call("play", "catcher", "--agent", str(path))
        assert (answer.code, answer.out) == (2, "")
        assert message in answer.err
        assert answer.err.count("\n") == 1
