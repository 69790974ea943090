"""Figures of the paper's experiments: what each of them is drawn from, and how."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from metareplay.paper.cells import PaperTable
from metareplay.paper.plots import plot_costs, plot_memory
from metareplay.paper.results import Result
from metareplay.paper.tables import table_1, table_2, table_3_omniglot, table_4, table_6
from metareplay.plots import plot_alignment, plot_matrices


@final
@dataclass(frozen=True)
class Figure:
    """Describe a picture of the results of a table's runs.

    Args:
        title: The title of the picture.
        table: Makes the table whose runs it shows.
        draw: Draws the picture from our numbers into a file.
    """

    title: str
    table: Callable[[], PaperTable]
    draw: Callable[[Sequence[Result], Path], None]


def full_runs() -> PaperTable:
    """Return four learners on Rotations with 500 memories, with every task measured after every task."""
    wanted = [("Online", None), ("GEM", 500), ("ER with SGD (algorithm 4)", 500), ("MER", 500)]
    cells = [cell for table in (table_1(), table_2(), table_6()) for cell in table.cells]
    chosen = {
        (cell.model, cell.memory): replace(cell, seeds=range(1), experiment=replace(cell.experiment, full_matrix=True))
        for cell in reversed(cells)
        if cell.column == "MNIST Rotations" and cell.metric == "ra"
    }
    return PaperTable("figure-tasks", "Accuracy of every task over time", tuple(chosen[name] for name in wanted))


def omniglot_runs() -> PaperTable:
    """Return every method on Omniglot with its retained accuracy, of which the records tell training and time too."""
    cells = tuple(cell for cell in table_3_omniglot().cells if cell.metric == "ra")
    return PaperTable("figure-omniglot", "Accuracy and time on Omniglot", cells)


def draw_omniglot(found: Sequence[Result], path: Path) -> None:
    """Draw training accuracy, test accuracy and time of every method on Omniglot."""
    plot_costs(
        found, path, "Omniglot: what each method retains, and how long it learns (mean and deviation over seeds)"
    )


def draw_tasks(found: Sequence[Result], path: Path) -> None:
    """Draw the accuracies of all tasks over time, one panel per learner."""
    records = {one.cell.model.partition(" with")[0]: one.records[0] for one in found}
    plot_matrices(records, path, "MNIST Rotations, 500 memories, one seed: accuracy of every task over time")


def draw_memory(found: Sequence[Result], path: Path) -> None:
    """Draw retained accuracy against the size of the memory."""
    plot_memory(found, path, "Retained accuracy against the size of the memory (mean and deviation over seeds)")


def draw_alignment(found: Sequence[Result], path: Path) -> None:
    """Draw ER beside MER on Rotations with the first seed; draw nothing if that has not been run."""
    records = {one.cell.model: one.records[0] for one in found if one.cell.column == "MNIST Rotations"}
    if records:
        plot_alignment(records, path, "MNIST Rotations: gradients of incoming examples against past ones (one seed)")


FIGURES = {
    "figure-tasks": Figure("Accuracy of every task over time", full_runs, draw_tasks),
    "figure-memory": Figure("Retained accuracy against memory size, every method of table 6", table_6, draw_memory),
    "figure-alignment": Figure("Dot products of gradients, ER against MER (table 4)", table_4, draw_alignment),
    "figure-omniglot": Figure("Training accuracy, test accuracy and time on Omniglot", omniglot_runs, draw_omniglot),
}
PICTURES = {
    "table-2": draw_memory,
    "table-4": draw_alignment,
    "table-6": draw_memory,
}  # of tables that are clearer with a picture
