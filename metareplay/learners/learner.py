"""The interface of learners, which observe examples one by one, or many in order, and predict at any time."""

from abc import abstractmethod
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from metareplay._core.checks import flag, shown, text
from metareplay._core.columns import Columns
from metareplay._core.interrupts import HeldBack
from metareplay._core.plain_labels import read, written
from metareplay._core.plan import Plan, Rates
from metareplay._core.table import Table
from metareplay.engines.inputs import as_input
from metareplay.engines.modes import evaluating
from metareplay.engines.objective import forward
from metareplay.engines.torch_engine import own_randomness
from metareplay.errors import CheckpointError, InputError
from metareplay.learners.adopting import adopt_labels, adopted, check_storing, store
from metareplay.learners.heads import find_head, resize
from metareplay.learners.input_checks import Tasks, as_tensor
from metareplay.learners.labels import Classes, make_labels, some
from metareplay.learners.one_by_one import OneByOne
from metareplay.learners.table_learner import ADDED, TableLearner, added_option
from metareplay.networks import TaskModule


@dataclass(eq=False, repr=False, kw_only=True)
class Learner(TableLearner):
    """Learn a stream of examples. This is the interface of all learners; an implementation defines `learn`.

    Args:
        model: Any torch module; it always holds the current weights.
        lr: alpha, the SGD rate.
        seed: Decides every draw.
        loss: The loss of (outputs, targets), a mean over the batch. None for cross-entropy, or squared error if
            `regression` is set.
        regression: Whether targets are real numbers; `predict` then gives the outputs themselves.
        clip: Scale any gradient with a larger norm down to this norm. None, as in the paper, turns clipping off.
        engine: What does the arithmetic: "torch", "cpu" (compiled), "cuda" (graphs), or "auto" for the fastest of these
            that supports the model.
        classes: What the labels are. None for the numbers of the model's outputs, 0, 1, 2, ...; a list of labels of any
            kind, the first for output 0; or "grow" for labels that are not known in advance: a new label takes the next
            output, and the head grows when there is none left. `predict` then gives labels.
        head: With classes="grow", the name of the linear layer that grows; None to find it.

    Attributes:
        uses_tasks: Whether learning needs task ids even if the model does not.
        seen: How many examples have been learned.
        table: The examples that the learner works on; None before the first one.
    """

    uses_tasks: ClassVar[bool] = False

    classes: Classes = field(default=None, metadata={ADDED: True})
    head: str | None = added_option(None)

    def __post_init__(self) -> None:
        labels = make_labels(self.classes)
        if labels is not None and flag("regression", self.regression):
            raise InputError("classes: regression has no labels; leave classes out, or regression=True")
        if labels is not None and isinstance(self.model, TaskModule):
            raise InputError("classes: this model has classes of its own for each task, numbered from 0; leave it out")
        if self.head is not None:
            text("head", self.head)
        if self.head is not None and (labels is None or not labels.grows):
            raise InputError(f"head={shown(self.head)}: only a head that grows needs a name; set classes='grow', too")
        if labels is not None and not labels.grows:
            self.classes = labels.known
        super().__post_init__()
        self._labels = labels
        self._head: nn.Linear | None = None  # the layer that grows, once it is found
        self._head_of: Tensor | None = None  # the weights when it was found; a model whose layers changed has others
        self._one_by_one = OneByOne()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy goes on with; it draws ahead for itself."""
        return {name: value for name, value in super().__getstate__().items() if name != "_one_by_one"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Go on where the copied learner was."""
        self._one_by_one = OneByOne()
        super().__setstate__(state)

    def follow_change(self, name: str) -> None:
        """Forget what was drawn ahead with the old value; for a rate, only the rates of what was drawn change.

        Args:
            name: The option that has changed.
        """
        super().follow_change(name)
        rates = self.rates() if name in ("lr", "beta", "gamma") else None
        if rates is None:
            self._one_by_one.forget_draws()
        else:
            self._one_by_one.change_rates(rates)

    @final
    def observe(self, x: Any, y: Any, task: int | None = None, *, predict: bool = False) -> Any:
        """Learn from one example.

        Args:
            x: An input, in the model's input shape.
            y: Its label, or target.
            task: Its task id, for learners and models that need one.
            predict: Whether to predict the example before it is learned.

        Returns:
            None, or what `predict` gave for the example before it was learned; None if no label was known yet.
        """
        number = y if self._labels is None else self._labels.number(y)
        known = predict is not False and flag("predict", predict) and self.labels != ()
        task_of_model = task if isinstance(self.model, TaskModule) else None
        before = self.predict(self._checks.single(x), task_of_model)[0] if known else None
        if not self._one_by_one.learn(self, x, number, task):
            self.observe_many(self._checks.single(x), as_tensor("y", y)[None] if self._labels is None else [y], task)
        return before

    @final
    def observe_many(self, xs: Any, ys: Any, task: Tasks = None) -> None:
        """Learn from many examples, in order, with the same weights as a loop over `observe`.

        Bad input raises InputError before anything is learned. An example whose loss is not finite is undone and named
        by a NonFiniteError; those before it stay learned, and those after it are not used. Ctrl-C comes between two
        examples, and `seen` says between which.

        Args:
            xs: A batch of inputs.
            ys: Their labels, or targets.
            task: One task id, or one for each example.
        """
        xs = self._checks.batch(xs)
        if xs.shape[:1] == (0,):
            return
        incoming, table = self.accept(xs, ys, task)
        for piece in incoming.pieces(self.piece_size()):
            self.learn_whole(piece, table)

    @final
    def single_output(self, x: Any) -> tuple[Tensor, bool] | None:
        """Compute the outputs for a single input like those that were learned, if the engine has a faster way.

        Args:
            x: A single input, or a batch of inputs, of any size.
        """
        return self._one_by_one.output(self, x)

    @final
    def store(self, xs: Any, ys: Any, task: Tasks = None) -> None:
        """Offer examples to the memory without learning from them. Bad input raises InputError, and nothing is stored.

        Args:
            xs: A batch of inputs.
            ys: Their labels, or targets.
            task: One task id, or one for each example.
        """
        check_storing(self)
        xs = self._checks.batch(xs)
        if xs.shape[:1] != (0,):
            incoming, table = self.accept(xs, ys, task)
            for some in self._admitted(incoming):
                store(self, some, table)

    @final
    def learn_whole(self, incoming: Columns, table: Table) -> None:
        """Learn from checked examples by `learn`. Ctrl-C comes before or after an example, and `seen` says where.

        Args:
            incoming: The examples, in order, at most `piece_size` of them.
            table: The table to bring them into.
        """
        with HeldBack():
            for some in self._admitted(incoming):
                self.learn(some, table)

    @final
    def _admitted(self, incoming: Columns) -> Iterator[Columns]:
        """Cut examples where a label is new, which is known from then on; if there is no output for it, the head grows.

        A label stays known even if its first example cannot be learned and is undone.
        """
        if self._labels is None or not self._labels.grows:
            yield incoming
            return
        ys, start = incoming["y"].tolist(), 0
        for at, number in enumerate(ys):
            if number >= len(self._labels):
                if at > start:
                    yield incoming.part(start, at)
                start = at
                self._grow(number + 1)
                self._labels.admit(number)
                if self.own_memory is not None:
                    self.own_memory.name_labels(self._labels.known)
        yield incoming.part(start, len(incoming))

    @final
    def _grow(self, size: int) -> None:
        """Give the head that grows this many outputs, unless it has them."""
        if self._head is not None and size > self._head.out_features:
            with torch.inference_mode(False), self.reshaping():
                resize(self._head, size)
            self._head_of = self.weights.theta

    @final
    def accept(self, xs: Any, ys: Any, task: Tasks = None) -> tuple[Columns, Table]:
        """Check examples; return them with the table to `learn` them in. Bad input raises InputError.

        Args:
            xs: A batch of inputs.
            ys: Their labels, or targets.
            task: One task id, or one for each example.
        """
        if self.table is not None and self.loss is not None and self._checks.target is None:
            self._checks.expect_targets(self.table.gather(torch.zeros(1, dtype=torch.int64))["y"])
        memory = self.own_memory
        if self.table is None and memory is not None and len(memory):
            adopt_labels(self._labels, memory)
        incoming = self._check(xs, ys, task, needs_tasks=self.uses_tasks or self._task_count() is not None)
        limit = self._task_count()
        if limit is not None and int(incoming["task"].max()) >= limit:
            raise InputError(f"task {int(incoming['task'].max())}: the memory was made for tasks 0 to {limit - 1}")
        if self._labels is not None and memory is not None and (self._labels.coming or self.table is None):
            memory.check_labels((*self._labels.known, *self._labels.coming))
        self._look_for_head(incoming)
        return incoming, self.begin_table(incoming) if self.table is None else self.table

    @final
    def begin_table(self, like: Columns) -> Table:
        """Make the table; the memory's labels are the learner's from then on, and each has an output."""
        memory = self.own_memory
        if memory is not None and len(memory):
            adopt_labels(self._labels, memory)
            like = adopted(memory, like)
        if self._labels is not None:
            self._look_for_head(like)
            self._grow(len(self._labels))
        table = super().begin_table(like)
        if memory is not None:
            memory.name_labels(self.labels)
        return table

    @final
    def _look_for_head(self, incoming: Columns) -> None:
        """Find the layer that grows; when learning has begun, only if there is a label without an output."""
        if self._labels is None or not self._labels.grows or self._head_of is self.weights.theta:
            return
        example, self._head, self._head_of = incoming.part(0, 1), None, None
        outputs = self._outputs or self._forward(example["x"], example["task"]).shape[1:]
        if self.table is None or max(int(incoming["y"].max()) + 1, len(self._labels)) > outputs[0]:
            self._head, self._head_of = self._find_head(example), self.weights.theta

    @final
    def _find_head(self, example: Columns) -> nn.Linear:
        """Return the layer that grows, or raise InputError if there is none."""
        self.check_reshaping()

        def compute() -> Tensor:
            with torch.no_grad(), evaluating(self.model), own_randomness(self.weights.device):
                return forward(self.model, as_input(example["x"], self.weights), example["task"])

        return find_head(self.model, self.head, compute)

    @final
    def takes_head(self, saved: int, here: int) -> bool:
        """Return whether a checkpoint with this number of outputs can be loaded into a model with that one."""
        return saved < here or (self._labels is not None and self._labels.grows)

    @final
    def written_labels(self) -> list[Any] | None:
        """Return the known labels as plain JSON values; None if labels are the numbers of the outputs."""
        return None if self._labels is None else written(self._labels.known)

    @final
    def read_labels(self, saved: object) -> list[Hashable]:
        """Return what `written_labels` wrote as labels, or raise CheckpointError."""
        if self._labels is not None and saved is None:
            raise CheckpointError("it was saved without labels of its own; leave classes out")
        if self._labels is None:
            return []
        known = read(saved)
        if not self._labels.grows and tuple(known) != self._labels.known:
            raise CheckpointError(f"it was saved with the labels {some(known)}, not {some(self._labels.known)}")
        return known

    @final
    def restore_labels(self, known: list[Hashable]) -> None:
        """Know these labels, from `read_labels`, and no others."""
        if self._labels is not None:
            self._labels.replace(known)
        if self.own_memory is not None:
            self.own_memory.name_labels(self.labels)

    @final
    def check_held(self, held: Columns) -> None:
        """Raise InputError for examples of a checkpoint that `observe` would not have accepted."""
        self._check_rows(held["x"], held["y"], held["task"])

    @abstractmethod
    def learn(self, incoming: Columns, table: Table) -> None:
        """Learn from checked examples, at most `piece_size` of them.

        Args:
            incoming: The examples, in order.
            table: The table to bring them into.
        """

    def plan_ahead(self, count: int, table: Table) -> Plan | None:
        """Draw everything for examples still to come, whatever they and their tasks are; None if it depends on them.

        Args:
            count: How many examples to plan for.
            table: The table that they will come into.
        """
        del count, table
        return None

    def rates(self) -> Rates | None:
        """Return the rates of every plan as the options are now; None if what is drawn may depend on them."""
        return None

    @classmethod
    def work_per_example(cls, settings: Mapping[str, Any]) -> float:
        """Estimate the cost of learning one example, in SGD steps on a single example; it predicts the time left.

        Args:
            settings: The learner's options, as `settings` returns them.
        """
        del settings
        return 1.0

    def _task_count(self) -> int | None:
        return self.own_memory.task_count if self.own_memory is not None else None
