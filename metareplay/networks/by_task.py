"""Modules that choose parts of themselves by task: heads, input layers or whole networks."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from metareplay.errors import InputError
from metareplay.networks.initial import glorot, linear
from metareplay.networks.mlp import mlp


class TaskModule(nn.Module, ABC):
    """A module whose forward takes (inputs, tasks), one task id an input: subclass it for your own multi-head net."""

    @abstractmethod
    def forward(self, inputs: Tensor, tasks: Tensor) -> Tensor:
        """Outputs for a batch whose examples may belong to several tasks."""

    @abstractmethod
    def classes(self, task: int) -> int:
        """How many classes a task has; raise InputError for a task this module was not made for."""

    def paths(self) -> list[nn.Module]:
        """For each task the plain module that its examples go through, with the same parameters; [] if unknown.

        With it engines can train on one task's part alone.
        """
        return []


@final
class MultiHead(TaskModule):
    """A shared body and an output layer for each task, which may differ in their numbers of classes.

    >>> net = MultiHead(mlp(4, (8,), 6), features=6, classes=(2, 3))
    >>> net(torch.zeros(2, 4), torch.tensor([0, 1])).detach()
    tensor([[0., 0., -inf],
            [0., 0., 0.]])
    """

    def __init__(self, body: nn.Module, features: int, classes: Sequence[int], seed: int = 0) -> None:
        super().__init__()
        self.body = body
        self.counts = tuple(classes)
        self.heads = glorot(nn.ModuleList(linear(features, count) for count in classes), seed)
        self._places: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def forward(self, inputs: Tensor, tasks: Tensor) -> Tensor:
        """Logits of each input's own head; -inf for classes its task does not have."""
        features: Tensor = self.body(inputs)
        if tasks.is_cuda:
            return self.all_heads(features, tasks)
        outputs = features.new_full((len(inputs), max(self.counts)), -torch.inf)
        for task in tasks.unique().tolist():
            mask, count = tasks == task, self.classes(task)
            outputs[mask, :count] = self.heads[task](features[mask])
        return outputs

    def all_heads(self, features: Tensor, tasks: Tensor) -> Tensor:
        """The same without asking which tasks there are: a GPU computes all heads at once and picks the logits.

        The gradients of heads that were not picked are exactly zero.
        """
        heads = [head for head in self.heads if isinstance(head, nn.Linear)]  # all of them
        weight, bias = torch.cat([head.weight for head in heads]), torch.cat([head.bias for head in heads])
        columns, missing = self._columns(features.device)
        logits = functional.linear(features, weight, bias)
        return logits.gather(1, columns[tasks]).masked_fill(missing[tasks], -torch.inf)

    def _columns(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Where each task's logits are among those of all heads, and which classes it has not; made once a device."""
        if device not in self._places:
            sizes, classes = torch.tensor(self.counts)[:, None], torch.arange(max(self.counts))
            missing = classes >= sizes
            columns = (torch.cumsum(sizes, 0) - sizes + classes).masked_fill(missing, 0)
            self._places[device] = columns.to(device), missing.to(device)
        return self._places[device]

    def with_body(self, body: nn.Module) -> "MultiHead":
        """The same heads on another body."""
        found = copy(self)
        found._modules = {**self._modules, "body": body}
        return found

    def paths(self) -> list[nn.Module]:
        """The body and the task's own head."""
        return [nn.Sequential(self.body, head) for head in self.heads]

    def classes(self, task: int) -> int:
        """As given."""
        return self.counts[_known(task, len(self.counts))]


@final
class Separate(TaskModule):
    """A network of its own for each task: what Independent trains."""

    def __init__(self, nets: Sequence[nn.Module], classes: int) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets)
        self.class_count = classes

    def forward(self, inputs: Tensor, tasks: Tensor) -> Tensor:
        """Each input through its own task's network."""
        return _by_task(self.nets, inputs, tasks)

    def paths(self) -> list[nn.Module]:
        """The networks."""
        return list(self.nets)

    def classes(self, task: int) -> int:
        """The same for every task."""
        _known(task, len(self.nets))
        return self.class_count

    def clone(self, source: int, target: int) -> None:
        """Give one task's network the weights of another's."""
        self.nets[target].load_state_dict(self.nets[source].state_dict())


@final
class TaskInputs(TaskModule):
    """An input layer for each task below layers that all tasks share: what TaskInput trains."""

    def __init__(self, inputs: Sequence[nn.Module], shared: nn.Module, classes: int) -> None:
        super().__init__()
        self.inputs = nn.ModuleList(inputs)
        self.shared = shared
        self.class_count = classes

    def forward(self, inputs: Tensor, tasks: Tensor) -> Tensor:
        """The task's own input layer, then the shared layers."""
        outputs: Tensor = self.shared(_by_task(self.inputs, inputs, tasks))
        return outputs

    def paths(self) -> list[nn.Module]:
        """The task's own input layer, then the shared layers."""
        return [nn.Sequential(own, self.shared) for own in self.inputs]

    def classes(self, task: int) -> int:
        """The same for every task."""
        _known(task, len(self.inputs))
        return self.class_count


def separate_mlps(inputs: int, hidden: Sequence[int], outputs: int, tasks: int, seed: int = 0) -> Separate:
    """The paper's Independent: an MLP a task with hidden units divided by the number of tasks (at least one).

    >>> separate_mlps(784, (100, 100), 10, tasks=20).nets[0][1]
    Linear(in_features=784, out_features=5, bias=True)
    """
    shares = [max(1, width // tasks) for width in hidden]
    return Separate([mlp(inputs, shares, outputs, seed=seed * tasks + task) for task in range(tasks)], outputs)


def task_input_mlp(inputs: int, hidden: Sequence[int], outputs: int, tasks: int, seed: int = 0) -> TaskInputs:
    """The paper's Task Input: the MLP with a first layer for each task."""
    if not hidden:
        raise InputError("a network with task inputs needs a hidden layer to share; give at least one hidden width")
    first = [nn.Sequential(nn.Flatten(), linear(inputs, hidden[0]), nn.ReLU()) for _ in range(tasks)]
    return glorot(TaskInputs(first, mlp(hidden[0], hidden[1:], outputs), outputs), seed)


def _by_task(nets: nn.ModuleList, inputs: Tensor, tasks: Tensor) -> Tensor:
    present = tasks.unique().tolist() or [0]
    if len(present) == 1:
        only: Tensor = nets[_known(present[0], len(nets))](inputs)
        return only
    parts = [(tasks == task, nets[_known(task, len(nets))]) for task in present]
    outputs: list[tuple[Tensor, Tensor]] = [(mask, net(inputs[mask])) for mask, net in parts]
    whole = outputs[0][1].new_zeros((len(inputs), *outputs[0][1].shape[1:]))
    for mask, values in outputs:
        whole[mask] = values
    return whole


def _known(task: int, count: int) -> int:
    if not 0 <= task < count:
        raise InputError(f"task {task}: this network was made for tasks 0 to {count - 1}")
    return task
