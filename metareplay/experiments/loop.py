"""The training loop: it feeds a stream to a learner and makes a record."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, final, get_args

from torch import Tensor

from metareplay._core.checks import check_room, choice, flag, instance, path_of, shown, whole
from metareplay._core.columns import Columns
from metareplay._core.files import exists
from metareplay._core.table import Table
from metareplay.errors import CheckpointError, InputError
from metareplay.experiments.alignment import Alignment, Moment
from metareplay.experiments.base import BaseRun, Curves, Progress
from metareplay.experiments.following import Follower, done
from metareplay.experiments.identity import Identity
from metareplay.experiments.metrics import Accuracies
from metareplay.experiments.record import Record
from metareplay.learners import checkpoint as checkpoints
from metareplay.learners.learner import Learner
from metareplay.networks import TaskModule
from metareplay.streams.stream import CHUNK, Chunk, Examples, Stream

SAVE_EVERY = 20.0  # seconds between checkpoints


def run(
    learner: Learner,
    stream: Stream,
    *,
    full_matrix: bool = False,
    training: bool = False,
    alignment: int = 0,
    past: Moment = "before",
    checkpoint: str | Path | None = None,
    follow: Sequence[Follower] = (),
) -> Record:
    """Feed a stream to a learner, measure accuracy when tasks begin and end, and return the record.

    Args:
        learner: A learner that has not learned anything yet.
        stream: The examples, task by task, and a test set for each task.
        full_matrix: Measure every task after every task, instead of only what the metrics need (about 4 T of T (T + 1)
            accuracies).
        training: Measure the accuracy on the training examples of every task at the end, too.
        alignment: How many past examples each example's gradient is compared with (see `Alignment`; 5 in Table 4 of the
            paper); 0 for none. This does not change what is learned.
        past: When the gradients of the past examples are taken: "before" or "after" the example is learned.
        checkpoint: Save the run at this path from time to time, and continue from there if the file exists. A run that
            was killed and started again ends with the same weights, memory and metrics, bit for bit.
        follow: Who is told how the run is going, such as `trackers.TensorBoard("runs/tensorboard")`. This does not
            change what is learned.
    """
    work = Run(
        learner,
        stream,
        full_matrix=full_matrix,
        training=training,
        alignment=alignment,
        past=past,
        checkpoint=checkpoint,
    )
    return done(work, follow)


@final
class Run(BaseRun[Record]):
    """Run a learner on a stream and be watched: iterate over `steps`, then ask for the `record`.

    Args:
        learner: A learner that has not learned anything yet.
        stream: The examples, task by task, and a test set for each task.
        full_matrix: Measure every task after every task, instead of only what the metrics need.
        training: Measure the accuracy on the training examples of every task at the end, too.
        alignment: How many past examples each example's gradient is compared with; 0 for none.
        past: When the gradients of the past examples are taken: "before" or "after" the example is learned.
        checkpoint: Save the run at this path from time to time, and continue from there if the file exists.
        built_by: The name of a user's own function that built the run, and the settings that it was given.
    """

    def __init__(
        self,
        learner: Learner,
        stream: Stream,
        *,
        full_matrix: bool = False,
        training: bool = False,
        alignment: int = 0,
        past: Moment = "before",
        checkpoint: str | Path | None = None,
        built_by: dict[str, Any] | None = None,
    ) -> None:
        self.learner = instance("learner", learner, Learner, "a learner, for instance MER(model)")
        self.stream = instance("stream", stream, Stream, "a stream, for instance Rotations() or OwnStream.from_tensors")
        self.path = path_of("checkpoint", checkpoint) if checkpoint is not None else None
        flag("full_matrix", full_matrix)
        flag("training", training)
        check_room("alignment", whole("alignment", alignment), 16 * CHUNK * alignment)
        choice("past", past, get_args(Moment))
        if stream.tasks and learner.regression:
            raise InputError("run measures accuracy, which is undefined for regression: use observe_many and outputs")
        self.measured = Accuracies(stream.tasks, full_matrix)
        self.alignment = Alignment(learner, alignment, past) if alignment else None
        self.identity = Identity.of(
            learner,
            stream,
            alignment=alignment,
            past=past if alignment else "before",
            full_matrix=self.measured.more_than_needed,
            training=training,
            built_by=built_by,
        )
        self._retained: list[float] = []  # accuracy on the training examples of each task, measured at the end
        self._held_out: list[float] = []  # accuracy on the validation examples of each task, measured at the end
        self._size = 16  # examples to learn before progress is reported again
        self._finished = 0  # tasks whose last example was learned
        self._seen_at: dict[int, int] = {}  # examples learned when each row of the accuracy matrix was measured
        self._seconds = {"learn": 0.0, "evaluate": 0.0}

    @property
    def key(self) -> str:
        """The key that the record will have."""
        return self.identity.key

    @property
    def tasks(self) -> int:
        """How many tasks the stream has."""
        return self.stream.tasks

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
        return {"learner": what.learner, "settings": what.settings, "model": what.model, "stream": what.stream}

    def accuracies(self) -> list[float | None]:
        """Return the latest accuracy on the test set of each task, in percent; None where nothing was measured yet."""
        return [points[-1][1] if points else None for points in self._accuracy_curves()]

    def curves(self) -> Curves:
        """Return the accuracy of each task over time, and how well gradients are aligned if that is measured."""
        curves: dict[str, Sequence[tuple[int, float]]] = {
            f"accuracy of task {task}": points for task, points in enumerate(self._accuracy_curves(), 1) if points
        }
        if self.alignment is not None:
            curves["gradient alignment"] = self.alignment.course()
        return curves

    def _accuracy_curves(self) -> list[list[tuple[int, float]]]:
        """Return the measured entries of each column of the accuracy matrix, with the number of examples then."""
        at = [self._seen_at.get(row, 0) for row in range(self._finished + 1)]
        columns = self.measured.values[: self._finished + 1].T.tolist()
        return [
            [(seen, value) for seen, value in zip(at, column, strict=True) if not math.isnan(value)]
            for column in columns
        ]

    def steps(self) -> Iterator[Progress]:
        """Do the work step by step; each step says how far the run has come."""
        if self.path is not None and exists(self.path):
            self._restore(self.path)
        elif self.learner.seen:
            raise InputError(f"this learner has already seen {self.learner.seen} examples: give run a new one")
        if self.learner.seen == 0:
            self.save()  # so that a path that cannot be written is noticed before the work
        yield from self._evaluate()
        saved = time.monotonic()
        for chunk in self._chunks():
            self._expect(chunk)
            if chunk.task > self._finished:
                yield from self._finish_task()
            for _ in self._learn(chunk):
                if time.monotonic() - saved > SAVE_EVERY:
                    self.save()
                    saved = time.monotonic()
                yield self._progress("learning")
        if self.learner.seen == 0:
            raise InputError("the stream is empty: give it at least one example")
        if self._finished + 1 < self.stream.tasks:
            raise InputError(
                f"the stream ended after {self._finished + 1} of its {self.stream.tasks} tasks: give examples of every "
                f"task that has a test set"
            )
        if self._finished < self.stream.tasks:
            yield from self._finish_task()
        if self.identity.training:
            yield from self._measure(self._retained, self.stream.train)
        if self.stream.has_validation:
            yield from self._measure(self._held_out, self.stream.validation)
        self.save()

    def record(self) -> Record:
        """Return the record: what was run, and the results."""
        return Record.of(
            self.identity,
            seed=self.learner.seed,
            engine=self.learner.chosen_engine.name,
            examples=self.learner.seen,
            accuracy=self.measured.values,
            theta=self.learner.weights.theta,
            seconds=self._seconds,
            alignment=self.alignment.summary() if self.alignment else None,
            training=self._retained if self.identity.training else None,
            held_out=self._held_out if self.stream.has_validation else None,
        )

    def _learn(self, chunk: Chunk) -> Iterator[None]:
        """Learn a chunk in pieces of about half a second each, so that progress is shown and Ctrl-C is noticed."""
        start = time.perf_counter()
        incoming, table = self.learner.accept(chunk.xs, chunk.ys, chunk.task)
        at = 0
        while at < len(incoming):
            end = at + min(self._size, self.learner.piece_size())
            self._learn_piece(incoming.part(at, end), table)
            took = time.perf_counter() - start
            self._seconds["learn"] += took
            self._size = 2 * self._size if took < 0.25 else max(1, self._size // 2) if took > 1 else self._size
            yield
            at, start = end, time.perf_counter()

    def _learn_piece(self, piece: Columns, table: Table) -> None:
        for some in [piece] if self.alignment is None else self.alignment.each(piece):
            self.learner.learn_whole(some, table)

    def _chunks(self) -> Iterator[Chunk]:
        """Read what is still to be learned; if gradients are compared, read what was learned before as well."""
        learned = self.learner.seen
        if self.alignment is None or learned == 0:
            yield from self.stream.chunks(learned)
            return
        at = 0
        for chunk in self.stream.chunks():
            past = min(max(learned - at, 0), len(chunk))
            if past:
                incoming, _ = self.learner.accept(chunk.xs[:past], chunk.ys[:past], chunk.task)
                self.alignment.remember(incoming, at)
            at += len(chunk)
            if past < len(chunk):
                yield Chunk(chunk.xs[past:], chunk.ys[past:], chunk.task)
        if at < learned:
            raise InputError(
                f"the stream ended after {at} examples, but {learned} were learned from it: give all of it"
            )

    def _finish_task(self) -> Iterator[Progress]:
        self._finished += 1
        yield from self._evaluate()

    def _evaluate(self) -> Iterator[Progress]:
        """Measure what is still missing in the current row of the accuracy matrix."""
        if not self.stream.tasks:
            return
        for task in self.measured.missing(self._finished):
            yield self._progress("evaluating")
            self.measured.values[self._finished, task] = self._accuracy(self.stream.test, task)
            self._seen_at[self._finished] = self.learner.seen

    def _measure(self, found: list[float], examples_of: Callable[[int], Examples]) -> Iterator[Progress]:
        """Measure what is still missing of the accuracies on some examples of each task."""
        for task in range(len(found), self.stream.tasks):
            yield self._progress("evaluating")
            found.append(self._accuracy(examples_of, task))

    def _accuracy(self, examples_of: Callable[[int], Examples], task: int) -> float:
        """Return the accuracy on some examples of a task, in percent."""
        start = time.perf_counter()
        which = f"the {'test set' if examples_of == self.stream.test else 'training examples'} of task {task}"
        examples = instance(which, examples_of(task), Examples, "metareplay.streams.Examples(xs, ys)")
        own_head = isinstance(self.learner.model, TaskModule)
        try:
            found = self.learner.accuracy(examples.xs, examples.ys, task if own_head else None)
        except InputError as error:
            raise InputError(f"{which} cannot be used: {error}") from error
        self._seconds["evaluate"] += time.perf_counter() - start
        return found

    def _expect(self, chunk: Chunk) -> None:
        """Raise InputError for a task out of order: the accuracy matrix needs each task once, in order."""
        if not isinstance(chunk.task, Integral):
            raise InputError(f"the task of a chunk is {shown(chunk.task)}: use a whole number, counted from 0")
        due = (self._finished, self._finished + 1) if self.learner.seen else (0,)
        if self.stream.tasks and chunk.task not in due:
            raise InputError(
                f"task {chunk.task} came where task {due[-1]} was due: number the tasks 0, 1, 2, ... in the order they "
                f"come, each once, and give each a test set"
            )

    def _progress(self, doing: Literal["learning", "evaluating"]) -> Progress:
        return Progress(doing, self._finished, self.learner.seen, self.stream.total)

    def save(self) -> None:
        """Write the checkpoint, if the run has one."""
        if self.path is not None:
            state: dict[str, object] = {
                "accuracy": self.measured.to_json(),
                "finished": self._finished,
                "seen_at": list(self._seen_at.items()),
                "seconds": self._seconds,
                "content": self.stream.content,
            }
            if self.identity.training:
                state["training"] = self._retained
            if self._held_out:
                state["held_out"] = self._held_out
            products = {"products": self.alignment.products()} if self.alignment else {}
            checkpoints.save(self.learner, self.path, {"run": state, "settings": self._settings()}, products)

    def _restore(self, path: Path) -> None:
        checkpoints.restore(self.learner, path, self._settings(), self._take)

    def _take(self, extra: dict[str, Any], measured: dict[str, Tensor]) -> Callable[[], None]:
        """Check the saved state of a run, and return a function that puts this run into it."""
        state = extra["run"]
        accuracy = Accuracies(self.stream.tasks, full_matrix=False)
        accuracy.restore(state["accuracy"])
        finished, seconds = whole("finished", state["finished"]), {k: float(v) for k, v in state["seconds"].items()}
        retained, held_out = ([float(value) for value in state.get(name, [])] for name in ("training", "held_out"))
        seen_at = {whole("row", row): whole("seen_at", seen) for row, seen in state.get("seen_at", [])}
        products = measured["products"] if self.alignment is not None else None
        if state.get("content", self.stream.content) != self.stream.content:
            raise CheckpointError("the checkpoint was saved with other task ids or test sets: use the same, or --fresh")
        if not 0 <= finished <= max(1, self.stream.tasks) or seconds.keys() != self._seconds.keys():
            raise InputError(f"{finished} tasks were finished")
        if products is not None and self.alignment is not None and products.shape[1:] != (self.alignment.samples,):
            raise InputError(f"the dot products have shape {tuple(products.shape)}")

        def take() -> None:
            self.measured.values[:] = accuracy.values
            self._finished, self._seconds = finished, seconds
            self._seen_at = seen_at or self._estimated_places()
            self._retained, self._held_out = retained, held_out
            if self.alignment is not None and products is not None:
                self.alignment.restore(products)

        return take

    def _estimated_places(self) -> dict[int, int]:
        """Return when rows were measured, for a checkpoint that does not say so: tasks are taken for equally long."""
        known = self.stream.total is not None and self.stream.tasks
        each = (self.stream.total or 0) / self.stream.tasks if known else self.learner.seen / max(1, self._finished)
        return {row: min(round(row * each), self.learner.seen) for row in range(self._finished + 1)}

    def _settings(self) -> dict[str, object]:
        """Return what a resumed run must have in common with the saved one, besides the learner."""
        what = self.identity
        settings: dict[str, object] = {f"stream.{name}": value for name, value in what.stream.items()}
        past = None if what.past == "before" else what.past  # earlier checkpoints do not mention it
        measured = {"full_matrix": what.full_matrix, "training": what.training or None}
        return settings | measured | {"alignment": what.alignment or None, "past": past}
