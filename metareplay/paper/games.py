"""The paper's second half: which agents play which games for each figure, and the search for their settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final, final

from metareplay.environments.schedule import Order
from metareplay.rl.game_experiment import GameExperiment, Observed
from metareplay.rl.settings import MER_WITH_ADAM, published, settings

SEARCH: Final = "search-"  # what names of searches begin with
SEARCHED: Final = {"pixels": (100,), "state": (100, 101)}  # seeds of the searches, which no figure uses
LEARNERS: Final = {"DQN": ("dqn", None), "DQN, reservoir": ("dqn", "reservoir"), "DQN-MER": ("dqn-mer", None)}
ADAM: Final = "DQN-MER, Adam"  # the best settings with Adam inside; DQN-MER itself takes the plain steps of Algorithm 8
RATES: Final[dict[str, dict[str, dict[str, tuple[float, ...]]]]] = {  # that were searched, by learner and optimizer
    "pixels": {
        "dqn": {"adam": (3e-5, 1e-4, 3e-4), "sgd": (0.01, 0.03, 0.1, 0.3)},
        "dqn-mer": {"adam": (1e-5, 3e-5, 1e-4), "sgd": (0.001, 0.003, 0.01, 0.03)},
    },
    "state": {
        "dqn": {"adam": (1e-4, 3e-4, 1e-3), "sgd": (0.05, 0.15, 0.5)},
        "dqn-mer": {"adam": (3e-5, 1e-4, 3e-4), "sgd": (0.005, 0.015, 0.05)},
    },
}
PERIODS: Final[
    dict[str, dict[str, tuple[int, ...]]]
] = {  # frames between two copies of the target network, by what is observed and game
    "pixels": {"catcher": (100,), "flappy-bird": (500,)},
    "state": {"catcher": (100, 500), "flappy-bird": (100, 500)},
}
SEARCH_FRAMES: Final = {"pixels": 12_500, "state": 25_000}  # per task in a search
EVERY: Final = {"pixels": 12_500, "state": 5000}  # frames between two evaluations
EPISODES: Final = {"pixels": {"catcher": 10, "flappy-bird": 3}, "state": {"catcher": 10, "flappy-bird": 10}}
SEEDS: Final = {"pixels": {"catcher": 5, "flappy-bird": 3}, "state": {"catcher": 5, "flappy-bird": 5}}
CAPS: Final = {"catcher": 1500, "flappy-bird": 2500}  # frames of an episode in an evaluation


@final
@dataclass(frozen=True)
class GameFigure:
    """Describe a picture of agents that play a game.

    Args:
        name: Its name on the command line.
        title: Its title.
        arms: What each agent does, by the agent's name; the seed is set later.
        seeds: The seeds of each agent.
        tasks: The tasks that it shows, counted from 1; all of them if none is named.
        curves: Whether scores are drawn over time; otherwise it is only a table of the scores at the end.
    """

    name: str
    title: str
    arms: Mapping[str, GameExperiment]
    seeds: Sequence[int]
    tasks: tuple[int, ...] = ()
    curves: bool = True

    def experiments(self, seeds: int | None = None, frames: int | None = None) -> list[GameExperiment]:
        """Return what to run, agent by agent.

        Args:
            seeds: How many seeds per agent; None for the figure's own.
            frames: Frames per task, for a miniature that takes seconds; None for the figure's own.
        """
        chosen = self.seeds if seeds is None else range(self.seeds[0], self.seeds[0] + seeds)
        arms = self.arms.values() if frames is None else [_miniature(arm, frames) for arm in self.arms.values()]
        return [replace(arm, seed=seed) for arm in arms for seed in chosen]


def _arm(
    name: str, game: str, observation: Observed, order: Order = "published", as_printed: bool = False, **changes: Any
) -> GameExperiment:
    learner, kind = LEARNERS[name]
    options = published(learner, game) if as_printed else settings(learner, game, observation, kind)
    return GameExperiment(
        learner=learner,
        game=game,
        observation=observation,
        memory_kind=kind,
        options=options,
        order=order,
        **{"episodes": EPISODES[observation][game], "cap": CAPS[game], "every": EVERY[observation]} | changes,
    )


def _compared(game: str, observation: Observed, order: Order) -> GameFigure:
    """Return the agents with our settings, and DQN and DQN-MER with the published ones."""
    arms = {name: _arm(name, game, observation, order) for name in LEARNERS}
    arms[ADAM] = replace(arms["DQN-MER"], options=arms["DQN-MER"].options | MER_WITH_ADAM[game, observation])
    for name in ("DQN", "DQN-MER"):
        arms[f"{name}, published settings"] = _arm(name, game, observation, order, as_printed=True)
    return GameFigure(
        _name(f"figure-{_short(game)}", observation, order),
        f"{_long(game)} from {_seen(observation)}, {order} order",
        arms,
        range(SEEDS[observation][game]),
    )


def _other_reading(observation: Observed, order: Order) -> GameFigure:
    """Return the agents on Catcher with the pellet speeds of a screen of 640 pixels, the other reading of the paper."""
    figure = _compared("catcher", observation, order)
    return replace(
        figure,
        name=_name("figure-catcher-640", observation, order),
        title=f"Catcher on a screen of 640 pixels from {_seen(observation)}, {order} order",
        arms={name: replace(arm, game_options={"screen": 640}) for name, arm in figure.arms.items()},
    )


def _first_task(observation: Observed) -> GameFigure:
    """Return the agents of both games, with the first task alone."""
    figures = {_long(game): _compared(game, observation, "published") for game in CAPS}
    arms = {f"{game}: {name}": arm for game, figure in figures.items() for name, arm in figure.arms.items()}
    name = _name("figure-first-task", observation, "published")
    seeds = min((figure.seeds for figure in figures.values()), key=len)
    return GameFigure(name, f"The first task from {_seen(observation)}, published order", arms, seeds, tasks=(1,))


def _single(game: str, observation: Observed, frames: int, seeds: int, tasks: Sequence[int]) -> GameFigure:
    """Return DQN on one task alone, for each task."""
    # From pixels as often as in the figures, so that these agents and those can play side by side.
    every = EVERY["pixels"] if observation == "pixels" else max(EVERY["state"], frames // 10)
    arms = {
        f"DQN, task {task} alone": _arm("DQN", game, observation, task=task, frames=frames, every=every)
        for task in tasks
    }
    how = f"{frames // 1000}k"
    name = _name(f"alone-{_short(game)}-{how}", observation, "published")
    title = f"{_long(game)} from {_seen(observation)}, one task alone, {how} frames"
    return GameFigure(name, title, arms, range(seeds), curves=False)


def _search(game: str, observation: Observed) -> GameFigure:
    """Return the search for settings: the same number of settings, the same seeds for each agent."""
    arms = {}
    for name, (learner, _) in LEARNERS.items():
        for (optimizer, rates), period in product(RATES[observation][learner].items(), PERIODS[observation][game]):
            for rate in rates:
                arm = _arm(name, game, observation, frames=SEARCH_FRAMES[observation])
                options = arm.options | {"lr": rate, "optimizer": optimizer, "target_every": period}
                arms[f"{name}, {optimizer} {rate:g}, target {period}"] = replace(arm, options=options)
    name = _name(f"{SEARCH}{_short(game)}", observation, "published")
    title = f"{_long(game)} from {_seen(observation)}: search"
    return GameFigure(name, title, arms, SEARCHED[observation], curves=False)


def _name(start: str, observation: Observed, order: Order) -> str:
    return start + ("-states" if observation == "state" else "") + ("" if order == "published" else f"-{order}")


def _short(game: str) -> str:
    return game.partition("-")[0]


def _long(game: str) -> str:
    return {"catcher": "Catcher", "flappy-bird": "Flappy Bird"}[game]


def _seen(observation: Observed) -> str:
    return "pictures" if observation == "pixels" else "states"


def _all_figures() -> list[GameFigure]:
    found, tasks = [], range(1, 7)
    seen: tuple[Observed, Observed] = ("pixels", "state")
    orders: tuple[Order, Order] = ("published", "reversed")
    for observation, game, order in product(seen, CAPS, orders):
        found.append(_compared(game, observation, order))
    found += [_other_reading(observation, order) for observation, order in product(seen, orders)]
    found += [_first_task(observation) for observation in seen]
    for game in CAPS:
        found += [_single(game, "state", 25_000, 3, tasks), _single(game, "state", 150_000, 3, tasks)]
        found += [_single(game, "state", 1_000_000, 1, tasks)]
        found += [_single(game, "pixels", 25_000, 3, tasks), _single(game, "pixels", 150_000, 3, tasks)]
        found += [_search(game, observation) for observation in seen]
    return found


def game_figures() -> dict[str, GameFigure]:
    """Return the figures of the paper's second half, the single-task references and the searches, by name."""
    return {one.name: one for one in _all_figures()}


def _miniature(arm: GameExperiment, frames: int) -> GameExperiment:
    """Return an experiment that is so small that it takes seconds."""
    options = arm.options | {"warmup": 20, "k": 3}
    size = {"size": 36} if arm.observation == "pixels" else {}  # the smallest that the network takes
    small = replace(arm, frames=frames, every=3 * frames, episodes=1, cap=50, memory=200, options=options)
    return replace(small, game_options=arm.game_options | size)
