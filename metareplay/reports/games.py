"""Agents that played games: their scores on every task while the tasks changed."""

from collections.abc import Sequence
from math import isnan, nan
from statistics import fmean
from typing import Any, Final, final

import numpy as np

from metareplay._core.text import deviation, duration
from metareplay.experiments.base import kind_of
from metareplay.reports.charts import Chart, Dot, Dots, Line, Lines, Panel
from metareplay.reports.family import Group, RecordFamily, Tried
from metareplay.reports.game_commands import game_command
from metareplay.reports.tables import Cell, Column, Table
from metareplay.reports.words import (
    all_of,
    distinct,
    identity,
    memory_of,
    moment,
    options,
    shown_name,
    told,
    varied_options,
    versions_of,
    without,
)
from metareplay.rl.game_record import GameRecord

MOST: Final = 40  # settings in one chart
SCORES: Final = (
    Column("score", True, "mean over all tasks at the end"),
    Column("area", True, "mean over all tasks and all evaluations"),
    Column("lost", True, "how far the first task is below its best score"),
)


@final
class Games(RecordFamily[GameRecord]):
    """Show runs of agents."""

    name = "games"
    title = "Games"
    about = (
        "Scores in evaluation episodes, mean and standard deviation over seeds. Score: mean over all tasks at the end. "
        "Area: mean over all tasks and all evaluations. Lost: how far the first task is below its best score."
    )

    def read(self, parts: dict[str, Any]) -> GameRecord | None:
        """Return the record of an agent's run; None for another kind of result."""
        if kind_of(parts) != GameRecord.kind:
            return None
        record = GameRecord.from_json(parts)
        if not all(task for one in record.scores for task in one):
            raise ValueError("there is an evaluation without episodes")
        if record.means.shape[0] != len(record.frames):
            raise ValueError("there is not one evaluation per number of frames")
        return record

    def setting(self, record: GameRecord) -> str:
        """Return everything but the seeds and the engine."""
        return identity(record.learner, without(record.settings, "seed", "engine"), record.model, _place(record))

    def learner(self, group: Group[GameRecord]) -> str:
        """Return the agent's name."""
        return shown_name(group.first.learner)

    def label(self, group: Group[GameRecord]) -> str:
        """Return agent, memory and game."""
        return f"{_game(group.first)}: {_agent(group)}"

    def table(self, groups: Sequence[Group[GameRecord]]) -> Table:
        """Return one row per setting."""
        columns = [Column("agent"), Column("game"), Column("memory", True), *SCORES, Column("seeds", True)]
        columns += [Column("time", True, "mean time of playing and learning"), Column("settings")]
        rows = []
        varied = varied_options([group.first.settings for group in groups])
        for group, differing in zip(groups, varied, strict=True):
            first = group.first
            capacity, kind = memory_of(first.settings)
            rows.append(
                [
                    Cell(self.learner(group)),
                    Cell(_game(first), note=f"{first.game.get('total_frames', '?')} frames"),
                    Cell.of_memory(capacity, kind),
                    *_scores(group.records),
                    Cell.of_count(len(group.records)),
                    Cell.of_seconds([float(record.seconds.get("learn", 0)) for record in group.records]),
                    Cell(told(differing)),
                ]
            )
        return Table(columns, rows)

    def seeds(self, group: Group[GameRecord]) -> Table:
        """Return one row per seed, with the score on each task at the end."""
        tasks = [Column(f"task {number}", True) for number in range(1, len(group.first.final) + 1)]
        columns = [Column("seed", True), *tasks, *SCORES, Column("episodes", True), Column("learning", True)]
        columns += [Column("engine"), Column("date"), Column("key")]
        rows = [
            [
                Cell.of_count(record.seed),
                *(Cell.of([float(score)], 1) for score in record.final),
                *_scores([record]),
                Cell.of_count(record.episodes),
                Cell.of_seconds([float(record.seconds.get("learn", 0))]),
                *(Cell(str(record.engine)), Cell(moment(record.date)), Cell(record.key)),
            ]
            for record in group.records
        ]
        return Table(columns, rows)

    def facts(self, group: Group[GameRecord]) -> dict[str, str]:
        """Return settings, versions and dates."""
        first = group.first
        return {
            "Agent": f"{self.learner(group)}: {told(options(first.settings))}",
            "Memory": told(first.settings.get("memory") or {}),
            "Game": told(without(first.game, "game_seed")),
            "Model": str(first.model),
            "Time": f"{duration(sum(sum(record.seconds.values()) for record in group.records))} in all",
            "Date": all_of(str(record.date)[:10] for record in group.records),
            "Engine": all_of(str(record.engine) for record in group.records),
            "Versions": versions_of([record.versions for record in group.records]),
        }

    def charts(self, group: Group[GameRecord]) -> list[Chart]:
        """Return the score on each task over the frames, one panel per task."""
        first = group.first
        if not len(first.final):
            return []
        stretches = first.stretches()
        same_order = all(record.stretches() == stretches for record in group.records)
        means = np.stack([record.means for record in group.records])
        panels = [
            Panel(
                title=f"task {task + 1}",
                x=first.frames,
                lines=[Line.of(f"task {task + 1}", means[:, :, task], learner=self.learner(group))],
                shades=[(start, end) for start, end, played in stretches if played == task and same_order],
            )
            for task in range(means.shape[2])
        ]
        final = ", ".join(f"{score:.1f}" for score in means[:, -1].mean(axis=0))
        return [
            Lines(
                title="Score on each task over time",
                told=f"Mean over seeds and standard deviation. Vertical lines are changes of the task; a panel is grey "
                f"while its own task is played. At the end the scores are {final}.",
                x="frames played",
                y="score",
                panels=panels,
                marks=[start for start, _, _ in stretches if start],
                from_zero=bool((means >= 0).all()),
            )
        ]

    def overview(self, groups: Sequence[Group[GameRecord]]) -> list[Chart]:
        """Return the final scores by setting, one chart per game and way to play it."""
        places: dict[str, list[Group[GameRecord]]] = {}
        for group in groups:
            if len(group.first.final):
                places.setdefault(identity(_place(group.first)), []).append(group)
        charts: list[Chart] = []
        for found in places.values():
            if len(found) < 2:
                continue
            best = sorted(found, key=lambda group: -fmean(record.final_mean for record in group.records))[:MOST]
            names = distinct([_agent(group) for group in best], [options(group.first.settings) for group in best])
            rows = []
            for group, name in zip(best, names, strict=True):
                values = [record.final_mean for record in group.records]
                spread = deviation(values)
                learner = self.learner(group)
                rows.append(Dot(name=name, learner=learner, mean=fmean(values), spread=spread, group=group.name))
            some = f"the best {MOST} of {len(found)}" if len(found) > MOST else f"all {len(found)}"
            charts.append(
                Dots(
                    title=f"{_game(found[0].first)}, {found[0].first.game.get('total_frames', '?')} frames: "
                    f"final score of {some} settings",
                    told=f"Mean and standard deviation over seeds. The best is {rows[0].name} with {rows[0].mean:.1f}.",
                    x="score at the end",
                    rows=rows,
                )
            )
        return charts

    def command(self, group: Group[GameRecord]) -> str | None:
        """Return the command that repeats the runs."""
        return game_command(group.records)

    def tried(self, group: Group[GameRecord]) -> Tried | None:
        """Return what is compared: the mean final score."""
        first = group.first
        if isnan(first.final_mean):
            return None
        capacity, kind = memory_of(first.settings)
        memory = {} if capacity is None else {"memory": capacity, "memory_kind": kind}
        place = f"{self.learner(group)}, {_game(first)}, {first.game.get('total_frames', '?')} frames"
        scores = [record.final_mean for record in group.records]
        return Tried(place, memory | options(first.settings), scores, "score")


def _place(record: GameRecord) -> list[Any]:
    """Return the game and how it was played and evaluated, without seeds."""
    exam = without(record.game.get("evaluation") or {}, "seed")
    return [without(record.game, "game_seed", "evaluation"), exam, list(record.frames), len(record.final)]


def _game(record: GameRecord) -> str:
    told_ = record.game
    how = f"task {told_['task']} alone" if told_.get("task") is not None else f"{told_.get('order', 'own')} order"
    return f"{told_.get('game', 'own')} from {told_.get('observation', 'its own observations')}, {how}"


def _agent(group: Group[GameRecord]) -> str:
    _, kind = memory_of(group.first.settings)
    return f"{shown_name(group.first.learner)}{f', {kind}' if kind else ''}"


def _scores(records: Sequence[GameRecord]) -> list[Cell]:
    """Return the mean final score, the area, and what was lost of the first task."""
    lost = [float(record.forgetting[record.first_task]) if len(record.final) else nan for record in records]
    finals, areas = [record.final_mean for record in records], [record.average for record in records]
    return [Cell.of(values, 1) for values in (finals, areas, lost)]
