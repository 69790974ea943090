"""News of a sweep while it runs: its rounds, and the best setting so far."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from metareplay._core.files import exists
from metareplay.errors import MetareplayError
from metareplay.experiments.base import AnyExperiment, BaseRecord
from metareplay.runners import Watcher
from metareplay.sweeps.grid import Settings
from metareplay.sweeps.outcome import Outcome, ranked
from metareplay.sweeps.subject import Measure


@final
@dataclass(frozen=True)
class Case:
    """Name the runs of one setting.

    Args:
        number: The place of the setting in the grid, counted from 0.
        settings: The value of each field of the grid.
        experiments: Its experiments, one per seed.
    """

    number: int
    settings: Settings
    experiments: tuple[AnyExperiment, ...]


class SweepWatcher(Watcher):
    """Receive news of how a sweep is going; a plain `Watcher` is not told of its rounds."""

    def round(self, title: str, cases: Sequence[Case], folder: Path, measure: Measure) -> None:
        """Receive the news that a round begins.

        Args:
            title: What the round does, in a few words.
            cases: The settings with their experiments.
            folder: Where their records will be.
            measure: What settings are compared by.
        """


@final
@dataclass
class Standing:
    """Find out which setting is the best so far, from the records in a folder.

    Args:
        cases: The settings with their experiments.
        folder: Where their records are.
        measure: What settings are compared by.
    """

    cases: Sequence[Case]
    folder: Path
    measure: Measure
    _found: dict[str, BaseRecord] = field(default_factory=dict)  # records by key
    _listed: set[str] = field(default_factory=set)  # names of files that have been looked at

    @property
    def recorded(self) -> set[str]:
        """The keys of the runs whose records have been read."""
        return set(self._found)

    def best(self) -> Outcome | None:
        """Return the best setting whose seeds have all finished; None if there is none yet.

        Only files that are new since the last call are read.
        """
        kinds = {one.key: one.result for case in self.cases for one in case.experiments}
        for path in self.folder.glob("*.json") if exists(self.folder) else ():
            key = path.stem.rpartition("-")[2]
            if path.name in self._listed or key not in kinds:
                continue
            self._listed.add(path.name)
            try:
                self._found[key] = kinds[key].read(path)
            except MetareplayError:  # the runner will say so
                continue
        return self._best()

    def _best(self) -> Outcome | None:
        outcomes = []
        for case in self.cases:
            found = [self._found.get(one.key) for one in case.experiments]
            if None not in found:
                outcomes.append(Outcome(case.number, case.settings, tuple(found), self.measure))
        return next((one for one in ranked(outcomes) if one.complete), None)
