"""Flappy Bird: traces worked out by hand, and equality with a slow transcription."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from slow_games import SlowFlappyBird, split_mix

from metareplay.environments import flappy_bird
from metareplay.environments.flappy_bird import (
    FALL,
    FLAP,
    FLAPPED,
    GAP_SIZE,
    GAP_TOP,
    PIPE_GAP,
    PIPE_X,
    VELOCITY,
    FlappyBird,
    Y,
)
from metareplay.environments.game import Rewards
from metareplay.environments.kernels import DRAWS, OVER, SCORE, State, Vector
from metareplay.environments.schedule import FLAPPY_BIRD_GAPS
from metareplay.errors import InputError

RANGES = {100: (25, 192), 95: (23, 195), 90: (22, 197), 85: (21, 200), 80: (20, 202), 75: (18, 205)}


def numbers(state: State) -> Vector:
    out = np.empty(8, np.float32)
    flappy_bird.state_vector(state, out)
    return out


def new(**settings: Any) -> State:
    return FlappyBird(**settings).new_state(0)


def moves(state: State, actions: list[int]) -> list[float]:
    """How far the bird goes in each tick."""
    found = []
    for action in actions:
        before = float(state[Y])
        flappy_bird.tick(state, action)
        found.append(float(state[Y]) - before)
    return found


def hover(state: State, height: float = 256) -> int:
    """Flap when the bird is below a height and falls."""
    return FLAP if state[Y] > height and state[VELOCITY] > 0 else FALL


def between(state: State, y: float, x: float) -> State:
    """Put the first pipe at x with a gap from 100 to 200, the others far away, and the bird at y."""
    state[PIPE_X : PIPE_X + 3] = x, x + 144, x + 288
    state[GAP_TOP], state[Y], state[VELOCITY], state[FLAPPED] = 100, y, 0, 0
    return state


def test_an_episode_begins_with_a_flap() -> None:
    state = new()
    assert (state[Y], state[VELOCITY]) == (256, 0)
    assert moves(state, [FALL] * 12) == [-8, -8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2]


def test_a_flap_rises_by_44() -> None:
    state = new()
    moves(state, [FALL] * 20)
    found = moves(state, [FLAP] + [FALL] * 9)
    assert found == [-8, -8, -7, -6, -5, -4, -3, -2, -1, 0]
    assert sum(found) == -44


def test_the_bird_falls_by_10_at_most() -> None:
    state = new()
    assert moves(state, [FALL] * 22)[-4:] == [9, 10, 10, 10]


def test_a_flap_right_after_another_stops_the_bird() -> None:
    state = new()
    moves(state, [FALL] * 20)
    assert moves(state, [FLAP] * 6) == [-8, 0, -8, 0, -8, 0]
    moves(state, [FALL])
    state[Y], state[VELOCITY], state[FLAPPED] = 300, 0, 0
    assert moves(state, [FLAP, FALL] * 3) == [-8, -8, -8, -8, -8, -8]


def test_the_first_pipe_counts_at_tick_66() -> None:
    state = new()
    state[GAP_TOP] = 180  # around where the bird hovers
    rewards = [flappy_bird.tick(state, hover(state, 230))[0] for _ in range(70)]
    assert rewards == [0] * 65 + [1] + [0] * 4
    assert state[SCORE] == 1


def test_a_pipe_counts_once_and_before_death_inside_it() -> None:
    state = between(new(), 101, 84)
    assert flappy_bird.tick(state, FALL) == (0, False)
    state[Y] = 100  # at x = 80 it has just hit the upper pipe
    assert flappy_bird.tick(state, FALL) == (1 - 5, True)
    state = between(new(), 150, 81.6)
    assert flappy_bird.tick(state, FALL) == (1, False)
    assert flappy_bird.tick(state, FALL) == (0, False)


def test_pipes_come_back_and_keep_their_distance() -> None:
    state, distances = new(), []
    pipes = state[PIPE_X : PIPE_X + 3]  # a view
    for _ in range(2000):
        state[Y], state[VELOCITY] = state[GAP_TOP + np.argmin(abs(pipes - 64))] + 30, 0  # fly through the nearest gap
        before = pipes.copy()
        assert not flappy_bird.tick(state, FALL)[1]
        for pipe in np.flatnonzero(pipes > before):
            assert -56 <= before[pipe] < -52
            assert pipes[pipe] == 397.6 - 4
            distances.append(round(pipes[pipe] - np.delete(pipes, pipe).max(), 6))
    assert distances[:9] == [165.6, 144, 144, 164, 144, 144, 164, 144, 144]


@pytest.mark.parametrize(
    ("y", "x", "dies"),
    [
        (101, 96, False),
        (100, 96, True),  # touches the upper edge
        (176, 96, False),
        (177, 96, True),  # 177 + 24 is below 200
        (100, 97.6, True),
        (100, 100, False),  # not there yet
        (100, 32, True),
        (100, 31, False),  # past it
        (177, 33.6, True),
    ],
)
def test_what_a_bird_dies_of_at_a_pipe(y: float, x: float, dies: bool) -> None:
    assert flappy_bird.tick(between(new(), y, x), FALL)[1] is dies


@pytest.mark.parametrize(("y", "dies"), [(380, False), (381, True), (1, False), (0, True), (-3, True)])
def test_ground_and_sky_are_deadly(y: float, dies: bool) -> None:
    reward, over = flappy_bird.tick(between(new(), y, 200), FALL)
    assert (reward, over) == (-5.0 * dies, dies)


def test_far_above_the_screen_it_cannot_flap() -> None:
    for y, velocity in ((-48, 4), (-47, -8)):
        state = between(new(), y, 200)
        state[VELOCITY] = 3
        flappy_bird.tick(state, FLAP)
        assert state[VELOCITY] == velocity


@pytest.mark.parametrize("gap", FLAPPY_BIRD_GAPS)
def test_where_gaps_can_be(gap: int) -> None:
    state, found = new(pipe_gap=gap), []
    for _ in range(3000):
        flappy_bird.reset(state)
        found += state[GAP_TOP : GAP_TOP + 3].astype(int).tolist()
    low, high = RANGES[gap]
    assert set(found) == set(range(low, high + 1))
    counts = np.bincount(found)[low:]
    expected = len(found) / len(counts)
    assert ((counts - expected) ** 2 / expected).sum() == pytest.approx(
        len(counts) - 1, abs=4.5 * (2 * len(counts)) ** 0.5
    )


def test_a_change_of_the_gap_holds_for_pipes_that_come_back() -> None:
    state = new()
    state[PIPE_GAP] = 75
    state[PIPE_X] = -55
    flappy_bird.tick(state, FALL)
    assert state[GAP_SIZE : GAP_SIZE + 3].tolist() == [75, 100, 100]
    flappy_bird.reset(state)
    assert state[GAP_SIZE : GAP_SIZE + 3].tolist() == [75, 75, 75]


def dead(**settings: Any) -> State:
    state = new(**settings)
    while not flappy_bird.tick(state, FALL)[1]:
        pass
    return state


def test_velocity_is_carried_over_and_nothing_else() -> None:
    state = dead()
    assert state[VELOCITY] == 10
    flappy_bird.reset(state)
    assert moves(state.copy(), [FALL, FALL, FALL]) == [1, 1, 2]  # 10 - 9, then as after any flap
    assert moves(state.copy(), [FLAP]) == [-8]
    fresh = new()
    fresh[DRAWS] = state[DRAWS] - 3
    flappy_bird.reset(fresh)
    assert np.flatnonzero(fresh != state).tolist() == [VELOCITY]


def test_velocity_need_not_be_carried_over() -> None:
    state = dead(carry_velocity=False)
    flappy_bird.reset(state)
    assert state[VELOCITY] == 0
    assert moves(state, [FALL, FALL]) == [-8, -8]


def test_carried_velocity_has_bounds() -> None:
    state = new()
    for _ in range(10):
        flappy_bird.tick(state, FALL)
        flappy_bird.reset(state)
    assert state[VELOCITY] == -8


def test_a_game_that_is_over_does_not_change() -> None:
    state = dead()
    before = state.copy()
    assert flappy_bird.tick(state, FLAP) == (0, True)
    assert state[OVER] == 1
    np.testing.assert_array_equal(state, before)


def test_rewards_can_be_replaced() -> None:
    rewards = Rewards(tick=0.1, positive=3, loss=-1)
    assert flappy_bird.tick(between(new(rewards=rewards), 150, 80), FALL) == (3.1, False)
    assert flappy_bird.tick(between(new(rewards=rewards), 0, 200), FALL) == (-0.9, True)


@given(seed=st.integers(0, 2**64 - 1), gap=st.integers(25, 320), flaps=st.floats(0, 0.5), skill=st.booleans())
@example(seed=0, gap=100, flaps=0.07, skill=True)
@example(seed=1, gap=75, flaps=0.02, skill=True)
@example(seed=2, gap=85, flaps=0.5, skill=False)
def test_equal_to_the_transcription(seed: int, gap: int, flaps: float, skill: bool) -> None:
    """Every number, every reward and the end, tick by tick; a player with skill gets past some pipes."""
    game = FlappyBird(pipe_gap=gap)
    state, slow = game.new_state(seed), SlowFlappyBird(gap, split_mix(seed))
    chances = np.random.default_rng(seed % 2**32).random(3000)
    for chance in chances.tolist():
        seen = numbers(state)
        flap = chance < flaps / 10 or seen[0] + 24 + seen[1] > seen[4] - 14 if skill else chance < flaps
        action = FLAP if flap else FALL
        result = slow.tick(action)
        assert flappy_bird.tick(state, action) == result
        np.testing.assert_array_equal(numbers(state), np.array(slow.numbers(), np.float32))
        assert state[SCORE] == slow.passed
        if result[1]:
            flappy_bird.reset(state)
            slow.reset()


@pytest.mark.parametrize(("seed", "ticks"), [(0, 0), (1, 30), (2, 66), (3, 75)])
def test_the_picture_is_made_of_boxes(seed: int, ticks: int) -> None:
    game = FlappyBird(pipe_gap=300)
    state, slow = game.new_state(seed), SlowFlappyBird(300, split_mix(seed))
    for _ in range(ticks):
        action = hover(state)
        flappy_bird.tick(state, action)
        slow.tick(action)
    canvas = np.empty((512, 288), np.uint8)
    flappy_bird.draw(state, canvas, game.greys())
    np.testing.assert_array_equal(canvas, slow.picture())


def test_the_picture_at_a_quarter_of_the_size_is_the_mean() -> None:
    game = FlappyBird()
    for seed in range(10):
        state = game.new_state(seed)
        for _ in range(6 * seed):
            flappy_bird.tick(state, hover(state))
        native, small = np.empty((512, 288), np.uint8), np.empty((128, 72), np.uint8)
        flappy_bird.draw(state, native, game.greys())
        flappy_bird.draw(state, small, game.greys())
        mean = native.reshape(128, 4, 72, 4).mean((1, 3))
        np.testing.assert_allclose(small[:, 26:], mean[:, 26:], atol=1.01)
        np.testing.assert_allclose(small, mean, atol=40)  # where the bird is in front of an edge, blends are not exact


def test_the_scaled_vector() -> None:
    state, out = between(new(), 202, 159), np.empty(8, np.float32)
    state[VELOCITY] = -5
    flappy_bird.scaled_vector(state, out)
    assert out[:3].tolist() == [0, -0.5, -0.5]
    np.testing.assert_allclose(out[3:5], [100 / 202 - 1, 200 / 202 - 1], rtol=1e-6)
    assert (abs(out) < 1.2).all()


def test_a_random_player_passes_next_to_nothing() -> None:
    rng, state, passed, ticks = np.random.default_rng(0), new(), 0, []
    for _ in range(300):
        count = 0
        over = False
        while not over:
            _, over = flappy_bird.tick(state, int(rng.integers(2)))
            count += 1
        passed += int(state[SCORE])
        ticks.append(count)
        flappy_bird.reset(state)
    assert passed / 300 < 0.05
    assert np.mean(ticks) == pytest.approx(55, abs=6)


@pytest.mark.parametrize(
    ("gap", "margin", "level"),
    [(100, 54, 21.5), (95, 51, 18.7), (90, 46, 15.8), (85, 38, 12.4), (80, 35, 10.7), (75, 32, 3.2)],
)
def test_a_player_who_flaps_below_a_line_passes_some_pipes(gap: int, margin: int, level: float) -> None:
    """The levels are those of the best such player in another implementation, which was checked against PLE."""
    state, seen, passed = new(pipe_gap=gap), np.empty(8, np.float32), []
    for _ in range(200):
        over = False
        while not over:
            flappy_bird.state_vector(state, seen)
            _, over = flappy_bird.tick(state, FLAP if seen[0] > seen[4] - margin else FALL)
        passed.append(state[SCORE])
        flappy_bird.reset(state)
    assert np.mean(passed) == pytest.approx(level, rel=0.25)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pipe_gap": 24}, "pipe_gap=24: use a whole number of pixels from 25 to 320 (the bird has 24)"),
        ({"pipe_gap": 321}, "pipe_gap=321: use a whole number of pixels from 25 to 320"),
        ({"pipe_gap": 99.5}, "pipe_gap=99.5: use a whole number"),
    ],
)
def test_settings_that_cannot_be_played_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        FlappyBird(**settings)
