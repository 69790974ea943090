"""`metareplay paper`: the paper's tables and figures, our numbers beside theirs."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from metareplay.cli.console import aside, print_json, print_table, remark, shown
from metareplay.cli.display import game_table, paper_table
from metareplay.cli.following import Track, Watch, followed
from metareplay.cli.places import CoresPerRun, GpusPerRun, Jobs, On, runner_at
from metareplay.cli.progress import bars
from metareplay.cli.run_options import AsJson, Fresh, Kept
from metareplay.engines.choose import check_engine
from metareplay.errors import MetareplayError
from metareplay.paper.game_results import WantedGames, write_games
from metareplay.paper.game_results import as_document as game_document
from metareplay.paper.games import game_figures
from metareplay.paper.reproduce import Wanted, as_json, chosen, pack_records, titles, write, write_page
from metareplay.paper.results import summary
from metareplay.runners import without_failures

SMALL = 5  # frames per task in a miniature


def paper(
    names: Annotated[list[str] | None, typer.Argument(help="Names that --list shows, or all.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="Name the tables and figures.")] = False,
    seeds: Annotated[
        int | None, typer.Option(help="Seeds per number; default: the paper's, or 5 if runs are long.")
    ] = None,
    on: On = "threads",
    jobs: Jobs = "auto",
    cores_per_run: CoresPerRun = 1.0,
    gpus_per_run: GpusPerRun = 0.0,
    engine: Annotated[
        str, typer.Option(help="What does the arithmetic of new runs: auto, torch, cpu or cuda.")
    ] = "auto",
    records: Kept = Path("runs"),
    out: Annotated[Path, typer.Option(help="Folder for tables (Markdown, CSV, JSON) and pictures.")] = Path("paper"),
    only_records: Annotated[
        bool, typer.Option("--only-records", help="Run nothing; show only what is recorded.")
    ] = False,
    fresh: Fresh = False,
    packed: Annotated[Path | None, typer.Option("--pack", help="Also write the records into this file.")] = None,
    page: Annotated[Path | None, typer.Option("--document", help="Also write one page with all tables.")] = None,
    tasks: Annotated[int | None, typer.Option(help="For a miniature: the number of tasks.")] = None,
    examples: Annotated[int | None, typer.Option(help="For a miniature: examples per task.")] = None,
    test_examples: Annotated[int | None, typer.Option(help="For a miniature: test images per task.")] = None,
    frames: Annotated[int | None, typer.Option(help="For a miniature of games: frames per task.")] = None,
    track: Track = None,
    watch: Watch = False,
    to_json: AsJson = False,
) -> None:
    """Show the paper's tables with our numbers. A finished run is never repeated; an interrupted one is continued.

    With --on fleet, a GPU runs what a fleet can take, and this machine's cores run the rest.
    """
    if listed or not names:
        every = titles()
        widest = max(map(len, every))
        for name, title in every.items():
            shown.print(f"{name:{widest}} {title}", highlight=False, soft_wrap=True)
        return
    if on == "fleet" and fresh:
        raise MetareplayError("--fresh and --on fleet: use one of them, or an empty folder for --records")
    asked, playable = chosen(names), game_figures()
    wanted = Wanted(
        [name for name in asked if name not in playable],
        seeds,
        {"tasks": tasks, "examples": examples, "test_examples": test_examples},
    )
    if frames is None and (tasks, examples, test_examples) != (None, None, None):
        frames = SMALL  # games become miniatures, too
    played = WantedGames([name for name in asked if name in playable], seeds, frames, check_engine(engine))
    if only_records:
        found, games = wanted.results(wanted.recorded(records)), played.results(played.recorded(records))
    else:
        name = check_engine(engine)
        runner, player = (
            runner_at(
                on, jobs, rest_on_threads=True, games=games, cores_per_run=cores_per_run, gpus_per_run=gpus_per_run
            )
            for games in (False, True)
        )
        experiments = [replace(one, engine=name) for one in wanted.experiments]
        if name != "cuda" and tasks is None and any(one.stream == "omniglot" for one in experiments):
            remark("Omniglot without a GPU: minutes for Online, hours for MER, days for GEM; --engine cuda is faster")
        pictures = frames is None and any(one.observation == "pixels" for one in played.experiments)
        if pictures and name != "cuda" and on != "fleet":
            remark("games from pictures without a GPU take hours per run: use the figures from states, or --on fleet")
        with bars(aside) as watcher, followed(watcher, track, watch, records):
            learned = runner.run(experiments, records, fresh=fresh, watcher=watcher) if experiments else []
            found = wanted.results(without_failures(learned))
            due = played.experiments
            scores = player.run(due, records, fresh=fresh, watcher=watcher) if due else []
            games = played.results(without_failures(scores))
    for trouble in (*write(found, out), *write_games(games, out)):
        remark(trouble)
    for one in found:
        if not one.numbers:
            remark(f"{one.name}: none of its runs is in {records} yet")
        elif one.is_table and not to_json:
            print_table(paper_table(f"{one.table.name}: {one.table.title}", one.numbers))
            for note in (*one.table.notes, summary(one.numbers)):
                shown.print(note, highlight=False, soft_wrap=True)
    for results in games:
        if not results.records:
            remark(f"{results.figure.name}: none of its runs is in {records} yet")
        elif not to_json:
            print_table(game_table(results))
    if to_json:
        print_json(as_json(found) | ({"games": [game_document(one) for one in games if one.records]} if games else {}))
    if packed is not None:
        pack_records(found, games, packed)
    if page is not None:
        write_page(found, games, page)
    remark(f"tables and pictures: {out}/; records: {records}/")
