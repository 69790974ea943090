"""Many games in one compiled loop give what each of them gives alone."""

from typing import Any

import numpy as np
import pytest

from metareplay.environments import Catcher, FlappyBird, Game, play

GAMES = {"catcher": Catcher(screen=32), "flappy": FlappyBird(pipe_gap=200)}
TICKS, COPIES, SIDE = 300, 3, 21


def actions(game: Game) -> Any:
    chances = np.random.default_rng(0).random((TICKS, COPIES))
    return np.where(chances < 0.1, 0, 1 + (chances > 0.5) % (game.actions - 1)).astype(np.uint8)


@pytest.mark.parametrize("name", GAMES)
def test_many_games_are_as_single_ones(name: str) -> None:
    game = GAMES[name]
    states = np.stack([game.new_state(seed) for seed in range(COPIES)])
    begun = states.copy()
    given, rewards, ends = actions(game), np.empty((TICKS, COPIES), np.float32), np.empty((TICKS, COPIES), np.bool_)
    play.play_many(states, given, rewards, ends)
    assert ends.any()
    vectors, raw = np.empty((2, TICKS, COPIES, game.values), np.float32)
    pictures = np.empty((TICKS, COPIES, SIDE, SIDE), np.uint8)
    seen, canvas = np.empty(game.values, np.float32), np.empty((SIDE, SIDE), np.uint8)
    paid, over = rewards.copy(), ends.copy()
    for scaled, written in ((True, vectors), (False, raw)):
        again = begun.copy()
        play.play_many_states(again, given, rewards, ends, scaled, written)
        np.testing.assert_array_equal(again, states)
    again = begun.copy()
    play.play_many_pictures(again, given, rewards, ends, game.greys(), pictures)
    np.testing.assert_array_equal(again, states)
    np.testing.assert_array_equal(rewards, paid)
    np.testing.assert_array_equal(ends, over)
    for copy in range(COPIES):
        state = game.new_state(copy)
        for tick in range(TICKS):
            play.observe(state, True, seen)
            np.testing.assert_array_equal(vectors[tick, copy], seen)
            play.observe(state, False, seen)
            np.testing.assert_array_equal(raw[tick, copy], seen)
            play.draw(state, canvas, game.greys())
            np.testing.assert_array_equal(pictures[tick, copy], canvas)
            assert play.tick(state, int(given[tick, copy])) == (rewards[tick, copy], ends[tick, copy])
            if ends[tick, copy]:
                play.reset(state)
        np.testing.assert_array_equal(state, states[copy])


@pytest.mark.parametrize("name", GAMES)
def test_bounds_hold(name: str) -> None:
    game = GAMES[name]
    states = np.stack([game.new_state(seed) for seed in range(COPIES)])
    given, rewards, ends = actions(game), np.empty((TICKS, COPIES), np.float32), np.empty((TICKS, COPIES), np.bool_)
    vectors = np.empty((TICKS, COPIES, game.values), np.float32)
    for scaled in (True, False):
        low, high = game.bounds(scaled)
        for _ in range(20):
            play.play_many_states(states, given, rewards, ends, scaled, vectors)
            assert (low <= vectors).all()
            assert (vectors <= high).all()
