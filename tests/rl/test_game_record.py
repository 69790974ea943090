"""Records of agents: what they say about scores, tasks and forgetting; their files."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import RECORD

import metareplay as mr
from metareplay._core.seal import sealed_json
from metareplay.environments import Schedule
from metareplay.errors import MetareplayError
from metareplay.experiments.store import Records, pack, unpack
from metareplay.rl import GameRecord

GAME = {
    "game": "catcher",
    "values": [0.1, 0.2, 0.3],
    "order": "published",
    "frames_per_task": 10,
    "task": None,
    "total_frames": 30,
    "game_seed": 3,
    "evaluation": {"tasks": 3, "episodes": 2, "cap": 9, "every": 15, "seed": 1},
}
GAMES = GameRecord(
    learner="DQN",
    settings={"lr": 0.1, "seed": 3, "engine": "auto"},
    model="a net",
    game=GAME,
    seed=3,
    engine="cpu",
    frames=[0, 15, 30],
    scores=[[[0, 1], [0, 0], [2, 2]], [[10, 11], [4, 6], [3, 0]], [[8, 8], [9, 9], [1, 1.25]]],
    episodes=4,
    weights="cd" * 32,
    seconds={"learn": 1.5, "evaluate": 0.25},
    versions={"metareplay": "0"},
    date="2026-01-02T03:04:05+00:00",
)


def ordered(order: str, **changes: Any) -> GameRecord:
    return replace(GAMES, game=GAME | {"order": order} | changes)


def test_scores_against_numbers_by_hand() -> None:
    assert GAMES.means.tolist() == [[0.5, 0, 2], [10.5, 5, 1.5], [8, 9, 1.125]]
    assert GAMES.final.tolist() == [8, 9, 1.125]
    assert GAMES.final_mean == pytest.approx(18.125 / 3)
    assert GAMES.forgetting.tolist() == [2.5, 0, 0.875]
    assert GAMES.average == pytest.approx((17 + 18.125) / 6)  # without the evaluation before the first frame
    short = replace(GAMES, frames=[0], scores=GAMES.scores[:1])
    assert short.average == short.final_mean == pytest.approx(2.5 / 3)


def test_stretches_of_every_order() -> None:
    assert GAMES.stretches() == [(0, 10, 0), (10, 20, 1), (20, 30, 2)]
    assert ordered("reversed").stretches() == [(0, 10, 2), (10, 20, 1), (20, 30, 0)]
    assert (GAMES.first_task, ordered("reversed").first_task) == (0, 2)
    for seed in range(6):
        shuffled = ordered("shuffled", game_seed=seed)
        order = Schedule((1, 2, 3), 10, "shuffled", seed).tasks
        assert shuffled.stretches() == [(10 * i, 10 * i + 10, task) for i, task in enumerate(order)]
        assert shuffled.first_task == order[0]
        assert shuffled.forgetting[shuffled.first_task] == [2.5, 0, 0.875][order[0]]
    assert len({ordered("shuffled", game_seed=seed).first_task for seed in range(6)}) > 1


def test_a_task_alone_is_one_stretch() -> None:
    alone = ordered("published", task=2, values=[0.2])
    assert alone.stretches() == [(0, 30, 1)]
    assert alone.first_task == 1
    own = replace(GAMES, game={"game": "Walk", "total_frames": 30})
    assert (own.stretches(), own.first_task) == ([(0, 30, 0)], 0)


def test_a_run_that_ended_within_a_task() -> None:
    assert ordered("published", total_frames=15).stretches() == [(0, 10, 0), (10, 15, 1)]
    assert ordered("reversed", total_frames=10).stretches() == [(0, 10, 2)]


def test_never_evaluated() -> None:
    none = replace(GAMES, frames=[], scores=[])
    assert none.means.shape == (0, 0)
    assert (none.final.tolist(), none.forgetting.tolist(), none.first_task) == ([], [], 0)
    assert math.isnan(none.final_mean)
    assert math.isnan(none.average)
    assert GameRecord.from_json(json.loads(json.dumps(none.to_json(), allow_nan=False))) == none


def test_files(tmp_path: Path) -> None:
    path = GAMES.write(tmp_path)
    assert path.name == f"DQN-catcher-seed3-{GAMES.key}.json"
    assert GameRecord.read(path) == GAMES
    document = json.loads(path.read_text())
    assert (document["kind"], document["key"], document["final"]) == ("game", GAMES.key, [8, 9, 1.125])
    assert document["scores"][2] == [[8, 8], [9, 9], [1, 1.25]]
    assert GameRecord.from_json(document) == GAMES
    with pytest.raises(MetareplayError, match="is the record of a game, not of a run"):
        mr.Record.read(path)
    with pytest.raises(MetareplayError, match="is the record of a run, not of a game"):
        GameRecord.read(RECORD.write(tmp_path))
    with pytest.raises(MetareplayError, match="check the path"):
        GameRecord.read(tmp_path / "nowhere.json")
    path.write_bytes(sealed_json(document | {"format": 2}))
    with pytest.raises(MetareplayError, match="a record of format 2"):
        GameRecord.read(path)
    path.write_text("{}")
    with pytest.raises(MetareplayError, match="is damaged or not a record"):
        GameRecord.read(path)
    assert GAMES.write(tmp_path).name == f"format1-{path.name}"  # what cannot be read is left alone
    assert path.read_text() == "{}"


def test_the_key_says_what_was_run_and_not_how_it_ended() -> None:
    alike: list[dict[str, Any]] = [{"scores": []}, {"engine": "torch"}, {"weights": ""}, {"date": ""}]
    for changes in (*alike, {"settings": {"lr": 0.1, "seed": 3}}):
        assert replace(GAMES, **changes).key == GAMES.key
    others = [
        replace(GAMES, learner="DQNMER"),
        replace(GAMES, settings={"lr": 0.2, "seed": 3}),
        replace(GAMES, model="another net"),
        *(ordered("reversed", **{name: 99}) for name in ("values", "task", "frames_per_task", "game_seed")),
        ordered("published", evaluation=None),
    ]
    assert len({one.key for one in (GAMES, *others)}) == len(others) + 1


@pytest.mark.parametrize("packed", [False, True])
def test_both_kinds_of_records_share_a_folder(packed: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    if packed:
        pack([RECORD, GAMES], tmp_path / "all.jsonl")
        assert unpack(tmp_path / "all.jsonl", GameRecord) == [GAMES]
        assert unpack(tmp_path / "all.jsonl", mr.Record) == [RECORD]
    else:
        RECORD.write(tmp_path)
        GAMES.write(tmp_path)
    games, runs = Records(tmp_path, GameRecord), Records(tmp_path, mr.Record)
    assert (games.find(GAMES.key), runs.find(RECORD.key)) == (GAMES, RECORD)
    if packed:
        assert (games.find(RECORD.key), runs.find(GAMES.key)) == (None, None)
    assert not caplog.messages
    assert np.isfinite(GAMES.means).all()
