"""Test, then train: every example is predicted before it is learned, so that a stream needs no test set."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from metareplay._core.checks import check_count, check_room, instance, path_of, real, shown, whole
from metareplay._core.files import exists
from metareplay._core.interrupts import HeldBack
from metareplay.errors import InputError
from metareplay.experiments.base import BaseRun, Curves, Progress
from metareplay.experiments.following import Follower, done
from metareplay.experiments.identity import Identity, describe
from metareplay.experiments.prequential_record import Prequential, PrequentialRecord
from metareplay.experiments.record import fingerprint, now, versions_with
from metareplay.experiments.scores import ClassScores, ErrorScores
from metareplay.learners import checkpoint as checkpoints
from metareplay.learners.input_checks import as_tensor
from metareplay.learners.learner import Learner
from metareplay.networks import Structured, TaskModule
from metareplay.streams.stream import Stream

SAVE_EVERY = 20.0  # seconds between checkpoints
SHOW_EVERY = 0.1  # seconds between two steps of a run
OWN = {"stream": "iterable"}  # the settings of a stream that is anything to iterate over


def prequential(
    learner: Learner,
    stream: Stream | Iterable[Any],
    *,
    every: int = 1000,
    window: int | None = None,
    fading: float = 0.999,
    block: int = 1,
    checkpoint: str | Path | None = None,
    follow: Sequence[Follower] = (),
) -> PrequentialRecord:
    """Predict each example of a stream before it is learned, and return the record of how well that went.

    Args:
        learner: A learner that has not learned anything yet.
        stream: A stream, or anything that can be iterated over and gives (x, y) or (x, y, task).
        every: Note all scores after this many examples each time.
        window: How many of the latest examples a windowed score is over; None for as many as `every` says.
        fading: What an example's weight in a faded score is multiplied by with each example that follows it.
        block: Predict this many examples at a time before they are learned; what is learned is the same.
        checkpoint: Save the run at this path from time to time, and continue from there if the file exists.
        follow: Who is told how the run is going; this does not change what is learned.

    >>> import metareplay as mr
    >>> learner = mr.Online(mr.networks.mlp(2, (8,), 2), lr=0.1)
    >>> record = mr.prequential(learner, [(torch.eye(2)[n % 2], n % 2) for n in range(200)], every=100)
    >>> record.points["examples"], record.points["window_accuracy"][-1]
    ([100, 200], 100.0)
    """
    work = PrequentialRun(
        learner, stream, every=every, window=window, fading=fading, block=block, checkpoint=checkpoint
    )
    return done(work, follow)


@final
class PrequentialRun(BaseRun[PrequentialRecord]):
    """Run a learner on a stream, test then train, and be watched: iterate over `steps`, then ask for the `record`.

    Args:
        learner: A learner that has not learned anything yet.
        stream: A stream, or anything that can be iterated over and gives (x, y) or (x, y, task).
        every: Note all scores after this many examples each time.
        window: How many of the latest examples a windowed score is over; None for as many as `every` says.
        fading: What an example's weight in a faded score is multiplied by with each example that follows it.
        block: Predict this many examples at a time before they are learned; what is learned is the same.
        checkpoint: Save the run at this path from time to time, and continue from there if the file exists.
    """

    def __init__(
        self,
        learner: Learner,
        stream: Stream | Iterable[Any],
        *,
        every: int = 1000,
        window: int | None = None,
        fading: float = 0.999,
        block: int = 1,
        checkpoint: str | Path | None = None,
    ) -> None:
        self.learner = instance("learner", learner, Learner, "a learner, for instance MER(model)")
        self.stream = instance("stream", stream, Iterable | Stream, "a stream, or an iterable of (x, y)")  # type: ignore[arg-type]
        if isinstance(stream, Tensor) and not stream.dim():
            raise InputError(f"stream={shown(stream)}: use a stream, or an iterable of (x, y)")
        self.path = path_of("checkpoint", checkpoint) if checkpoint is not None else None
        self.scored = checked(every, window, fading, block)
        self.identity = Identity(
            learner=type(learner).__name__,
            settings=learner.settings(),
            model=describe(learner.model),
            stream=stream.settings() if isinstance(stream, Stream) else OWN,
        )
        kind = ErrorScores if learner.regression else ClassScores
        self.scores: ClassScores | ErrorScores = kind(self.scored.window, self.scored.fading)
        self._seconds = {"learn": 0.0, "predict": 0.0}
        self._task = 0
        self._place_of: dict[Any, int] = {}  # which output stands for each label

    @property
    def key(self) -> str:
        """The key that the record will have."""
        return self.scored.key(self.identity)

    @property
    def tasks(self) -> int:
        """How many tasks the stream has; 1 if it does not say."""
        return max(1, self.stream.tasks) if isinstance(self.stream, Stream) else 1

    @property
    def trained(self) -> Learner:
        """The learner that is being trained."""
        return self.learner

    @property
    def title(self) -> str:
        """The run in a few words."""
        return f"{self.identity.learner} on {self.identity.stream.get('stream', 'a stream')}, seed {self.learner.seed}"

    def described(self) -> dict[str, Any]:
        """Return what is run, as plain JSON values."""
        what = self.identity
        about = {"learner": what.learner, "settings": what.settings, "model": what.model, "stream": what.stream}
        return about | {"prequential": asdict(self.scored)}

    def curves(self) -> Curves:
        """Return every score over time: of all examples, of a window, and faded."""
        points = self.scores.points
        found = {name: zip(points["examples"], values, strict=True) for name, values in points.items()}
        return {
            f"prequential {name.replace('_', ' ')}": [(int(at or 0), value) for at, value in curve if value is not None]
            for name, curve in found.items()
            if name != "examples"
        }

    def steps(self) -> Iterator[Progress]:
        """Do the work step by step; each step says how far the run has come."""
        if self.path is not None and exists(self.path):
            checkpoints.restore(self.learner, self.path, self._settings(), self._take)
        elif self.learner.seen:
            raise InputError(f"this learner has already seen {self.learner.seen} examples: give prequential a new one")
        if self.learner.seen == 0:
            self.save()  # so that a path that cannot be written is noticed before the work
        shown_at = saved_at = time.monotonic()
        for block in blocks(self.stream, self.learner, self.scored.block):
            self._task = block.task or 0
            self._test_then_train(block)
            if (clock := time.monotonic()) - shown_at > SHOW_EVERY:
                if clock - saved_at > SAVE_EVERY:
                    self.save()
                    saved_at = clock
                yield self._progress()
                shown_at = time.monotonic()
        if self.learner.seen == 0:
            raise InputError("the stream is empty: give it at least one example (a generator can be read only once)")
        self.scores.close_point()
        self.save()
        yield self._progress()

    def record(self) -> PrequentialRecord:
        """Return the record: what was run, and the results."""
        return PrequentialRecord(
            learner=self.identity.learner,
            settings=self.identity.settings,
            model=self.identity.model,
            stream=self.identity.stream,
            scored=self.scored,
            seed=self.learner.seed,
            engine=self.learner.chosen_engine.name,
            examples=self.learner.seen,
            weights=fingerprint(self.learner.weights.theta),
            points=self.scores.points,
            classes=self.scores.by_class(),
            seconds={name: round(value, 3) for name, value in self._seconds.items()},
            versions=versions_with(self.learner.weights.theta),
            date=now(),
        )

    def _predicted(self, block: "Block") -> list[tuple[Any, ...]]:
        """Predict the examples of a block; return what is to be added to the scores for each of them."""
        task = block.task if isinstance(self.learner.model, TaskModule) else None
        if self.learner.regression:
            return self._predicted_values(self.learner.outputs(block.xs, task), as_tensor("y", block.ys))
        if any(isinstance(label, list) for label in block.labels):
            raise InputError(f"a target is {shown(block.labels[0])}: prequential scores one label per example")
        if self.learner.labels == ():
            return [(None, label, 0.0, False) for label in block.labels]
        return self._predicted_labels(self.learner.predict_proba(block.xs, task), block.labels)

    def _predicted_labels(self, probabilities: Tensor, labels: list[Any]) -> list[tuple[Any, ...]]:
        if probabilities.dim() != 2:
            raise InputError(
                f"the outputs for one example have shape {tuple(probabilities.shape[1:])}: prequential scores one "
                f"label per example"
            )
        known = self.learner.labels or range(probabilities.shape[1])
        for label in known[len(self._place_of) :]:
            self._place_of[label] = len(self._place_of)
        found, chances = [], probabilities.cpu().numpy()
        for row, (best, label) in enumerate(zip(chances.argmax(axis=1).tolist(), labels, strict=True)):
            place = self._place_of.get(label)
            found.append((known[best], label, 0.0 if place is None else float(chances[row, place])))
        return found

    def _predicted_values(self, outputs: Tensor, targets: Tensor) -> list[tuple[Any, ...]]:
        if outputs.numel() != targets.numel():
            raise InputError(
                f"the outputs have shape {tuple(outputs.shape)} and the targets {tuple(targets.shape)}: prequential "
                f"scores targets of the outputs' shape"
            )
        pairs = zip(outputs.cpu(), targets.cpu(), strict=True)
        return [(output.reshape(-1), target.reshape(-1)) for output, target in pairs]

    def _test_then_train(self, block: "Block") -> None:
        """Predict the examples of a block, learn them, and score the predictions."""
        start = time.perf_counter()
        predicted = self._predicted(block)
        between = time.perf_counter()
        seen = self.learner.seen
        with HeldBack():
            try:
                if len(predicted) == 1:
                    self.learner.observe(block.xs[0], block.ys[0], block.task)
                else:
                    self.learner.observe_many(block.xs, block.ys, block.task)
            finally:  # what was learned is scored, even if Ctrl-C or an error came in between
                for one in predicted[: self.learner.seen - seen]:
                    self.scores.add(*one)
            if self.scores.count % self.scored.every == 0:
                self.scores.close_point()
        self._seconds["predict"] += between - start
        self._seconds["learn"] += time.perf_counter() - between

    def _progress(self) -> Progress:
        total = self.stream.total if isinstance(self.stream, Stream) else None
        name = "window_mae" if isinstance(self.scores, ErrorScores) else "window_accuracy"
        latest = (self.scores.points.get(name) or [None])[-1]
        text = "" if latest is None else f"{name.removeprefix('window_')} {latest:.4g}"
        return Progress("learning", min(self._task, self.tasks - 1), self.learner.seen, total, text)

    def save(self) -> None:
        """Write the checkpoint, if the run has one."""
        if self.path is not None:
            state, tensors = self.scores.state()
            state |= {"seconds": self._seconds}
            extra: dict[str, object] = {"prequential": state, "settings": self._settings()}
            checkpoints.save(self.learner, self.path, extra, tensors)

    def _take(self, extra: dict[str, Any], measured: dict[str, Tensor]) -> Callable[[], None]:
        """Check the saved state of a run, and return a function that puts this run into it."""
        state = extra["prequential"]
        scores: ClassScores | ErrorScores = type(self.scores)(self.scored.window, self.scored.fading)
        scores.restore(state, measured)
        seconds = {name: float(state["seconds"][name]) for name in self._seconds}

        def take() -> None:
            self.scores, self._seconds = scores, seconds

        return take

    def _settings(self) -> dict[str, object]:
        """Return what a resumed run must have in common with the saved one, besides the learner."""
        scored = {f"prequential.{name}": value for name, value in asdict(self.scored).items()}
        return scored | {f"stream.{name}": value for name, value in self.identity.stream.items()}


def checked(every: int, window: int | None, fading: float, block: int) -> Prequential:
    """Return how predictions are scored, or raise InputError for a number that makes no sense.

    Args:
        every: Note all scores after this many examples each time.
        window: How many of the latest examples a windowed score is over; None for as many as `every` says.
        fading: What an example's weight is multiplied by with each example that follows it.
        block: Predict this many examples at a time before they are learned.
    """
    check_count("every", every, "scores are noted after at least one example")
    last = every if window is None else window
    check_count("window", last, "a window has at least one example")
    check_room("window", last, 48 * whole("window", last))
    check_count("block", block, "at least one example is predicted at a time")
    if not 0 < real("fading", fading) <= 1:
        raise InputError(f"fading={shown(fading)}: use 0 < fading <= 1")
    if whole("every", every) % whole("block", block):
        raise InputError(f"every={every} and block={block}: use a block that divides the examples between two points")
    return Prequential(every=whole("every", every), window=whole("window", last), fading=float(fading), block=block)


class Block(NamedTuple):
    """Hold consecutive examples of one task that are predicted before they are learned.

    Args:
        xs: The inputs, as a learner takes them.
        ys: The targets, as a learner takes them.
        labels: The targets as a list of Python values.
        task: Their task; None if none was given.
    """

    xs: Any
    ys: Any
    labels: list[Any]
    task: int | None


def blocks(stream: Stream | Iterable[Any], learner: Learner, size: int) -> Iterator[Block]:
    """Cut what a learner has not seen yet of a stream into blocks, which end where a multiple of `size` has come.

    Args:
        stream: A stream, or anything that can be iterated over and gives (x, y) or (x, y, task).
        learner: The learner; a resumed one has seen some examples.
        size: The largest number of examples in a block.
    """
    at, held = learner.seen, list[tuple[Any, Any]]()
    task: int | None = None
    for x, y, of in _examples(stream, learner.seen):
        if held and of != task:
            yield _block(held, task, learner)
            held = []
        held.append((x, y))
        task, at = of, at + 1
        if at % size == 0:
            yield _block(held, task, learner)
            held = []
    if held:
        yield _block(held, task, learner)


def _examples(stream: Stream | Iterable[Any], start: int) -> Iterator[tuple[Any, Any, int | None]]:
    """Go through the examples of a stream one by one."""
    if isinstance(stream, Stream):
        for chunk in stream.chunks(start):
            for x, y in zip(chunk.xs, chunk.ys, strict=True):
                yield x, y, chunk.task
        return
    items = iter(stream)
    skipped = sum(1 for _ in islice(items, start))
    if skipped < start:
        raise InputError(f"the stream ended after {skipped} examples, but {start} were learned from it: give all of it")
    for number, item in enumerate(items, start):
        if not isinstance(item, tuple | list) or len(item) not in (2, 3):
            raise InputError(f"example {number} of the stream is {shown(item)}: give (x, y) or (x, y, task)")
        yield item[0], item[1], None if len(item) == 2 else whole("task", item[2])


def _block(held: list[tuple[Any, Any]], task: int | None, learner: Learner) -> Block:
    """Put examples together as a learner takes them."""
    xs, ys = [x for x, _ in held], [y for _, y in held]
    labels = [y.tolist() if hasattr(y, "tolist") else y for y in ys]
    inputs: Any = xs if isinstance(learner.model, Structured) else _stacked("x", xs)
    return Block(inputs, labels if learner.labels is not None else _stacked("y", ys), labels, task)


def _stacked(name: str, values: list[Any]) -> Tensor:
    tensors = [as_tensor(name, value) for value in values]
    if len({(one.shape, one.dtype) for one in tensors}) > 1:
        forms = sorted({f"{tuple(one.shape)} ({one.dtype})" for one in tensors})
        raise InputError(f"{name} has different shapes or types in one block, {', '.join(forms)}: use block=1")
    return torch.stack(tensors)
