"""`metareplay run`: train a learner on a stream."""

import inspect
import math
import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer

from metareplay._core.text import deviation
from metareplay.cli.console import aside, draw, print_json, print_table, remark
from metareplay.cli.display import table
from metareplay.cli.following import Track, Watch, followed
from metareplay.cli.options import learner_options
from metareplay.cli.places import CoresPerRun, GpusPerRun, Jobs, On, runner_at
from metareplay.cli.progress import bars
from metareplay.cli.run_game import run_game
from metareplay.cli.run_options import Engine, Fresh, Kept, RecordsAsJson, Seeds
from metareplay.cli.run_prequential import run_prequential
from metareplay.engines.choose import check_engine
from metareplay.errors import MetareplayError, NonFiniteError
from metareplay.experiments import Experiment, Record
from metareplay.experiments.names import (
    IMAGES_BY_NAME,
    LEARNERS_BY_NAME,
    MEMORIES_BY_NAME,
    STREAMS_BY_NAME,
    find_learner,
)
from metareplay.learners import LEARNERS, Q_LEARNERS, Learner
from metareplay.paper.best import best
from metareplay.plots import plot_alignment
from metareplay.rl.game_experiment import AGENTS_BY_NAME, GAMES
from metareplay.runners import without_failures

OWN = re.compile(r"[^:-][^:]*:[A-Za-z_]\w*")  # path/to/file.py:Class, or module:Class
FLAGS = (  # options that take no value
    *("--full-matrix", "--training", "--alignment", "--prequential", "--fresh", "--json"),
    *("--quick", "--published", "--double", "--no-double"),
    *("--paper", "--retry-failed", "--watch"),
)
SAMPLES = 5  # past examples that each is compared with: the paper's number


def run_command(words: list[str]) -> Callable[..., None]:
    """Make the command with the options of every learner, including a learner of the user's own that the words name.

    Args:
        words: What was typed.
    """
    if set(named(words, "run")) & {*AGENTS_BY_NAME, *GAMES}:
        return with_options(run_game, learner_options(Q_LEARNERS))
    return with_options(run, learner_options((*own_learner(words, "run"), *LEARNERS)))


def with_options(function: Callable[..., None], options: list[inspect.Parameter]) -> Callable[..., None]:
    """Return a command with the parameters of a function, and with those options that it takes as keywords.

    Args:
        function: The command without these options.
        options: The options.
    """
    taken = inspect.signature(function).parameters
    for option in options:
        if option.name in taken:
            raise MetareplayError(
                f"the learner's option {option.name!r} has the name of an option of the command: rename the field"
            )
    fixed = [one for one in taken.values() if one.kind is not one.VAR_KEYWORD]

    def command(**given: Any) -> None:
        function(**given)

    command.__doc__ = function.__doc__
    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*fixed, *options)]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def own_learner(words: list[str], command: str) -> list[type[Learner]]:
    """Find the user's own learner among the words of a command; none if there is none.

    Args:
        words: What was typed.
        command: The command.
    """
    return [find_learner(word) for word in named(words, command) if OWN.fullmatch(word)][:1]


def named(words: list[str], command: str) -> list[str]:
    """Return what the words of a command name: all of them but options and their values; none for another command.

    Args:
        words: What was typed.
        command: The command.
    """
    pairs = pairwise(words) if words[:1] == [command] else []
    return [
        word
        for before, word in pairs
        if not word.startswith("-") and (before in FLAGS or "=" in before or not before.startswith("-"))
    ]


def run(
    learner: Annotated[
        str, typer.Argument(help=f"One of: {', '.join(LEARNERS_BY_NAME)}; or your own as file.py:Class.")
    ] = "mer",
    stream: Annotated[str, typer.Argument(help=f"One of: {', '.join(STREAMS_BY_NAME)}.")] = "rotations",
    memory: Annotated[int, typer.Option(help="Examples held in memory (M).")] = 500,
    memory_kind: Annotated[
        str | None, typer.Option(help=f"{', '.join(MEMORIES_BY_NAME)}; default: the paper's.")
    ] = None,
    tasks: Annotated[int | None, typer.Option(help="Tasks in the stream; default: the paper's.")] = None,
    examples: Annotated[
        int | None, typer.Option(help="Examples per task (Omniglot: in whole characters of 18); default: the paper's.")
    ] = None,
    images: Annotated[
        str | None, typer.Option(help=f"Where digits come from: {', '.join(IMAGES_BY_NAME)}; default: mnist.")
    ] = None,
    test_examples: Annotated[int | None, typer.Option(help="Test images per task; default: all.")] = None,
    norm: Annotated[
        str | None, typer.Option(help="Omniglot's network: group, batch, or none as printed; default: group.")
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(help="Omniglot's first weights: torch (as nn.Conv2d draws them) or glorot; default: torch."),
    ] = None,
    order: Annotated[str | None, typer.Option(help="Omniglot's alphabets: given or shuffled; default: given.")] = None,
    split: Annotated[
        str | None, typer.Option(help="Omniglot's test images: by drawings or by drawers; default: drawings.")
    ] = None,
    resolution: Annotated[int | None, typer.Option(help="Omniglot's pixels on each side; default: 28.")] = None,
    pixels: Annotated[str | None, typer.Option(help="Omniglot's pixels: grey or binary; default: grey.")] = None,
    labels: Annotated[
        str | None,
        typer.Option(help="Omniglot's labels: alphabet (a head for each) or all (one head); default: alphabet."),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="The first seed; it decides the stream, the first weights and every draw.")
    ] = 0,
    seeds: Seeds = 1,
    on: On = "threads",
    jobs: Jobs = "auto",
    cores_per_run: CoresPerRun = 1.0,
    gpus_per_run: GpusPerRun = 0.0,
    engine: Engine = "auto",
    full_matrix: Annotated[bool, typer.Option("--full-matrix", help="Measure every task after every task.")] = False,
    training: Annotated[
        bool, typer.Option("--training", help="Also measure accuracy on every task's training examples at the end.")
    ] = False,
    alignment: Annotated[
        bool, typer.Option("--alignment", help="Compare each example's gradient with 5 past ones; draw a picture.")
    ] = False,
    past: Annotated[
        str, typer.Option(help="With --alignment: take past gradients before or after the example is learned.")
    ] = "before",
    prequential: Annotated[
        bool, typer.Option("--prequential", help="Predict every example before it is learned; test sets are not used.")
    ] = False,
    every: Annotated[
        int | None, typer.Option(help="With --prequential: examples between two notes of the scores; default: 1000.")
    ] = None,
    records: Kept = Path("runs"),
    fresh: Fresh = False,
    track: Track = None,
    watch: Watch = False,
    as_json: RecordsAsJson = False,
    **options: Any,
) -> None:
    """Train a learner on a stream; show RA, LA, BTI and FTI. Options that are not given have the paper's best values.

    Give the same command again to continue an interrupted run. For games, see `metareplay run dqn-mer catcher --help`.
    """
    if seeds < 1:
        raise MetareplayError(f"--seeds {seeds}: run at least one")
    if past not in ("before", "after"):
        raise MetareplayError(f"--past {past}: use before or after")
    chosen_norm = {} if norm is None else {"norm": None if norm == "none" else norm}
    stream_options = {"order": order, "split": split, "resolution": resolution, "pixels": pixels, "labels": labels}
    known = best(learner, stream, memory) if learner in LEARNERS_BY_NAME and stream in STREAMS_BY_NAME else {}
    experiments = [
        Experiment(
            learner=learner,
            stream=stream,
            memory=memory,
            memory_kind=memory_kind,
            options=known | _given(options),
            tasks=tasks,
            examples=examples,
            images=images,
            test_examples=test_examples,
            network=_given({"init": init}) | chosen_norm,
            stream_options=_given(stream_options),
            seed=one,
            engine=check_engine(engine),
            full_matrix=full_matrix,
            training=training,
            alignment=SAMPLES if alignment else 0,
            past="after" if past == "after" else "before",
        )
        for one in range(seed, seed + seeds)
    ]
    runner = runner_at(on, jobs, rest_on_threads=False, cores_per_run=cores_per_run, gpus_per_run=gpus_per_run)
    if every is not None and not prequential:
        raise MetareplayError(f"--every {every}: this is for --prequential; give that, too")
    if prequential:
        how_often, follow = 1000 if every is None else every, partial(followed, track=track, watch=watch)
        run_prequential(experiments, how_often, runner, records, fresh=fresh, as_json=as_json, follow=follow)
        return
    with bars(aside) as watcher, followed(watcher, track, watch, records):
        ran = without_failures(runner.run(experiments, records, fresh=fresh, watcher=watcher))
    found = _all_of(experiments, ran, records)
    if as_json:
        print_json(found[0].to_json() if seeds == 1 else _summary(found))
    else:
        print_table(table({learner: found}, f"{learner} on {stream}, memory {memory}"))
        remark(f"records: {records}{'/' if str(records) != '/' else ''}")
    for record in found if alignment else []:
        shown = {f"{learner}, seed {record.seed}": record}
        draw(
            partial(plot_alignment, shown, title=f"Transfer and interference on {stream}"),
            records / f"{record.name}.png",
        )


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were typed."""
    return {name: value for name, value in options.items() if value is not None}


def _all_of(experiments: list[Experiment], found: list[Record | None], folder: Path) -> list[Record]:
    """Return the records if none is missing; otherwise raise an error that says what to do."""
    lost = [str(one.seed) for one, record in zip(experiments, found, strict=True) if record is None]
    if lost:
        raise NonFiniteError(
            f"{len(lost)} of {len(experiments)} runs left the range of a fleet's numbers (seeds "
            f"{', '.join(lost)}): use a smaller lr, or --on threads; the records of the others are in {folder}"
        )
    return [record for record in found if record is not None]


def _summary(records: list[Record]) -> dict[str, Any]:
    names = ["ra", "la", "bti", "fti"]
    names += ["ta"] if records[0].training is not None else []
    names += ["dot"] if records[0].alignment else []
    values = {name: [getattr(record, name) for record in records] for name in names}
    metrics = {name: {"mean": _or_none(fmean(found)), "std": deviation(found)} for name, found in values.items()}
    return {"summary": metrics, "records": [record.to_json() for record in records]}


def _or_none(value: float) -> float | None:
    """Return None for NaN, which JSON does not have."""
    return None if math.isnan(value) else value
