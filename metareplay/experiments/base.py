"""What every kind of experiment has in common: it is started as a run, which ends with a record."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar, final

from metareplay._core.checks import path_of, shortened, shown
from metareplay._core.files import exists, read_file, write_atomically
from metareplay._core.seal import opened_json, sealed_json
from metareplay.engines.choose import EngineName
from metareplay.errors import MetareplayError
from metareplay.learners.table_learner import TableLearner

FORMAT = 1


@final
@dataclass(frozen=True)
class Progress:
    """Say how far a run has come.

    Args:
        doing: "learning" or "evaluating".
        finished: How many tasks have been learned completely.
        seen: How many examples have been learned.
        total: How many examples there are; None if the stream does not know.
        remark: What else there is to say, such as the latest scores.
    """

    doing: Literal["learning", "evaluating"]
    finished: int
    seen: int
    total: int | None
    remark: str = ""


class BaseRecord(ABC):
    """Hold the settings and the results of one finished run, and be a small JSON file.

    Attributes:
        kind: What kind of run it is the record of; "run" for learning from a stream of examples.
        seed: The seed of the run.
        date: When the run ended.
    """

    kind: ClassVar[str]
    seed: int
    date: str

    @property
    @abstractmethod
    def key(self) -> str:
        """A short hash of what was run, which does not depend on the results."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of its file, which ends with the key."""

    @abstractmethod
    def to_json(self, *, compact: bool = False) -> dict[str, Any]:
        """Return plain JSON values.

        Args:
            compact: Write results in as few numbers as possible.
        """

    @classmethod
    @abstractmethod
    def from_json(cls, parts: dict[str, Any]) -> Self:
        """Make a record from what `to_json` returned.

        Args:
            parts: What `to_json` returned.
        """

    @final
    def write(self, folder: str | Path) -> Path:
        """Write the record as <name>.json, whole or not at all. An existing file that is not a record is left alone.

        Args:
            folder: Where to write it.

        Returns:
            The path of the file.
        """
        path = path_of("folder", folder) / f"{self.name}.json"
        if exists(path) and not self._replaceable(path):
            path = path.with_name(f"format{FORMAT}-{path.name}")
        with write_atomically(path) as file:
            file.write(sealed_json(self.to_json(), indent=1))
        return path

    @classmethod
    @final
    def read(cls, path: str | Path) -> Self:
        """Read a record from its file. The records of earlier versions carry no checksum and are read without it.

        Args:
            path: The file.
        """
        path = path_of("path", path)
        try:
            return cls.from_json(opened_json(read_file(path))[0])
        except FileNotFoundError as error:
            raise MetareplayError(f"no record at {path}: check the path") from error
        except MetareplayError as error:
            raise MetareplayError(f"{path} is {error}") from error
        except (OSError, AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise MetareplayError(f"{path} is damaged or not a record: delete it and run again") from error

    @classmethod
    def _replaceable(cls, path: Path) -> bool:
        """Return whether a file is a record of this format, and neither damaged nor of another version."""
        try:
            cls.read(path)
        except MetareplayError:
            return False
        return True


def check_format(parts: dict[str, Any], kind: str) -> None:
    """Raise MetareplayError if a record is of another format or kind.

    Args:
        parts: What `to_json` returned.
        kind: The kind that is wanted.
    """
    if parts["format"] != FORMAT:
        raise MetareplayError(f"a record of format {shown(parts['format'])}: this version reads format {FORMAT}")
    if kind_of(parts) != kind:
        raise MetareplayError(f"the record of a {shortened(str(kind_of(parts)))}, not of a {kind}")


def kind_of(parts: dict[str, Any]) -> str:
    """Return the kind of a record; the first records did not mention it.

    Args:
        parts: What `to_json` returned.
    """
    found: str = parts.get("kind", "run")
    return found


Curves = Mapping[str, Sequence[tuple[int, float]]]  # by name: how many examples had been learned, and a value

AnyRecord = TypeVar("AnyRecord", bound=BaseRecord, covariant=True)


class BaseRun(ABC, Generic[AnyRecord]):
    """Do the work of one experiment and be watched: iterate over `steps`, then ask for the `record`."""

    @property
    @abstractmethod
    def key(self) -> str:
        """The key that the record will have."""

    @property
    @abstractmethod
    def tasks(self) -> int:
        """How many tasks there are."""

    @property
    @abstractmethod
    def trained(self) -> TableLearner:
        """The learner that is being trained."""

    @abstractmethod
    def steps(self) -> Iterator[Progress]:
        """Do the work step by step; each step says how far the run has come."""

    @property
    def title(self) -> str:
        """The run in a few words."""
        return type(self.trained).__name__

    def described(self) -> dict[str, Any]:
        """Return what is run, as plain JSON values, for those who follow the run."""
        return {"learner": type(self.trained).__name__, "settings": self.trained.settings()}

    def accuracies(self) -> list[float | None]:
        """Return the latest accuracy on the test set of each task, in percent; an empty list if there are no tests."""
        return []

    def curves(self) -> Curves:
        """Return what has been measured so far, by a name for people."""
        return {}

    @abstractmethod
    def save(self) -> None:
        """Write the checkpoint, if the run has one."""

    @abstractmethod
    def record(self) -> AnyRecord:
        """Return the record: what was run, and the results."""


class BaseExperiment(ABC, Generic[AnyRecord]):
    """Describe one run, without computing anything yet.

    Attributes:
        learner: The learner's name.
        seed: Decides everything that is drawn.
        engine: What does the arithmetic.
    """

    learner: str
    seed: int
    engine: EngineName

    @abstractmethod
    def start(self, checkpoint: Path | None = None) -> BaseRun[AnyRecord]:
        """Build the run, without computing anything yet.

        Args:
            checkpoint: Save the run at this path from time to time, and continue from there if the file exists.
        """

    @property
    @abstractmethod
    def key(self) -> str:
        """The key of the run's record: a hash of everything that decides its result."""

    @property
    @abstractmethod
    def work(self) -> float:
        """An estimate of the cost of the run, in SGD steps on one example; it predicts the time left."""

    @property
    @abstractmethod
    def label(self) -> str:
        """The experiment in a few words."""

    @property
    @abstractmethod
    def shape(self) -> str:
        """What runs that can take their steps together on a GPU share."""

    @property
    @abstractmethod
    def result(self) -> type[AnyRecord]:
        """The class of its record."""

    @property
    def datasets(self) -> tuple[str, ...]:
        """The names of the datasets that it reads, as `data.dataset` knows them, if it can say."""
        return ()


AnyExperiment = BaseExperiment[BaseRecord]
