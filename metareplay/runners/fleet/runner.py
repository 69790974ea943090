"""Many experiments at once on one GPU."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import final

import torch

from metareplay.errors import InputError
from metareplay.experiments.experiment import Experiment
from metareplay.experiments.record import Record, versions
from metareplay.runners.fleet.fleet import check_device
from metareplay.runners.fleet.flight import fly
from metareplay.runners.fleet.terms import Terms, chain_of
from metareplay.runners.runner import SILENT, Runner, Watcher


@final
class FleetRunner(Runner):
    """Run experiments on one GPU, all at once: in fleets of one shape of net and stream.

    Args:
        device: The GPU.
        rest: Runs the experiments that a fleet cannot take, and those that leave the range of its numbers. With None,
            an experiment that a fleet cannot take is refused, and one that leaves the range has no record.
    """

    def __init__(self, device: torch.device | str = "cuda", rest: Runner | None = None) -> None:
        self.device, self.rest = torch.device(device), rest

    def run(
        self,
        experiments: Sequence[Experiment],
        folder: Path,
        *,
        fresh: bool = False,
        watcher: Watcher = SILENT,
    ) -> list[Record | None]:
        """Run every experiment that has no record in the folder yet."""
        versions()  # notes the commit now, in case the files change while this runs
        check_device(self.device)
        found: dict[str, Record | None] = {}
        for fleet in self._fleets(experiments):
            watcher.begin(fleet)
            report = partial(watcher.together, len(fleet))
            records = fly(fleet, folder, fresh=fresh, report=report, device=self.device)
            found |= {one.key: record for one, record in zip(fleet, records, strict=True)}
        if self.rest is None:
            return [found.get(one.key) for one in experiments]
        left = [one for one in experiments if found.get(one.key) is None]
        others = self.rest.run(left, folder, fresh=fresh, watcher=watcher) if left else []
        found |= {one.key: record for one, record in zip(left, others, strict=True)}
        return [found[one.key] for one in experiments]

    def _fleets(self, experiments: Sequence[Experiment]) -> list[list[Experiment]]:
        """Group the experiments that a fleet can take by the shape of net and stream."""
        shapes: dict[str, object] = {}  # by everything but the seed
        found: dict[object, list[Experiment]] = {}
        for one in experiments:
            name = repr(replace(one, seed=0))
            if name not in shapes:
                shapes[name] = self._shape(one)
            if shapes[name] is not None:
                found.setdefault(shapes[name], []).append(one)
        return list(found.values())

    def _shape(self, experiment: Experiment) -> object:
        """Return what the runs of one fleet have in common; None for one that goes to `rest`."""
        try:
            if experiment.alignment:
                raise InputError("a fleet does not compare gradients: leave alignment out, or use --on threads")
            if experiment.training:
                raise InputError("a fleet does not measure training accuracy: leave it out, or use --on threads")
            learner, stream = replace(experiment, engine="torch").build()
            Terms.of(learner)
            return chain_of(learner).widths, stream.tasks, stream.total
        except InputError:
            if self.rest is None:
                raise
            return None
