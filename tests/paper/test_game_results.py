"""Results of games: what has to be run, tables, documents and pictures."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from small_games import small_game

from metareplay.errors import MetareplayError, PicturesMissingError
from metareplay.paper import game_results
from metareplay.paper.game_results import (
    GameResults,
    WantedGames,
    as_document,
    as_markdown,
    game_page,
    heads_of,
    rows_of,
    write_games,
)
from metareplay.paper.games import GameFigure
from metareplay.rl import GameRecord

FIGURE = GameFigure("figure-small", "Small games", {"A": small_game(), "B": small_game(learner="dqn")}, (0, 1))


def record(scores: list[Any], seed: int = 0, **game: Any) -> GameRecord:
    found = small_game(seed=seed).start().record()
    about = {name: value for name, value in found.game.items() if name != "values"} | {"values": [1, 2], **game}
    return replace(found, frames=[0, 60, 120], scores=scores, game=about)


ONE = [[[0], [0]], [[8], [2]], [[6], [4]]]  # the first task falls from 8 to 6; the area is (8 + 2 + 6 + 4) / 4
TWO = [[[0], [0]], [[2], [2]], [[2], [3]]]
BOTH = GameResults(FIGURE, {"A": [record(ONE), record(TWO, 1)], "B": [record(TWO)]}, "A note.")


def test_rows_have_scores_mean_area_and_what_was_lost() -> None:
    assert heads_of(BOTH) == ["agent", "task 1", "task 2", "mean", "area", "lost", "seeds"]
    rows = dict(rows_of(BOTH))
    assert rows["B"] == ["2.0", "3.0", "2.5", "2.2", "0.0", "1"]
    assert rows["A"] == ["4.0 ± 2.8", "3.5 ± 0.7", "3.8 ± 1.8", "3.6 ± 1.9", "1.0 ± 1.4", "2"]
    reverse = GameResults(FIGURE, {"A": [record(ONE, order="reversed")]})
    assert rows_of(reverse)[0][1][4] == "0.0"  # the first task was the second, which is best at the end


def test_a_search_is_ordered_by_area() -> None:
    search = replace(FIGURE, name="search-small")
    groups = {"worst": [record(TWO)], "best": [record(ONE)], "middle": [record(TWO), record(ONE, 1)]}
    assert [name for name, _ in rows_of(GameResults(search, groups))] == ["best", "middle", "worst"]
    assert [name for name, _ in rows_of(GameResults(FIGURE, groups))] == list(groups)


def test_documents_and_pages() -> None:
    document = json.loads(json.dumps(as_document(BOTH), allow_nan=False))
    assert document["name"] == "figure-small"
    assert document["agents"]["A"]["final"] == [[6, 4], [2, 3]]
    assert document["agents"]["A"]["mean"] == [5, 2.5]
    assert document["agents"]["A"]["area"] == [5, 2.25]
    assert document["agents"]["A"]["lost"] == [2, 0]
    assert document["agents"]["A"]["seeds"] == [0, 1]
    page = as_markdown(BOTH).splitlines()
    assert page[0] == "| agent | task 1 | task 2 | mean | area | lost | seeds |"
    assert page[1].count("|") == page[2].count("|") == page[0].count("|")
    assert page[-1].endswith("A note.")
    whole = game_page([BOTH, GameResults(FIGURE, {})])
    assert whole.count("## Small games") == 1
    assert "![Small games](../results/figure-small.png)" in whole
    assert "png" not in game_page([GameResults(replace(FIGURE, curves=False), BOTH.groups)])
    assert game_page([]) == ""


def test_files_are_written_for_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = GameResults(replace(FIGURE, name="table-small", curves=False), BOTH.groups)
    none = GameResults(replace(FIGURE, name="none"), {})
    assert write_games([BOTH, table, none], tmp_path) == []
    names = {f"figure-small.{end}" for end in ("md", "json", "png")} | {"table-small.md", "table-small.json"}
    assert {path.name for path in tmp_path.iterdir()} == names
    with Image.open(tmp_path / "figure-small.png") as picture:
        assert picture.format == "PNG"

    def missing(*_: object) -> None:
        raise PicturesMissingError("no matplotlib")

    monkeypatch.setattr(game_results, "plot_scores", missing)
    assert write_games([BOTH, table], tmp_path / "other") == ["figure-small: no picture (no matplotlib)"]
    assert len(list((tmp_path / "other").iterdir())) == 4


def test_an_agent_has_the_same_colour_whichever_others_have_been_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[dict[str, str]] = []
    monkeypatch.setattr(game_results, "plot_scores", lambda *given: found.append(given[-1]))
    name, records = next(iter(BOTH.groups.items()))
    write_games([BOTH, replace(BOTH, groups={name: records})], tmp_path)
    assert found[0] == found[1]
    assert set(found[0]) == set(FIGURE.arms)


def test_records_are_put_where_they_belong(tmp_path: Path) -> None:
    wanted = WantedGames(["figure-catcher-states", "alone-catcher-25k-states"], 2, 4, "torch")
    assert len(wanted.experiments) == 2 * 6 + 2 * 6
    assert {one.engine for one in wanted.experiments} == {"torch"}
    assert wanted.recorded(tmp_path) == [None] * 24
    empty = wanted.results([None] * 24)
    assert [one.figure.name for one in empty] == ["figure-catcher-states", "alone-catcher-25k-states"]
    assert all(not one.records for one in empty)
    some = [record(ONE, seed=number) if number % 3 else None for number in range(24)]
    first, second = wanted.results(some)
    assert [one.seed for one in first.groups["DQN"]] == [1]
    assert [one.seed for one in second.groups["DQN, task 6 alone"]] == [22, 23]
    assert len(first.records) + len(second.records) == 16
    assert "miniature" in first.note
    whole = WantedGames(["figure-catcher"], None, None)
    assert whole.results([None] * 30)[0].note == ""
    early = replace(record(ONE), engine="cuda, 2 side by side", date="2026-11-16T09:41:28+00:00")
    some = [early, replace(early, date="2026-11-19T09:41:28+00:00"), replace(early, engine="cpu"), *[None] * 27]
    assert whole.results(some)[0].note.startswith("Provisional: 1 of 3 runs")
    with pytest.raises(MetareplayError, match="--frames 0: play at least one frame per task"):
        WantedGames([], None, 0)
