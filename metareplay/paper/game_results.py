"""Our results for the paper's second half: the scores of agents, as tables and pictures."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, final

from metareplay._core.files import write_text
from metareplay._core.text import spread
from metareplay.errors import MetareplayError, PicturesMissingError
from metareplay.experiments import Records
from metareplay.paper.games import SEARCH, GameFigure, game_figures
from metareplay.plots import learner_colours, plot_scores
from metareplay.rl.game_experiment import GameExperiment
from metareplay.rl.game_record import GameRecord

MENDED: Final = "2026-11-18T05:33"  # agents side by side that ran earlier may have learned from a later frame's batch


@final
@dataclass(frozen=True)
class GameResults:
    """Hold one figure with the records of its agents.

    Args:
        figure: What was wanted.
        groups: The records of each agent's seeds, by the agent's name; agents without records are left out.
        note: What else a reader has to know.
    """

    figure: GameFigure
    groups: dict[str, list[GameRecord]]
    note: str = ""

    @property
    def records(self) -> list[GameRecord]:
        """All records behind the figure."""
        return [record for group in self.groups.values() for record in group]


@final
class WantedGames:
    """Find out what has to be run for some figures of games.

    Args:
        names: The names of the figures.
        seeds: Seeds per agent; None for the figures' own.
        frames: Frames per task of a miniature; None for the full length.
        engine: What does the arithmetic of new runs.
    """

    def __init__(self, names: Sequence[str], seeds: int | None, frames: int | None, engine: Any = "auto") -> None:
        known = game_figures()
        self._figures = [known[name] for name in names]
        self._seeds, self._frames = seeds, frames
        self._engine = engine
        if frames is not None and frames < 1:
            raise MetareplayError(f"--frames {frames}: play at least one frame per task")

    @property
    def experiments(self) -> list[GameExperiment]:
        """What to run, in the order of the figures."""
        return [replace(one, engine=self._engine) for figure in self._figures for one in self._of(figure)]

    def recorded(self, folder: Path) -> list[GameRecord | None]:
        """Return the records that are in a folder, in the order of `experiments`; None if there is no record.

        Args:
            folder: Where the records are.
        """
        kept = Records(folder, GameRecord)
        return [kept.find(one.key) for one in self.experiments]

    def results(self, records: Sequence[GameRecord | None]) -> list[GameResults]:
        """Return each figure with its records.

        Args:
            records: The records of `experiments`, in that order; None for a run that has not been done.
        """
        found, rest = [], iter(records)
        for figure in self._figures:
            each = len(self._of(figure)) // len(figure.arms)
            groups = {name: [next(rest) for _ in range(each)] for name in figure.arms}
            there = {name: [one for one in group if one is not None] for name, group in groups.items()}
            kept = {name: group for name, group in there.items() if group}
            found.append(GameResults(figure, kept, self._note(kept)))
        return found

    def _note(self, groups: dict[str, list[GameRecord]]) -> str:
        """Return what a reader has to know of some records."""
        if self._frames:
            return "A miniature: not to be compared with anything."
        records = [record for group in groups.values() for record in group]
        early = sum("side by side" in record.engine and record.date < MENDED for record in records)
        return f"Provisional: {early} of {len(records)} runs are to be repeated (rl.md says why)." if early else ""

    def _of(self, figure: GameFigure) -> list[GameExperiment]:
        return figure.experiments(self._seeds, self._frames)


def rows_of(found: GameResults) -> list[tuple[str, list[str]]]:
    """Return the rows of a figure's table: the scores on each task at the end, mean, area, what was lost, and seeds.

    Args:
        found: The figure with its records; a search is ordered by area.
    """
    groups = list(found.groups.items())
    if found.figure.name.startswith(SEARCH):
        groups.sort(key=lambda one: -sum(record.average for record in one[1]) / len(one[1]))
    rows = []
    for name, records in groups:
        columns = [[float(record.final[task - 1]) for record in records] for task in _tasks(found)]
        overall = _overall(records)
        columns += [overall[head] for head in _overall_heads(found)]
        rows.append((name, [*(spread(values, digits=1) for values in columns), str(len(records))]))
    return rows


def heads_of(found: GameResults) -> list[str]:
    """Return the heads of the columns of a figure's table.

    Args:
        found: The figure with its records.
    """
    return ["agent", *(f"task {task}" for task in _tasks(found)), *_overall_heads(found), "seeds"]


def _tasks(found: GameResults) -> Sequence[int]:
    """Return the tasks that a figure shows, counted from 1."""
    return found.figure.tasks or range(1, len(found.records[0].final) + 1)


def _overall_heads(found: GameResults) -> list[str]:
    """Return which numbers over all tasks a figure shows: of some tasks alone there is neither mean nor area."""
    return ["lost"] if found.figure.tasks else ["mean", "area", "lost"]


def _overall(records: Sequence[GameRecord]) -> dict[str, list[float]]:
    """Return the numbers over all tasks, each for every record, by their heads."""
    return {
        "mean": [record.final_mean for record in records],
        "area": [record.average for record in records],
        "lost": [float(record.forgetting[record.first_task]) for record in records],
    }


def caption_of(found: GameResults) -> str:
    """Say what the columns of a figure's table mean.

    Args:
        found: The figure with its records.
    """
    area = "" if found.figure.tasks else "area: mean over time and tasks; "
    return f"scores at the end; {area}lost: how far the first task is below its best score"


def as_markdown(found: GameResults) -> str:
    """Return a figure's table as Markdown.

    Args:
        found: The figure with its records.
    """
    heads = heads_of(found)
    lines = [f"| {' | '.join(heads)} |", f"|---{'|---:' * (len(heads) - 1)}|"]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows_of(found)]
    return "\n".join([*lines, "", f"{caption_of(found)}. {found.note}".strip(), ""])


def as_document(found: GameResults) -> dict[str, Any]:
    """Return a figure's numbers as plain JSON values.

    Args:
        found: The figure with its records.
    """
    agents = {
        name: {
            "final": [[round(float(score), 3) for score in record.final] for record in records],
            **{head: [round(value, 3) for value in values] for head, values in _overall(records).items()},
            "seeds": [record.seed for record in records],
            "keys": [record.key for record in records],
        }
        for name, records in found.groups.items()
    }
    return {"name": found.figure.name, "title": found.figure.title, "agents": agents}


def write_games(found: Sequence[GameResults], folder: Path) -> list[str]:
    """Write tables (Markdown, JSON) and pictures; return what could not be drawn, and why.

    Args:
        found: Figures; those without records are left out.
        folder: Where to write them.
    """
    troubles = []
    for one in found:
        if not one.records:
            continue
        write_text(folder / f"{one.figure.name}.md", f"# {one.figure.title}\n\n{as_markdown(one)}")
        write_text(folder / f"{one.figure.name}.json", json.dumps(as_document(one), indent=1) + "\n")
        if one.figure.curves:
            try:
                path = folder / f"{one.figure.name}.png"
                plot_scores(one.groups, path, one.figure.title, one.figure.tasks, _colours(one.figure))
            except PicturesMissingError as error:
                troubles.append(f"{one.figure.name}: no picture ({error})")
    return troubles


def _colours(figure: GameFigure) -> dict[str, str]:
    """Return the colours of a figure's agents, which are the same in every figure, whichever have been run."""
    return learner_colours({name.rpartition(": ")[2]: arm.learner for name, arm in figure.arms.items()})


def game_page(found: Sequence[GameResults]) -> str:
    """Return the part of the results page that shows games, as Markdown.

    Args:
        found: Figures; those without records are left out.
    """
    parts = []
    for one in found:
        if one.records:
            parts += [f"## {one.figure.title}\n", as_markdown(one)]
            if one.figure.curves:
                parts.append(f"![{one.figure.title}](../results/{one.figure.name}.png)\n")
    return "\n".join(parts)
