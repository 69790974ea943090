"""`metareplay sweep`: try many settings, choose the best one honestly, and show what made the difference."""

import inspect
import shlex
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, fields
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
from metareplay.cli.run_options import AsJson, Engine, Kept
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


@final
@dataclass(frozen=True)
class Shared:
    """Hold the options that sweeps of streams and of games have in common, as typer reads them."""

    random: Annotated[
        int | None, typer.Option("--random", help="Try only this many settings, drawn without repetition.")
    ] = None
    random_seed: Annotated[int, typer.Option(help="With --random: decides which settings are drawn.")] = 0
    seed: Annotated[
        int, typer.Option(help="The first seed; it decides the stream, the first weights and every draw.")
    ] = 0
    seeds: Annotated[int, typer.Option(help="How many seeds to run for each setting.")] = 3
    on: On = "processes"
    jobs: Jobs = "auto"
    cores_per_run: CoresPerRun = 1.0
    gpus_per_run: GpusPerRun = 0.0
    engine: Engine = "auto"
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run again what has failed before.")] = False
    records: Kept = Path("runs")
    out: Annotated[Path, typer.Option(help="Folder for sweep.md, sweep.json and the picture.")] = Path("sweep")
    packed: Annotated[
        Path | None, typer.Option("--pack", help="Also write all records into this file, usually *.jsonl.")
    ] = None
    track: Track = None
    watch: Watch = False
    as_json: AsJson = False

    def grid(self, lists: dict[str, list[Any]]) -> Grid:
        """Return the settings to try."""
        grid = Grid(lists)
        return grid if self.random is None else grid.random(self.random, self.random_seed)

    def all_seeds(self) -> range:
        """Return the seeds to run."""
        if self.seeds < 1:
            raise InputError(f"--seeds {self.seeds}: run at least one")
        return range(self.seed, self.seed + self.seeds)

    def runner(self, *, games: bool) -> Runner:
        """Return the place that was asked for."""
        if self.engine == "cuda" and self.on == "processes":
            remark("several processes take turns on a GPU: --on threads lets their runs share it")
        return runner_at(
            self.on,
            self.jobs,
            rest_on_threads=True,
            games=games,
            cores_per_run=self.cores_per_run,
            gpus_per_run=self.gpus_per_run,
        )


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
    """Return a command that takes lists of values for these options and hands on `lists` in the order of the words.

    It also takes the shared options, and hands them on as `shared`.
    """
    flags = [word.partition("=")[0] for word in words]
    options = sorted(options, key=lambda one: flags.index(flag(one.name)) if flag(one.name) in flags else len(flags))
    kinds = {option.name: kind_of(option) for option in options}

    def command(**given: Any) -> None:
        typed = {name: given.pop(name) for name in kinds}
        lists = {name: values_of(name, kinds[name], text) for name, text in typed.items() if text is not None}
        shared = Shared(**{one.name: given.pop(one.name) for one in fields(Shared)})
        function(lists=lists, shared=shared, **given)

    command.__doc__ = function.__doc__
    own = [one for one in inspect.signature(function).parameters.values() if one.name not in ("lists", "shared")]
    fixed = [*own, *inspect.signature(Shared).parameters.values()]
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in fixed]
    )
    return with_options(command, [as_list(option) for option in options])


def sweep_stream(
    lists: dict[str, list[Any]],
    shared: Shared,
    learner: Annotated[
        str, typer.Argument(help=f"One of: {', '.join(LEARNERS_BY_NAME)}; or your own as file.py:Class.")
    ] = "mer",
    stream: Annotated[
        str, typer.Argument(help=f"One of: {', '.join(STREAMS_BY_NAME)}; with --paper also rotations-500 and alike.")
    ] = "rotations",
    paper: Annotated[
        bool, typer.Option("--paper", help=f"Search the paper's own grid; it has grids for {', '.join(GRIDS)}.")
    ] = False,
    select: Annotated[
        str,
        typer.Option(help="Choose by validation accuracy, or by test accuracy as in the paper: validation or test."),
    ] = "validation",
    held_out: Annotated[
        float, typer.Option(help="With --select validation: the share of training examples that is held out.")
    ] = 0.1,
    halving: Annotated[
        int | None,
        typer.Option(help="Keep only one setting out of this many after the first tasks, twice; 3 is a good number."),
    ] = None,
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
    template = Experiment(learner=learner, stream=stream, engine=check_engine(shared.engine))
    known = learner in LEARNERS_BY_NAME and stream in STREAMS_BY_NAME
    subject = StreamSubject(template, (lambda one: best(one.learner, one.stream, one.memory)) if known else None)
    try_all = partial(sweep, select=cast(Any, select), held_out=held_out, halving=halving)
    command = _Command(subject, ["run", learner, stream], shared, shared.runner(games=False))
    command.carry_out(try_all, lists, published)


def sweep_game(
    lists: dict[str, list[Any]],
    shared: Shared,
    learner: Annotated[str, typer.Argument(help=f"One of: {', '.join(AGENTS_BY_NAME)}.")] = "dqn-mer",
    game: Annotated[str, typer.Argument(help=f"One of: {', '.join(GAMES)}.")] = "catcher",
    quick: Annotated[
        bool, typer.Option("--quick", help="Learn from a few numbers instead of pictures: seconds instead of hours.")
    ] = False,
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
        engine=check_engine(shared.engine),
    )
    subject = GameSubject(template, lambda one: game_settings(one.learner, one.game, observation, one.memory_kind))
    words = ["run", learner, game, *(["--quick"] if quick else [])]
    _Command(subject, words, shared, shared.runner(games=True)).carry_out(sweep, lists)


@final
@dataclass(frozen=True)
class _Command:
    """Hold what was typed: what to try, the words that run one setting of it, and where."""

    subject: Subject
    words: list[str]
    shared: Shared
    runner: Runner

    def carry_out(
        self, try_all: Callable[..., Sweep], lists: dict[str, list[Any]], published: dict[str, Any] | None = None
    ) -> None:
        """Run the sweep, show what it found, and write it into the folder `out`."""
        shared, grid, seeds = self.shared, self.shared.grid(lists), self.shared.all_seeds()
        view = sweep_view(aside, self.subject.name, grid.fields)
        with (
            view as watcher,
            followed(watcher, shared.track, shared.watch, shared.records),
            redirect_stdout(sys.stderr),  # for what Ray, or somebody's learner, prints: results go to standard output
        ):
            found = try_all(
                self.subject,
                grid,
                seeds=seeds,
                folder=shared.records,
                runner=self.runner,
                retry_failed=shared.retry_failed,
                watcher=watcher,
            )
        report = Report(found, self._winner(found), published)
        report.write(shared.out)
        if shared.packed is not None:
            pack(found.records, shared.packed)
        if shared.as_json:
            print_json(report.document())
        else:
            _show(report)
        draw(found.plot, shared.out / "sweep.png")
        remark(f"report: {shared.out}/sweep.md and sweep.json; records: {shared.records}/")

    def _winner(self, found: Sweep) -> str:
        """Return the command that runs the chosen setting; its runs are in the records already."""
        shared = self.shared
        settings = [word for name, value in found.best.settings.items() for word in words_of(name, value)]
        others = ["--seeds", str(shared.seeds)]
        others += ["--seed", str(shared.seed)] if shared.seed else []
        others += ["--engine", shared.engine] if shared.engine != "auto" else []
        others += ["--records", str(shared.records)] if shared.records != Path("runs") else []
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


def _published(learner: str, stream: str, lists: dict[str, Any]) -> dict[str, Any] | None:
    """Return the paper's best setting, if a single memory size is tried and the paper lists one for it."""
    sizes = lists.get("memory", [500])
    return published_best(learner, stream, sizes[0]) if len(sizes) == 1 else None
