"""Functions that make a learner once the number of inputs is known, as other libraries need them."""

from collections.abc import Callable
from typing import Final

from metareplay._core.checks import answer, described, shown
from metareplay.errors import InputError
from metareplay.learners import MER, Learner
from metareplay.memories import Reservoir
from metareplay.networks import mlp

Maker = Callable[[int, int], Learner]

HIDDEN: Final = (64,)
MEMORY: Final = 1000


def mer_classifier(inputs: int, seed: int) -> Learner:
    """Make MER with a small network, for labels of any kind that need not be known in advance.

    Args:
        inputs: How many numbers an example has.
        seed: Decides the first weights and every draw.

    >>> mer_classifier(4, seed=0).model[-1]
    Linear(in_features=64, out_features=1, bias=True)
    """
    model = mlp(inputs, HIDDEN, 1, seed=seed)
    return MER(model, memory=Reservoir(MEMORY), lr=0.05, beta=0.3, gamma=1.0, s=2, k=5, seed=seed, classes="grow")


def mer_regressor(inputs: int, seed: int) -> Learner:
    """Make MER with a small network and one output, for regression.

    Args:
        inputs: How many numbers an example has.
        seed: Decides the first weights and every draw.
    """
    model = mlp(inputs, HIDDEN, 1, seed=seed)
    return MER(
        model, memory=Reservoir(MEMORY), lr=0.005, beta=0.3, gamma=1.0, s=2, k=5, clip=1.0, seed=seed, regression=True
    )


def made(maker: Maker, inputs: int, seed: int, *, regression: bool) -> Learner:
    """Let a user's function make a learner, and check what it made.

    Args:
        maker: The function.
        inputs: How many numbers an example has.
        seed: The seed to make it with.
        regression: Whether it must be a learner for regression, or must not.
    """
    if not callable(maker):
        raise InputError(f"maker={shown(maker)}: use a function of (inputs, seed) that returns a learner")
    learner = answer("maker", maker, inputs, seed)
    if not isinstance(learner, Learner):
        raise InputError(f"maker returned {described(learner)}: it must return a learner, such as MER(...)")
    if learner.regression != regression:
        raise InputError(f"maker returned a learner with regression={learner.regression}: use regression={regression}")
    return learner
