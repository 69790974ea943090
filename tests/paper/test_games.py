"""The figures of the paper's second half: which agents, settings and seeds they have."""

from collections import Counter
from dataclasses import replace

import pytest

from metareplay.environments import CATCHER_SPEEDS, CATCHER_SPEEDS_640
from metareplay.paper.games import ADAM, LEARNERS, RATES, SEARCHED, game_figures
from metareplay.paper.reproduce import chosen, titles
from metareplay.rl.arcade.arcade import shape_of
from metareplay.rl.settings import PUBLISHED

FIGURES = game_figures()
COMPARED = [name for name in FIGURES if name.startswith(("figure-catcher", "figure-flappy"))]


def test_every_game_observation_and_order_has_a_figure() -> None:
    assert set(COMPARED) == {
        f"figure-{game}{seen}{order}"
        for game in ("catcher", "catcher-640", "flappy")
        for seen in ("", "-states")
        for order in ("", "-reversed")
    }
    assert {"figure-first-task", "figure-first-task-states", "search-catcher-states"} <= FIGURES.keys()
    assert {name: figure.name for name, figure in FIGURES.items()} == {name: name for name in FIGURES}
    assert len({figure.title for figure in FIGURES.values()}) == len(FIGURES)
    assert FIGURES.keys() <= titles().keys()


@pytest.mark.parametrize("name", COMPARED)
def test_agents_are_compared_in_the_same_world(name: str) -> None:
    figure = FIGURES[name]
    arms = figure.arms
    assert list(arms) == [*LEARNERS, ADAM, "DQN, published settings", "DQN-MER, published settings"]
    worlds = {
        (arm.game, arm.observation, arm.order, arm.frames, arm.episodes, arm.cap, arm.memory) for arm in arms.values()
    }
    assert len(worlds) == 1
    ((game, seen, order, frames, episodes, _, memory),) = worlds
    assert (frames, memory) == (25_000, 50_000)
    assert (order == "reversed") == name.endswith("-reversed")
    speeds = {arm.values for arm in arms.values() if game == "catcher"}
    assert speeds == ({CATCHER_SPEEDS_640 if "-640" in name else CATCHER_SPEEDS} if game == "catcher" else set())
    assert (seen == "state") == ("-states" in name)
    assert len(figure.seeds) == (3 if (game, seen) == ("flappy-bird", "pixels") else 5)
    assert episodes == (3 if (game, seen) == ("flappy-bird", "pixels") else 10)
    for agent in ("DQN", "DQN-MER"):
        arm = arms[f"{agent}, published settings"]
        assert PUBLISHED[arm.learner].items() <= arm.options.items()
    assert arms["DQN, reservoir"].memory_kind == "reservoir"


def test_runs_are_all_different_but_those_of_the_first_task() -> None:
    keys = {
        name: [one.key for one in figure.experiments(1, frames=3)]
        for name, figure in FIGURES.items()
        if not name.startswith(("search-", "alone-"))
    }
    assert keys.pop("figure-first-task") == [*keys["figure-catcher"], *keys["figure-flappy"]]
    assert keys.pop("figure-first-task-states") == [*keys["figure-catcher-states"], *keys["figure-flappy-states"]]
    counted = Counter(key for found in keys.values() for key in set(found))
    assert set(counted.values()) == {1}
    assert FIGURES["figure-first-task"].tasks == (1,)


@pytest.mark.parametrize("name", [name for name in FIGURES if name.startswith("search-")])
def test_every_agent_is_searched_equally(name: str) -> None:
    figure = FIGURES[name]
    seen, each = ("state", 12) if name.endswith("-states") else ("pixels", 7)
    counted = Counter(arm_name.split(", sgd")[0].split(", adam")[0] for arm_name in figure.arms)
    assert counted == dict.fromkeys(LEARNERS, each)
    assert tuple(figure.seeds) == SEARCHED[seen]
    assert not figure.curves
    rates = {(arm.options["optimizer"], arm.options["lr"]) for arm in figure.arms.values() if arm.learner == "dqn-mer"}
    assert rates == {(kind, rate) for kind, of_kind in RATES[seen]["dqn-mer"].items() for rate in of_kind}
    keys = [one.key for one in figure.experiments(1)]
    assert len(set(keys)) == len(keys) == 3 * each
    assert name not in chosen(["all"])
    assert chosen([name]) == [name]


@pytest.mark.parametrize("name", [name for name in FIGURES if name.startswith("alone-")])
def test_tasks_alone(name: str) -> None:
    figure = FIGURES[name]
    assert [arm.task for arm in figure.arms.values()] == [1, 2, 3, 4, 5, 6]
    assert {arm.total_frames for arm in figure.arms.values()} == {1000 * int(name.split("-")[2].rstrip("k"))}
    assert not figure.curves


def test_agents_from_pictures_that_learn_one_task_alone_play_side_by_side_with_the_figure_s() -> None:
    alone, among_others = FIGURES["alone-catcher-150k"].arms["DQN, task 3 alone"], FIGURES["figure-catcher"].arms["DQN"]
    assert shape_of(replace(alone, engine="torch").start()) == shape_of(replace(among_others, engine="torch").start())


def test_seeds_and_frames_can_be_fewer() -> None:
    figure = FIGURES["figure-catcher"]
    full = figure.experiments()
    assert [one.seed for one in full[:5]] == [0, 1, 2, 3, 4]
    assert len(full) == 30
    assert len(figure.experiments(2)) == 12
    small = figure.experiments(1, frames=7)
    assert {(one.total_frames, one.game_options["size"]) for one in small} == {(42, 36)}
    assert not any("size" in one.game_options for one in FIGURES["figure-catcher-states"].experiments(1, frames=7))
    assert [one.seed for one in FIGURES["search-catcher-states"].experiments(1)[:2]] == [100, 100]
