"""`metareplay run --prequential`: every example is predicted before it is learned."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.markup import escape
from rich.table import Table

from metareplay._core.text import deviation, duration, spread
from metareplay.cli.console import aside, draw, print_json, print_table, remark
from metareplay.cli.progress import bars
from metareplay.experiments import Experiment, PrequentialExperiment, PrequentialRecord
from metareplay.experiments.prequential_run import checked
from metareplay.plots import plot_prequential
from metareplay.runners import Runner, without_failures

SHOWN = {"accuracy": "accuracy", "kappa": "kappa", "log_loss": "log loss", "window_accuracy": "at the end"}


def run_prequential(
    experiments: list[Experiment],
    every: int,
    runner: Runner,
    folder: Path,
    *,
    fresh: bool,
    as_json: bool,
    follow: Callable[..., AbstractContextManager[None]],
) -> None:
    """Run experiments test then train; show accuracy, kappa and log loss, and draw a picture.

    Args:
        experiments: The learner and the stream, with one seed each.
        every: After how many examples scores are noted each time.
        runner: Where to run them.
        folder: Where records and checkpoints are.
        fresh: Run again what has a record or was interrupted.
        as_json: Print the records as one JSON document.
        follow: Lets the runs be followed, given who receives news of them and their folder.
    """
    scored = checked(every, None, 0.999, 1)
    wanted = [PrequentialExperiment.of(one, scored) for one in experiments]
    with bars(aside) as watcher, follow(watcher, folder=folder):
        ran = without_failures(runner.run(wanted, folder, fresh=fresh, watcher=watcher))
    found = [one for one in ran if one is not None]
    learner, stream = experiments[0].learner, experiments[0].stream
    if as_json:
        print_json(found[0].to_json() if len(found) == 1 else _summary(found))
    else:
        print_table(_table(learner, found, f"{learner} on {stream}, each example predicted before it is learned"))
        remark(f"records: {folder}{'/' if str(folder) != '/' else ''}")
    shown = {f"{learner}, seed {record.seed}": record for record in found}
    draw(partial(plot_prequential, shown, title=f"{learner} on {stream}"), folder / f"{found[0].name}.png")


def _table(learner: str, records: list[PrequentialRecord], title: str) -> Table:
    """Make a table with one row for all seeds."""
    caption = f"accuracy in percent; at the end: of the last {records[0].scored.window} examples"
    rows = Table(title=escape(title), caption=caption, title_justify="left")
    rows.add_column("learner", no_wrap=True)
    for head in (*SHOWN.values(), "seeds", "time"):
        rows.add_column(head, justify="right", no_wrap=True)
    values = {name: [record.total[name] for record in records] for name in SHOWN}
    cells = [_cell(name, of_seeds) for name, of_seeds in values.items()]
    seconds = fmean(sum(record.seconds.values()) for record in records)
    rows.add_row(escape(learner), *cells, str(len(records)), duration(seconds))
    return rows


def _cell(name: str, values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return spread(known, digits=2 if "accuracy" in name else 3) if len(known) == len(values) else "-"


def _summary(records: list[PrequentialRecord]) -> dict[str, Any]:
    """Return the mean and spread of the scores, and all records, as plain JSON values."""
    metrics = {}
    for name in records[0].total:
        values = [value for value in (record.total[name] for record in records) if value is not None]
        metrics[name] = {"mean": fmean(values) if values else None, "std": deviation(values)}
    return {"summary": metrics, "records": [record.to_json() for record in records]}
