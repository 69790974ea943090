"""Playing whole episodes, with a look at the game after every frame."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, final

from metareplay.environments.environment import GameEnv
from metareplay.environments.players import Policy

End = Literal["lost", "frame cap", "left"]


@final
@dataclass(frozen=True)
class Episode:
    """Say how an episode stands, or how it has ended.

    Args:
        number: The number of the episode; the first has the number 1.
        frames: The number of frames that have been played.
        score: Pellets caught, or pipes reached.
        total_reward: The sum of all rewards.
        end: How it has ended; "left" as long as it goes on, which holds for good if nobody plays on.
    """

    number: int
    frames: int = 0
    score: int = 0
    total_reward: float = 0.0
    end: End = "left"


def play_episodes(env: GameEnv, policy: Policy, *, seed: int, episodes: int, frames: int) -> Iterator[Episode]:
    """Play, and yield how the episode stands at its beginning and after every frame.

    Args:
        env: The game.
        policy: Chooses the actions.
        seed: Decides what the game draws, in all episodes.
        episodes: How many episodes to play.
        frames: The most frames that an episode may have, at least 1.
    """
    for number in range(1, episodes + 1):
        observation, _ = env.reset(seed=seed if number == 1 else None)
        now = Episode(number)
        yield now
        while now.end == "left":
            observation, reward, over, _, info = env.step(policy(observation))
            played, total = now.frames + 1, now.total_reward + reward
            end: End = "lost" if over else "frame cap" if played >= frames else "left"
            now = Episode(number, played, info["score"], total, end)
            yield now
