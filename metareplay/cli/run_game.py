"""`metareplay run dqn-mer catcher`: train an agent on a game whose difficulty changes."""

from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, cast

import typer

from metareplay._core.text import deviation
from metareplay.cli.console import aside, draw, print_json, print_table, remark
from metareplay.cli.display import game_table
from metareplay.cli.following import Track, Watch, followed
from metareplay.cli.places import Jobs, On, runner_at
from metareplay.cli.progress import bars
from metareplay.cli.run_options import Engine, Fresh, Kept, RecordsAsJson, Seeds
from metareplay.engines.choose import check_engine
from metareplay.environments.registration import need_gymnasium
from metareplay.errors import MetareplayError
from metareplay.paper.game_results import GameResults
from metareplay.paper.games import CAPS, EPISODES, GameFigure
from metareplay.plots import plot_scores
from metareplay.rl import GameExperiment, GameRecord
from metareplay.rl.agent_file import SUFFIX
from metareplay.rl.game_experiment import AGENTS_BY_NAME, GAMES, MEMORIES, Observed
from metareplay.rl.settings import published as as_printed
from metareplay.rl.settings import settings
from metareplay.runners import without_failures


def run_game(
    learner: Annotated[str, typer.Argument(help=f"One of: {', '.join(AGENTS_BY_NAME)}.")] = "dqn-mer",
    game: Annotated[str, typer.Argument(help=f"One of: {', '.join(GAMES)}.")] = "catcher",
    quick: Annotated[
        bool, typer.Option("--quick", help="Learn from a few numbers instead of pictures: seconds instead of hours.")
    ] = False,
    published: Annotated[
        bool, typer.Option("--published", help="Use the paper's settings, which learn little, instead of ours.")
    ] = False,
    memory: Annotated[int, typer.Option(help="How many transitions are held.")] = 50_000,
    memory_kind: Annotated[
        str | None,
        typer.Option(help=f"One of: {', '.join(MEMORIES)}; default: recent for dqn, reservoir for dqn-mer."),
    ] = None,
    order: Annotated[str, typer.Option(help="The order of the tasks: published, reversed or shuffled.")] = "published",
    task: Annotated[int | None, typer.Option(help="Play only this task, from 1 to 6.")] = None,
    frames: Annotated[int, typer.Option(help="Frames per task.")] = 25_000,
    size: Annotated[
        int | None,
        typer.Option(
            help="Pixels on each side of the pictures; default: 64; for a screen of 640 pixels 68; for flappy-bird 84."
        ),
    ] = None,
    screen: Annotated[
        int | None,
        typer.Option(help="Catcher's own screen: 64, or 640 for the other reading of the paper; default: 64."),
    ] = None,
    every: Annotated[int, typer.Option(help="Frames between two evaluations of all tasks.")] = 5000,
    episodes: Annotated[
        int | None,
        typer.Option(help="Episodes per task in an evaluation; default: 10, or 3 for flappy-bird in pictures."),
    ] = None,
    cap: Annotated[
        int | None, typer.Option(help="The most frames of such an episode; default: 1500, or 2500 for flappy-bird.")
    ] = None,
    seed: Annotated[
        int, typer.Option(help="The first seed; it decides the game, the first weights and every draw.")
    ] = 0,
    seeds: Seeds = 1,
    on: On = "threads",
    jobs: Jobs = "auto",
    engine: Engine = "auto",
    records: Kept = Path("runs"),
    fresh: Fresh = False,
    track: Track = None,
    watch: Watch = False,
    as_json: RecordsAsJson = False,
    **options: Any,
) -> None:
    """Train an agent on a game; show its scores on all six tasks.

    Unless you give others, its settings are those that we found by search, or the paper's where nothing was searched.

    Give the same command again to continue an interrupted run. `metareplay play GAME --agent FILE` shows the agent.
    """
    if seeds < 1:
        raise MetareplayError(f"--seeds {seeds}: run at least one")
    need_gymnasium()
    observation: Observed = "state" if quick else "pixels"
    if quick and size is not None:
        raise MetareplayError(f"--size {size} and --quick, which learns without pictures: use one of them")
    known = as_printed(learner, game) if published else settings(learner, game, observation, memory_kind)
    wished = {"size": size, "screen": screen}
    experiments = [
        GameExperiment(
            learner=learner,
            game=game,
            observation=observation,
            memory=memory,
            memory_kind=memory_kind,
            options=known | {name: value for name, value in options.items() if value is not None},
            order=cast(Any, order),
            task=task,
            frames=frames,
            game_options={name: value for name, value in wished.items() if value is not None},
            every=every,
            episodes=EPISODES[observation].get(game, 10) if episodes is None else episodes,
            cap=CAPS.get(game, 1500) if cap is None else cap,
            seed=one,
            engine=check_engine(engine),
        )
        for one in range(seed, seed + seeds)
    ]
    if not quick and engine != "cuda" and on != "fleet":
        remark("learning from pictures takes 15 minutes or more per seed on a CPU: --quick takes seconds")
    runner = runner_at(on, jobs, rest_on_threads=False, games=True)
    with bars(aside) as watcher, followed(watcher, track, watch, records):
        ran = without_failures(runner.run(experiments, records, fresh=fresh, watcher=watcher))
    found = [one for one in ran if one is not None]
    title = f"{order} order, {observation}" if task is None else f"task {task} alone, {observation}"
    if as_json:
        print_json(found[0].to_json() if seeds == 1 else summary(found))
        return
    figure = GameFigure(f"{learner} on {game}", title, {learner: experiments[0]}, range(seed, seed + seeds))
    print_table(game_table(GameResults(figure, {learner: found})))
    agent = records / f"{found[0].name}{SUFFIX}"
    if agent.exists():  # a record that came in a packed file has none
        remark(f"watch it: metareplay play {game} --agent {agent}")
    draw(
        partial(plot_scores, {learner: found}, title=f"{learner} on {game}, {title}"), records / f"{found[0].name}.png"
    )


def summary(records: list[GameRecord]) -> dict[str, Any]:
    """Return the mean and spread of the scores, and all records, as plain JSON values.

    Args:
        records: The records of several seeds.
    """
    means = [record.final_mean for record in records]
    return {"summary": {"mean": fmean(means), "std": deviation(means)}, "records": [one.to_json() for one in records]}
