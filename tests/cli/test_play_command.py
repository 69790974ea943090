"""`metareplay play`: results, pictures, messages and Ctrl-C; test_live.py plays in a terminal."""

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_runs import Call

from metareplay.cli.agents import Agent
from metareplay.cli.stopping import asked_to_stop
from metareplay.environments import CATCHER_SPEEDS

# Results


def test_without_a_terminal_only_the_table_is_printed(call: Call, tmp_path: Path) -> None:
    answer = call("play", "catcher", "--frames", "50")
    assert (answer.code, answer.err) == (0, "")
    assert "\x1b" not in answer.out
    assert "catcher, pellet speed 0.0608" in answer.out
    assert "player: greedy; seed: 0" in answer.out
    assert re.search(r"1 │ +50 │ +\d+ │ +-?\d+ │ frame cap", answer.out)
    assert list(tmp_path.iterdir()) == []


def test_json_has_every_episode(call: Call) -> None:
    words = ("play", "flappy", "--player", "random", "--episodes", "2", "--task", "6", "--seed", "3", "--json")
    answer = call(*words)
    found = json.loads(answer.out)
    assert (found["game"], found["pipe_gap"], found["player"], found["seed"]) == ("flappy-bird", 75, "random", 3)
    assert [one["end"] for one in found["episodes"]] == ["lost", "lost"]
    assert all(one["frames"] > 10 and one["return"] == one["score"] - 5 for one in found["episodes"])
    assert call(*words).out == answer.out


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["catcher", "--difficulty", "0.1"], "pellet_speed", 0.1),
        (["catcher", "--task", "2"], "pellet_speed", 0.0908),
        (["flappy-bird", "--difficulty", "110"], "pipe_gap", 110),
        (["flappy-bird"], "pipe_gap", 100),
        ([], "pellet_speed", 0.0608),
    ],
)
def test_the_difficulty_is_as_asked_for(words: list[str], name: str, value: float, call: Call) -> None:
    found = json.loads(call("play", *words, "--frames", "3", "--json").out)
    assert (found[name], type(found[name])) == (value, type(value))


def test_a_gif_is_written(call: Call) -> None:
    answer = call("play", "catcher", "--out", "new/game.gif", "--frames", "40", "--episodes", "2")
    assert (answer.code, answer.err) == (0, "pictures: new/game.gif\n")
    with Image.open("new/game.gif") as found:
        assert (found.n_frames, found.size, found.info["duration"]) == (80, (384, 384), 30)  # type: ignore[attr-defined]


def test_png_files_are_written(call: Call) -> None:
    answer = call("play", "flappy", "--out", "pictures", "--frames", "12", "--json")
    assert json.loads(answer.out)["pictures"] == "pictures"
    assert sorted(one.name for one in Path("pictures").iterdir()) == [
        f"frame-{number:06d}.png" for number in range(1, 13)
    ]
    with Image.open("pictures/frame-000012.png") as found:
        assert found.size == (288, 512)


def test_an_agent_plays_with_its_own_observations(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def policy(observation: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> int:
        seen.append(observation.shape)
        return 2

    agent = Agent(policy, {"observation": "pixels", "size": 32, "frames": 2}, "catcher", CATCHER_SPEEDS)
    monkeypatch.setattr("metareplay.cli.play.load_agent", lambda _: agent)
    answer = call("play", "catcher", "--agent", "[red]", "--frames", "5")
    assert (answer.code, seen) == (0, [(2, 32, 32)] * 5)
    assert "player: [red]; seed: 0" in answer.out


# Messages

ERRORS: dict[str, tuple[list[str], str]] = {
    "unknown game": (["tetris"], "game 'tetris': use catcher or flappy-bird"),
    "unknown player": (["--player", "god"], "--player god: use one of me, greedy, random"),
    "two players": (["--player", "greedy", "--agent", "a"], "--player greedy and --agent a: use one of them"),
    "an agent": (["--agent", "agent.pt"], "no checkpoint at agent.pt: check the path"),
    "no terminal": (["--player", "me"], "--player me needs a terminal that shows the game and has a keyboard"),
    "task 0": (["--task", "0"], "--task 0: use a number from 1 to 6"),
    "task 7": (["flappy", "--task", "7"], "--task 7: use a number from 1 to 6"),
    "task and difficulty": (["--task", "1", "--difficulty", "0.1"], "--difficulty 0.1 and --task 1: use one of them"),
    "too fast": (["--difficulty", "9"], "--difficulty 9: pellet_speed=9: use pixels per millisecond"),
    "half a pixel": (["flappy", "--difficulty", "90.5"], "--difficulty 90.5: pipe_gap=90.5: use a whole number"),
    "no number": (["flappy", "--difficulty", "nan"], "--difficulty nan: pipe_gap=nan: use a whole number"),
    "no frames": (["--frames", "0"], "frames=0: there is nothing to play; use frames >= 1"),
    "no episodes": (["--episodes", "0"], "episodes=0: there is nothing to play; use episodes >= 1"),
    "no speed": (["--speed", "0"], "speed=0.0: use a positive number"),
    "negative seed": (["--seed", "-1"], "seed=-1: use a whole number from 0"),
    "another file": (["--out", "file"], "file is a file; give a folder, or a name that ends in .gif"),
    "another kind": (["--out", "film.mp4"], "film.mp4: give a name that ends in .gif, or a folder"),
    "no GIF": (["--out", "text.gif"], "text.gif exists and is not a GIF; choose another name"),
    "in a file": (["--out", "file/game.gif"], "cannot write file/game.gif: file is a file; choose another"),
    "a folder in a file": (["--out", "file/folder"], "cannot write file/folder: file is a file; choose another"),
}


@pytest.mark.parametrize(("words", "message"), ERRORS.values(), ids=ERRORS.keys())
def test_every_error_is_one_line_and_nothing_is_written(
    words: list[str], message: str, call: Call, tmp_path: Path
) -> None:
    for name in ("file", "text.gif"):
        (tmp_path / name).write_text("text")
    answer = call("play", *words)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert message in answer.err
    assert {one.name: one.read_text() for one in tmp_path.iterdir()} == {"file": "text", "text.gif": "text"}


@pytest.mark.parametrize(("package", "words"), [("gymnasium", []), ("PIL", ["--out", "game.gif"])])
def test_what_is_missing_is_named(
    package: str, words: list[str], call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    answer = call("play", *words)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert "pip install 'metareplay[rl]'" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_the_help_explains_the_players(call: Call) -> None:
    text = " ".join(call("play", "--help").out.split())
    for words in ("--player", "--agent", "default: me in a terminal", "1 to 6", "33 frames per second"):
        assert words in text


# Ctrl-C


@pytest.fixture
def ctrl_c_is_heard() -> Iterator[None]:
    """Let Ctrl-C be heard, which a process in the background ignores."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c_is_heard")
def test_ctrl_c_keeps_what_was_played(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0

    def policy(_: object) -> int:
        nonlocal count
        count += 1
        if count == 7:
            os.kill(os.getpid(), signal.SIGINT)
        return 2

    monkeypatch.setattr("metareplay.cli.play.load_agent", lambda _: Agent(policy, {}, "catcher", CATCHER_SPEEDS))
    answer = call("play", "catcher", "--agent", "agent", "--out", "game.gif", "--episodes", "3", "--json")
    assert answer.code == 0
    (episode,) = json.loads(answer.out)["episodes"]
    assert (episode["frames"], episode["end"]) == (7, "left")
    with Image.open("game.gif") as found:
        assert found.n_frames == 7  # type: ignore[attr-defined]


@pytest.mark.usefixtures("ctrl_c_is_heard")
def test_the_second_ctrl_c_stops_at_once() -> None:
    before = signal.getsignal(signal.SIGINT)
    with asked_to_stop() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(5)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before
