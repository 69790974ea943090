"""Labels of any kind: which output of the model stands for which label."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metareplay._core.checks import shown
from metareplay._core.plain_labels import labels_in, with_tuples
from metareplay.errors import InputError

Classes = Literal["grow"] | Sequence[Hashable] | None
SHOWN = 5  # known labels that a message names


@final
class Labels:
    """Number labels in the order in which they come: the label with number i belongs to output i of the model.

    Labels are compared as Python compares the keys of a dictionary. A label that is new is first only `coming`, while
    its example is checked; `admit` makes it known when the example is about to be learned.

    Args:
        known: The labels that are known from the start.
        grows: Whether a label that is not known gets the next number; otherwise it is refused.

    >>> labels = Labels(grows=True)
    >>> labels.numbers(["cat", "dog", "cat"]).tolist(), labels.known
    ([0, 1, 0], ())
    >>> labels.admit(1)
    >>> labels.known, labels.named(torch.tensor([1, 0])).tolist()
    (('cat', 'dog'), ['dog', 'cat'])
    """

    def __init__(self, known: Iterable[Hashable] = (), grows: bool = False) -> None:
        self.grows = grows
        self._numbers: dict[Hashable, int] = {}
        self._coming: list[Hashable] = []
        self.replace(known)

    @property
    def known(self) -> tuple[Hashable, ...]:
        """The labels that are known, in the order of the outputs."""
        return tuple(self._numbers)

    def __len__(self) -> int:
        """Count the labels that are known."""
        return len(self._numbers)

    @property
    def coming(self) -> tuple[Hashable, ...]:
        """The labels that are not known yet, of the examples that were checked last."""
        return tuple(self._coming)

    def replace(self, known: Iterable[Hashable]) -> None:
        """Forget all labels, and know these instead.

        Args:
            known: The labels, in the order of the outputs.
        """
        self._numbers, self._coming = {label: number for number, label in enumerate(known)}, []

    def numbers(self, ys: object) -> Tensor:
        """Return the number of each label; a new one gets the next number if labels may be new.

        Args:
            ys: The labels.
        """
        self._coming, new, found = [], dict[Hashable, int](), []
        for label in labels_in(ys):
            number = self._numbers.get(label, new.get(label))
            if number is None:
                if not self.grows:
                    raise InputError(f"label {shown(label)} is not one of the classes: they are {some(self.known)}")
                number = new[label] = len(self) + len(new)
            found.append(number)
        self._coming = list(new)
        return torch.tensor(found, dtype=torch.int64)

    def number(self, label: object) -> int | None:
        """Return the number of a label; None if it is not known.

        Args:
            label: The label.
        """
        try:
            return self._numbers.get(label)
        except TypeError:  # it cannot be hashed
            return None

    def look_up(self, ys: object) -> Tensor:
        """Return the number of each label, -1 for one that is not known.

        Args:
            ys: The labels.
        """
        return torch.tensor([self._numbers.get(label, -1) for label in labels_in(ys)], dtype=torch.int64)

    def admit(self, number: int) -> None:
        """Make coming labels known, up to the one with this number.

        Args:
            number: The number that the label got from `numbers`.
        """
        while len(self) <= number:
            self._numbers[self._coming.pop(0)] = len(self)

    def named(self, numbers: Tensor) -> NDArray[Any]:
        """Return the labels with these numbers, as a NumPy array of Python objects in the same shape.

        Args:
            numbers: Numbers of labels that are known.
        """
        names = np.empty(len(self), np.object_)
        names[:] = self.known
        found: NDArray[Any] = names[numbers.cpu().numpy()]
        return found


def some(labels: Sequence[object]) -> str:
    """Return the first few labels as text, for a message.

    Args:
        labels: The labels.
    """
    rest = f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else ""
    return ", ".join(shown(label) for label in labels[:SHOWN]) + rest


def make_labels(classes: Classes) -> Labels | None:
    """Return the labels for a learner's option `classes`; None if labels are the numbers of the outputs.

    Args:
        classes: "grow", a list of labels, or None.
    """
    if classes is None:
        return None
    if isinstance(classes, str):
        if classes != "grow":
            raise InputError(f"classes={shown(classes)}: use 'grow', a list of labels, or None")
        return Labels(grows=True)
    known = labels_in(with_tuples(classes), "classes")
    if len(set(known)) < len(known) or not known:
        raise InputError(f"classes={shown(classes)}: name at least one label, and each of them once")
    return Labels(known)
