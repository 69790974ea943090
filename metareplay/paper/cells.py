"""What each number of a table stands for, and how a table is made from its printed text."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from metareplay.experiments.experiment import Experiment
from metareplay.paper.best import MANY, OMNIGLOT, PERMUTATIONS, ROTATIONS, Options, best

PRINTED = {
    ROTATIONS: "MNIST Rotations",
    PERMUTATIONS: "MNIST Permutations",
    MANY: "Many Permutations",
    OMNIGLOT: "Omniglot",
}
OURS = "ours"  # in place of a number that the paper does not have: we run it nevertheless
# What an experiment on each stream has in common, written down so that a change of a default does not change a table.
SETTINGS: dict[str, dict[str, Any]] = {
    ROTATIONS: {"tasks": 20, "examples": 1000, "images": "mnist"},
    PERMUTATIONS: {"tasks": 20, "examples": 1000, "images": "mnist"},
    MANY: {"tasks": 100, "examples": 200, "images": "mnist"},
    OMNIGLOT: {
        "tasks": 50,
        "stream_options": {
            "order": "given",
            "split": "drawings",
            "test_share": 0.1,
            "resolution": 28,
            "pixels": "grey",
            "labels": "alphabet",
        },
        "network": {"norm": "group", "init": "torch"},
        "training": True,
    },
}


class Published(NamedTuple):
    """Hold a number of the paper and its standard deviation over seeds.

    Args:
        mean: The number.
        std: Its standard deviation.
    """

    mean: float
    std: float


@final
@dataclass(frozen=True)
class Cell:
    """Describe one number of a table.

    Args:
        model: The paper's name of the row.
        memory: How many examples are held; None for a learner without a memory.
        column: The paper's name of the stream; in tables 7 to 9, of the column.
        metric: A field of `Metrics`, "alignment" for the mean dot product of table 4, or "ta" for the accuracy on
            training examples at the end.
        seeds: The seeds over which mean and standard deviation are taken.
        published: The paper's number; None where it has none.
        experiment: The whole setting, with seed 0.
        ours: Whether it is run although the paper has no number for it.
        most: The largest number of seeds to run, for runs that take very long; None for no limit.
    """

    model: str
    memory: int | None
    column: str
    metric: str
    seeds: range
    published: Published | None
    experiment: Experiment
    ours: bool = False
    most: int | None = None

    @property
    def row(self) -> str:
        """The model followed by the size of its memory, such as "MER 500"."""
        return self.model if self.memory is None else f"{self.model} {self.memory}"


@final
@dataclass(frozen=True)
class PaperTable:
    """Describe one table of the paper.

    Args:
        name: Its name, such as "table-1".
        title: Its title.
        cells: Its numbers in the paper's order, row by row.
        notes: Remarks on what the paper leaves open, or where it contradicts itself.
    """

    name: str
    title: str
    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()


class RowModel(NamedTuple):
    """Describe what a row runs."""

    learner: str
    memory_kind: str | None = None
    settings: str | None = None  # its name in `metareplay.paper.best`, if that is not the learner's
    options: Options | None = None  # options of the learner that differ from the best ones
    network: Options | None = None  # options of the network that differ from the usual ones of the stream
    stream: Options | None = None  # options of the stream that differ from the usual ones


class TableColumn(NamedTuple):
    """Describe what a column shows."""

    name: str
    stream: str
    metric: str
    seeds: range = range(5)


MODELS = {
    "Online": RowModel("online"),
    "Independent": RowModel("independent"),
    "Task Input": RowModel("task-input"),
    "EWC": RowModel("ewc"),
    "GEM": RowModel("gem", "ring"),
    "GEM with Reservoir Sampling": RowModel("gem", "reservoir", "gem-reservoir"),
    "ER with SGD (algorithm 4)": RowModel("er", "reservoir"),
    "ER with Tasks and SGD (algorithm 5)": RowModel("er-tasks", "reservoir"),
    "ER with Tasks and Adam": RowModel("er-tasks", "reservoir", "er-tasks-adam"),
    "ER with Tasks and RMSProp": RowModel("er-tasks", "reservoir", "er-tasks-rmsprop"),
    "ER with Tasks and GEM Style Buffer": RowModel("er-tasks", "ring", "er-tasks-ring"),
    "MER": RowModel("mer", "reservoir"),
    "MER (algorithm 1)": RowModel("mer", "reservoir"),
    "MER (algorithm 6)": RowModel("mer-one-big-batch", "reservoir"),
    "MER (algorithm 7)": RowModel("mer-current-rate", "reservoir"),
}
# Options that the paper did not search, written down so that a change of a default does not change a table.
FIXED: dict[str, Options] = {
    "online": {"steps": 1},
    "ewc": {"fisher_examples": 10, "fisher": "squared-mean", "steps": 1},
    "er": {"optimizer": "sgd"},
    "er-tasks": {"optimizer": "sgd"},
    "mer": {"gamma": 1.0},
}
SAFEGUARDS: dict[tuple[str, str], Options] = {("ewc", OMNIGLOT): {"clip": 5.0}}  # what the paper does not mention
MOST_SEEDS: dict[tuple[str, str, int | None], int] = {  # of runs that take more than ten minutes on a GPU
    ("gem", OMNIGLOT, 5120): 1,
    ("mer-current-rate", OMNIGLOT, 5120): 1,
}


def table_of(
    name: str,
    title: str,
    rows: str,
    columns: list[TableColumn],
    *notes: str,
    models: dict[str, RowModel] = MODELS,
    alignment: int = 0,
) -> PaperTable:
    """Return a table, whose cells are read from its rows as they are printed.

    Args:
        name: Its name, such as "table-1".
        title: Its title.
        rows: A line per row: the model, the size of its memory, and a number for each column, separated by "|".
        columns: What the columns show.
        notes: Remarks on what the paper leaves open, or where it contradicts itself.
        models: What each model runs, by the name in its row.
        alignment: How many past examples each example's gradient is compared with; 0 for none.
    """
    cells = tuple(
        Cell(
            model=model,
            memory=memory,
            column=column.name,
            metric=column.metric,
            seeds=column.seeds,
            published=None if published == OURS else _published(published),
            ours=published == OURS,
            experiment=_experiment(models[model], column.stream, memory, alignment),
            most=MOST_SEEDS.get((models[model].learner, column.stream, memory)),
        )
        for model, memory, numbers in _rows(rows)
        for column, published in zip(columns, numbers, strict=True)
    )
    return PaperTable(name, title, cells, notes)


def _rows(text: str) -> Iterator[tuple[str, int | None, list[str]]]:
    """Yield the model, memory and numbers of every line; a line without a model continues the one above it."""
    model = ""
    for line in text.strip().splitlines():
        name, memory, *numbers = (part.strip() for part in line.split("|"))
        model = name or model
        yield model, None if memory == "-" else int(memory), numbers


def _published(text: str) -> Published | None:
    if text == "-":
        return None
    mean, std = text.split(" ± ")
    return Published(float(mean), float(std))


def _experiment(model: RowModel, stream: str, memory: int | None, alignment: int) -> Experiment:
    common = SETTINGS[stream]
    if model.network:
        common = common | {"network": common["network"] | model.network}
    if model.stream:
        common = common | {"stream_options": common["stream_options"] | model.stream}
    held = memory or 500  # not used by a learner without a memory
    searched = best(model.settings or model.learner, stream, held)
    return Experiment(
        learner=model.learner,
        stream=stream,
        memory=held,
        memory_kind=model.memory_kind,
        hidden=(100, 100),
        options={"clip": None}
        | FIXED.get(model.learner, {})
        | searched
        | SAFEGUARDS.get((model.learner, stream), {})
        | (model.options or {}),
        alignment=alignment,
        **common,
    )
