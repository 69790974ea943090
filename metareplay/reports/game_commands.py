"""The exact command that repeats the runs of an agent, checked by the keys of the runs."""

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from metareplay.reports.commands import NOT_OURS, words_for, words_for_seeds
from metareplay.reports.words import memory_of, options, shown_name
from metareplay.rl.game_experiment import AGENTS_BY_NAME, GAMES, MEMORIES, GameExperiment
from metareplay.rl.game_record import GameRecord
from metareplay.rl.settings import settings


def game_command(records: Sequence[GameRecord]) -> str | None:
    """Return the `metareplay run` commands that repeat runs of one setting; None if no command gives these runs.

    Args:
        records: The records, which differ in their seeds alone.
    """
    with suppress(*NOT_OURS):
        experiment, words = _candidate(records[0])
        if all(replace(experiment, seed=one.seed).key == one.key for one in records):
            stretches = words_for_seeds(one.seed for one in records)
            return "\n".join(shlex.join([*words, *some]) for some in stretches)
    return None


def _candidate(record: GameRecord) -> tuple[GameExperiment, list[str]]:
    """Return the experiment that may be that of a record, with its command; raise ValueError if there is none."""
    agent, game = shown_name(record.learner), str(record.game.get("game"))
    if agent not in AGENTS_BY_NAME or game not in GAMES:
        raise ValueError(f"{agent} on {game} is not one of ours")
    capacity, kind = memory_of(record.settings)
    told = record.game
    exam = told.get("evaluation", {})
    given = {name: value for name, value in options(record.settings).items() if isinstance(value, int | float | str)}
    known_kind = next((name for name, one in MEMORIES.items() if one.__name__.lower() == kind), None)
    placed: dict[str, Any] = {"memory": capacity, "memory_kind": known_kind}
    placed |= {"order": told.get("order"), "task": told.get("task"), "frames": told.get("frames_per_task")}
    placed |= {name: exam.get(name) for name in ("every", "episodes", "cap")}
    placed = {name: value for name, value in placed.items() if value is not None}
    looks: dict[str, Any] = {name: told[name] for name in ("size", "screen") if name in told}
    seen = told.get("observation", "pixels")
    experiment = GameExperiment(
        learner=agent,
        game=game,
        observation=seen,
        options={**settings(agent, game, seen, known_kind), **given},
        game_options=looks,
        seed=record.seed,
        **placed,
    )
    quick = ["--quick"] if seen == "state" else []
    engine = str(record.settings.get("engine", "auto"))
    last = ["--engine", engine] if engine != "auto" else []
    return experiment, ["metareplay", "run", agent, game, *quick, *words_for({**placed, **looks, **given}), *last]
