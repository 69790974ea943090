"""Learners with a table of examples, a memory and checkpoints: what all kinds of learning have in common."""

import hashlib
import inspect
import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from metareplay._core.checks import check_room, path_of
from metareplay._core.columns import Columns
from metareplay._core.draws import Ints
from metareplay._core.interrupts import HeldBack
from metareplay._core.plain_labels import readable
from metareplay._core.plan import Plan
from metareplay._core.table import Storage, Table, TensorStorage
from metareplay._core.weights import Carry
from metareplay.engines.engine import Outcome
from metareplay.errors import InputError, MetareplayError, NonFiniteError
from metareplay.learners import checkpoint
from metareplay.learners.adopting import adopt, adopted
from metareplay.learners.input_checks import one_line
from metareplay.learners.losses import loss_name
from metareplay.learners.predictor import Predictor
from metareplay.learners.staging import Staging
from metareplay.memories.memory import Memory

SOURCE = "source"  # in settings: which class a user's own learner is
ADDED = "added"  # in a field's metadata: settings mention the option only if it is not at its default
READING = Lock()  # Python 3.11 may fail to parse source in two threads at the same time (SystemError)
HASHES = WeakKeyDictionary[type[Any], str]()  # of classes whose source has been read, which is slow
PIECE = 256  # examples to learn at a time, at most; any number gives the same weights


@dataclass(eq=False, repr=False, kw_only=True)
class TableLearner(Predictor):
    """Learn from the rows of a table, and be saved and continued. Subclasses say how examples come in.

    Args:
        model: Any torch module; it always holds the current weights.
        lr: alpha, the SGD rate.
        seed: Decides every draw.
        loss: The loss of (outputs, targets), a mean over the batch.
        regression: Whether targets are real numbers; `predict` then gives the outputs themselves.
        clip: Scale any gradient with a larger norm down to this norm. None, as in the paper, turns clipping off.
        engine: What does the arithmetic: "torch", "cpu" (compiled), "cuda" (graphs), or "auto" for the fastest of these
            that supports the model.

    Attributes:
        augments: Whether replayed examples can be transformed.
        seen: How many examples have been learned.
        table: The examples that the learner works on; None before the first one.
    """

    augments: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seen = 0
        self.table: Table | None = None
        self.staging = Staging(self.weights.device)

    @final
    def make_table(self, like: Columns, room: int) -> Table:
        """Make an empty table for this learner's memory and the incoming examples.

        Args:
            like: Some examples, whose columns the table takes over.
            room: How many incoming examples it must hold.
        """
        memory, slots, device = self.own_memory, self.slot_count(), self.weights.device
        if memory is not None and memory.augment is not None and not self.augments:
            raise InputError(
                f"{type(self).__name__} cannot transform what it replays: use a memory without augmented()"
            )
        comes_with = memory is not None and self.table is None and len(memory) > 0
        if memory is not None and comes_with:
            like = adopted(memory, like)
        storage = (memory.storage if memory is not None else None) or self.make_storage(like)
        if isinstance(storage, TensorStorage) and device.type == "cpu":
            each = sum(math.prod(values.shape[1:]) * values.element_size() for _, values in like.items())
            check_room("examples to hold", slots, (slots + room) * each)
        try:
            with torch.inference_mode(False):
                table = Table(slots, room, like, storage)
        except torch.cuda.OutOfMemoryError as error:
            size = (slots + room) * like["x"][0].nbytes / 2**30
            raise MetareplayError(
                f"{slots} memories of this size need {size:.1f} GiB, more than {device} has left: use a smaller "
                f"memory, or fewer runs at a time"
            ) from error
        if memory is not None:
            if comes_with:
                adopt(self, memory, table)
            memory.table = table
        return table

    def begin_table(self, like: Columns) -> Table:
        """Make the table when the first example comes, and take over the examples that the memory comes with.

        Args:
            like: Some examples with the columns that the learner needs.
        """
        self.table = self.make_table(like, self.piece_size())
        self.expect(like["x"])
        return self.table

    @final
    def take_over(self) -> None:
        """Take over the examples that the memory comes with if no example has come yet, for a checkpoint."""
        memory = self.own_memory
        if self.table is None and memory is not None and len(memory):
            self.begin_table(next(memory.pieces())[1].part(0, 1))

    def make_storage(self, like: Columns) -> Storage:
        """Make what keeps the examples, unless the memory says otherwise.

        Args:
            like: Some examples.
        """
        del like
        return TensorStorage(self.weights.device)

    @property
    def own_memory(self) -> Memory | None:
        """The learner's memory, if it has one."""
        return None

    def slot_count(self) -> int:
        """Return how many examples the table must hold besides the incoming ones."""
        return 0 if self.own_memory is None else self.own_memory.capacity

    def piece_size(self) -> int:
        """Return the largest number of examples to learn at a time; any number gives the same weights."""
        return PIECE

    def check_held(self, held: Columns) -> None:
        """Raise InputError for examples of a checkpoint that this learner cannot have stored. By default it can.

        Args:
            held: Some rows of the checkpoint's table, with all their columns.
        """
        del held

    def takes_head(self, saved: int, here: int) -> bool:
        """Return whether a checkpoint with this number of outputs can be loaded into a model with that one.

        Args:
            saved: How many outputs the saved model has.
            here: How many outputs the learner's model has.
        """
        del saved, here
        return False

    def written_labels(self) -> list[Any] | None:
        """Return the known labels as plain JSON values, for a checkpoint; None if there are none."""
        return None

    def read_labels(self, saved: object) -> list[Hashable]:
        """Return what `written_labels` wrote as labels; raise CheckpointError if it is anything else.

        Args:
            saved: What the checkpoint has; None if it has nothing.
        """
        del saved
        return []

    def restore_labels(self, known: list[Hashable]) -> None:
        """Know these labels and no others.

        Args:
            known: What `read_labels` returned.
        """
        del known

    def private_state(self) -> dict[str, Tensor]:
        """Return what this kind of learner remembers besides weights, memory and counts."""
        return {}

    def restore_private(self, state: dict[str, Tensor]) -> None:
        """Restore what `private_state` returned.

        Args:
            state: What `private_state` returned.
        """
        del state

    def reshape_private(self, carry: Carry) -> None:
        """Carry vectors of the size of the weights over to the model's new shape.

        Args:
            carry: Converts a flat vector from the old layout of the weights to the new one.
        """
        del carry

    def check_reshaping(self) -> None:
        """Raise InputError if the model's layers cannot be changed."""
        if self.objective.stores:
            raise InputError(
                f"the objective stores the column {self.objective.stores[0]!r}, made by the model as it was, with each "
                f"example: its layers cannot change; make a new learner"
            )

    @final
    @contextmanager
    def reshaping(self) -> Iterator[nn.Module]:
        """Let the model's layers be changed in a `with` block, for instance for a larger head; nothing learned is lost.

        Memory, counts and draws go on as before. An optimizer's moments, and whatever else has the shape of the
        weights, keep their values for parameters that stay, and start from 0 for new ones. Predictions in other threads
        wait until the block ends. If the learner cannot go on with the new layers, it has the earlier ones again.
        """
        self.check_reshaping()
        with self._layers_lock:
            undo, taken = self.remember_layers(), False
            old, moments = self.weights.theta.shape, self.chosen_engine.state()
            try:
                try:
                    yield self.model
                finally:
                    with HeldBack():
                        refused = self._take_over_layers(old, moments)
                        taken = True
                    if refused is not None:
                        raise refused
            except BaseException:  # of the block too, after which the layers have been taken over
                if not taken:
                    undo()
                raise

    def _take_over_layers(self, old: torch.Size, moments: dict[str, Tensor]) -> InputError | None:
        """Go on with the model's layers as they are now, with an engine for them.

        Args:
            old: The shape of the weights before.
            moments: What the earlier engine kept.

        Returns:
            Why the engine that was asked for cannot learn the new model, so that torch does; None if it can.
        """
        carry, refused = self.weights.rebuild(), None
        try:
            self._choose()
        except InputError as error:
            object.__setattr__(self, "engine", "torch")  # a fixed option to everybody else
            refused = error
            self._choose()
        if self.table is not None:
            self.expect(self.table.gather(torch.zeros(1, dtype=torch.int64))["x"])
        state = {name: carry(value) if value.shape == old else value for name, value in moments.items()}
        self.chosen_engine.restore(state)
        self.reshape_private(carry)
        return refused

    @final
    def remember_layers(self) -> Callable[[], None]:
        """Remember the model's layers, the engine, and which objects this learner has; no values are copied.

        Returns:
            A function that puts them back, after layers were changed.
        """
        layers, mine = self.weights.remember(), dict(vars(self))

        def undo() -> None:
            layers()
            vars(self).update(mine)  # never without the lock, which other threads look for
            for name in vars(self).keys() - mine.keys():
                del vars(self)[name]

        return undo

    @final
    def settings(self) -> dict[str, object]:
        """Return every option with its value, as plain JSON values, for records and checkpoints."""
        return plain_settings(type(self), {one.name: getattr(self, one.name) for one in fields(self)})

    @final
    def save(self, path: str | Path) -> None:
        """Write everything needed to continue bit for bit; `metareplay.load(path, model)` reads it.

        Args:
            path: The file to write.
        """
        checkpoint.save(self, path_of("path", path))

    @final
    def execute(self, plan: Plan, table: Table) -> Outcome:
        """Execute a plan as far as possible. Where examples are kept in a storage that may fail, it can be undone.

        Args:
            plan: The rows to visit, in order, and the rates.
            table: The examples by row.
        """
        if table.in_memory:
            return self.chosen_engine.execute(plan, table, self.objective)
        undo_weights, undo_objective = self.chosen_engine.remember(), self.objective.remember()

        def undo() -> None:
            undo_weights()
            undo_objective()

        if not table.in_rows:
            return replace(self.chosen_engine.execute(plan, table, self.objective), undo=undo)
        staged, small = self.staging.bring(plan, table)
        outcome = self.chosen_engine.execute(staged, small, self.objective)
        if self.objective.stores:
            try:
                self.staging.give_back(self.objective.stores, plan, table)
            except BaseException:
                undo()
                raise
        return replace(outcome, undo=undo)

    @final
    def finish(self, outcome: Outcome, slots: Ints, incoming: Columns, table: Table) -> None:
        """Store and count the examples that were learned; raise an error that names the first that could not be.

        Args:
            outcome: What the engine did.
            slots: The slot that each example goes to.
            incoming: The examples.
            table: The table that they were brought into.
        """
        done = outcome.learned
        with HeldBack():
            try:
                table.keep(slots[:done])
            except Exception as error:  # a storage of the user's own that cannot write; the table is as it was
                if outcome.undo is None:
                    raise
                outcome.undo()
                raise InputError(
                    f"example {self.seen} of the stream could not be stored and was undone: {one_line(error)}"
                ) from error
            if self.own_memory is not None:
                self.own_memory.keep(slots[:done], incoming.task_ids()[:done])
            self.seen += done
        if isinstance(outcome.error, Exception) and not isinstance(outcome.error, MetareplayError):
            raise InputError(
                f"example {self.seen} of the stream could not be learned and was undone: {one_line(outcome.error)}"
            ) from outcome.error
        if outcome.error is not None:
            raise outcome.error
        if done < len(incoming):
            raise NonFiniteError(
                f"example {self.seen} of the stream ({self.shown(incoming, done)}) made the loss or the weights not "
                f"finite; it was undone: use a smaller lr or set clip, then go on with the next example"
            )

    def shown(self, incoming: Columns, at: int) -> str:
        """Say in a few words which example this is.

        Args:
            incoming: Some examples.
            at: The number of one of them.
        """
        return f"label {incoming['y'][at].tolist()}"

    def __repr__(self) -> str:
        options = {name: value for name, value in self.settings().items() if name != SOURCE}
        options["engine"] = f"{self.engine} (runs on {self.runs_on})"
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in options.items())})"


def source_of(kind: type[TableLearner]) -> dict[str, str]:
    """Return a hash of a user's own class, so that its runs are told from those of another class with its name.

    Args:
        kind: A learner's class; nothing is returned for those of this package.
    """
    if kind.__module__.startswith("metareplay."):
        return {}
    with READING:
        if kind not in HASHES:
            HASHES[kind] = _hash_of(kind)
        return {SOURCE: HASHES[kind]}


def _hash_of(kind: type[Any]) -> str:
    """Return a hash of the text of a class."""
    try:
        text = inspect.getsource(kind)
    except (OSError, TypeError):  # typed into an interpreter
        text = f"{kind.__module__}.{kind.__qualname__}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def added_option(default: Any) -> Any:
    """Make the field of an option that was added to a learner after its first records were written.

    Settings mention it only if it is not at its default, so that earlier records and checkpoints are still found.

    Args:
        default: The value that changes nothing.
    """
    return field(default=default, metadata={ADDED: True})


def plain_settings(kind: type[TableLearner], values: Mapping[str, object]) -> dict[str, object]:
    """Return every option of a learner as plain JSON values, and a hash of the class if it is a user's own.

    Args:
        kind: The learner's class.
        values: The value of each field.
    """
    told = [one for one in fields(kind) if one.name != "model" and one.init]
    told = [one for one in told if not (one.metadata.get(ADDED) and values[one.name] == one.default)]
    return {one.name: plain_option(values[one.name]) for one in told} | source_of(kind)


def plain_option(value: object) -> object:
    """Return an option's value as plain JSON values: a memory as its settings, a loss by its name, a tuple as list."""
    if isinstance(value, Memory):
        return value.all_settings()
    if isinstance(value, tuple):
        return readable(value)
    if callable(value):
        return loss_name(value)
    return value
