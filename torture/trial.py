"""What every kind of torture has in common: it tries something many times and says what went wrong."""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final


@final
@dataclass(frozen=True)
class Try:
    """Say what was tried, and what went wrong.

    Args:
        what: What was tried.
        wrong: What went wrong; None if nothing did.
    """

    what: str
    wrong: str | None = None


class Torture(ABC):
    """Try one kind of thing many times.

    Attributes:
        name: What it is called.
        few: How many tries are enough for a first look.
        some: How many tries the command makes by default.
        many: How many tries `--long` makes.
    """

    name: ClassVar[str]
    few: ClassVar[int]
    some: ClassVar[int]
    many: ClassVar[int]

    @abstractmethod
    def tries(self, count: int, rng: random.Random, folder: Path) -> Iterator[Try]:
        """Make the tries.

        Args:
            count: How many to make, about.
            rng: Draws everything that is drawn.
            folder: An empty folder to work in.
        """
