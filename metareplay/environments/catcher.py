"""Catcher, as in the PyGame Learning Environment (PLE): a paddle catches pellets; three that are missed end the game.

PLE keeps positions in whole pixels only, and the pygame of its time dropped what comes after the decimal point. So a
pellet that should fall 2.03 pixels per tick falls 2, and 3 while it is still above the screen, where its position is
negative; and the paddle drifts faster to the left than to the right. Since version 2.3 pygame rounds instead, which
makes a different game; `rounding` says which one to play.

The reward for a catch or a miss comes one tick after the pellet has got there. As in PLE, the picture has the upper
left corners of paddle and pellet at the places where the rules have their centres.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np

from metareplay._core.checks import choice, real, whole
from metareplay.environments.game import Bounds, Colours, Game
from metareplay.environments.kernels import (
    CATCHER,
    GAME,
    LOSS,
    MILLISECONDS,
    NEGATIVE,
    OVER,
    OWN,
    POSITIVE,
    SCORE,
    TICK,
    Canvas,
    State,
    Vector,
    below,
    compiled,
    paint,
)
from metareplay.errors import InputError

LEFT, RIGHT, STAY = 0, 1, 2  # the actions, in PLE's order

# Entries of the state.
SCREEN = OWN  # width and height of the screen, in pixels
SPEED = OWN + 1  # of the pellet, in pixels per millisecond
ROUNDS = OWN + 2  # 1 to round positions, 0 to drop what comes after the decimal point
PELLET = OWN + 3  # width and height of the pellet
PADDLE_WIDTH, PADDLE_HEIGHT = OWN + 4, OWN + 5
PUSH = OWN + 6  # what an action adds to the velocity of the paddle
LIVES = OWN + 7
PADDLE_X, VELOCITY = OWN + 8, OWN + 9
PELLET_X, PELLET_Y = OWN + 10, OWN + 11

VALUES = 4  # in a state vector
COLOURS = np.array([(0, 0, 0), (255, 255, 255), (255, 120, 120)], np.uint8)  # ground, paddle, pellet


@final
@dataclass(frozen=True, kw_only=True)
class Catcher(Game):
    """Hold the settings of Catcher.

    >>> Catcher().pellet_speed, Catcher(screen=640).pellet_speed
    (0.0608, 0.608)

    Args:
        rewards: The rewards; a failure is a pellet that was missed.
        screen: Width and height of the screen in pixels. The game is played in whole pixels, so this changes more than
            the picture; PLE's default is 64.
        pellet_speed: How fast pellets fall, in pixels per millisecond; by default 0.00095 times the screen, as in PLE.
            A change during an episode holds from the next tick on, for the falling pellet as well.
        rounding: "truncate" drops what comes after the decimal point of a position, as pygame did when the paper was
            written; "round" rounds, as pygame has done since version 2.3.
    """

    screen: int = 64
    pellet_speed: float | None = None
    rounding: Literal["truncate", "round"] = "truncate"

    actions: ClassVar[int] = 3
    values: ClassVar[int] = VALUES
    colours: ClassVar[Colours] = COLOURS
    difficulty: ClassVar[str] = "pellet_speed"
    difficulty_entry: ClassVar[int] = SPEED

    def __post_init__(self) -> None:
        """Refuse settings that cannot be played."""
        super().__post_init__()
        if not 16 <= whole("screen", self.screen) <= 4096:
            raise InputError(f"screen={self.screen}: use a whole number of pixels from 16 to 4096")
        object.__setattr__(self, "screen", whole("screen", self.screen))
        choice("rounding", self.rounding, ("truncate", "round"))
        if self.pellet_speed is None:
            object.__setattr__(self, "pellet_speed", round(0.00095 * self.screen, 10))
        self.checked_difficulty(self.pellet_speed)

    @property
    def size(self) -> tuple[int, int]:
        """The height and width of the game's own picture."""
        return self.screen, self.screen

    def checked_difficulty(self, value: object) -> float:
        """Return a speed of the pellet as a number, or refuse one that would let it fall past a whole screen per tick.

        Args:
            value: The speed, in pixels per millisecond.
        """
        speed, limit = real("pellet_speed", value), 0.03 * self.screen
        if not 0 < speed <= limit:
            raise InputError(
                f"pellet_speed={value!r}: use pixels per millisecond, above 0 and up to {limit:g} (a screen per tick)"
            )
        return speed

    def bounds(self, scaled: bool) -> Bounds:
        """Return the least and the greatest value of each number in a state vector.

        Args:
            scaled: Whether the numbers are on the scale for learning.
        """
        fastest, screen = 10 * 0.021 * self.screen, self.screen
        if scaled:
            return np.array([-1, -1, -1, -1], np.float32), np.array([1, 1, 1, 2], np.float32)
        low, high = [0, -fastest, 0, -screen], [screen, fastest, screen, 2 * screen]
        return np.array(low, np.float32), np.array(high, np.float32)

    def _fill(self, state: State) -> None:
        """Write the settings into a new state."""
        state[GAME] = CATCHER
        state[SCREEN] = self.screen
        state[SPEED] = self.checked_difficulty(self.pellet_speed)
        state[ROUNDS] = self.rounding == "round"
        state[PELLET] = round(0.06 * self.screen)
        state[PADDLE_WIDTH] = round(0.2 * self.screen)
        state[PADDLE_HEIGHT] = round(0.04 * self.screen)
        state[PUSH] = 0.021 * self.screen
        reset(state)


@compiled
def reset(state: State) -> None:
    """Begin an episode: three lives, the paddle at rest in the middle, a new pellet.

    Args:
        state: The state of the game.
    """
    state[OVER] = 0
    state[SCORE] = 0
    state[LIVES] = 3
    state[VELOCITY] = 0
    state[PADDLE_X] = _whole(state, state[SCREEN] / 2 - state[PADDLE_WIDTH] / 2)
    _drop(state)


@compiled
def tick(state: State, action: int) -> tuple[float, bool]:
    """Play one tick and return the reward, and whether the game is over; a game that is over does not change.

    Args:
        state: The state of the game.
        action: LEFT or RIGHT; any other number leaves the paddle alone.
    """
    if state[OVER] == 1:
        return 0.0, True
    reward = state[TICK]
    screen = state[SCREEN]
    if state[PELLET_Y] >= screen:
        reward += state[NEGATIVE]
        state[LIVES] -= 1
        _drop(state)
    if _is_caught(state):
        reward += state[POSITIVE]
        state[SCORE] += 1
        _drop(state)
    push = 0.0
    if action == LEFT:
        push = -state[PUSH]
    elif action == RIGHT:
        push = state[PUSH]
    velocity = (state[VELOCITY] + push) * 0.9
    x = state[PADDLE_X] + velocity
    if x <= 0:
        x, velocity = 0.0, 0.0
    if x + state[PADDLE_WIDTH] >= screen:
        x, velocity = screen - state[PADDLE_WIDTH], 0.0
    state[VELOCITY] = velocity
    state[PADDLE_X] = _whole(state, x)
    state[PELLET_Y] = _whole(state, state[PELLET_Y] + state[SPEED] * MILLISECONDS)
    if state[LIVES] == 0:
        reward += state[LOSS]
        state[OVER] = 1
    return reward, state[OVER] == 1


@compiled
def state_vector(state: State, out: Vector) -> None:
    """Write PLE's numbers: the paddle's x and velocity, the pellet's x and y.

    Args:
        state: The state of the game.
        out: Where to write the 4 numbers.
    """
    out[0] = state[PADDLE_X]
    out[1] = state[VELOCITY]
    out[2] = state[PELLET_X]
    out[3] = state[PELLET_Y]


@compiled
def scaled_vector(state: State, out: Vector) -> None:
    """Write the same numbers on a scale for learning: from -1 to 1, and the pellet's y from -0.5 (unseen) over 0 to 1.

    Args:
        state: The state of the game.
        out: Where to write the 4 numbers.
    """
    screen = state[SCREEN]
    out[0] = 2 * state[PADDLE_X] / screen - 1
    out[1] = state[VELOCITY] / (9 * state[PUSH])  # pushed for ever, the paddle would reach 9 pushes per tick
    out[2] = 2 * state[PELLET_X] / screen - 1
    out[3] = state[PELLET_Y] / screen


@compiled
def draw(state: State, canvas: Canvas, shades: Canvas) -> None:
    """Draw the picture, at the size of the canvas.

    Args:
        state: The state of the game.
        canvas: Where to draw.
        shades: The shades of the ground, the paddle and the pellet.
    """
    height, width = canvas.shape
    screen = state[SCREEN]
    for row in range(height):
        for column in range(width):
            canvas[row, column] = shades[0]
    x, y = state[PADDLE_X], _paddle_y(state)
    across, down = width / screen, height / screen
    right, bottom = x + state[PADDLE_WIDTH], y + state[PADDLE_HEIGHT]
    paint(canvas, x * across, y * down, right * across, bottom * down, shades[1])
    x, y = state[PELLET_X], state[PELLET_Y]
    right, bottom = x + state[PELLET], y + state[PELLET]
    paint(canvas, x * across, y * down, right * across, bottom * down, shades[2])


@compiled
def _drop(state: State) -> None:
    """Let a new pellet start somewhere above the screen."""
    side = int(state[PELLET])
    screen = int(state[SCREEN])
    columns = (screen - 4 * side + side - 1) // side  # the numbers in range(2 side, screen - 2 side, side)
    rows = (screen // 2 - side + side - 1) // side  # the numbers in range(side, screen // 2, side)
    state[PELLET_X] = 2 * side + side * below(state, columns)
    state[PELLET_Y] = -(side + side * below(state, rows))


@compiled
def _is_caught(state: State) -> bool:
    """Return whether paddle and pellet overlap; their positions are the centres of their boxes."""
    side, wide, high = state[PELLET], state[PADDLE_WIDTH], state[PADDLE_HEIGHT]
    pellet_left, pellet_top = state[PELLET_X] - side // 2, state[PELLET_Y] - side // 2
    left, top = state[PADDLE_X] - wide // 2, _paddle_y(state) - high // 2
    beside = pellet_left < left + wide and left < pellet_left + side
    return bool(beside and pellet_top < top + high and top < pellet_top + side)


@compiled
def _paddle_y(state: State) -> float:
    """Return how low the paddle is."""
    return float(state[SCREEN] - state[PADDLE_HEIGHT] - 3)


@compiled
def _whole(state: State, position: float) -> float:
    """Return a position in whole pixels: towards zero, or to the nearest with halves away from zero."""
    whole = float(np.trunc(position))
    if state[ROUNDS] == 1 and abs(position - whole) >= 0.5:
        whole += 1.0 if position > 0 else -1.0
    return whole
