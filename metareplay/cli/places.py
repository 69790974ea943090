"""The option --on, which says where a command runs its experiments."""

from typing import Annotated, Final

import typer

from metareplay.errors import InputError
from metareplay.runners import FleetRunner, Processes, RayCluster, Runner, Threads
from metareplay.runners.threads import count_jobs

PLACES: Final = ("threads", "processes", "fleet", "ray", "ray:ADDRESS")

On = Annotated[
    str,
    typer.Option(
        "--on",
        help="Where to run: threads (this machine's cores, or its GPU with --engine cuda), processes (this machine's "
        "cores; a run that dies harms no other), fleet (one GPU), ray (the Ray cluster that this machine is part of, "
        "or a new one), or ray:ADDRESS.",
    ),
]
Jobs = Annotated[
    str,
    typer.Option(
        help="Runs at a time on threads or processes: a number, or auto for one per core, and on threads at least 8 "
        "on a GPU."
    ),
]
CoresPerRun = Annotated[float, typer.Option(help="With --on ray: how many cores a run takes up.")]
GpusPerRun = Annotated[float, typer.Option(help="With --on ray: how many GPUs a run takes up, such as 0.5.")]


def runner_at(
    on: str, jobs: str, *, rest_on_threads: bool, cores_per_run: float = 1.0, gpus_per_run: float = 0.0
) -> Runner:
    """Return the runner that was asked for.

    Args:
        on: "threads", "processes", "fleet", "ray" or "ray:ADDRESS".
        jobs: Runs at a time on threads or processes.
        rest_on_threads: Let threads run what a fleet cannot take.
        cores_per_run: How many cores a run takes up on a Ray cluster.
        gpus_per_run: How many GPUs a run takes up there.
    """
    place, _, address = on.partition(":")
    if place == "ray" and (address or on == "ray"):
        return RayCluster(address or None, cores_per_run=cores_per_run, gpus_per_run=gpus_per_run)
    if on not in PLACES:
        raise InputError(f"--on {on}: use one of {', '.join(PLACES)}")
    if (cores_per_run, gpus_per_run) != (1.0, 0.0):
        raise InputError(f"--cores-per-run and --gpus-per-run are for --on ray, not for --on {on}: leave them out")
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
