"""`metareplay sweep`: try many settings, choose the best one honestly, and show what made the difference."""

import inspect
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, cast, final

import typer

from metareplay.cli.console import aside, draw, print_json, print_table, remark, shown
from metareplay.cli.display import text_rows
from metareplay.cli.following import Track, Watch, followed
from metareplay.cli.lists import as_list, flag, kind_of, listed, values_of, words_of
from metareplay.cli.options import learner_options
from metareplay.cli.places import CoresPerRun, GpusPerRun, Jobs, On, runner_at
from metareplay.cli.run import named, own_learner, run, with_options
from metareplay.cli.run_game import run_game
from metareplay.cli.sweep_view import sweep_view
from metareplay.engines.choose import check_engine
from metareplay.environments.registration import need_gymnasium
from metareplay.errors import InputError, MetareplayError
from metareplay.experiments import Experiment, pack
from metareplay.experiments.names import LEARNERS_BY_NAME, STREAMS_BY_NAME
from metareplay.learners import LEARNERS, Q_LEARNERS
from metareplay.paper.best import best
from metareplay.paper.games import CAPS, EPISODES
from metareplay.paper.grids import GRIDS, benchmark, paper_grid, published_best
from metareplay.rl.game_experiment import AGENTS_BY_NAME, GAMES, GameExperiment, Observed
from metareplay.rl.settings import settings as game_settings
from metareplay.runners import Runner
from metareplay.sweeps import GameSubject, Grid, Report, StreamSubject, Subject, Sweep, sweep
from metareplay.sweeps.report import marginal_cells, ranking_cells

OF_RUN: Final = (  # options of `run` that become lists, besides the learner's own
    *("memory", "memory_kind", "tasks", "examples", "images", "test_examples"),
    *("norm", "init", "order", "split", "resolution", "pixels", "labels"),
)
OF_GAMES: Final = (*("memory", "memory_kind", "order", "task", "frames", "size", "screen", "every", "episodes", "cap"),)
TOP: Final = 10  # settings in the table on the screen

Seed = Annotated[int, typer.Option(help="The first seed; it decides the stream, the first weights and every draw.")]
Seeds = Annotated[int, typer.Option(help="How many seeds to run for each setting.")]
Random = Annotated[int | None, typer.Option("--random", help="Try only so many settings, drawn without repetition.")]
RandomSeed = Annotated[int, typer.Option(help="With --random: decides which settings are drawn.")]
Retry = Annotated[bool, typer.Option("--retry-failed", help="Run again what has failed before.")]
Engine = Annotated[str, typer.Option(help="What does the arithmetic: auto, torch, cpu or cuda.")]
Kept = Annotated[Path, typer.Option("--records", help="Folder for the records of finished runs.")]
Out = Annotated[Path, typer.Option(help="Folder for sweep.md, sweep.json and the picture.")]
Packed = Annotated[Path | None, typer.Option("--pack", help="Also write all records into this file, usually *.jsonl.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def sweep_command(words: list[str]) -> Callable[..., None]:
    """Make the command, whose options are those of `run` as lists; the words may name a learner of the user's own.

    Args:
        words: What was typed.
    """
    if set(named(words, "sweep")) & {*AGENTS_BY_NAME, *GAMES}:
        options = [*listed(run_game, OF_GAMES), *learner_options(Q_LEARNERS)]
        return _with_lists(sweep_game, options, words)
    options = [*listed(run, OF_RUN), *learner_options((*own_learner(words, "sweep"), *LEARNERS))]
    return _with_lists(sweep_stream, options, words)


def _with_lists(
    function: Callable[..., None], options: list[inspect.Parameter], words: list[str]
) -> Callable[..., None]:
    """Return a command that takes lists of values for these options and hands on `lists` in the order of the words."""
    flags = [word.partition("=")[0] for word in words]
    options = sorted(options, key=lambda one: flags.index(flag(one.name)) if flag(one.name) in flags else len(flags))
    kinds = {option.name: kind_of(option) for option in options}

    def command(**given: Any) -> None:
        typed = {name: given.pop(name) for name in kinds}
        lists = {name: values_of(name, kinds[name], text) for name, text in typed.items() if text is not None}
        function(lists=lists, **given)

    command.__doc__ = function.__doc__
    fixed = [one for one in inspect.signature(function).parameters.values() if one.name != "lists"]
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in fixed]
    )
    return with_options(command, [as_list(option) for option in options])


def sweep_stream(
    lists: dict[str, list[Any]],
    learner: Annotated[
        str, typer.Argument(help=f"One of: {', '.join(LEARNERS_BY_NAME)}; or your own as file.py:Class.")
    ] = "mer",
    stream: Annotated[
        str, typer.Argument(help=f"One of: {', '.join(STREAMS_BY_NAME)}; with --paper also rotations-500 and alike.")
    ] = "rotations",
    paper: Annotated[
        bool, typer.Option("--paper", help=f"Search the paper's own grid; it has grids for {', '.join(GRIDS)}.")
    ] = False,
    random: Random = None,
    random_seed: RandomSeed = 0,
    select: Annotated[
        str,
        typer.Option(help="Choose by validation accuracy, or by test accuracy as in the paper: validation or test."),
    ] = "validation",
    held_out: Annotated[
        float, typer.Option(help="With --select validation: the share of training examples that is held out.")
    ] = 0.1,
    halving: Annotated[
        int | None,
        typer.Option(help="Keep only one setting out of so many after the first tasks, twice; 3 is a good number."),
    ] = None,
    seed: Seed = 0,
    seeds: Seeds = 3,
    on: On = "processes",
    jobs: Jobs = "auto",
    cores_per_run: CoresPerRun = 1.0,
    gpus_per_run: GpusPerRun = 0.0,
    engine: Engine = "auto",
    retry_failed: Retry = False,
    records: Kept = Path("runs"),
    out: Out = Path("sweep"),
    packed: Packed = None,
    track: Track = None,
    watch: Watch = False,
    as_json: AsJson = False,
) -> None:
    """Try all combinations of some settings; show the best, what made the difference, and the result on test examples.

    Every option of a learner, the memory and the stream takes a list: --lr 0.01,0.03,0.1 --k 6,11. Those that are not
    given have the paper's best values. Give the same command again to continue; with more values or seeds, only what is
    new is run. For games, see `metareplay sweep dqn-mer catcher --help`.
    """
    if select not in ("validation", "test"):
        raise MetareplayError(f"--select {select}: use validation or test")
    published = None
    if paper:
        stream, size = benchmark(stream)
        printed = {name: list(values) for name, values in paper_grid(learner).items()}
        lists = {**({} if size is None else {"memory": [size]}), **printed, **lists}
        published = _published(learner, stream, lists)
    template = Experiment(learner=learner, stream=stream, engine=check_engine(engine))
    known = learner in LEARNERS_BY_NAME and stream in STREAMS_BY_NAME
    subject = StreamSubject(template, (lambda one: best(one.learner, one.stream, one.memory)) if known else None)
    try_all = partial(sweep, select=cast(Any, select), held_out=held_out, halving=halving)
    runner = _runner(on, jobs, engine, cores_per_run, gpus_per_run)
    grid = _grid(lists, random, random_seed)
    command = _Command(
        subject, grid, ["run", learner, stream], _seeds(seed, seeds), runner, engine, retry_failed, track, watch
    )
    command.carry_out(try_all, records, out, published, packed, as_json=as_json)


def sweep_game(
    lists: dict[str, list[Any]],
    learner: Annotated[str, typer.Argument(help=f"One of: {', '.join(AGENTS_BY_NAME)}.")] = "dqn-mer",
    game: Annotated[str, typer.Argument(help=f"One of: {', '.join(GAMES)}.")] = "catcher",
    quick: Annotated[
        bool, typer.Option("--quick", help="Learn from a few numbers instead of pictures: seconds instead of hours.")
    ] = False,
    random: Random = None,
    random_seed: RandomSeed = 0,
    seed: Seed = 0,
    seeds: Seeds = 3,
    on: On = "processes",
    jobs: Jobs = "auto",
    cores_per_run: CoresPerRun = 1.0,
    gpus_per_run: GpusPerRun = 0.0,
    engine: Engine = "auto",
    retry_failed: Retry = False,
    records: Kept = Path("runs"),
    out: Out = Path("sweep"),
    packed: Packed = None,
    track: Track = None,
    watch: Watch = False,
    as_json: AsJson = False,
) -> None:
    """Try all combinations of some settings of an agent; show the best by their mean final score, and what they change.

    Every option of the agent and the game takes a list: --lr 0.0001,0.001 --target-every 100,500. Agents are chosen by
    the scores in evaluation episodes, as there are no examples to hold out.
    """
    need_gymnasium()
    observation: Observed = "state" if quick else "pixels"
    template = GameExperiment(
        learner=learner,
        game=game,
        observation=observation,
        episodes=EPISODES[observation].get(game, 10),
        cap=CAPS.get(game, 1500),
        engine=check_engine(engine),
    )
    subject = GameSubject(template, lambda one: game_settings(one.learner, one.game, observation, one.memory_kind))
    words = ["run", learner, game, *(["--quick"] if quick else [])]
    runner = _runner(on, jobs, engine, cores_per_run, gpus_per_run, games=True)
    grid = _grid(lists, random, random_seed)
    command = _Command(subject, grid, words, _seeds(seed, seeds), runner, engine, retry_failed, track, watch)
    command.carry_out(sweep, records, out, None, packed, as_json=as_json)


@final
@dataclass(frozen=True)
class _Command:
    """Hold what was typed: what to try, and where."""

    subject: Subject
    grid: Grid
    words: list[str]
    seeds: range
    runner: Runner
    engine: str
    retry_failed: bool
    track: list[str] | None
    watch: bool

    def carry_out(
        self,
        try_all: Callable[..., Sweep],
        records: Path,
        out: Path,
        published: dict[str, Any] | None,
        packed: Path | None,
        *,
        as_json: bool,
    ) -> None:
        """Run the sweep, show what it found, and write it into the folder `out`."""
        view = sweep_view(aside, self.subject.name, self.grid.fields)
        with view as watcher, followed(watcher, self.track, self.watch, records):
            found = try_all(
                self.subject,
                self.grid,
                seeds=self.seeds,
                folder=records,
                runner=self.runner,
                retry_failed=self.retry_failed,
                watcher=watcher,
            )
        report = Report(found, self._winner(found, records), published)
        report.write(out)
        if packed is not None:
            pack(found.records, packed)
        if as_json:
            print_json(report.document())
        else:
            _show(report)
        draw(found.plot, out / "sweep.png")
        remark(f"report: {out}/sweep.md and sweep.json; records: {records}/")

    def _winner(self, found: Sweep, records: Path) -> str:
        """Return the command that runs the chosen setting; its runs are in the records already."""
        settings = [word for name, value in found.best.settings.items() for word in words_of(name, value)]
        others = ["--seeds", str(len(self.seeds))]
        others += ["--seed", str(self.seeds[0])] if self.seeds[0] else []
        others += ["--engine", self.engine] if self.engine != "auto" else []
        others += ["--records", str(records)] if records != Path("runs") else []
        return shlex.join(["metareplay", *self.words, *settings, *others])


def _show(report: Report) -> None:
    """Print the best settings, the effect of each field, and the command for the best one."""
    found = report.sweep
    title = f"{found.name}: the best of {len(found.grid)} settings"
    print_table(text_rows(title, *ranking_cells(found, TOP)))
    if found.grid.fields:
        print_table(text_rows("effect of each field, over all settings", *marginal_cells(found.marginals())))
    for line in report.lines():
        shown.print(line, highlight=False, markup=False, soft_wrap=True)
    shown.print(f"Run it again: {report.command}", highlight=False, markup=False, soft_wrap=True)


def _grid(lists: dict[str, list[Any]], sample: int | None, seed: int) -> Grid:
    return Grid(lists) if sample is None else Grid(lists).random(sample, seed)


def _runner(
    on: str, jobs: str, engine: str, cores_per_run: float, gpus_per_run: float, *, games: bool = False
) -> Runner:
    """Return the place that was asked for."""
    if engine == "cuda" and on == "processes":
        remark("several processes take turns on a GPU: --on threads lets their runs share it")
    return runner_at(
        on, jobs, rest_on_threads=True, games=games, cores_per_run=cores_per_run, gpus_per_run=gpus_per_run
    )


def _seeds(first: int, count: int) -> range:
    if count < 1:
        raise InputError(f"--seeds {count}: run at least one")
    return range(first, first + count)


def _published(learner: str, stream: str, lists: dict[str, Any]) -> dict[str, Any] | None:
    """Return the paper's best setting, if a single memory size is tried and the paper lists one for it."""
    sizes = lists.get("memory", [500])
    return published_best(learner, stream, sizes[0]) if len(sizes) == 1 else None
