"""The command line. It reads options and shows results; it holds no logic of its own."""

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from metareplay import data as datasets
from metareplay._core.files import write_text
from metareplay._core.text import deviation
from metareplay._version import __version__
from metareplay.cli import demo as demonstration
from metareplay.cli.bench import bench
from metareplay.cli.display import paper_table, table
from metareplay.errors import MetareplayError
from metareplay.experiments.experiment import IMAGES, LEARNERS, MEMORIES, STREAMS, Experiment
from metareplay.experiments.record import Record
from metareplay.experiments.store import Records, pack
from metareplay.paper.document import document
from metareplay.paper.figures import FIGURES, PICTURES
from metareplay.paper.results import as_document, needed_runs, results, summary, write_table
from metareplay.paper.tables import TABLES
from metareplay.plots import plot_alignment, plot_tasks
from metareplay.runners.fleet.flight import NAME as FLEET
from metareplay.runners.fleet.flight import fleets
from metareplay.runners.threads import all_of, carry_out_all, carry_out_fleet, count_jobs, keys_of

app = typer.Typer(
    name="metareplay",
    help="Learning from non-stationary streams without forgetting: Meta-Experience Replay (Riemer et al., ICLR 2019).",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app = typer.Typer(help="Datasets: fetch them once, see where they are.")
app.add_typer(data_app, name="data")

SAMPLES = 5  # past examples that each is compared with: the paper's number
INTERRUPTED = 130  # the exit code of a command that Ctrl-C stopped: typer's own
shown = Console()  # results
aside = Console(stderr=True)  # progress and remarks


@app.command()
def run(
    learner: Annotated[str, typer.Argument(help=f"One of: {', '.join(LEARNERS)}.")] = "mer",
    stream: Annotated[str, typer.Argument(help=f"One of: {', '.join(STREAMS)}.")] = "rotations",
    memory: Annotated[int, typer.Option(help="Examples held in memory (M).")] = 500,
    memory_kind: Annotated[str | None, typer.Option(help=f"{', '.join(MEMORIES)}; default: the paper's.")] = None,
    lr: Annotated[float | None, typer.Option(help="alpha: the SGD rate of each step.")] = None,
    beta: Annotated[float | None, typer.Option(help="Reptile rate within a batch (mer), 0 < beta <= 1.")] = None,
    gamma: Annotated[
        float | None, typer.Option(help="Reptile rate across batches (mer variants), 0 < gamma <= 1.")
    ] = None,
    s: Annotated[int | None, typer.Option(help="Batches an example (mer); rate factor (mer-current-rate).")] = None,
    k: Annotated[
        int | None, typer.Option(help="Examples in a batch, the incoming one included (paper: k-1 + 1).")
    ] = None,
    strength: Annotated[float | None, typer.Option(help="ewc: weight of the penalty; gem: memory strength.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="er, er-tasks: sgd, adam or rmsprop.")] = None,
    start: Annotated[str | None, typer.Option(help="independent: fresh or clone, where a task's net starts.")] = None,
    fisher: Annotated[str | None, typer.Option(help="ewc: squared-mean or mean-square.")] = None,
    fisher_examples: Annotated[int | None, typer.Option(help="ewc: examples that measure importance.")] = None,
    clip: Annotated[float | None, typer.Option(help="Gradient-norm clip; the paper has none.")] = None,
    tasks: Annotated[int | None, typer.Option(help="Tasks in the stream; default: the paper's.")] = None,
    examples: Annotated[int | None, typer.Option(help="Examples of each task; default: the paper's.")] = None,
    images: Annotated[str, typer.Option(help=f"Where images come from: {', '.join(IMAGES)}.")] = "mnist",
    test_examples: Annotated[int | None, typer.Option(help="Test images of each task; default: all.")] = None,
    seed: Annotated[int, typer.Option(help="The first seed: of the stream, the first weights and every draw.")] = 0,
    seeds: Annotated[int, typer.Option(help="How many seeds to run.")] = 1,
    jobs: Annotated[str, typer.Option(help="Runs at a time: a number, or auto for one on each core.")] = "auto",
    engine: Annotated[str, typer.Option(help="auto, torch, cpu, cuda, or fleet: who does the arithmetic.")] = "auto",
    full_matrix: Annotated[bool, typer.Option("--full-matrix", help="Measure every task after every task.")] = False,
    alignment: Annotated[
        bool, typer.Option("--alignment", help="Compare each example's gradient with 5 past ones; draw a picture.")
    ] = False,
    records: Annotated[Path, typer.Option(help="Folder for the records of finished runs.")] = Path("runs"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Run again what has a record or was interrupted.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record(s) as one JSON document.")] = False,
) -> None:
    """Train a learner on a stream: RA, LA, BTI, FTI. What is not given is the paper's best setting.

    An interrupted run goes on where it was when the same command is given again.
    """
    given = {
        "lr": lr,
        "beta": beta,
        "gamma": gamma,
        "s": s,
        "k": k,
        "strength": strength,
        "optimizer": optimizer,
        "start": start,
        "fisher": fisher,
        "fisher_examples": fisher_examples,
        "clip": clip,
    }
    if seeds < 1:
        raise MetareplayError(f"--seeds {seeds}: run at least one")
    experiments = [
        Experiment(
            learner=learner,
            stream=stream,
            memory=memory,
            memory_kind=memory_kind,
            options={name: value for name, value in given.items() if value is not None},
            tasks=tasks,
            examples=examples,
            images=images,
            test_examples=test_examples,
            seed=one,
            engine=engine,
            full_matrix=full_matrix,
            alignment=SAMPLES if alignment else 0,
        )
        for one in range(seed, seed + seeds)
    ]
    labelled = [(f"{learner}, seed {one.seed}", one) for one in experiments]
    at_once = count_jobs(jobs)
    if engine == FLEET:
        found = all_of(experiments, carry_out_fleet(experiments, records, aside, fresh=fresh), records)
    else:
        found = carry_out_all(labelled, records, aside, jobs=at_once, fresh=fresh)
    if as_json:
        _print_json(found[0].to_json() if seeds == 1 else _summary(found))
    else:
        _print_table(table({learner: found}, f"{learner} on {stream}, memory {memory}"))
        aside.print(f"records: {records}{'/' if str(records) != '/' else ''}", highlight=False)
    for record in found if alignment else []:
        picture = records / f"{record.name}.png"
        plot_alignment({f"{learner}, seed {record.seed}": record}, picture, f"Transfer and interference on {stream}")
        aside.print(f"picture: {picture}", highlight=False, soft_wrap=True)


@app.command()
def demo(
    tasks: Annotated[int, typer.Option(help="Tasks in the stream.")] = 20,
    examples: Annotated[int, typer.Option(help="Examples of each task.")] = 1000,
    memory: Annotated[int, typer.Option(help="Examples held in memory.")] = 500,
    seed: Annotated[int, typer.Option(help="The seed of everything.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the records and the picture.")] = Path("demo"),
    jobs: Annotated[str, typer.Option(help="Runs at a time: a number, or auto for one on each core.")] = "auto",
) -> None:
    """Online learning, EWC, GEM, ER and MER on MNIST Rotations, the paper's setting: a table and a picture."""
    experiments = demonstration.experiments(tasks, examples, memory, seed)
    ran = carry_out_all(list(experiments.items()), out, aside, jobs=count_jobs(jobs))
    found = dict(zip(experiments, ran, strict=True))
    title = f"MNIST Rotations, {tasks} tasks of {examples} examples, memory {memory}"
    _print_table(table({name: [record] for name, record in found.items()}, title))
    plot_tasks(found, out / demonstration.PICTURE, title)
    aside.print(f"picture: {out / demonstration.PICTURE}; records: {out}/", highlight=False)


@app.command()
def paper(
    names: Annotated[list[str] | None, typer.Argument(help="What --list names, or all.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="Name the tables and figures.")] = False,
    seeds: Annotated[int | None, typer.Option(help="Seeds for each number; default: the paper's, 5 if long.")] = None,
    jobs: Annotated[str, typer.Option(help="Runs at a time: a number, or auto for one on each core.")] = "auto",
    records: Annotated[Path, typer.Option(help="Folder for the records of finished runs.")] = Path("runs"),
    out: Annotated[Path, typer.Option(help="Folder for tables (Markdown, CSV, JSON) and pictures.")] = Path("paper"),
    only_records: Annotated[bool, typer.Option("--only-records", help="Run nothing: show what is recorded.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run again what has a record or was interrupted.")] = False,
    engine: Annotated[str, typer.Option(help="auto; or fleet: on a GPU first, all at once, what can fly.")] = "auto",
    packed: Annotated[Path | None, typer.Option("--pack", help="Also write the records into this file.")] = None,
    page: Annotated[Path | None, typer.Option("--document", help="Also write one page with all tables.")] = None,
    tasks: Annotated[int | None, typer.Option(help="A miniature: so many tasks.")] = None,
    examples: Annotated[int | None, typer.Option(help="A miniature: so many examples of each task.")] = None,
    test_examples: Annotated[int | None, typer.Option(help="A miniature: so many test images of each task.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """The paper's tables, our numbers beside theirs. A finished run is never repeated; an interrupted one goes on."""
    everything = {name: make().title for name, make in TABLES.items()} | {n: f.title for n, f in FIGURES.items()}
    if listed or not names:
        for name, title in everything.items():
            shown.print(f"{name:17} {title}", highlight=False)
        return
    for name in names:
        if name not in (*everything, "all"):
            raise MetareplayError(f"no {name!r} in the paper: use one of {', '.join(everything)}, all")
    if seeds is not None and seeds < 1:
        raise MetareplayError(f"--seeds {seeds}: run at least one")
    if engine not in ("auto", FLEET):
        raise MetareplayError(f"--engine {engine}: use auto or fleet")
    if engine == FLEET and fresh:
        raise MetareplayError("--fresh and --engine fleet: use one of them, or an empty folder for --records")
    wanted = list(everything) if "all" in names else list(dict.fromkeys(names))
    sizes = {"tasks": tasks, "examples": examples, "test_examples": test_examples}
    changes = {name: size for name, size in sizes.items() if size is not None}
    tables = [TABLES[name]() if name in TABLES else FIGURES[name].table() for name in wanted]
    if changes:
        sizes_given = ", ".join(f"{name} {size}" for name, size in changes.items())
        note = f"A miniature ({sizes_given}): not to be compared with the paper's."
        tables = [replace(one, notes=(note, *one.notes)) for one in tables]
    runs = [run for one in tables for run in needed_runs(one, seeds, **changes)]
    if only_records:
        kept = Records(records)
        found: Iterator[Record | None] = iter([kept.find(key) for key in keys_of([one for _, one in runs])])
    else:
        for some in fleets([run for _, run in runs]) if engine == FLEET else []:
            carry_out_fleet(some, records, aside)  # what leaves a fleet's range is tried again on the CPU
        found = iter(carry_out_all(runs, records, aside, jobs=count_jobs(jobs), fresh=fresh))
    documents, every = [], {}
    for name, one in zip(wanted, tables, strict=True):
        numbers = results(one, seeds, found, comparable=not changes)
        every[name] = one, numbers
        if name in TABLES:
            documents.append(as_document(one, numbers))
        if not numbers:
            aside.print(f"{name}: none of its runs is in {records} yet", highlight=False, soft_wrap=True)
            continue
        draw = FIGURES[name].draw if name in FIGURES else PICTURES.get(name)
        if draw is not None:
            draw(numbers, out / f"{name}.png")
        if name in FIGURES:
            continue
        write_table(one, numbers, out)
        if not as_json:
            _print_table(paper_table(f"{one.name}: {one.title}", numbers))
            for note in (*one.notes, summary(numbers)):
                shown.print(note, highlight=False, soft_wrap=True)
    if as_json:
        _print_json({"tables": documents})
    if packed is not None:
        pack((record for _, numbers in every.values() for one in numbers for record in one.records), packed)
    if page is not None:
        in_tables = {name: both for name, both in every.items() if name in TABLES}
        pictures = {
            f"{name}.png": FIGURES[name].title for name, (_, numbers) in every.items() if name in FIGURES and numbers
        }
        write_text(page, document(in_tables, pictures))
    aside.print(f"tables and pictures: {out}/; records: {records}/", highlight=False, soft_wrap=True)


app.command()(bench)


@data_app.command()
def fetch(
    names: Annotated[list[str] | None, typer.Argument(help=f"Any of: {', '.join(IMAGES)}.")] = None,
) -> None:
    """Download datasets into the cache, checked; what is already there is not downloaded again."""
    for name in names or ["mnist"]:
        folder = datasets.fetch(name, report=lambda text: aside.print(text, highlight=False))
        shown.print(f"{name}: {folder}", highlight=False, soft_wrap=True)


@app.command()
def version() -> None:
    """Print the version."""
    shown.print(__version__, highlight=False)


def main() -> None:
    """Run the command line; every error is one line on stderr and exit code 2."""
    torch.set_num_threads(1)  # the paper's networks are small; the same numbers on any number of cores
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except MetareplayError as error:
        _fail(str(error))
    except torch.cuda.OutOfMemoryError:
        _fail("the GPU has not enough memory: use a smaller memory, fewer runs at a time (--jobs 1), or engine cpu")
    except typer.TyperException as error:
        _fail(f"{error.format_message().rstrip('.')}; see metareplay --help")
    if code == INTERRUPTED:
        aside.print("metareplay: interrupted; give the same command again to go on", highlight=False, soft_wrap=True)
    sys.exit(code if isinstance(code, int) else 0)


def _summary(records: list[Record]) -> dict[str, Any]:
    names = ("ra", "la", "bti", "fti", *(["dot"] if records[0].alignment else []))
    values = {name: [getattr(record, name) for record in records] for name in names}
    metrics = {name: {"mean": _or_none(fmean(found)), "std": deviation(found)} for name, found in values.items()}
    return {"summary": metrics, "records": [record.to_json() for record in records]}


def _or_none(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else value


def _print_table(rows: Table) -> None:
    """At its own width even if the screen is narrower: numbers are not to be cut off."""
    width = shown.measure(rows, options=shown.options.update(width=sys.maxsize)).maximum
    Console(width=max(width, shown.width)).print(rows)


def _print_json(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document, indent=1) + "\n")


def _fail(message: str) -> None:
    aside.print(f"metareplay: {' '.join(message.split())}", style="red", highlight=False, markup=False, soft_wrap=True)
    sys.exit(2)
