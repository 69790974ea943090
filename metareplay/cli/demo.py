"""`metareplay demo`: five learners on MNIST Rotations with a small memory, a table and a picture."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from metareplay.cli.console import aside, draw, print_table, remark
from metareplay.cli.display import table
from metareplay.cli.places import Jobs, On, runner_at
from metareplay.cli.progress import bars
from metareplay.experiments import Experiment
from metareplay.paper.best import best
from metareplay.plots import plot_tasks
from metareplay.runners import without_failures

SHOWN = {"GEM": "gem", "MER": "mer", "ER": "er", "EWC": "ewc", "Online": "online"}  # the one that takes longest first
STREAM = "rotations"
PICTURE = Path("accuracy.png")


def demo(
    tasks: Annotated[int, typer.Option(help="Tasks in the stream.")] = 20,
    examples: Annotated[int, typer.Option(help="Examples per task.")] = 1000,
    memory: Annotated[int, typer.Option(help="Examples held in memory.")] = 500,
    seed: Annotated[int, typer.Option(help="The seed of everything.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the records and the picture.")] = Path("demo"),
    on: On = "threads",
    jobs: Jobs = "auto",
) -> None:
    """Run online learning, EWC, GEM, ER and MER on MNIST Rotations as in the paper; show a table and draw a picture."""
    wanted = experiments(tasks, examples, memory, seed)
    with bars(aside) as watcher:
        runner = runner_at(on, jobs, rest_on_threads=True)
        ran = without_failures(runner.run(list(wanted.values()), out, watcher=watcher))
    found = {name: record for name, record in zip(wanted, ran, strict=True) if record is not None}
    title = f"MNIST Rotations, {tasks} tasks of {examples} examples, memory {memory}"
    print_table(table({name: [record] for name, record in found.items()}, title))
    draw(partial(plot_tasks, found, title=title), out / PICTURE)
    remark(f"records: {out}/")


def experiments(tasks: int, examples: int, memory: int, seed: int) -> dict[str, Experiment]:
    """Return what the demo runs: each learner with the paper's best settings.

    Args:
        tasks: Tasks in the stream.
        examples: Examples per task.
        memory: Examples held in memory.
        seed: The seed of everything.
    """
    return {
        title: Experiment(
            learner=name,
            stream=STREAM,
            options=best(name, STREAM, memory),
            tasks=tasks,
            examples=examples,
            memory=memory,
            seed=seed,
        )
        for title, name in SHOWN.items()
    }
