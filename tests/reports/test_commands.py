"""A command is shown only if it gives all of the runs that it stands for."""

from dataclasses import replace

import pytest
from small_games import small_game
from small_report import GAME, PREQUENTIAL, run

import metareplay as mr
from metareplay.experiments import Experiment
from metareplay.experiments.prequential_record import Prequential
from metareplay.reports.commands import run_command
from metareplay.reports.game_commands import game_command
from metareplay.rl import GameRecord

ONES = Prequential(every=10, window=10)


def _record(seed: int) -> mr.Record:
    """The record that a small run from the command line would have."""
    made = Experiment(learner="online", stream="rotations", tasks=2, examples=10, options={"lr": 0.1}, seed=seed)
    about = made.identity
    return replace(
        run(seed), learner=about.learner, settings=about.settings, model=about.model, stream=dict(about.stream)
    )


def _prequential(scored: Prequential) -> mr.PrequentialRecord:
    """The record of the same run, predicting each example before it is learned."""
    about = _record(0).identity
    return replace(
        PREQUENTIAL,
        learner=about.learner,
        settings=about.settings,
        model=about.model,
        stream=dict(about.stream),
        scored=scored,
    )


def _game(seed: int) -> GameRecord:
    """The record that a small game from the command line would have."""
    about = small_game(seed=seed).start().identity
    return replace(
        GAME, learner=about.learner, settings=about.settings, model=about.model, game=dict(about.game), seed=seed
    )


def test_the_keys_of_all_seeds_are_compared() -> None:
    first, second = _record(0), _record(1)
    command = run_command([first, second])
    assert command is not None
    assert command.endswith("--seeds 2")
    assert run_command([first, replace(second, stream=second.stream | {"seed": 5})]) is None


def test_prequential_scores_have_a_command() -> None:
    command = run_command([_prequential(ONES)])
    assert command is not None
    assert command.endswith("--prequential --every 10")


@pytest.mark.parametrize("other", [replace(ONES, window=7), replace(ONES, fading=0.9), replace(ONES, block=5)])
def test_scores_that_the_command_line_cannot_give_have_no_command(other: Prequential) -> None:
    assert run_command([_prequential(other)]) is None


def test_the_keys_of_all_seeds_of_an_agent_are_compared() -> None:
    first, second = _game(0), _game(1)
    command = game_command([first, second])
    assert command is not None
    assert command.endswith("--seeds 2")
    assert game_command([first, replace(second, game=second.game | {"game_seed": 5})]) is None
