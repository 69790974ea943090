"""The exact command that repeats runs, found from their records and checked by the keys of the runs."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any, Final

from metareplay.experiments.experiment import Experiment
from metareplay.experiments.names import IMAGES_BY_NAME, LEARNERS_BY_NAME, MEMORIES_BY_NAME, STREAMS_BY_NAME
from metareplay.experiments.prequential_experiment import PrequentialExperiment
from metareplay.experiments.prequential_record import Prequential, PrequentialRecord
from metareplay.experiments.prequential_run import checked
from metareplay.experiments.record import Record
from metareplay.paper.best import best
from metareplay.reports.words import memory_of, options, shown_name

SIZES: Final = ("tasks", "examples", "test_examples")
OMNIGLOT: Final = ("order", "split", "resolution", "pixels", "labels")
NOT_OURS: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)  # settings that none of ours has
SAMPLES: Final = 5  # past gradients that `metareplay run --alignment` compares each one with


def run_command(records: Sequence[Record | PrequentialRecord]) -> str | None:
    """Return the `metareplay run` commands that repeat runs of one setting; None if no command gives these runs.

    Args:
        records: The records, which differ in their seeds alone.
    """
    with suppress(*NOT_OURS):
        for experiment, words in _candidates(records[0]):
            if all(_key(replace(experiment, seed=one.seed), one) == one.key for one in records):
                stretches = words_for_seeds(one.seed for one in records)
                return "\n".join(shlex.join([*words, *some]) for some in stretches)
    return None


def _candidates(record: Record | PrequentialRecord) -> Iterator[tuple[Experiment, list[str]]]:
    """Yield experiments that may be that of a record, each with its command."""
    learner, stream = shown_name(record.learner), shown_name(str(record.stream.get("stream")))
    if learner not in LEARNERS_BY_NAME or stream not in STREAMS_BY_NAME:
        return
    capacity, kind = memory_of(record.settings)
    kinds = {one.__name__.lower(): name for name, one in MEMORIES_BY_NAME.items()}
    memory: dict[str, Any] = {} if capacity is None else {"memory": capacity, "memory_kind": kinds.get(kind)}
    given = {name: value for name, value in options(record.settings).items() if isinstance(value, int | float | str)}
    known = best(learner, stream, 500 if capacity is None else capacity)
    sizes = {name: record.stream.get(name) for name in SIZES}
    images = record.stream.get("images")
    pictures = {"images": images} if images in IMAGES_BY_NAME and images != "mnist" else {}
    own: dict[str, Any] = (
        {name: record.stream[name] for name in OMNIGLOT if name in record.stream} if stream == "omniglot" else {}
    )
    norms = ("group", "batch", None) if stream == "omniglot" else ("group",)
    inits = ("torch", "glorot") if stream == "omniglot" else ("torch",)
    measured, flags = _measured(record)
    for norm, init in product(norms, inits):
        network = ({"norm": norm} if norm != "group" else {}) | ({"init": init} if init != "torch" else {})
        experiment = Experiment(
            learner=learner,
            stream=stream,
            options={**known, **given},
            seed=record.seed,
            network=network,
            stream_options=own,
            **memory,
            **{name: value for name, value in sizes.items() if value is not None},
            **pictures,
            **measured,
        )
        typed: dict[str, Any] = {**memory, **sizes, **pictures, **own, **network, **given}
        words = ["metareplay", "run", learner, stream, *words_for(typed)]
        engine = str(record.settings.get("engine", "auto"))
        yield experiment, [*words, *(["--engine", engine] if engine != "auto" else []), *flags]


def _measured(record: Record | PrequentialRecord) -> tuple[dict[str, Any], list[str]]:
    """Return what else was measured: as fields of an experiment, and as words."""
    if isinstance(record, PrequentialRecord):
        return {}, ["--prequential", "--every", str(record.scored.every)]
    run, fields, flags = record.identity, dict[str, Any](), list[str]()
    if run.full_matrix:
        fields, flags = {"full_matrix": True}, ["--full-matrix"]
    if run.training:
        fields, flags = fields | {"training": True}, [*flags, "--training"]
    if run.alignment:
        fields, flags = fields | {"alignment": SAMPLES, "past": run.past}, [*flags, "--alignment"]
        flags += ["--past", "after"] if run.past == "after" else []
    return fields, flags


def _key(experiment: Experiment, record: Record | PrequentialRecord) -> str:
    """Return the key that the record of an experiment would have if it were run from the command line."""
    if isinstance(record, PrequentialRecord):
        scored = checked(record.scored.every, None, Prequential.fading, Prequential.block)
        return PrequentialExperiment.of(experiment, scored).key
    return experiment.key


def words_for(values: Mapping[str, Any]) -> list[str]:
    """Return the words with which options are given.

    Args:
        values: The options; None stands for one that is not given.
    """
    words = list[str]()
    for name, value in values.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None or name == "norm":
            words += [f"--{flag}", "none" if value is None else str(value)]
    return words


def words_for_seeds(seeds: Iterable[int]) -> list[list[str]]:
    """Return the words for each stretch of consecutive seeds.

    Args:
        seeds: The seeds.

    >>> words_for_seeds([0, 1, 2, 7])
    [['--seeds', '3'], ['--seed', '7']]
    """
    stretches = list[list[int]]()
    for seed in sorted(set(seeds)):
        if stretches and seed == stretches[-1][-1] + 1:
            stretches[-1].append(seed)
        else:
            stretches.append([seed])
    return [
        [*(["--seed", str(one[0])] if one[0] else []), *(["--seeds", str(len(one))] if len(one) > 1 else [])]
        for one in stretches
    ]
