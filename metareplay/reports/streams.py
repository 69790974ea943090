"""Runs on streams of tasks: accuracies, what is retained, and the paper's numbers beside ours."""

from collections.abc import Sequence
from math import isnan
from statistics import fmean
from typing import Any, Final, final

from metareplay._core.text import deviation, duration
from metareplay.experiments.base import kind_of
from metareplay.experiments.record import Record
from metareplay.reports.charts import Chart, Dot, Dots
from metareplay.reports.commands import run_command
from metareplay.reports.family import Group, RecordFamily, Tried
from metareplay.reports.published import bare_setting
from metareplay.reports.stream_charts import accuracy_charts, alignment_charts
from metareplay.reports.tables import Cell, Column, Table
from metareplay.reports.words import (
    all_of,
    distinct,
    identity,
    memory_of,
    moment,
    network_words,
    options,
    shown_name,
    told,
    versions_of,
    without,
)

METRICS: Final = {
    "ra": Column("RA", True, "retained accuracy: mean over tasks at the end, in percent"),
    "la": Column("LA", True, "learning accuracy: mean over tasks, each just after it was learned, in percent"),
    "bti": Column("BTI", True, "backward transfer and interference: mean change since learning"),
    "fti": Column("FTI", True, "forward transfer and interference: mean gain before learning"),
    "ta": Column("TA", True, "retained accuracy on training examples, in percent"),
    "va": Column("VA", True, "accuracy on examples that were held out, in percent"),
    "dot": Column("dot", True, "mean dot product of an example's gradient with past ones"),
}
DIGITS: Final = {"dot": 3}  # decimal places; two for the others
MOST: Final = 40  # settings in one chart
NOT_TOLD: Final = ("stream", "seed", "shape", "values")


@final
class Streams(RecordFamily[Record]):
    """Show runs on streams of tasks."""

    name = "streams"
    title = "Streams of tasks"
    about = (
        "Mean and standard deviation over seeds. RA, retained accuracy: over all tasks at the end. LA, learning "
        "accuracy: each task just after it was learned. BTI: the change from then to the end, so forgetting is "
        "negative. FTI: what earlier tasks gave a task before it was learned. All in percent; the paper's "
        "numbers are in brackets."
    )

    def read(self, parts: dict[str, Any]) -> Record | None:
        """Return the record of a run; None for another kind of result."""
        if kind_of(parts) != Record.kind:
            return None
        record = Record.from_json(parts)
        hash(record.stream.get("tasks"))
        return record

    def setting(self, record: Record) -> str:
        """Return everything but the seed and the engine."""
        run = record.identity
        measured = [run.alignment, run.past, run.full_matrix, run.training, record.held_out is not None]
        return identity(bare_setting(run), measured, run.built_by, list(record.accuracy.shape))

    def learner(self, group: Group[Record]) -> str:
        """Return the learner's name."""
        return shown_name(group.first.learner)

    def label(self, group: Group[Record]) -> str:
        """Return learner, memory and stream."""
        return f"{_stream(group.first)}: {_learner(group)}{_measured(group.first)}"

    def table(self, groups: Sequence[Group[Record]]) -> Table:
        """Return one row per setting."""
        columns = [Column("learner"), Column("stream"), Column("memory", True), *METRICS.values()]
        columns += [Column("seeds", True), Column("time", True, "mean time of learning"), Column("settings")]
        return Table(columns, [self._row(group) for group in groups]).without_empty_columns()

    def seeds(self, group: Group[Record]) -> Table:
        """Return one row per seed."""
        columns = [Column("seed", True), *METRICS.values(), Column("learning", True), Column("evaluating", True)]
        columns += [Column("engine"), Column("date"), Column("key")]
        rows = [
            [
                Cell.of_count(record.seed),
                *(Cell.of([getattr(record, name)], DIGITS.get(name, 2)) for name in METRICS),
                *(Cell.of_seconds([float(record.seconds.get(name, 0))]) for name in ("learn", "evaluate")),
                *(Cell(str(record.engine)), Cell(moment(record.date)), Cell(record.key)),
            ]
            for record in group.records
        ]
        return Table(columns, rows).without_empty_columns()

    def facts(self, group: Group[Record]) -> dict[str, str]:
        """Return settings, versions and dates."""
        first = group.first
        dates = sorted(str(record.date)[:10] for record in group.records)
        return {
            "Learner": f"{shown_name(first.learner)}: {told(options(first.settings))}",
            "Memory": told(first.settings.get("memory") or {}),
            "Stream": f"{shown_name(_name(first))}: {told(without(first.stream, 'stream', 'seed'))}",
            "Built by": told(first.built_by or {}),
            "Model": str(first.model),
            "Examples": f"{first.examples:,}",
            "Paper": _paper(group),
            "Time": f"{duration(sum(_seconds(record) for record in group.records))} in all",
            "Date": dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}",
            "Engine": all_of(str(record.engine) for record in group.records),
            "Versions": versions_of([record.versions for record in group.records]),
        }

    def charts(self, group: Group[Record]) -> list[Chart]:
        """Return the accuracies, and dot products of gradients if they were measured."""
        return [] if group.first.accuracy.size == 0 else [*accuracy_charts(group), *alignment_charts(group)]

    def overview(self, groups: Sequence[Group[Record]]) -> list[Chart]:
        """Return retained accuracy by setting, one chart per stream."""
        streams: dict[str, list[Group[Record]]] = {}
        for group in groups:
            if not isnan(group.first.ra):
                place = identity(_stream(group.first), without(group.first.stream, "seed"))
                streams.setdefault(place, []).append(group)
        return [self._side_by_side(of_stream) for of_stream in streams.values() if len(of_stream) > 1]

    def command(self, group: Group[Record]) -> str | None:
        """Return the command that repeats the runs."""
        return run_command(group.records)

    def tried(self, group: Group[Record]) -> Tried | None:
        """Return what is compared: retained accuracy, or on held-out examples if there are any."""
        first = group.first
        if isnan(first.ra):
            return None
        capacity, kind = memory_of(first.settings)
        memory = {} if capacity is None else {"memory": capacity, "memory_kind": kind}
        held = first.held_out is not None
        place = f"{shown_name(first.learner)} on {_stream(first)}{_measured(first)}"
        same = told(without(first.stream, *NOT_TOLD))
        scores = [record.va if held else record.ra for record in group.records]
        built = (first.built_by or {}).get("settings", {})
        return Tried(
            f"{place} ({same})" if same else place,
            memory | options(first.settings) | built,
            scores,
            "validation accuracy (%)" if held else "RA (%)",
        )

    def _row(self, group: Group[Record]) -> list[Cell]:
        first = group.first
        capacity, kind = memory_of(first.settings)
        sizes = [str(first.stream[name]) for name in ("tasks", "examples") if first.stream.get(name)]
        numbers = [
            Cell.of(
                [getattr(record, name) for record in group.records], 3 if name == "dot" else 2, _printed(group, name)
            )
            for name in METRICS
        ]
        return [
            Cell(shown_name(first.learner)),
            Cell(_stream(first), note=" x ".join(sizes)),
            Cell.of_memory(capacity, kind),
            *numbers,
            Cell.of_count(len(group.records)),
            Cell.of_seconds([float(record.seconds.get("learn", 0)) for record in group.records]),
            Cell(told(options(first.settings)), note=_measured(first).removeprefix(", ")),
        ]

    def _side_by_side(self, groups: list[Group[Record]]) -> Chart:
        """Return one row per setting, the best first."""
        once: dict[str, Group[Record]] = {}  # a setting may have been run again to measure more
        for group in sorted(groups, key=lambda group: len(group.records)):
            once[bare_setting(group.first.identity)] = group
        best = sorted(once.values(), key=lambda group: -fmean(record.ra for record in group.records))
        kinds = [
            {"memory": memory_of(group.first.settings)[1]}
            | options(group.first.settings)
            | network_words(group.first.model)
            for group in best
        ]
        rows = []
        for group, name in list(zip(best, distinct([_learner(group) for group in best], kinds), strict=True))[:MOST]:
            values = [record.ra for record in group.records]
            paper = group.published.get("ra", (None, None))
            rows.append(
                Dot(
                    name=name,
                    learner=self.learner(group),
                    mean=fmean(values),
                    spread=deviation(values),
                    paper=paper[0],
                    paper_spread=paper[1],
                    group=group.name,
                )
            )
        first, last = rows[0], rows[-1]
        some = f"the best {MOST} of {len(best)}" if len(best) > MOST else f"all {len(best)}"
        stream = groups[0].first
        sizes = told(without(stream.stream, *NOT_TOLD))
        return Dots(
            title=f"{_stream(stream)} ({sizes}): retained accuracy of {some} settings",
            told=f"Mean and standard deviation over seeds. The best is {first.name} with {first.mean:.2f} %, the last "
            f"one {last.name} with {last.mean:.2f} %.",
            x="RA (%)",
            rows=rows,
        )


def _name(record: Record) -> str:
    return str(record.stream.get("stream", "own"))


def _stream(record: Record) -> str:
    return shown_name(_name(record))


def _learner(group: Group[Record]) -> str:
    capacity, _ = memory_of(group.first.settings)
    name = shown_name(group.first.learner)
    return name if capacity is None else f"{name} {capacity}"


def _measured(record: Record) -> str:
    """Return what was measured besides the metrics, in words."""
    words = [", every task after every task"] if record.identity.full_matrix else []
    if record.alignment:
        words.append(f", gradients compared {'after' if record.identity.past == 'after' else 'before'} learning")
    return "".join(words)


def _seconds(record: Record) -> float:
    return float(sum(record.seconds.values()))


def _printed(group: Group[Record], metric: str) -> str:
    """Return the paper's number for a metric; empty if it has none."""
    if metric not in group.published:
        return ""
    mean, std = group.published[metric]
    digits = DIGITS.get(metric, 2)
    return f"({mean:.{digits}f} ± {std:.{digits}f})"


def _paper(group: Group[Record]) -> str:
    """Return all numbers of the paper for a setting in one line."""
    return "; ".join(f"{METRICS[name].head} {_printed(group, name).strip('()')}" for name in group.published)
