"""What is compared: training in sequence, with replay, with the Reptile line, with both, and on everything at once."""

import re
from dataclasses import dataclass
from typing import Final, final

from metareplay._core.checks import shown
from metareplay._core.fields import check_fields
from metareplay.errors import InputError


@final
@dataclass(frozen=True)
class Arm:
    """Describe one way to train.

    Args:
        name: Its name on the command line.
        share: The share of replayed rows in each batch.
        has_line: Whether there is a Reptile line.
        is_joint: Whether all languages are learned at once, instead of one after the other.
    """

    name: str
    share: float = 0.0
    has_line: bool = False
    is_joint: bool = False

    def __post_init__(self) -> None:
        """Refuse a name that cannot be that of a file, and a share that no batch has."""
        check_fields(self)
        if not re.fullmatch(r"[\w.-]{1,60}", self.name):
            raise InputError(f"name={shown(self.name)}: use letters, digits, dots and dashes, at most 60")
        if not 0 <= self.share < 1:
            raise InputError(f"share={shown(self.share)}: some rows of each batch must be new; use 0 <= share < 1")


ARMS: Final = {
    arm.name: arm
    for arm in (
        Arm("sequential"),
        Arm("replay-0.25", share=0.25),
        Arm("replay-0.5", share=0.5),
        Arm("reptile", has_line=True),
        Arm("mer-0.25", share=0.25, has_line=True),
        Arm("mer-0.5", share=0.5, has_line=True),
        Arm("joint", is_joint=True),
    )
}
