"""Modules that have a part of their own for each task: an output layer, an input layer or a whole network."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from metareplay._core.checks import check_count, check_room, instance, shown, whole, whole_numbers
from metareplay.errors import InputError
from metareplay.networks.initial import glorot, linear, uniform_by_fan_in
from metareplay.networks.mlp import mlp

NETWORK = 2**14  # bytes of an empty network, about


class TaskModule(nn.Module, ABC):
    """Take inputs and task ids. This is the interface of multi-head modules; subclass it for your own."""

    @abstractmethod
    def forward(self, inputs: Tensor, tasks: Tensor) -> Tensor:
        """Return the outputs for a batch whose examples may belong to different tasks.

        Args:
            inputs: A batch of inputs.
            tasks: The task id of each input.
        """

    @abstractmethod
    def classes(self, task: int) -> int:
        """Return the number of classes of a task; raise InputError for a task that this module was not made for.

        Args:
            task: The task id.
        """

    def paths(self) -> list[nn.Module]:
        """Return, for each task, a plain module that its examples go through and that shares this module's parameters.

        Engines use these modules to train only the parts that belong to one task. By default the list is empty, and
        engines call `forward`.
        """
        return []


@final
class MultiHead(TaskModule):
    """Combine a body that all tasks share with an output layer for each task, whose numbers of classes may differ.

    >>> net = MultiHead(mlp(4, (8,), 6), features=6, classes=(2, 3))
    >>> net(torch.zeros(2, 4), torch.tensor([0, 1])).detach()
    tensor([[0., 0., -inf],
            [0., 0., 0.]])

    Args:
        body: The module that all tasks share; it gives one vector per input.
        features: The length of that vector.
        classes: The number of classes of each task.
        seed: Decides the first weights of the output layers, Glorot uniform with zero biases.
    """

    def __init__(self, body: nn.Module, features: int, classes: Sequence[int], seed: int = 0) -> None:
        super().__init__()
        self.body = instance("body", body, nn.Module, "a torch.nn.Module")
        self.counts = whole_numbers("classes", classes)
        check_count("features", features, "the body gives at least one number")
        if not self.counts:
            raise InputError("classes=(): give the number of classes of each task")
        check_room("classes", classes, 4 * sum(self.counts) * features)
        self.heads = glorot(nn.ModuleList(linear(features, count) for count in self.counts), seed)
        self._places: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def forward(self, inputs: Tensor, tasks: Tensor) -> Tensor:
        """Return the logits of each input's own head, -inf for classes that its task does not have.

        Args:
            inputs: A batch of inputs.
            tasks: The task id of each input.
        """
        features: Tensor = self.body(inputs)
        if tasks.is_cuda:
            return self.all_heads(features, tasks)
        outputs = features.new_full((len(inputs), max(self.counts)), -torch.inf)
        for task in tasks.unique().tolist():
            mask, count = tasks == task, self.classes(task)
            outputs[mask, :count] = self.heads[task](features[mask])
        return outputs

    def all_heads(self, features: Tensor, tasks: Tensor) -> Tensor:
        """Compute all heads at once and pick each input's own logits.

        A GPU need not be asked which tasks occur, which would make it wait. The gradients of heads that were not picked
        are exactly zero.

        Args:
            features: The outputs of the body for a batch of inputs.
            tasks: The task id of each input.
        """
        heads = [head for head in self.heads if isinstance(head, nn.Linear)]  # all of them; for types
        weight, bias = torch.cat([head.weight for head in heads]), torch.cat([head.bias for head in heads])
        return self.pick(features, weight, bias, tasks)

    def pick(self, features: Tensor, weight: Tensor, bias: Tensor, tasks: Tensor) -> Tensor:
        """Compute all heads at once from their weights as one matrix, and pick each input's own logits.

        Args:
            features: The outputs of the body for a batch of inputs.
            weight: The weights of all heads, one below the other.
            bias: The biases of all heads.
            tasks: The task id of each input.
        """
        columns, missing = self._columns(features.device)
        logits = functional.linear(features, weight, bias)
        return logits.gather(1, columns[tasks]).masked_fill(missing[tasks], -torch.inf)

    def _columns(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return where each task's logits are among those of all heads, and which classes it lacks; kept per device."""
        if device not in self._places:
            sizes, classes = torch.tensor(self.counts)[:, None], torch.arange(max(self.counts))
            missing = classes >= sizes
            columns = (torch.cumsum(sizes, 0) - sizes + classes).masked_fill(missing, 0)
            self._places[device] = columns.to(device), missing.to(device)
        return self._places[device]

    def paths(self) -> list[nn.Module]:
        """Return, for each task, the body followed by the task's own head."""
        return [nn.Sequential(self.body, head) for head in self.heads]

    def classes(self, task: int) -> int:
        """Return the number of classes of a task.

        Args:
            task: The task id.
        """
        return self.counts[_known(task, len(self.counts))]


@final
class Separate(TaskModule):
    """Hold one network per task, as the learner `Independent` trains them.

    Args:
        nets: The network of each task.
        classes: The number of classes, the same for every task.
    """

    def __init__(self, nets: Sequence[nn.Module], classes: int) -> None:
        super().__init__()
        self.nets = _modules("nets", nets)
        check_count("classes", classes, "a network needs at least one output")
        self.class_count = classes

    def forward(self, inputs: Tensor, tasks: Tensor) -> Tensor:
        """Return the outputs of each input's own network.

        Args:
            inputs: A batch of inputs.
            tasks: The task id of each input.
        """
        return _by_task(self.nets, inputs, tasks)

    def paths(self) -> list[nn.Module]:
        """Return the networks."""
        return list(self.nets)

    def classes(self, task: int) -> int:
        """Return the number of classes, the same for every task.

        Args:
            task: The task id.
        """
        _known(task, len(self.nets))
        return self.class_count

    def clone(self, source: int, target: int) -> None:
        """Copy the weights of one task's network to another's.

        Args:
            source: The task whose weights are copied.
            target: The task whose weights are replaced.
        """
        self.nets[target].load_state_dict(self.nets[source].state_dict())


@final
class TaskInputs(TaskModule):
    """Combine an input layer for each task with layers that all tasks share, as the learner `TaskInput` trains them.

    Args:
        inputs: The input layer of each task.
        shared: The layers that follow, shared by all tasks.
        classes: The number of classes, the same for every task.
    """

    def __init__(self, inputs: Sequence[nn.Module], shared: nn.Module, classes: int) -> None:
        super().__init__()
        self.inputs = _modules("inputs", inputs)
        self.shared = instance("shared", shared, nn.Module, "a torch.nn.Module")
        check_count("classes", classes, "a network needs at least one output")
        self.class_count = classes

    def forward(self, inputs: Tensor, tasks: Tensor) -> Tensor:
        """Return the outputs of the shared layers, applied to those of each input's own input layer.

        Args:
            inputs: A batch of inputs.
            tasks: The task id of each input.
        """
        outputs: Tensor = self.shared(_by_task(self.inputs, inputs, tasks))
        return outputs

    def paths(self) -> list[nn.Module]:
        """Return, for each task, its own input layer followed by the shared layers."""
        return [nn.Sequential(own, self.shared) for own in self.inputs]

    def classes(self, task: int) -> int:
        """Return the number of classes, the same for every task.

        Args:
            task: The task id.
        """
        _known(task, len(self.inputs))
        return self.class_count


def separate_mlps(inputs: int, hidden: Sequence[int], outputs: int, tasks: int, seed: int = 0) -> Separate:
    """Make the networks of the paper's Independent: one MLP per task, which divide the hidden units among them.

    >>> separate_mlps(784, (100, 100), 10, tasks=20).nets[0][1]
    Linear(in_features=784, out_features=5, bias=True)

    Args:
        inputs: The number of values in one input.
        hidden: The width of each hidden layer of all networks together; each network has at least one unit per layer.
        outputs: The number of classes.
        tasks: The number of tasks.
        seed: Decides the first weights, Glorot uniform with zero biases.
    """
    check_count("tasks", tasks, "there is a network for each task")
    check_room("tasks", tasks, NETWORK * tasks)
    seed = whole("seed", seed)
    shares = [max(1, width // tasks) for width in whole_numbers("hidden", hidden)]
    return Separate([mlp(inputs, shares, outputs, seed=seed * tasks + task) for task in range(tasks)], outputs)


def task_input_mlp(inputs: int, hidden: Sequence[int], outputs: int, tasks: int, seed: int = 0) -> TaskInputs:
    """Make the network of the paper's Task Input: an MLP with a first layer of its own for each task.

    As in the official code, all weights, those of the shared layers too, are drawn uniformly from -1/sqrt(fan_in) to
    1/sqrt(fan_in), and biases are zero.

    Args:
        inputs: The number of values in one input.
        hidden: The width of each hidden layer; the first is the one that each task has for itself.
        outputs: The number of classes.
        tasks: The number of tasks.
        seed: Decides the first weights.
    """
    check_count("tasks", tasks, "there is an input layer for each task")
    check_room("tasks", tasks, NETWORK * tasks)
    inputs, hidden = whole("inputs", inputs), whole_numbers("hidden", hidden)
    check_count("inputs", inputs, "an input has at least one value")
    if not hidden:
        raise InputError(f"hidden={hidden!r}: each task's input layer needs a width; give at least one hidden layer")
    check_room("hidden", hidden, 4 * tasks * inputs * hidden[0])
    first = [nn.Sequential(nn.Flatten(), linear(inputs, hidden[0]), nn.ReLU()) for _ in range(tasks)]
    return uniform_by_fan_in(TaskInputs(first, mlp(hidden[0], hidden[1:], outputs), outputs), seed)


def _modules(name: str, given: Sequence[nn.Module]) -> nn.ModuleList:
    """Return the modules of the tasks as a module, or raise InputError."""
    if not isinstance(given, Sequence | nn.ModuleList) or not all(isinstance(one, nn.Module) for one in given):
        raise InputError(f"{name}={shown(given)}: use a list of torch.nn.Modules, one for each task")
    if not len(given):
        raise InputError(f"{name}=[]: give a module for each task")
    return nn.ModuleList(given)


def _by_task(nets: nn.ModuleList, inputs: Tensor, tasks: Tensor) -> Tensor:
    """Return the outputs of each input's own network."""
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
    """Return the task id; raise InputError if it is not one of 0 to count - 1."""
    if not 0 <= task < count:
        raise InputError(
            f"task {task}: this network was made for tasks 0 to {count - 1}; use one of these, or more tasks"
        )
    return task
