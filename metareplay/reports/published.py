"""The paper's numbers for each setting that it has printed numbers for."""

from collections.abc import Set

from metareplay.experiments.identity import Identity
from metareplay.paper.tables import OBSERVATIONS, TABLES
from metareplay.reports.words import identity, without


def bare_setting(run: Identity) -> str:
    """Return what decides the results of a run but the seed, whatever else was measured.

    Args:
        run: What was run.
    """
    return identity(run.learner, without(run.settings, "seed", "engine"), run.model, without(run.stream, "seed"))


def published_numbers(streams: Set[tuple[str, int | None]]) -> dict[str, dict[str, tuple[float, float]]]:
    """Return the paper's mean and deviation of each metric, by `bare_setting`; of two tables, the first counts.

    Args:
        streams: The name and the number of tasks of each stream that numbers are wanted for.
    """
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for name, make in TABLES.items():
        for cell in make().cells if name not in OBSERVATIONS else ():
            if cell.published is not None and (cell.experiment.stream, cell.experiment.tasks) in streams:
                metric = "dot" if cell.metric == "alignment" else cell.metric
                numbers = found.setdefault(bare_setting(cell.experiment.identity), {})
                numbers.setdefault(metric, (cell.published.mean, cell.published.std))
    return found
