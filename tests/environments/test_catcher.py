"""Catcher: traces worked out by hand, and equality with a slow transcription."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from slow_games import SlowCatcher, rounded, split_mix

from metareplay.environments import catcher
from metareplay.environments.catcher import (
    LEFT,
    LIVES,
    PADDLE_HEIGHT,
    PADDLE_WIDTH,
    PADDLE_X,
    PELLET,
    PELLET_X,
    PELLET_Y,
    PUSH,
    RIGHT,
    SPEED,
    STAY,
    VELOCITY,
    Catcher,
)
from metareplay.environments.game import Rewards
from metareplay.environments.kernels import SCORE, State, Vector
from metareplay.environments.schedule import CATCHER_SPEEDS
from metareplay.errors import InputError


def numbers(state: State) -> Vector:
    out = np.empty(4, np.float32)
    catcher.state_vector(state, out)
    return out


def new(pellet: tuple[int, int] | None = None, **settings: Any) -> State:
    """A new game, its pellet at a given place."""
    state = Catcher(**settings).new_state(0)
    if pellet is not None:
        state[PELLET_X], state[PELLET_Y] = pellet
    return state


def paddle(state: State, action: int, ticks: int) -> list[float]:
    found = []
    for _ in range(ticks):
        catcher.tick(state, action)
        found.append(float(state[PADDLE_X]))
    return found


def test_the_paddle_drifts_faster_to_the_left() -> None:
    assert new()[PADDLE_X] == 25
    assert paddle(new(), LEFT, 6) == [23, 20, 16, 11, 6, 0]
    assert paddle(new(), RIGHT, 6) == [26, 28, 31, 35, 39, 44]


def test_the_paddle_stops_at_the_walls() -> None:
    for action, wall in ((LEFT, 0), (RIGHT, 64 - 13)):
        state = new()
        assert paddle(state, action, 20)[-1] == wall
        assert state[VELOCITY] == 0


@pytest.mark.parametrize(
    ("screen", "rounding", "falls"),
    [(64, "truncate", 2), (64, "round", 2), (84, "truncate", 2), (84, "round", 3), (640, "truncate", 20)],
)
def test_the_pellet_falls_in_whole_pixels(screen: int, rounding: str, falls: int) -> None:
    state = new((30, 0), screen=screen, rounding=rounding)
    for y in range(falls, 5 * falls, falls):
        catcher.tick(state, STAY)
        assert state[PELLET_Y] == y


def test_above_the_screen_it_falls_three_pixels_or_less() -> None:
    """-9 + 2.03 is -6.97: without what lies behind the point, -6."""
    state, found = new((30, -9)), []
    for _ in range(6):
        catcher.tick(state, STAY)
        found.append(state[PELLET_Y])
    assert found == [-6, -3, 0, 2, 4, 6]


@pytest.mark.parametrize(
    ("screen", "pellet", "width", "height", "push", "fall", "starts", "columns", "rows"),
    [
        (64, 4, 13, 3, 1.344, 2.027, (25, 26), range(8, 53, 4), range(4, 29, 4)),
        (84, 5, 17, 3, 1.764, 2.660, (33, 34), range(10, 71, 5), range(5, 41, 5)),
        (640, 38, 128, 26, 13.44, 20.267, (256, 256), range(76, 533, 38), range(38, 305, 38)),
    ],
)
def test_sizes(
    screen: int,
    pellet: int,
    width: int,
    height: int,
    push: float,
    fall: float,
    starts: tuple[int, int],
    columns: range,
    rows: range,
) -> None:
    state = new(screen=screen)
    assert (state[PELLET], state[PADDLE_WIDTH], state[PADDLE_HEIGHT]) == (pellet, width, height)
    assert state[PUSH] == pytest.approx(push)
    assert state[SPEED] * 1000 / 30 == pytest.approx(fall, abs=5e-4)
    assert (state[PADDLE_X], new(screen=screen, rounding="round")[PADDLE_X]) == starts
    found = set()
    for _ in range(3000):
        catcher.reset(state)
        found.add((int(state[PELLET_X]), int(-state[PELLET_Y])))
    assert {x for x, _ in found} == set(columns)
    assert {y for _, y in found} == set(rows)
    assert len(found) == len(columns) * len(rows)


def test_every_place_to_start_from_is_equally_likely() -> None:
    state, draws = new(), 21_000
    counts = np.zeros((12, 7))
    for _ in range(draws):
        catcher.reset(state)
        counts[int(state[PELLET_X]) // 4 - 2, int(-state[PELLET_Y]) // 4 - 1] += 1
    expected = draws / 84
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert 45 < chi_squared < 130  # 83 degrees of freedom: 83 +- 13


def test_a_catch_is_paid_one_tick_late() -> None:
    """The paddle's box has the rows 57 to 59, the pellet's box begins two above its centre and has four rows."""
    state = new((25, 54))  # rows 52 to 55
    assert catcher.tick(state, STAY) == (0, False)  # it has gone to 56: rows 54 to 57
    assert state[PELLET_Y] == 56
    assert catcher.tick(state, STAY) == (1, False)
    assert state[SCORE] == 1
    assert state[PELLET_Y] < 0


@pytest.mark.parametrize(("x", "reward"), [(16, 0), (17, 0), (18, 1), (33, 1), (34, 0)])
def test_boxes_that_only_touch_do_not_overlap(x: int, reward: float) -> None:
    """The paddle's box has the columns 19 to 31; the pellet's begins two to the left of its centre."""
    assert catcher.tick(new((x, 58)), STAY)[0] == reward


def test_a_miss_costs_one_and_the_last_one_six() -> None:
    state = new()
    for lives, reward in ((2, -1), (1, -1), (0, -6)):
        state[PELLET_X], state[PELLET_Y] = 52, 62
        assert catcher.tick(state, LEFT) == (0, False)
        assert state[PELLET_Y] == 64
        assert catcher.tick(state, LEFT) == (reward, lives == 0)
        assert state[LIVES] == lives


def test_a_game_that_is_over_does_not_change() -> None:
    state = new((52, 64))
    state[LIVES] = 1
    assert catcher.tick(state, STAY) == (-6, True)
    before = state.copy()
    assert catcher.tick(state, LEFT) == (0, True)
    np.testing.assert_array_equal(state, before)


def test_rewards_can_be_replaced() -> None:
    rewards = Rewards(tick=0.5, positive=10, negative=-20, loss=-100)
    assert catcher.tick(new((25, 20), rewards=rewards), STAY)[0] == 0.5
    assert catcher.tick(new((25, 57), rewards=rewards), STAY)[0] == 10.5
    state = new((25, 64), rewards=rewards)
    assert catcher.tick(state, STAY)[0] == -19.5
    state[LIVES], state[PELLET_Y] = 1, 64
    assert catcher.tick(state, STAY) == (-119.5, True)


def test_reset_leaves_nothing_of_the_episode() -> None:
    """Only the random draws go on."""
    game = Catcher()
    played, fresh = game.new_state(3), game.new_state(3)
    for number in range(500):
        if catcher.tick(played, number * 7 % 3)[1]:
            catcher.reset(played)
    catcher.reset(played)
    fresh[3] = played[3] - 2  # as many draws as before the reset
    catcher.reset(fresh)
    np.testing.assert_array_equal(played, fresh)


def test_rounding_away_from_zero() -> None:
    state = new(rounding="round")
    for position in (0.5, -0.5, 1.5, 2.5, -2.5, 0.49999999999999994, -0.4, 7.0, -7.6):
        assert catcher._whole(state, position) == rounded(position)


@given(
    seed=st.integers(0, 2**64 - 1),
    screen=st.integers(16, 200),
    speed=st.floats(0.001, 0.03),
    rounding=st.sampled_from(["truncate", "round"]),
    hold=st.integers(1, 12),
)
@example(seed=0, screen=64, speed=0.00095, rounding="truncate", hold=3)
@example(seed=0, screen=84, speed=0.00095, rounding="round", hold=3)
@example(seed=1, screen=640, speed=0.00095, rounding="truncate", hold=5)
def test_equal_to_the_transcription(seed: int, screen: int, speed: float, rounding: str, hold: int) -> None:
    """Every number, every reward and the end, tick by tick; `hold` is how long an action is kept."""
    speed *= screen
    game = Catcher(screen=screen, rounding=rounding, pellet_speed=speed)  # type: ignore[arg-type]
    state = game.new_state(seed)
    slow = SlowCatcher(screen, speed, rounding, split_mix(seed))
    actions = np.random.default_rng(seed % 2**32).integers(3, size=1500 // hold + 1).repeat(hold)
    for number, action in enumerate(actions.tolist()):
        assert catcher.tick(state, action) == slow.tick(action)
        np.testing.assert_array_equal(numbers(state), np.array(slow.numbers(), np.float32))
        assert (state[LIVES], state[SCORE]) == (slow.lives, slow.caught)
        if number % 100 == 0 and screen <= 84:
            canvas = np.empty((screen, screen), np.uint8)
            catcher.draw(state, canvas, game.greys())
            np.testing.assert_array_equal(canvas, slow.picture())
        if slow.lives == 0:
            catcher.reset(state)
            slow.reset()


def test_the_picture_at_other_sizes_is_scaled() -> None:
    """At a multiple of the size every pixel is repeated; at half the size it is the mean of four."""
    game = Catcher()
    for seed in range(20):
        state = game.new_state(seed)
        for _ in range(3 * seed):
            catcher.tick(state, LEFT if seed % 2 else RIGHT)
        native, large, small = (np.empty((side, side), np.uint8) for side in (64, 192, 32))
        for canvas in (native, large, small):
            catcher.draw(state, canvas, game.greys())
        np.testing.assert_array_equal(large, native.repeat(3, 0).repeat(3, 1))
        mean = native.reshape(32, 2, 32, 2).mean((1, 3))
        np.testing.assert_allclose(small, mean, atol=0.51)


def test_the_scaled_vector() -> None:
    state, out = new((32, 16)), np.empty(4, np.float32)
    state[PADDLE_X], state[VELOCITY] = 48, -4.5 * state[PUSH]
    catcher.scaled_vector(state, out)
    np.testing.assert_array_equal(out, np.array([0.5, -0.5, 0, 0.25], np.float32))


def coast(x: float, velocity: float) -> float:
    """Where the paddle of a screen of 64 pixels is after ten ticks without a push."""
    for _ in range(10):
        x += velocity
        if x <= 0 or x >= 64 - 13:
            return min(max(x, 0), 64 - 13)
        x, velocity = int(x), velocity * 0.9
    return x


def greedy(state: State) -> int:
    """The action after which the paddle coasts to the point that is nearest to the pellet."""
    x, velocity, push, pellet = (float(state[entry]) for entry in (PADDLE_X, VELOCITY, PUSH, PELLET_X))
    pushes = {STAY: 0.0, LEFT: -push, RIGHT: push}
    return min(pushes, key=lambda action: abs(coast(x, (velocity + pushes[action]) * 0.9) - pellet))


def caught(policy: Callable[[State], int], speed: float, cap: int, episodes: int) -> list[int]:
    found = []
    for seed in range(episodes):
        state = Catcher(pellet_speed=speed).new_state(seed)
        for _ in range(cap):
            if catcher.tick(state, policy(state))[1]:
                break
        found.append(int(state[SCORE]))
    return found


@pytest.mark.parametrize(("task", "level"), [(1, 593), (2, 869), (3, 1138)])
def test_a_simple_player_never_misses_in_the_first_tasks(task: int, level: int) -> None:
    """The levels are what another implementation, checked against PLE, catches in 20,000 ticks."""
    found = caught(greedy, CATCHER_SPEEDS[task - 1], 20_000, 1)
    assert found == [pytest.approx(level, rel=0.02)]


@pytest.mark.parametrize(("task", "low", "high"), [(4, 51, 408), (5, 14, 56), (6, 8, 34)])
def test_a_simple_player_fails_in_the_last_tasks(task: int, low: int, high: int) -> None:
    """Medians of another implementation, with a player that is much the same: 102, 28 and 17."""
    assert low < np.median(caught(greedy, CATCHER_SPEEDS[task - 1], 20_000, 21)) < high


@pytest.mark.parametrize("speed", CATCHER_SPEEDS)
def test_a_random_player_catches_about_one(speed: float) -> None:
    rng = np.random.default_rng(0)
    assert 0.8 < np.mean(caught(lambda _: int(rng.integers(3)), speed, 20_000, 200)) < 1.6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"screen": 8}, "screen=8: use a whole number of pixels from 16 to 4096"),
        ({"screen": 64.5}, "screen=64.5: use a whole number"),
        ({"rounding": "down"}, "rounding='down': use 'truncate' or 'round'"),
        ({"pellet_speed": 0}, "pellet_speed=0: use pixels per millisecond, above 0 and up to 1.92 (a screen per tick)"),
        ({"pellet_speed": float("nan")}, "pellet_speed=nan: use pixels per millisecond"),
        ({"pellet_speed": "fast"}, "pellet_speed='fast': use a number"),
        ({"pellet_speed": 2.0}, "pellet_speed=2.0: use pixels per millisecond, above 0 and up to 1.92"),
    ],
)
def test_settings_that_cannot_be_played_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        Catcher(**settings)


def test_a_seed_must_be_a_whole_number() -> None:
    with pytest.raises(InputError, match="seed=-1: use a whole number from 0"):
        Catcher().new_state(-1)
    with pytest.raises(InputError, match=r"seed=0.5: use a whole number"):
        Catcher().new_state(0.5)  # type: ignore[arg-type]
