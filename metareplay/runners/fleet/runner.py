"""Many experiments at once on one GPU."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, final

import torch

from metareplay.errors import InputError
from metareplay.experiments.base import AnyExperiment, AnyRecord, BaseExperiment
from metareplay.experiments.experiment import Experiment
from metareplay.experiments.record import versions
from metareplay.runners.announcement import Announcement
from metareplay.runners.claims import Claim, allow, is_claimed
from metareplay.runners.failure import Failure, failures, forget_failures
from metareplay.runners.fleet.fleet import check_device
from metareplay.runners.fleet.flight import fleet_key, fly
from metareplay.runners.fleet.terms import Terms, chain_of
from metareplay.runners.runner import SILENT, Runner, Watcher, checked_run, device_of, rest_of, say_untracked
from metareplay.runners.worklist import OTHERS, tidy


@final
class FleetRunner(Runner):
    """Run experiments on one GPU, all at once: in fleets of one shape of net and stream.

    Args:
        device: The GPU.
        rest: Runs the experiments that a fleet cannot take, and those that leave the range of its numbers. With None,
            an experiment that a fleet cannot take is refused, and one that leaves the range has no record.
    """

    def __init__(self, device: torch.device | str = "cuda", rest: Runner | None = None) -> None:
        self.device, self.rest = device_of(device), rest_of(rest)

    def run(
        self,
        experiments: Sequence[BaseExperiment[AnyRecord]],
        folder: Path,
        *,
        fresh: bool = False,
        keep_going: bool = False,
        watcher: Watcher = SILENT,
    ) -> list[AnyRecord | Failure | None]:
        """Run every experiment that has no record in the folder yet."""
        experiments, folder, fresh, keep_going = checked_run(experiments, folder, fresh, keep_going, watcher)
        versions()  # notes the commit now, in case the files change while this runs
        check_device(self.device)
        if fresh:
            forget_failures(experiments, folder)
        found: dict[str, Any] = failures(folder, (one.key for one in experiments)) if keep_going else {}
        fleets = self._fleets([one for one in experiments if one.key not in found])
        begun = False
        while fleets:
            waiting = []
            for fleet in fleets:
                with _claimed(fleet, folder) as others:
                    watcher.begin(fleet)
                    say_untracked(watcher, len(fleet))
                    announcement = Announcement(folder, fleet)
                    report = partial(_tell, watcher, announcement, len(fleet))
                    again = fresh and not begun
                    records = fly(fleet, folder, fresh=again, others=others, report=report, device=self.device)
                    announcement.withdraw()
                found |= {one.key: record for one, record in zip(fleet, records, strict=True)}
                waiting += [[one for one in fleet if one.key in others and found[one.key] is None]]
            fleets, begun = _free_again(waiting, folder), True
        tidy(folder, [key for key, one in found.items() if one is not None], (".part", ".claim", ".ckpt"))
        left = [one for one in experiments if found.get(one.key) is None]
        if self.rest is not None and left:
            rest = self.rest.run(left, folder, fresh=fresh, keep_going=keep_going, watcher=watcher)
            found |= {one.key: record for one, record in zip(left, rest, strict=True)}
        elif keep_going:
            for one in {one.key: one for one in left}.values():
                failure = Failure.of(one, "its numbers left the range of the fleet", "not finite")
                failure.write(folder)
                found[one.key] = failure
                watcher.failed(one, failure)
        return [found.get(one.key) for one in experiments]

    def _fleets(self, experiments: Sequence[AnyExperiment]) -> list[list[Experiment]]:
        """Group the experiments that a fleet can take by the shape of net and stream."""
        shapes: dict[str, object] = {}  # by everything but the seed
        found: dict[object, list[Experiment]] = {}
        for one in experiments:
            if not isinstance(one, Experiment):
                if self.rest is None:
                    raise InputError(
                        f"{one.label}: a fleet runs only learners and streams that have a name; leave out --on fleet"
                    )
                continue
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


def _tell(watcher: Watcher, announcement: Announcement, count: int, seen: int, total: int) -> None:
    """Tell how far the runs of a fleet have come."""
    watcher.together(count, seen, total)
    announcement.together(count, seen, total)


@contextmanager
def _claimed(fleet: Sequence[Experiment], folder: Path) -> Iterator[set[str]]:
    """Claim the runs of a fleet and its checkpoint; yield the keys of those that other processes have claimed."""
    keys = {one.key for one in fleet}
    with ExitStack() as stack:
        allow(len(keys))
        whole = Claim.take(folder, fleet_key(fleet))
        if whole is None:
            yield keys
            return
        stack.enter_context(whole)
        claims = {key: Claim.take(folder, key) for key in keys}
        for claim in claims.values():
            if claim is not None:
                stack.enter_context(claim)
        yield {key for key, claim in claims.items() if claim is None}


def _free_again(fleets: list[list[Experiment]], folder: Path) -> list[list[Experiment]]:
    """Wait until other processes have finished or given up some runs; return the fleets that wait for others."""
    waiting = [fleet for fleet in fleets if fleet]
    while waiting and all(is_claimed(folder, one.key) for fleet in waiting for one in fleet):
        time.sleep(OTHERS)
    return waiting
