"""The option --on, which says where a command runs its experiments."""

from typing import Annotated, Final

import typer

from metareplay.errors import InputError
from metareplay.runners import FleetRunner, Processes, Runner, Threads
from metareplay.runners.threads import count_jobs

PLACES: Final = ("threads", "processes", "fleet")

On = Annotated[
    str,
    typer.Option(
        "--on",
        help="Where to run: threads (this machine's cores, or its GPU with --engine cuda), processes (this machine's "
        "cores; a run that dies harms no other), or fleet (one GPU).",
    ),
]
Jobs = Annotated[
    str,
    typer.Option(
        help="Runs at a time on threads or processes: a number, or auto for one per core, and on threads at least 8 "
        "on a GPU."
    ),
]


def runner_at(on: str, jobs: str, *, rest_on_threads: bool) -> Runner:
    """Return the runner that was asked for.

    Args:
        on: "threads", "processes" or "fleet".
        jobs: Runs at a time on threads or processes.
        rest_on_threads: Let threads run what a fleet cannot take.
    """
    if on not in PLACES:
        raise InputError(f"--on {on}: use one of {', '.join(PLACES)}")
    count = count_jobs(jobs)
    if on == "processes":
        return Processes(count)
    threads = threads_of(jobs)
    if on == "threads":
        return threads
    return FleetRunner(rest=threads if rest_on_threads else None)


def threads_of(jobs: str) -> Threads:
    """Return the runner on this machine's threads.

    Args:
        jobs: Runs at a time: a number, or "auto".
    """
    return Threads("auto" if jobs == "auto" else count_jobs(jobs))
