"""`metareplay bench`: what a step costs."""

from typing import Annotated

import typer

from metareplay.bench import cpu as benchmarks
from metareplay.bench import cuda as bench_cuda
from metareplay.bench import fleet as bench_fleet
from metareplay.cli.console import aside, print_json, print_table, shown
from metareplay.cli.display import bench_table, cuda_bench_table, fleet_bench_table

FLEET = "fleet"


def bench(
    engine: Annotated[str, typer.Option(help="auto, torch, cpu, cuda or fleet: whom to time.")] = "auto",
    rounds: Annotated[int, typer.Option(help="Turns that our engine and the torch loop take; medians are shown.")] = 7,
    seconds: Annotated[float, typer.Option(help="Seconds of one turn.")] = 0.5,
    quick: Annotated[bool, typer.Option("--quick", help="Only the first setting, shortly: does it work?")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Time a step of our engines against a clean torch loop, in turns, one thread; and how the cost grows."""
    if engine in ("cuda", FLEET):
        on_gpu, as_table = (bench_fleet, fleet_bench_table) if engine == FLEET else (bench_cuda, cuda_bench_table)
        with aside.status("timing on the GPU"):
            found = on_gpu.document(rounds, seconds, quick)
        if as_json:
            print_json(found)
        else:
            print_table(as_table(found))
        return
    headline = benchmarks.SETTINGS[:1] if quick else (*benchmarks.SETTINGS, *benchmarks.BASELINES)
    growth = () if quick else benchmarks.GROWTH
    timings = []
    with aside.status("timing") as status:
        for number, setting in enumerate((*headline, *growth), 1):
            status.update(f"timing {number}/{len(headline) + len(growth)}: {setting.name}")
            timings.append(benchmarks.measure(setting, engine, 2 if quick else rounds, 0.1 if quick else seconds))
        status.update("timing two runs side by side")
        jobs = None if quick else benchmarks.two_jobs(engine, rounds, seconds)
    document = benchmarks.document(timings[: len(headline)], timings[len(headline) :], jobs)
    if as_json:
        print_json(document)
        return
    print_table(bench_table(timings[: len(headline)], "A step against a clean torch loop, one core"))
    if growth:
        print_table(bench_table(timings[len(headline) :], "How the cost of a step grows (else k=101, s=10, 5120)"))
        shown.print(f"two runs on two cores take {jobs:.2f} of the time of one after the other", highlight=False)
