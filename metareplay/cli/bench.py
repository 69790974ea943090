"""The command `bench`: pick a benchmark, run it, and print its tables or its JSON document."""

import sys
from typing import Annotated

import typer

from metareplay.bench.arcade import ArcadeBenchmark
from metareplay.bench.cpu import CpuBenchmark
from metareplay.bench.cuda import CudaBenchmark
from metareplay.bench.fleet import FleetBenchmark
from metareplay.bench.frame import QUICK, Benchmark, Effort, as_text
from metareplay.bench.games import GamesBenchmark
from metareplay.bench.streaming import StreamingBenchmark
from metareplay.cli.console import aside, print_table
from metareplay.cli.display import bench_table
from metareplay.cli.run_options import AsJson
from metareplay.engines.choose import check_engine
from metareplay.errors import InputError

FLEET = "fleet"
PLACES: dict[str, type[Benchmark]] = {FLEET: FleetBenchmark, "games": GamesBenchmark, "arcade": ArcadeBenchmark}


def bench(
    engine: Annotated[str, typer.Option(help="auto, torch, cpu or cuda: the engine to time.")] = "auto",
    on: Annotated[
        str | None,
        typer.Option(
            help="fleet: time many runs at once on one GPU; games: time agents that play from states; arcade: agents "
            "that play from pictures, side by side on one GPU."
        ),
    ] = None,
    streaming: Annotated[
        bool, typer.Option("--streaming", help="Time examples of a stream, one by one, beside other libraries.")
    ] = False,
    rounds: Annotated[int, typer.Option(help="How many turns each side takes; medians are shown.")] = 7,
    seconds: Annotated[float, typer.Option(help="How many seconds one turn takes.")] = 0.5,
    quick: Annotated[
        bool, typer.Option("--quick", help="Time only the first setting, briefly, to see that it works.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Time the steps of an engine and of a clean torch loop in turns, or those of a fleet against a lower bound."""
    if streaming and (on is not None or engine != "auto"):
        raise InputError("--streaming times examples one by one: use it without --on and --engine")
    benchmark, effort = StreamingBenchmark() if streaming else _benchmark(engine, on), Effort(rounds, seconds)
    with aside.status("timing") as status:
        found = benchmark.run(QUICK if quick else effort, status.update)
    if as_json:
        sys.stdout.write(as_text(found))
    for sheet in [] if as_json else benchmark.sheets(found):
        print_table(bench_table(sheet))


def _benchmark(engine: str, on: str | None) -> Benchmark:
    """Return the benchmark that was asked for."""
    if engine == FLEET:
        raise InputError("--engine fleet: a fleet is a place to run, not an engine; use --on fleet")
    on = None if on == "threads" else on
    if on not in (None, *PLACES):
        raise InputError(f"--on {on}: use --on fleet, games or arcade, or leave --on out")
    if on is not None and engine != "auto":
        raise InputError(f"--engine {engine} and --on {on}: use one of them")
    if on is not None:
        return PLACES[on]()
    return CudaBenchmark() if engine == "cuda" else CpuBenchmark(check_engine(engine))
