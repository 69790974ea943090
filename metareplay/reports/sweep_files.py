"""What sweeps found, as `metareplay sweep` wrote it, and settings that were compared without a sweep."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any, Final, final

from metareplay._core.rows import plain_text
from metareplay.reports.charts import Parallel
from metareplay.reports.family import Tried
from metareplay.reports.tables import UNKNOWN, Cell, Column, Table
from metareplay.sweeps.subject import MEASURES

FEWEST: Final = 4  # settings that are compared although no sweep tried them


@final
@dataclass(frozen=True)
class Setting:
    """Hold one setting of a sweep.

    Args:
        values: The value of each field that varies.
        scores: What was measured with each seed.
        failed: How many seeds failed.
        group: The id of the setting's own part of the page; empty if there is none.
    """

    values: Mapping[str, Any]
    scores: Sequence[float]
    failed: int = 0
    group: str = ""


@final
@dataclass(frozen=True)
class SweepFile:
    """Hold many settings of the same learner that were compared.

    Args:
        title: What was tried.
        measure: What was measured.
        settings: The settings, the best first.
        notes: What else there is to say, one sentence each.
        command: The command that runs the chosen setting again; None if there is none.
        low_is_good: Whether a small number is better than a large one.
    """

    title: str
    measure: str
    settings: Sequence[Setting]
    notes: Sequence[str] = ()
    command: str | None = None
    low_is_good: bool = False

    @cached_property
    def fields(self) -> list[str]:
        """The names of the fields that vary."""
        names = dict.fromkeys(name for one in self.settings for name in one.values)
        return [name for name in names if len({plain_text(one.values.get(name)) for one in self.settings}) > 1]

    def table(self) -> Table:
        """Return all settings as a table."""
        columns = [Column("rank", True)]
        columns += [
            Column(name, is_number=all(_is_number(one.values.get(name)) for one in self.settings))
            for name in self.fields
        ]
        columns += [Column(self.measure, True), Column("seeds", True), Column("failed", True)]
        rows = [
            [
                Cell.of_count(rank),
                *(_cell(one.values.get(name)) for name in self.fields),
                Cell.of(one.scores) if one.scores else Cell(UNKNOWN),
                Cell.of_count(len(one.scores)),
                Cell.of_count(one.failed),
            ]
            for rank, one in enumerate(self.settings, 1)
        ]
        return Table(columns, rows)

    def chart(self) -> Parallel:
        """Return all settings as parallel coordinates."""
        rows = [
            ([_plain(one.values.get(name)) for name in self.fields], fmean(one.scores) if one.scores else None)
            for one in self.settings
        ]
        best = self.settings[0]
        chosen = ", ".join(f"{name} {plain_text(best.values.get(name))}" for name in self.fields)
        return Parallel(
            title=f"{self.title}: parallel coordinates",
            told=f"One line per setting, {len(rows)} in all; the better, the brighter. The best one has {chosen}.",
            fields=self.fields,
            measure=self.measure,
            rows=rows,
            low_is_good=self.low_is_good,
        )


def sweep_file(parts: dict[str, Any], place: str) -> SweepFile | None:
    """Return what a sweep found; None if a JSON document is something else.

    Args:
        parts: The document.
        place: Where it is, which is its title if it has no other.
    """
    if {"ranking", "grid", "measure"} <= parts.keys():
        settings = [
            Setting(dict(one["settings"]), [float(score) for score in one["scores"]], int(one["failed"]))
            for one in parts["ranking"]
        ]
        measure = MEASURES.get(parts["measure"], str(parts["measure"]))
        notes = [str(parts.get("chosen_by", ""))]
        found = SweepFile(str(parts.get("name", place)), measure, settings, notes, parts.get("command"))
    elif {"stream", "memory", "settings", "runs"} <= parts.keys():  # the paper's whole grid on a GPU
        names = [name for name in parts["settings"][0] if name not in ("ra", "seeds")]
        settings = [
            Setting(
                {name: one[name] for name in names},
                [float(score) for score in one["seeds"] if score is not None],
                one["seeds"].count(None),
            )
            for one in parts["settings"]
        ]
        title = f"mer on {parts['stream']}, memory {parts['memory']}"
        notes = [f"{parts['runs']} runs on {parts.get('device', 'an unknown device')}."]
        found = SweepFile(title, "RA (%)", settings, notes)
    else:
        return None
    found.table()
    return found if settings else None


def compared(tried: Sequence[tuple[str, Tried]]) -> list[SweepFile]:
    """Return the settings that can be compared, because they differ in their options alone.

    Args:
        tried: What was tried, with the ids of the groups.
    """
    places: dict[tuple[str, str], list[tuple[str, Tried]]] = {}
    for group, one in tried:
        places.setdefault((one.place, one.measure), []).append((group, one))
    found = []
    for (place, measure), ones in places.items():
        if len(ones) < FEWEST:
            continue
        low = ones[0][1].low_is_good
        ones.sort(key=lambda pair: fmean(pair[1].scores) * (1 if low else -1))
        settings = [Setting(one.settings, one.scores, group=group) for group, one in ones]
        notes = ["Compared from the records, whatever they were run for."]
        sweep = SweepFile(place, measure, settings, notes, low_is_good=low)
        if sweep.fields:
            found.append(sweep)
    return found


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value))


def _cell(value: Any) -> Cell:
    return Cell(plain_text(value), float(value) if _is_number(value) and value is not None else None)


def _plain(value: Any) -> Any:
    return value if value is not None and _is_number(value) else plain_text(value)
