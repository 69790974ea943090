"""Charts of runs on streams of tasks: accuracies, and dot products of gradients."""

from statistics import fmean

import numpy as np

from metareplay.experiments.record import Record
from metareplay.reports.charts import Chart, Heat, Line, Lines, Matrix, OverTime, Panel
from metareplay.reports.family import Group
from metareplay.reports.words import shown_name


def accuracy_charts(group: Group[Record]) -> list[Chart]:
    """Return the accuracy of every task after every task, as far as it was measured, as a heat map and as lines.

    Args:
        group: The group.
    """
    accuracy: Matrix = np.mean(np.stack([record.accuracy for record in group.records]), axis=0)
    return [_heat(accuracy), _over_time(accuracy) if group.first.identity.full_matrix else _ends(group)]


def _heat(accuracy: Matrix) -> Chart:
    tasks, last = accuracy.shape[1], accuracy[-1][np.isfinite(accuracy[-1])]
    ends = f" At the end the tasks are between {last.min():.1f} and {last.max():.1f} %." if last.size else ""
    return Heat(
        title="Accuracy matrix",
        told=f"Accuracy on each of {tasks} tasks after each task, mean over seeds.{ends}",
        x="tasks learned",
        y="task",
        values=accuracy,
    )


def _over_time(accuracy: Matrix) -> Chart:
    return OverTime(
        title="Accuracy of each task over time",
        told=f"One line per task, from the first (dark) to the last (bright), mean over seeds. The first task has "
        f"{accuracy[1, 0]:.1f} % just after it was learned and {accuracy[-1, 0]:.1f} % at the end.",
        x="tasks learned",
        y="accuracy (%)",
    )


def _ends(group: Group[Record]) -> Chart:
    """Return each task when it was learned and at the end, which is all that was measured."""
    after = np.stack([np.diag(record.accuracy[1:]) for record in group.records])
    last = np.stack([record.accuracy[-1] for record in group.records])
    learner = shown_name(group.first.learner)
    return Lines(
        title="Accuracy of each task just after learning and at the end",
        told=f"On average {after.mean():.1f} % just after learning and {last.mean():.1f} % at the end. Run with "
        "--full-matrix to measure every task after every task.",
        x="task",
        y="accuracy (%)",
        panels=[
            Panel(
                x=list(range(1, last.shape[1] + 1)),
                lines=[
                    Line.of("just after learning", after, dashed=True, dots=True),
                    Line.of("at the end", last, learner=learner, dots=True),
                ],
            )
        ],
    )


def alignment_charts(group: Group[Record]) -> list[Chart]:
    """Return dot products of gradients along the stream, mean over seeds; nothing if they were not measured.

    Args:
        group: The group.
    """
    found = [record.alignment for record in group.records if record.alignment and record.alignment["count"]]
    if not found or len({tuple(one["bounds"]) for one in found}) > 1:
        return []
    bounds = np.array(found[0]["bounds"], np.float64)
    learner = shown_name(group.first.learner)

    def mean(name: str) -> Matrix:
        values = np.array([one["means"] if name == "means" else one["quantiles"][name] for one in found], np.float64)
        return np.asarray(values.mean(axis=0), np.float64)

    lines = [Line(name="mean", values=mean("means"), learner=learner, dots=True)]
    lines += [Line(name=f"{q} % are below", values=mean(q), dashed=True) for q in ("5", "50", "95")]
    overall = fmean(one["mean"] for one in found)
    positive = 100 * fmean(sum(one["counts"][len(one["edges"]) // 2 + 1 :]) / one["count"] for one in found)
    return [
        Lines(
            title="Transfer and interference along the stream",
            told=f"Dot products of an example's gradient with past ones: above 0 is transfer, below 0 interference. "
            f"The mean over the whole stream is {overall:+.3f}; {positive:.0f} % of the products are above 0.",
            x="examples seen",
            y="dot product",
            panels=[Panel(x=((bounds[1:] + bounds[:-1]) / 2).tolist(), lines=lines)],
            marks=found[0]["changes"],
        )
    ]
