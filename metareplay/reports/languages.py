"""Language models that were trained over languages: the loss on every language over time."""

from collections.abc import Sequence
from math import nan
from statistics import fmean
from typing import Any, Final, final

import numpy as np

from metareplay._core.text import duration
from metareplay.lm.record import LmRecord
from metareplay.reports.charts import Chart, Line, Lines, Matrix, Panel
from metareplay.reports.family import Family, Group, Tried
from metareplay.reports.tables import Cell, Column, Table
from metareplay.reports.words import all_of, identity, told, without

FIELDS: Final = {"arm", "settings", "languages", "steps", "losses", "ends"}  # by which a record is known
LOSSES: Final = (
    Column("mean loss", True, "over all languages at the end, in nats per byte"),
    Column("forgetting", True, "how much the loss on earlier languages rose since each was learned"),
    Column("newest", True, "the loss on the language that was learned last"),
)


@final
class Languages(Family[LmRecord]):
    """Show trainings of language models."""

    name = "languages"
    title = "Language models"
    about = "Losses in nats per byte, on text that was not learned; mean and standard deviation over seeds."

    def read(self, parts: dict[str, Any]) -> LmRecord | None:
        """Return the record of a training; None for another kind of result."""
        if not parts.keys() >= FIELDS:
            return None
        record = LmRecord(**parts)
        if np.array(record.losses, np.float64).shape != (len(record.steps), len(record.languages)):
            raise ValueError("there is not one loss for each language and moment")
        return record

    def key(self, record: LmRecord) -> str:
        """Return the settings, which have the seed."""
        return identity(record.settings)

    def seed(self, record: LmRecord) -> int:
        """Return the seed of the training."""
        return int(record.settings.get("seed", 0))

    def date(self, record: LmRecord) -> str:
        """Return nothing: the record does not say when training ended."""
        del record
        return ""

    def setting(self, record: LmRecord) -> str:
        """Return everything but the seed."""
        return identity(record.arm, _place(record))

    def learner(self, group: Group[LmRecord]) -> str:
        """Return the name of the arm."""
        return str(group.first.arm)

    def label(self, group: Group[LmRecord]) -> str:
        """Return the arm and the languages."""
        return f"{' '.join(map(str, group.first.languages))}: {group.first.arm}"

    def table(self, groups: Sequence[Group[LmRecord]]) -> Table:
        """Return one row per arm."""
        columns = [Column("arm"), Column("languages"), *LOSSES, Column("seeds", True), Column("parameters", True)]
        columns += [Column("time", True), Column("settings")]
        rows = [
            [
                Cell(str(group.first.arm)),
                Cell(", ".join(map(str, group.first.languages))),
                *_losses(group.records),
                Cell.of_count(len(group.records)),
                Cell.of_count(group.first.parameters),
                Cell.of_seconds([record.seconds for record in group.records]),
                Cell(told(_numbers(group.first))),
            ]
            for group in groups
        ]
        return Table(columns, rows)

    def seeds(self, group: Group[LmRecord]) -> Table:
        """Return one row per seed, with the loss on each language at the end."""
        columns = [Column("seed", True), *(Column(str(name), True) for name in group.first.languages), *LOSSES]
        columns += [Column("time", True), Column("device")]
        rows = [
            [
                Cell.of_count(self.seed(record)),
                *(Cell.of([float(loss)], 3) for loss in record.losses[-1]),
                *_losses([record]),
                Cell.of_seconds([record.seconds]),
                Cell(str(record.device)),
            ]
            for record in group.records
        ]
        return Table(columns, rows)

    def facts(self, group: Group[LmRecord]) -> dict[str, str]:
        """Return the settings."""
        first = group.first
        return {
            "Arm": told(first.settings["arm"]) if isinstance(first.settings.get("arm"), dict) else str(first.arm),
            "Settings": told(without(first.settings, "arm", "texts", "seed")),
            "Languages": ", ".join(map(str, first.languages)),
            "Parameters": f"{first.parameters:,}",
            "Time": f"{duration(sum(record.seconds for record in group.records))} in all",
            "Device": all_of(str(record.device) for record in group.records),
        }

    def charts(self, group: Group[LmRecord]) -> list[Chart]:
        """Return the loss on each language over the steps."""
        return [_losses_over_time([group], "Loss on each language over time")]

    def overview(self, groups: Sequence[Group[LmRecord]]) -> list[Chart]:
        """Return the losses of all arms that differ in nothing else, one panel per language."""
        places: dict[str, list[Group[LmRecord]]] = {}
        for group in groups:
            places.setdefault(identity(_place(group.first)), []).append(group)
        title = "Loss on each language over time, all arms"
        return [_losses_over_time(found, title) for found in places.values() if len(found) > 1]

    def tried(self, group: Group[LmRecord]) -> Tried | None:
        """Return what is compared: the mean loss at the end."""
        first = group.first
        place = f"{first.arm}, {' '.join(map(str, first.languages))}"
        scores = [record.final for record in group.records]
        return Tried(place, _numbers(first), scores, "mean loss", low_is_good=True)


def _place(record: LmRecord) -> list[Any]:
    """Return everything but the arm and the seed."""
    return [without(record.settings, "seed", "arm"), record.languages, record.steps, record.ends]


def _numbers(record: LmRecord) -> dict[str, Any]:
    """Return the settings that are numbers or words."""
    return {name: value for name, value in record.settings.items() if isinstance(value, int | float | str)} | {
        "seed": None
    }


def _is_joint(record: LmRecord) -> bool:
    """Return whether all languages were learned at once, so that none is learned before another."""
    return record.arm == "joint"


def _losses(records: Sequence[LmRecord]) -> list[Cell]:
    rises = [nan if record.forgetting is None or _is_joint(record) else record.forgetting for record in records]
    values = ([record.final for record in records], rises, [record.newest for record in records])
    return [Cell.of(one, 3) for one in values]


def _seen(group: Group[LmRecord], language: int) -> Matrix:
    return np.array([[at[language] for at in record.losses] for record in group.records], np.float64)


def _losses_over_time(groups: Sequence[Group[LmRecord]], title: str) -> Chart:
    first = groups[0].first
    ends = [0, *(first.steps[end] for end in first.ends)]
    arms = [(str(one.first.arm), one) for one in groups]
    panels = [
        Panel(
            title=str(name),
            x=first.steps,
            lines=[Line.of(arm, _seen(one, number), learner=arm, dashed=_is_joint(one.first)) for arm, one in arms],
            shades=[(ends[number], ends[number + 1])] if number + 1 < len(ends) else [],
        )
        for number, name in enumerate(first.languages)
    ]
    finals = ", ".join(f"{one.first.arm} {fmean(record.final for record in one.records):.3f}" for one in groups)
    return Lines(
        title=title,
        told=f"A panel is grey while its own language is learned. Mean loss at the end: {finals}.",
        x="steps",
        y="loss (nats per byte)",
        panels=panels,
        marks=ends[1:-1],
    )
