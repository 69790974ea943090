"""The grids that the paper searched (Appendix J, "Hyperparameter Search"), by learner; the best values are in `best`.

k counts the incoming example, as in Algorithm 1; the paper lists k - 1.
"""

from typing import Any, Final

from metareplay.errors import InputError
from metareplay.paper.best import STREAMS, WITH_MEMORY, WITHOUT_MEMORY, best

Values = tuple[Any, ...]

SLOW_TO_FAST: Final = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)  # rates of the learners without a memory
FAST: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # rates of EWC and GEM
REPLAYED: Final = (0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)  # rates of experience replay

GRIDS: Final[dict[str, dict[str, Values]]] = {
    "online": {"lr": SLOW_TO_FAST},
    "independent": {"lr": SLOW_TO_FAST},
    "task-input": {"lr": SLOW_TO_FAST},
    "ewc": {
        "lr": FAST,
        "strength": (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0, 30000.0),
    },
    "gem": {"lr": FAST, "strength": (0.0, 0.1, 0.5, 1.0)},
    "er": {"lr": REPLAYED, "k": (6, 11, 26, 51, 101, 251)},
    "er-tasks": {"lr": REPLAYED, "k": (6, 11, 26, 51, 101, 251)},
    "mer": {
        "lr": (0.01, 0.03, 0.1),
        "beta": (0.01, 0.03, 0.1, 0.3, 1.0),
        "gamma": (1.0,),
        "k": (6, 11, 26, 51, 101),
        "s": (1, 2, 5, 10),
    },
    "mer-one-big-batch": {
        "lr": (0.01, 0.03, 0.1),
        "gamma": (0.03, 0.1, 0.3, 0.6, 1.0),
        "k": (6, 11, 26, 51, 101, 251),
        "s": (1,),
    },
    "mer-current-rate": {
        "lr": (0.01, 0.03, 0.1),
        "gamma": (0.03, 0.1, 0.3, 1.0),
        "k": (6, 11, 26, 51, 101),
        "s": (1, 2, 5, 10),
    },
}


def paper_grid(learner: str) -> dict[str, Values]:
    """Return the grid that the paper searched for a learner.

    Args:
        learner: The learner's name, such as "mer".

    >>> paper_grid("er-tasks")["k"]
    (6, 11, 26, 51, 101, 251)
    """
    if learner not in GRIDS:
        raise InputError(f"the paper lists no grid for {learner!r}; it has grids for {', '.join(GRIDS)}")
    return dict(GRIDS[learner])


def benchmark(name: str) -> tuple[str, int | None]:
    """Return the stream and the memory size that a name such as "rotations-500" stands for.

    Args:
        name: A stream's name, followed by the memory size if the learner has a memory.

    >>> benchmark("many-permutations-5120"), benchmark("rotations")
    (('many-permutations', 5120), ('rotations', None))
    """
    if name in STREAMS:
        return name, None
    stream, _, memory = name.rpartition("-")
    if stream not in STREAMS or not memory.isdecimal():
        raise InputError(f"--paper {name}: use a stream and a memory size, such as {STREAMS[0]}-500")
    return stream, int(memory)


def published_best(learner: str, stream: str, memory: int) -> dict[str, Any] | None:
    """Return the paper's best setting if it lists one for this stream and memory size; None otherwise.

    Args:
        learner: The learner's name, such as "mer".
        stream: The stream's name, such as "rotations".
        memory: How many examples are held.
    """
    listed = stream in WITHOUT_MEMORY.get(learner, {}) or memory in WITH_MEMORY.get(learner, {}).get(stream, {})
    return best(learner, stream, memory) if listed else None
