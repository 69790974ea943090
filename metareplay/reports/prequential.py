"""Prequential runs: every example was predicted before it was learned."""

from collections.abc import Sequence
from math import nan
from statistics import fmean
from typing import Any, Final, final

import numpy as np

from metareplay._core.text import duration
from metareplay.experiments.base import kind_of
from metareplay.experiments.prequential_record import PrequentialRecord
from metareplay.reports.charts import Chart, Line, Lines, Matrix, Panel
from metareplay.reports.commands import run_command
from metareplay.reports.family import Group, RecordFamily, Tried
from metareplay.reports.tables import Cell, Column, Table
from metareplay.reports.words import (
    all_of,
    distinct,
    identity,
    memory_of,
    moment,
    options,
    parts_of,
    shown_name,
    told,
    versions_of,
    without,
)

SCORES: Final = {
    "accuracy": Column("accuracy", True, "share of all examples that were predicted right, in percent"),
    "window_accuracy": Column("at the end", True, "the same for the latest examples only"),
    "kappa": Column("kappa", True, "0 for labels drawn at random, 1 for all right"),
    "log_loss": Column("log loss", True, "mean of -log of the probability of the true label"),
    "mae": Column("MAE", True, "mean absolute error"),
    "rmse": Column("RMSE", True, "root of the mean squared error"),
}


@final
class Prequentials(RecordFamily[PrequentialRecord]):
    """Show prequential runs."""

    name = "prequential"
    title = "Prequential runs"
    about = "Every example was predicted before it was learned. Mean and standard deviation over seeds."

    def read(self, parts: dict[str, Any]) -> PrequentialRecord | None:
        """Return the record of a prequential run; None for another kind of result."""
        if kind_of(parts) != PrequentialRecord.kind:
            return None
        record = PrequentialRecord.from_json(parts)
        for name, values in record.points.items():
            if len(values) != len(record.points["examples"]):
                raise ValueError(f"{name} has {len(values)} points")
            np.array(values, np.float64)
        return record

    def setting(self, record: PrequentialRecord) -> str:
        """Return everything but the seed and the engine."""
        settings, stream = without(record.settings, "seed", "engine"), without(record.stream, "seed")
        measured = [vars(record.scored), record.points["examples"], sorted(record.points)]
        return identity(record.learner, settings, parts_of(record.model), stream, measured)

    def learner(self, group: Group[PrequentialRecord]) -> str:
        """Return the learner's name."""
        return shown_name(group.first.learner)

    def label(self, group: Group[PrequentialRecord]) -> str:
        """Return learner, memory and stream."""
        return f"{_stream(group.first)}: {_short(group)}"

    def table(self, groups: Sequence[Group[PrequentialRecord]]) -> Table:
        """Return one row per setting."""
        columns = [Column("learner"), Column("stream"), Column("memory", True), *SCORES.values()]
        columns += [Column("seeds", True), Column("time", True), Column("settings")]
        rows = []
        for group in groups:
            capacity, kind = memory_of(group.first.settings)
            rows.append(
                [
                    Cell(self.learner(group)),
                    Cell(_stream(group.first), note=f"{group.first.examples} examples"),
                    Cell.of_memory(capacity, kind),
                    *(_cell(name, group.records) for name in SCORES),
                    Cell.of_count(len(group.records)),
                    Cell.of_seconds([sum(record.seconds.values()) for record in group.records]),
                    Cell(told(options(group.first.settings))),
                ]
            )
        return Table(columns, rows).without_empty_columns()

    def seeds(self, group: Group[PrequentialRecord]) -> Table:
        """Return one row per seed."""
        columns = [Column("seed", True), *SCORES.values(), Column("time", True)]
        columns += [Column("engine"), Column("date"), Column("key")]
        rows = [
            [
                Cell.of_count(record.seed),
                *(_cell(name, [record]) for name in SCORES),
                Cell.of_seconds([sum(record.seconds.values())]),
                *(Cell(str(record.engine)), Cell(moment(record.date)), Cell(record.key)),
            ]
            for record in group.records
        ]
        return Table(columns, rows).without_empty_columns()

    def facts(self, group: Group[PrequentialRecord]) -> dict[str, str]:
        """Return settings, versions and dates."""
        first = group.first
        return {
            "Learner": f"{self.learner(group)}: {told(options(first.settings))}",
            "Memory": told(first.settings.get("memory") or {}),
            "Stream": f"{_stream(first)}: {told(without(first.stream, 'stream', 'seed'))}",
            "Scores": told(vars(first.scored)),
            "Model": str(first.model),
            "Time": f"{duration(sum(sum(record.seconds.values()) for record in group.records))} in all",
            "Date": all_of(str(record.date)[:10] for record in group.records),
            "Engine": all_of(str(record.engine) for record in group.records),
            "Versions": versions_of([record.versions for record in group.records]),
        }

    def charts(self, group: Group[PrequentialRecord]) -> list[Chart]:
        """Return the main score along the stream."""
        name = _main(group.first)
        if name is None:
            return []
        lines = [Line.of("all examples so far", _points(group, name), dashed=True)]
        if f"window_{name}" in group.first.points:
            window = f"the last {group.first.scored.window} examples"
            lines.append(Line.of(window, _points(group, f"window_{name}"), learner=self.learner(group)))
        last = fmean(record.total[name] or 0.0 for record in group.records)
        x = np.array(group.first.points["examples"], np.float64)
        return [
            Lines(
                title=f"{SCORES[name].head.capitalize()} before learning, along the stream",
                told=f"Over all examples: {last:.4g}{' %' if name == 'accuracy' else ''} at the end, mean over seeds.",
                x="examples seen",
                y=_axis(name),
                panels=[Panel(x=x.tolist(), lines=lines)],
            )
        ]

    def overview(self, groups: Sequence[Group[PrequentialRecord]]) -> list[Chart]:
        """Return the curves of all settings of a stream in one chart, if there are a few."""
        streams: dict[str, list[Group[PrequentialRecord]]] = {}
        for group in groups:
            place = identity(without(group.first.stream, "seed"), group.first.points["examples"], _main(group.first))
            streams.setdefault(place, []).append(group)
        charts: list[Chart] = []
        for of_stream in streams.values():
            name = _main(of_stream[0].first)
            if name is None or not 1 < len(of_stream) <= 8:
                continue
            shown = f"window_{name}" if f"window_{name}" in of_stream[0].first.points else name
            names = distinct([_short(one) for one in of_stream], [options(one.first.settings) for one in of_stream])
            lines = [
                Line.of(label, _points(one, shown), learner=self.learner(one))
                for label, one in zip(names, of_stream, strict=True)
            ]
            x = np.array(of_stream[0].first.points["examples"], np.float64)
            charts.append(
                Lines(
                    title=f"{_stream(of_stream[0].first)}: {SCORES[name].head} of the latest examples, before learning",
                    told=f"{len(lines)} settings, mean over seeds.",
                    x="examples seen",
                    y=_axis(name),
                    panels=[Panel(x=x.tolist(), lines=lines)],
                )
            )
        return charts

    def command(self, group: Group[PrequentialRecord]) -> str | None:
        """Return the command that repeats the runs."""
        return run_command(group.records)

    def tried(self, group: Group[PrequentialRecord]) -> Tried | None:
        """Return what is compared: the main score."""
        name, first = _main(group.first), group.first
        if name is None:
            return None
        capacity, kind = memory_of(first.settings)
        memory = {} if capacity is None else {"memory": capacity, "memory_kind": kind}
        scores = [record.total[name] or 0.0 for record in group.records]
        place = f"{self.learner(group)} on {_stream(first)}, prequential"
        return Tried(place, memory | options(first.settings), scores, SCORES[name].head, name == "mae")


def _stream(record: PrequentialRecord) -> str:
    return shown_name(str(record.stream.get("stream", "own")))


def _short(group: Group[PrequentialRecord]) -> str:
    """Return the learner and the size of its memory."""
    capacity, _ = memory_of(group.first.settings)
    name = shown_name(group.first.learner)
    return name if capacity is None else f"{name} {capacity}"


def _axis(name: str) -> str:
    return f"{SCORES[name].head}{' (%)' if name == 'accuracy' else ''}"


def _main(record: PrequentialRecord) -> str | None:
    """Return the score that is drawn; None if there is none."""
    return next((name for name in ("accuracy", "mae") if record.points.get(name)), None)


def _points(group: Group[PrequentialRecord], name: str) -> Matrix:
    return np.array([record.points[name] for record in group.records], np.float64)


def _cell(name: str, records: Sequence[PrequentialRecord]) -> Cell:
    values = [record.total.get(name) if record.points.get(name) else None for record in records]
    return Cell.of([nan if value is None else float(value) for value in values], 2 if "accuracy" in name else 3)
