"""News of a sweep while it runs: its rounds, and the best setting so far."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

from metareplay._core.files import names_in
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
class Standing:
    """Find out which setting is the best so far, from the records in a folder.

    Args:
        cases: The settings with their experiments.
        folder: Where their records are.
        measure: What settings are compared by.
    """

    def __init__(self, cases: Sequence[Case], folder: Path, measure: Measure) -> None:
        self.cases, self.folder, self.measure = cases, folder, measure
        self._keys = [[one.key for one in case.experiments] for case in cases]
        self._kinds = {one.key: one.result for case in cases for one in case.experiments}
        self._found: dict[str, BaseRecord] = {}  # records by key
        self._seen: set[str] = set()  # names of files that have been looked at
        self._best: Outcome | None = None

    @property
    def recorded(self) -> set[str]:
        """The keys of the runs whose records have been read."""
        return set(self._found)

    def best(self) -> Outcome | None:
        """Return the best setting whose seeds have all finished; None if there is none yet.

        Only files that are new since the last call are read.
        """
        new = [name for name in names_in(self.folder) if name.endswith(".json") and name not in self._seen]
        self._seen.update(new)
        before = len(self._found)
        for name in new:
            key = name.removesuffix(".json").rpartition("-")[2]
            if key in self._kinds:
                with suppress(MetareplayError):  # a damaged record: the runner will say so
                    self._found[key] = self._kinds[key].read(self.folder / name)
        if len(self._found) > before:
            self._best = self._find_best()
        return self._best

    def _find_best(self) -> Outcome | None:
        outcomes = []
        for case, keys in zip(self.cases, self._keys, strict=True):
            found = [self._found[key] for key in keys if key in self._found]
            if len(found) == len(keys):
                outcomes.append(Outcome(case.number, case.settings, tuple(found), self.measure))
        return next((one for one in ranked(outcomes) if one.complete), None)
