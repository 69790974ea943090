"""The record of a prequential run: what was run, and how well each example was predicted before it was learned."""

import hashlib
import json
import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self, final

from metareplay.experiments.base import FORMAT, BaseRecord, check_format
from metareplay.experiments.identity import Identity


@final
@dataclass(frozen=True, kw_only=True)
class Prequential:
    """Say how the predictions of a prequential run are scored.

    Args:
        every: After how many examples scores are noted each time.
        window: How many of the latest examples a windowed score is over.
        fading: What an example's weight in a faded score is multiplied by with each example that follows it.
        block: How many examples are predicted at a time before they are learned.
    """

    every: int = 1000
    window: int = 1000
    fading: float = 0.999
    block: int = 1

    def key(self, identity: Identity) -> str:
        """Return the key of a run's record: a hash of everything that decides its result.

        Args:
            identity: What is run.
        """
        what = [identity.key, {"prequential": vars(self)}]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


@final
@dataclass(frozen=True, kw_only=True)
class PrequentialRecord(BaseRecord):
    """Hold the settings and the scores of one finished prequential run.

    Scores are named "accuracy" (in percent), "kappa" and "log_loss" for labels, "mae" and "rmse" for real targets. A
    name that begins with "window_" means the latest examples only, one with "faded_" recent examples more than others.

    Args:
        learner: The name of the learner's class.
        settings: Its options.
        model: The module in one line, as it was before the first example.
        stream: The stream's settings.
        scored: How the predictions were scored.
        seed: The learner's seed.
        engine: Which engine did the arithmetic.
        examples: How many examples were predicted and learned.
        weights: The SHA-256 hash of the final weights; equal runs have the same weights, bit for bit.
        points: The scores along the stream by name, and after how many "examples" each was noted.
        classes: How each class was predicted: its label, how often it came, recall and precision; empty for regression.
        seconds: The time spent on learning and on predicting.
        versions: The versions of the software, and the machine.
        date: When the run ended.
    """

    kind: ClassVar[str] = "prequential"

    learner: str
    settings: dict[str, Any]
    model: str
    stream: dict[str, Any]
    scored: Prequential
    seed: int
    engine: str
    examples: int
    weights: str
    points: dict[str, list[float | None]]
    classes: list[dict[str, Any]]
    seconds: dict[str, float]
    versions: dict[str, str]
    date: str

    @property
    def total(self) -> dict[str, float | None]:
        """All scores at the end of the stream, by name."""
        return {name: values[-1] for name, values in self.points.items() if name != "examples"}

    @property
    def accuracy(self) -> float:
        """The share of examples whose label was predicted, in percent; NaN for regression."""
        return self._score("accuracy")

    @property
    def kappa(self) -> float:
        """Cohen's kappa: 0 for labels drawn at random, 1 for all right; NaN for regression or a single class."""
        return self._score("kappa")

    @property
    def log_loss(self) -> float:
        """The mean of -log of the probability that was predicted for the true label; NaN for regression."""
        return self._score("log_loss")

    @property
    def mae(self) -> float:
        """The mean absolute error; NaN for labels."""
        return self._score("mae")

    @property
    def rmse(self) -> float:
        """The root of the mean squared error; NaN for labels."""
        return self._score("rmse")

    @property
    def key(self) -> str:
        """A short hash of what was run, which does not depend on the results."""
        identity = Identity(learner=self.learner, settings=self.settings, model=self.model, stream=self.stream)
        return self.scored.key(identity)

    @property
    def name(self) -> str:
        """The name of its files: prequential-<learner>-<stream>-seed<seed>-<key>."""
        return f"prequential-{self.learner}-{self.stream.get('stream', 'own')}-seed{self.seed}-{self.key}"

    def to_json(self, *, compact: bool = False) -> dict[str, Any]:
        """Return plain JSON values: the scores at the end, then everything else.

        Args:
            compact: Has no effect: there is nothing to leave out.
        """
        del compact
        parts = {one.name: getattr(self, one.name) for one in fields(self)} | {"scored": vars(self.scored)}
        return {"format": FORMAT, "key": self.key, "kind": self.kind, **parts, "total": self.total}

    @classmethod
    def from_json(cls, parts: dict[str, Any]) -> Self:
        """Make a record from what `to_json` returned."""
        check_format(parts, cls.kind)
        kept = {one.name: parts[one.name] for one in fields(cls)}
        return cls(**kept | {"scored": Prequential(**parts["scored"])})

    def _score(self, name: str) -> float:
        found = self.total.get(name)
        return math.nan if found is None else found
