"""Benchmarks: which network the experiments on each stream train, and which options stream and network have."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, final

from torch import nn

from metareplay import networks
from metareplay.errors import InputError
from metareplay.experiments.identity import describe
from metareplay.streams import ManyPermutations, Omniglot, Permutations, Rotations, Stream

PIXELS, CLASSES = 784, 10
HIDDEN: Final = (100, 100)  # widths of the paper's MLP
BY_TASK: dict[object, Callable[..., nn.Module]] = {  # for learners that ask for these modules
    networks.Separate: networks.separate_mlps,
    networks.TaskInputs: networks.task_input_mlp,
}


@final
@dataclass(frozen=True)
class Recipe:
    """Say how to make a network, except for the seed of its first weights.

    Args:
        build: Makes the network.
        options: Its options with their values.
    """

    build: Callable[..., nn.Module]
    options: tuple[tuple[str, Any], ...]

    def make(self, seed: int) -> nn.Module:
        """Make the network.

        Args:
            seed: Decides the first weights.
        """
        return self.build(seed=seed, **dict(self.options))


@cache
def description(recipe: Recipe) -> str:
    """Describe a network in one line, which is the same for every seed."""
    return describe(recipe.make(seed=0))


def mlp(learner: str, asked_for: object, stream: Stream, hidden: tuple[int, ...]) -> Recipe:
    """Return the paper's MLP for images of digits, with parts for each task if the learner asks for that.

    Args:
        learner: The learner's name.
        asked_for: The type of module that it asks for.
        stream: What it learns.
        hidden: The widths of the hidden layers.
    """
    del learner
    sizes = (("inputs", PIXELS), ("hidden", tuple(hidden)), ("outputs", CLASSES))
    if asked_for in BY_TASK:
        return Recipe(BY_TASK[asked_for], (*sizes, ("tasks", stream.tasks)))
    return Recipe(networks.mlp, sizes)


def cnn(learner: str, asked_for: object, stream: Stream, hidden: tuple[int, ...], **options: Any) -> Recipe:
    """Return the paper's CNN for Omniglot: with one output layer for each task, or one for all characters.

    Args:
        learner: The learner's name.
        asked_for: The type of module that it asks for.
        stream: What it learns.
        hidden: The widths of an MLP's hidden layers, which must be the usual ones: there are none here.
        options: The normalisation and the first weights.
    """
    if asked_for in BY_TASK:
        raise InputError(
            f"{learner} needs an MLP with parts for each task, and omniglot has a CNN: use another learner"
        )
    if tuple(hidden) != HIDDEN:
        raise InputError(f"hidden={hidden!r}: omniglot's CNN has no hidden layers to size; leave hidden out")
    assert isinstance(stream, Omniglot)
    classes = stream.classes[0] if stream.labels == "all" else stream.classes
    given = (("classes", classes), ("resolution", stream.resolution), *sorted(options.items()))
    return Recipe(networks.omniglot_cnn, given)


@final
@dataclass(frozen=True)
class Benchmark:
    """Describe what belongs to a stream in an experiment.

    Args:
        network: Says which network a learner trains.
        images: Whether the stream draws from images that have a name, such as MNIST.
        stream_options: The stream's own options.
        network_options: The network's own options, with the values that they have if they are not given.
        step: The cost of a step on one example; that of the paper's MLP is 1.
        tests: About how many test images a task has.
    """

    network: Callable[..., Recipe]
    images: bool = True
    stream_options: tuple[str, ...] = ()
    network_options: dict[str, Any] = field(default_factory=dict)
    step: float = 1.0
    tests: int = 10_000


DIGITS = Benchmark(mlp)
BENCHMARKS: dict[object, Benchmark] = {
    Rotations: DIGITS,
    Permutations: DIGITS,
    ManyPermutations: DIGITS,
    Omniglot: Benchmark(
        cnn,
        images=False,
        stream_options=("order", "split", "test_share", "resolution", "pixels", "labels"),
        network_options={"norm": "group", "init": "torch"},  # the paper's network without a norm stops learning
        step=200.0,
        tests=65,
    ),
}


def check_options(what: str, given: dict[str, Any], known: tuple[str, ...]) -> None:
    """Refuse an option that is not known.

    Args:
        what: What the options are for, to be said in the message.
        given: The options with their values.
        known: The names of all options.
    """
    for name in given:
        if name not in known:
            takes = f"it takes {', '.join(sorted(known))}" if known else "leave it out"
            raise InputError(f"{what} has no option {name!r}; {takes}")
