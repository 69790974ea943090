"""`metareplay play`: watch a player of Catcher or Flappy Bird, or play it oneself."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import numpy as np
import typer
from rich.table import Table
from rich.text import Text

from metareplay import environments
from metareplay._core.checks import check_count, check_rate
from metareplay.cli.agents import load_agent
from metareplay.cli.console import print_json, print_table, remark
from metareplay.cli.keyboard import has_keyboard
from metareplay.cli.live import Hands, live
from metareplay.cli.screen import can_show
from metareplay.cli.stopping import asked_to_stop
from metareplay.environments import CATCHER_SPEEDS, FLAPPY_BIRD_GAPS
from metareplay.environments.pictures import save_pictures
from metareplay.errors import InputError

if TYPE_CHECKING:  # these bring a compiler along, so they are imported only when a game is played
    from metareplay.environments.environment import GameEnv
    from metareplay.environments.episodes import Episode
    from metareplay.environments.players import Policy


class Choice(NamedTuple):
    """Hold what this command knows of a game.

    Args:
        name: Its name.
        environment: The name of its class.
        difficulty: The option that makes it harder.
        tasks: The paper's six values of this option.
        keys: The action of each key.
        nothing: The action when no key is pressed.
        hint: Says what the keys do.
    """

    name: str
    environment: str
    difficulty: str
    tasks: tuple[float, ...]
    keys: Mapping[str, int]
    nothing: int
    hint: str


CATCHER: Final = Choice(
    name="catcher",
    environment="CatcherEnv",
    difficulty="pellet_speed",
    tasks=CATCHER_SPEEDS,
    keys={"left": 0, "a": 0, "right": 1, "d": 1},
    nothing=2,
    hint="left/right or a/d: push",
)
FLAPPY_BIRD: Final = Choice(
    name="flappy-bird",
    environment="FlappyBirdEnv",
    difficulty="pipe_gap",
    tasks=FLAPPY_BIRD_GAPS,
    keys={"space": 0, "up": 0, "w": 0},
    nothing=1,
    hint="space, up or w: flap",
)
GAMES: Final = {"catcher": CATCHER, "flappy-bird": FLAPPY_BIRD, "flappy": FLAPPY_BIRD}
PLAYERS: Final = ("me", "greedy", "random")


def play(
    game: Annotated[str, typer.Argument(help="catcher or flappy-bird.")] = "catcher",
    player: Annotated[
        str | None,
        typer.Option(
            help="me (you, with the keyboard), greedy (a simple good player) or random; default: me in a terminal,"
            " greedy otherwise and with --out."
        ),
    ] = None,
    agent: Annotated[
        Path | None, typer.Option(help="Let a trained agent play: the file, *.agent, that `run` wrote.")
    ] = None,
    difficulty: Annotated[
        float | None,
        typer.Option(help="Catcher: speed of the pellets in pixels per ms. Flappy Bird: height of the gaps in pixels."),
    ] = None,
    task: Annotated[
        int | None, typer.Option(help="The difficulty of one of the paper's tasks, 1 to 6; default: 1.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The seed of the game; default: 0, or a new one each time if you play yourself.")
    ] = None,
    episodes: Annotated[int, typer.Option(help="How many episodes to play.")] = 1,
    frames: Annotated[int, typer.Option(help="The most frames per episode; 900 are 30 seconds.")] = 900,
    out: Annotated[
        Path | None,
        typer.Option(help="Write a GIF (name.gif; it runs at 33 frames per second) or PNG files (a new folder)."),
    ] = None,
    speed: Annotated[
        float, typer.Option(help="How fast to show the game in a terminal; 1 means 30 frames per second.")
    ] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as one JSON document.")] = False,
) -> None:
    """Watch a player of Catcher or Flappy Bird in the terminal, make a GIF of it, or play it yourself.

    The game is shown live if the output is a terminal and --out is not given; press q to leave. At the end a table has
    the score of each episode.
    """
    if game not in GAMES:
        raise InputError(f"game '{game}': use catcher or flappy-bird")
    chosen = GAMES[game]
    check_count("episodes", episodes, "there is nothing to play")
    check_count("frames", frames, "there is nothing to play")
    check_rate("speed", speed)
    if agent is not None and player is not None:
        raise InputError(f"--player {player} and --agent {agent}: use one of them")
    if player is not None and player not in PLAYERS:
        raise InputError(f"--player {player}: use one of {', '.join(PLAYERS)}")
    has_terminal = can_show() and has_keyboard()
    if player is None and agent is None:
        player = "me" if has_terminal and out is None else "greedy"
    if player == "me" and not has_terminal:
        raise InputError("--player me needs a terminal that shows the game and has a keyboard; use --player greedy")
    if seed is None:
        seed = int(np.random.default_rng().integers(2**32)) if player == "me" else 0
    trained = None if agent is None else load_agent(agent)
    if trained is not None and trained.game != chosen.name:
        raise InputError(f"--agent {agent}: it has learned {trained.game}, not {chosen.name}")
    if task is not None:
        difficulty = _difficulty_of(task, chosen.tasks if trained is None else trained.tasks, difficulty)
    env = _environment(chosen, {"observation": "raw"} if trained is None else trained.options, difficulty)
    env.game.new_state(seed)  # refuses a seed that cannot be used
    policy = _player(player, env, chosen, seed) if trained is None else trained.policy
    title = f"{chosen.name}, {chosen.difficulty.replace('_', ' ')} {getattr(env, chosen.difficulty):g}"
    saved = None if out is None else save_pictures(out)

    from metareplay.environments.episodes import play_episodes

    found = {}
    with ExitStack() as stack:
        stop = stack.enter_context(asked_to_stop())
        add = None if saved is None else stack.enter_context(saved)
        hands = policy if isinstance(policy, Hands) else None
        shown = can_show() and (out is None or hands is not None)
        window = stack.enter_context(live(env, title, hands, speed, stop)) if shown else None
        for now in play_episodes(env, policy, seed=seed, episodes=episodes, frames=frames):
            found[now.number] = now
            if add is not None and now.frames:
                add(env.picture())
            if window is not None:
                window.show(now)
            if stop.is_set():
                break
    played = [one for one in found.values() if one.frames]
    named = player or str(agent)
    if as_json:
        print_json(_document(chosen, env, named, seed, out, played))
    else:
        print_table(_table(title, f"player: {named}; seed: {seed}", played))
    if out is not None and played:
        remark(f"pictures: {out}")


def _difficulty_of(task: int, tasks: Sequence[float], difficulty: float | None) -> float:
    """Return the difficulty of one of the paper's tasks, if no other was asked for."""
    if difficulty is not None:
        raise InputError(f"--difficulty {difficulty:g} and --task {task}: use one of them")
    if not 1 <= task <= len(tasks):
        raise InputError(f"--task {task}: use a number from 1 to {len(tasks)}")
    return tasks[task - 1]


def _environment(chosen: Choice, options: Mapping[str, Any], difficulty: float | None) -> "GameEnv":
    """Return the game, as hard as was asked for."""
    env: GameEnv = getattr(environments, chosen.environment)(**options)
    if difficulty is not None:
        value = int(difficulty) if float(difficulty).is_integer() else difficulty
        try:
            setattr(env, chosen.difficulty, value)
        except InputError as error:
            raise InputError(f"--difficulty {difficulty:g}: {error}") from error
    return env


def _player(name: str | None, env: "GameEnv", chosen: Choice, seed: int) -> "Policy":
    """Return a player by its name."""
    from metareplay.environments.players import greedy_player, random_player

    if name == "me":
        return Hands(chosen.keys, chosen.nothing, chosen.hint)
    return greedy_player(env.game) if name == "greedy" else random_player(env.game, seed)


def _table(title: str, caption: str, played: Sequence["Episode"]) -> Table:
    """Make a table with one row per episode."""
    rows = Table(title=title, caption=Text(caption), title_justify="left", caption_justify="left")
    for name in ("episode", "frames", "score", "return"):
        rows.add_column(name, justify="right", no_wrap=True)
    rows.add_column("end", no_wrap=True)
    for one in played:
        rows.add_row(str(one.number), str(one.frames), str(one.score), f"{one.total_reward:g}", one.end)
    return rows


def _document(
    chosen: Choice, env: "GameEnv", player: str, seed: int, out: Path | None, played: Sequence["Episode"]
) -> dict[str, Any]:
    """Return the results for JSON."""
    return {
        "game": chosen.name,
        chosen.difficulty: getattr(env, chosen.difficulty),
        "player": player,
        "seed": seed,
        "pictures": None if out is None or not played else str(out),
        "episodes": [
            {"frames": one.frames, "score": one.score, "return": one.total_reward, "end": one.end} for one in played
        ],
    }
