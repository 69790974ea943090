"""The built-in players, and how their episodes end."""

import pytest

from metareplay.environments import CATCHER_SPEEDS, FLAPPY_BIRD_GAPS, CatcherEnv, FlappyBirdEnv
from metareplay.environments.environment import GameEnv
from metareplay.environments.episodes import Episode, play_episodes
from metareplay.environments.players import Policy, greedy_player, random_player


def last(env: GameEnv, policy: Policy, seed: int, frames: int = 1500) -> Episode:
    """How one episode ends."""
    return list(play_episodes(env, policy, seed=seed, episodes=1, frames=frames))[-1]


@pytest.mark.parametrize("speed", CATCHER_SPEEDS)
def test_the_greedy_player_catches_pellets(speed: float) -> None:
    for seed in range(3):
        env = CatcherEnv(observation="raw", pellet_speed=speed)
        assert last(env, greedy_player(env.game), seed).score >= 20
        assert last(env, random_player(env.game, seed), seed).score < 10


def test_the_greedy_player_catches_pellets_on_a_large_screen() -> None:
    env = CatcherEnv(observation="raw", screen=640)
    assert last(env, greedy_player(env.game), seed=0).score >= 20


@pytest.mark.parametrize("gap", FLAPPY_BIRD_GAPS[:4])
def test_the_greedy_player_passes_pipes(gap: int) -> None:
    env = FlappyBirdEnv(observation="raw", pipe_gap=gap)
    scores = [last(env, greedy_player(env.game), seed).score for seed in range(5)]
    assert sorted(scores)[2] >= 5
    assert max(last(env, random_player(env.game, seed), seed).score for seed in range(5)) <= 2


def test_episodes_are_seen_frame_by_frame() -> None:
    env = CatcherEnv(observation="raw")
    seen = list(play_episodes(env, lambda _: 0, seed=0, episodes=2, frames=1000))
    first, second = ([one for one in seen if one.number == number] for number in (1, 2))
    for episode in (first, second):
        assert [one.frames for one in episode] == list(range(len(episode)))
        assert {one.end for one in episode[:-1]} == {"left"}
        assert episode[-1].end == "lost"
        assert episode[-1].total_reward == episode[-1].score - 3 - 5
    assert len(seen) == len(first) + len(second)


def test_an_episode_ends_at_the_frame_cap_and_seeds_decide_it() -> None:
    env = FlappyBirdEnv(observation="raw")

    def play(seed: int) -> list[Episode]:
        return list(play_episodes(env, random_player(env.game, seed), seed=seed, episodes=3, frames=30))

    assert [one.frames for one in play(0) if one.end == "frame cap"] == [30, 30, 30]
    assert play(1) == play(1)
