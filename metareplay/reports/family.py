"""What every kind of result has to say for a report: how its records are grouped, and what is shown of a group."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, final

from metareplay.experiments.base import BaseRecord
from metareplay.reports.charts import Chart
from metareplay.reports.tables import Table

AnyResult = TypeVar("AnyResult")


@final
@dataclass(frozen=True)
class Group(Generic[AnyResult]):
    """Hold the records of one setting, one per seed.

    Args:
        name: Its id in the page.
        records: The records, in the order of their seeds.
        published: The paper's numbers for this setting, by metric: mean and deviation.
    """

    name: str
    records: Sequence[AnyResult]
    published: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def first(self) -> AnyResult:
        """The record of the first seed."""
        return self.records[0]


@final
@dataclass(frozen=True)
class Tried:
    """Say what of a group is compared with other groups, as in a sweep.

    Args:
        place: What all of them have in common, in a few words.
        settings: The options, which may differ.
        scores: What was measured with each seed.
        measure: What that is called.
        low_is_good: Whether a small number is better than a large one.
    """

    place: str
    settings: Mapping[str, Any]
    scores: Sequence[float]
    measure: str
    low_is_good: bool = False


class Family(ABC, Generic[AnyResult]):
    """Show one kind of result.

    Attributes:
        name: Its id in the page.
        title: Its heading.
        about: What its numbers mean, in a sentence or two.
    """

    name: str
    title: str
    about: str

    @abstractmethod
    def read(self, parts: dict[str, Any]) -> AnyResult | None:
        """Return a record; None if it is of another kind. Whatever is wrong with it may raise any exception.

        Args:
            parts: The JSON document.
        """

    @abstractmethod
    def key(self, record: AnyResult) -> str:
        """Return what identifies the run, its seed included.

        Args:
            record: The record.
        """

    @abstractmethod
    def seed(self, record: AnyResult) -> int:
        """Return the seed of a run.

        Args:
            record: The record.
        """

    @abstractmethod
    def date(self, record: AnyResult) -> str:
        """Return when a run ended; empty if that is not known.

        Args:
            record: The record.
        """

    @abstractmethod
    def setting(self, record: AnyResult) -> str:
        """Return what the runs of a group have in common.

        Args:
            record: The record.
        """

    @abstractmethod
    def label(self, group: Group[AnyResult]) -> str:
        """Return a group in a few words.

        Args:
            group: The group.
        """

    @abstractmethod
    def learner(self, group: Group[AnyResult]) -> str:
        """Return the name of a group's learner, which decides its colour.

        Args:
            group: The group.
        """

    @abstractmethod
    def table(self, groups: Sequence[Group[AnyResult]]) -> Table:
        """Return a table with one row per group; the first cell names it.

        Args:
            groups: The groups.
        """

    @abstractmethod
    def seeds(self, group: Group[AnyResult]) -> Table:
        """Return a table with one row per seed.

        Args:
            group: The group.
        """

    @abstractmethod
    def facts(self, group: Group[AnyResult]) -> dict[str, str]:
        """Return everything else that is known about a group, by name.

        Args:
            group: The group.
        """

    @abstractmethod
    def charts(self, group: Group[AnyResult]) -> list[Chart]:
        """Return the charts of a group.

        Args:
            group: The group.
        """

    @abstractmethod
    def overview(self, groups: Sequence[Group[AnyResult]]) -> list[Chart]:
        """Return the charts in which groups are side by side.

        Args:
            groups: All groups.
        """

    @final
    def check(self, record: AnyResult) -> None:
        """Show a record on trial, so that one which cannot be shown raises its exception here and not in the page.

        Args:
            record: The record.
        """
        alone = Group("", [record])
        self.label(alone), self.learner(alone), self.setting(record), self.seed(record), self.date(record)
        self.table([alone]), self.seeds(alone), self.facts(alone), self.tried(alone)
        charts = [*self.charts(alone), *self.overview([alone, alone])]
        json.dumps([chart.to_json() for chart in charts], allow_nan=False)

    def command(self, group: Group[AnyResult]) -> str | None:
        """Return the command that runs the group again; None if there is none.

        Args:
            group: The group.
        """
        del group
        return None

    def tried(self, group: Group[AnyResult]) -> Tried | None:
        """Return what is compared with other groups; None if nothing is.

        Args:
            group: The group.
        """
        del group
        return None


AnyRunRecord = TypeVar("AnyRunRecord", bound=BaseRecord)


class RecordFamily(Family[AnyRunRecord], ABC):
    """Show the records of one kind of run, which know their key, seed and date."""

    @final
    def key(self, record: AnyRunRecord) -> str:
        """Return the key of the run."""
        return record.key

    @final
    def seed(self, record: AnyRunRecord) -> int:
        """Return the seed of the run."""
        return int(record.seed)

    @final
    def date(self, record: AnyRunRecord) -> str:
        """Return when the run ended."""
        return str(record.date)
