"""What training over languages showed: the loss on every language, at many moments."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from metareplay._core.checks import place_of, whole
from metareplay._core.fields import check_fields
from metareplay._core.files import names_in, read_file, write_atomically
from metareplay._core.seal import opened_json, sealed_json
from metareplay.errors import DataError
from metareplay.lm.arms import ARMS

OF_ITS_OWN: Final = ("arm", "seed")  # settings in which the records of one comparison differ


@final
@dataclass(frozen=True)
class LmRecord:
    """Hold the settings and results of one training.

    Args:
        arm: The name of the arm.
        settings: All settings, as plain JSON values.
        languages: The languages in the order in which they were learned.
        steps: The optimizer steps after which losses were measured.
        losses: The loss on each language at these moments, in nats per byte; one row per moment.
        ends: Which of the moments are the ends of the languages.
        parameters: How many parameters the model has.
        seconds: How long training took, without measuring, but with compiling.
        mer_seconds: How much of it was spent in `mix` and `step`; each call counts with the time of the host or of the
            device, whichever was longer.
        device: What it ran on.
        alignment: For each moment, the `dot` product and the `cosine` of the gradients of the new and the replayed rows
            in the last batch before it, at the weights before that batch was learned (`loops.gradient_alignment`);
            None in place of a number if the batch had no replayed rows, and altogether if this was not measured.
        versions: The versions of everything that the training depends on.
        date: When it ended.
        compiled: Whether the model was compiled with `torch.compile`, at least since training was last resumed.
    """

    arm: str
    settings: dict[str, Any]
    languages: list[str]
    steps: list[int]
    losses: list[list[float]]
    ends: list[int]
    parameters: int
    seconds: float
    mer_seconds: float
    device: str
    alignment: dict[str, list[float | None]] | None = None
    versions: dict[str, str] = field(default_factory=dict)
    date: str = ""
    compiled: bool = False

    @property
    def final(self) -> float:
        """The mean loss on all languages at the end."""
        return float(np.mean(self.losses[-1]))

    @property
    def learned(self) -> float:
        """The mean loss on each language right after it was learned."""
        return float(np.mean([self.losses[end][i] for i, end in enumerate(self.ends)]))

    @property
    def newest(self) -> float:
        """The loss at the end on the language that was learned last."""
        return self.losses[-1][-1]

    @property
    def forgetting(self) -> float | None:
        """How much the loss on earlier languages rose since each was learned, on average; None for one language."""
        rises = [self.losses[-1][i] - self.losses[end][i] for i, end in enumerate(self.ends[:-1])]
        return float(np.mean(rises)) if rises else None

    @property
    def cosine(self) -> float | None:
        """The mean cosine of the gradients of new and replayed rows; None if it was not measured."""
        found = [value for value in (self.alignment or {}).get("cosine", []) if value is not None]
        return float(np.mean(found)) if found else None

    def plain(self) -> dict[str, Any]:
        """Return the record as plain JSON values, without `alignment` if it was not measured."""
        return {name: value for name, value in asdict(self).items() if name != "alignment" or value is not None}

    def save(self, path: Path) -> None:
        """Write the record as JSON with a checksum, whole or not at all.

        Args:
            path: The file.
        """
        with write_atomically(path) as file:
            file.write(sealed_json(self.plain(), indent=1))

    @classmethod
    def load(cls, path: Path) -> "LmRecord":
        """Read a record, and compare its checksum.

        Args:
            path: The file.
        """
        try:
            parts, _ = opened_json(read_file(path))
            found = cls(**parts)
            check_fields(found)
            whole("seed", found.settings["seed"])
            losses = np.array(found.losses, np.float64)
            if losses.shape != (len(found.steps), len(found.languages)) or not 0 < len(found.ends) <= len(
                found.languages
            ):
                raise ValueError("the losses have another shape")
            if [whole("steps", step) for step in found.steps] != sorted(found.steps):
                raise ValueError("the moments are not in order")
            if any(not 0 <= whole("ends", end) < len(losses) for end in found.ends):
                raise ValueError("a language ends at a moment that is not there")
            return found
        except (LookupError, OSError, TypeError, ValueError) as error:
            raise DataError(f"{path} is damaged: delete it, and train again") from error


def read_records(folder: Path) -> list[LmRecord]:
    """Read the records in a folder, in the order of arms and seeds; they must be of one comparison.

    Args:
        folder: Where `train` has put them.
    """
    folder = place_of("folder", folder)
    names = sorted(name for name in names_in(folder) if name.endswith(".json") and not name.startswith("."))
    found = [LmRecord.load(folder / name) for name in names]
    if not found:
        raise DataError(f"there are no records in {folder}: train first, or give another folder")
    compared = [{name: one.settings[name] for name in one.settings if name not in OF_ITS_OWN} for one in found]
    if any(one != compared[0] for one in compared):
        raise DataError(
            f"the records in {folder} have different settings: put those to compare into a folder of their own"
        )
    places = {name: place for place, name in enumerate(ARMS)}
    return sorted(found, key=lambda one: (places.get(one.arm, len(places)), one.settings["seed"]))
