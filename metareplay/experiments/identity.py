"""The identity of a run: what was run, without its results. Runs with the same identity are the same run."""

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

from torch import nn

from metareplay.experiments.alignment import Moment
from metareplay.learners.learner import Learner
from metareplay.networks.initial import FIRST_WEIGHTS
from metareplay.streams.stream import Stream


@final
@dataclass(frozen=True, kw_only=True)
class Identity:
    """Say what a run is: learner, settings (including the seed), model and stream.

    The engine is not part of it. A run that compares gradients, or measures more than the metrics need, is another run.

    Args:
        learner: The name of the learner's class.
        settings: Its options, as plain JSON values.
        model: The module in one line.
        stream: The stream's settings.
        alignment: How many past examples each gradient is compared with; 0 for none.
        past: When the past gradients are taken.
        full_matrix: Whether more accuracies are measured than the metrics need.
        training: Whether accuracies on training examples are measured at the end.
        built_by: The name of a user's own function that built the run, and the settings that it was given.
    """

    learner: str
    settings: dict[str, Any]
    model: str
    stream: dict[str, Any]
    alignment: int = 0
    past: Moment = "before"
    full_matrix: bool = False
    training: bool = False
    built_by: dict[str, Any] | None = None

    @staticmethod
    def of(
        learner: Learner,
        stream: Stream,
        *,
        alignment: int = 0,
        past: Moment = "before",
        full_matrix: bool = False,
        training: bool = False,
        built_by: dict[str, Any] | None = None,
    ) -> "Identity":
        """Describe the run of a learner on a stream.

        Args:
            learner: The learner.
            stream: The stream.
            alignment: How many past examples each gradient is compared with; 0 for none.
            past: When the past gradients are taken.
            full_matrix: Whether more accuracies are measured than the metrics need.
            training: Whether accuracies on training examples are measured at the end.
            built_by: The name of a user's own function that built the run, and the settings that it was given.
        """
        return Identity(
            learner=type(learner).__name__,
            settings=learner.settings(),
            model=describe(learner.model),
            stream=stream.settings(),
            alignment=alignment,
            past=past,
            full_matrix=full_matrix,
            training=training,
            built_by=built_by,
        )

    @cached_property
    def key(self) -> str:
        """A short hash of everything that the identity says."""
        settings = {name: value for name, value in self.settings.items() if name != "engine"}
        what: list[object] = [self.learner, settings, self.model, self.stream]
        if self.alignment:
            when = {} if self.past == "before" else {"past": self.past}
            what.append({"alignment": self.alignment, **when})
        what += ["full matrix"] if self.full_matrix else []
        what += ["training accuracy"] if self.training else []
        what += [{"built by": self.built_by}] if self.built_by is not None else []
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def describe(model: nn.Module) -> str:
    """Return a module in one line, and how its first weights were drawn if the module is marked with that.

    The line does not depend on torch's version: from 2.13 on, torch says of every GroupNorm whether it has a bias.
    """
    drawn = getattr(model, FIRST_WEIGHTS, None)
    text = re.sub(r"(GroupNorm\([^()]*), bias=True\)", r"\1)", " ".join(str(model).split()))
    return text + (f" with first weights by {drawn}" if drawn else "")
