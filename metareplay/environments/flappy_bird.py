"""Flappy Bird, as in the PyGame Learning Environment (PLE): flap to fly through the gaps of pipes that come closer.

A flap lifts the bird by 8, 8, 7, 6, ... pixels in the ticks that follow. A flap right after another stops it instead. A
pipe counts when the bird enters it, and the bird can still die inside.

As in PLE, an episode begins with the velocity that the bird had at the end of the one before, unless `carry_velocity`
is False. It is limited to what a death can leave, from -8 to 10; otherwise it could grow without bounds if episodes
were broken off again and again. The pictures are flat boxes: PLE's moving ground, its wings and its random colours have
no counterpart.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from metareplay._core.checks import flag, whole
from metareplay.environments.game import Bounds, Colours, Game
from metareplay.environments.kernels import (
    FLAPPY_BIRD,
    GAME,
    LOSS,
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

FLAP, FALL = 0, 1  # the actions, in PLE's order

WIDTH, HEIGHT = 288, 512
BIRD_X, BIRD_WIDTH, BIRD_HEIGHT = 57, 34, 24
PIPES, PIPE_WIDTH = 3, 52
RETURN_X = 397.6  # where a pipe that has left the screen comes back
GROUND = 0.79 * HEIGHT  # where the ground begins

# Entries of the state; pipes have three each.
PIPE_GAP = OWN  # of the pipes to come
CARRIES = OWN + 1  # 1 if the velocity is carried over to the next episode
Y, VELOCITY = OWN + 2, OWN + 3
FLAPPED, THRUST = OWN + 4, OWN + 5  # 1 if a flap is under way, and if its first tick is over
PIPE_X = OWN + 6  # the centre of each pipe
GAP_TOP = PIPE_X + PIPES  # where its gap begins
GAP_SIZE = GAP_TOP + PIPES

VALUES = 8  # in a state vector
SKY, PIPE, SAND, BIRD = (16, 42, 67), (115, 191, 46), (222, 216, 149), (255, 240, 120)
COLOURS = np.array([SKY, PIPE, SAND, BIRD], np.uint8)


@final
@dataclass(frozen=True, kw_only=True)
class FlappyBird(Game):
    """Hold the settings of Flappy Bird.

    >>> FlappyBird().pipe_gap
    100

    Args:
        rewards: The rewards; there is no failure other than death, so `negative` is never paid.
        pipe_gap: The height of the gaps in pixels. A change during an episode holds for the pipes that come back into
            the screen from then on; those that the bird can see keep their gaps.
        carry_velocity: Whether an episode begins with the velocity at the end of the one before, as in PLE.
    """

    pipe_gap: int = 100
    carry_velocity: bool = True

    actions: ClassVar[int] = 2
    values: ClassVar[int] = VALUES
    colours: ClassVar[Colours] = COLOURS
    difficulty: ClassVar[str] = "pipe_gap"
    difficulty_entry: ClassVar[int] = PIPE_GAP

    def __post_init__(self) -> None:
        """Refuse settings that cannot be played."""
        super().__post_init__()
        object.__setattr__(self, "carry_velocity", flag("carry_velocity", self.carry_velocity))
        self.checked_difficulty(self.pipe_gap)

    @property
    def size(self) -> tuple[int, int]:
        """The height and width of the game's own picture."""
        return HEIGHT, WIDTH

    def checked_difficulty(self, value: object) -> float:
        """Return a gap as a number, or refuse one that the bird does not fit through or that does not fit the screen.

        Args:
            value: The height of the gaps in pixels.
        """
        if not 25 <= whole("pipe_gap", value) <= 320:
            raise InputError(f"pipe_gap={value!r}: use a whole number of pixels from 25 to 320 (the bird has 24)")
        return float(whole("pipe_gap", value))

    def bounds(self, scaled: bool) -> Bounds:
        """Return the least and the greatest value of each number in a state vector.

        Args:
            scaled: Whether the numbers are on the scale for learning.
        """
        if scaled:
            return np.full(VALUES, -2, np.float32), np.full(VALUES, 2, np.float32)
        low, high = [-16, -16, 0, 0, 0, 0, 0, 0], [400, 10, 460, 512, 512, 460, 512, 512]
        return np.array(low, np.float32), np.array(high, np.float32)

    def _fill(self, state: State) -> None:
        """Write the settings into a new state."""
        state[GAME] = FLAPPY_BIRD
        state[PIPE_GAP] = self.pipe_gap
        state[CARRIES] = self.carry_velocity
        reset(state)


@compiled
def reset(state: State) -> None:
    """Begin an episode: the bird half-way up and about to flap, three new pipes.

    Args:
        state: The state of the game.
    """
    state[OVER] = 0
    state[SCORE] = 0
    state[Y] = HEIGHT // 2
    state[VELOCITY] = min(max(state[VELOCITY], -8.0), 10.0) if state[CARRIES] == 1 else 0.0
    state[FLAPPED] = 1
    state[THRUST] = 0
    for pipe in range(PIPES):
        state[PIPE_X + pipe] = 340 + 144 * pipe
        _open(state, pipe)


@compiled
def tick(state: State, action: int) -> tuple[float, bool]:
    """Play one tick and return the reward, and whether the game is over; a game that is over does not change.

    Args:
        state: The state of the game.
        action: FLAP; any other number lets the bird fall.
    """
    if state[OVER] == 1:
        return 0.0, True
    reward = state[TICK]
    if action == FLAP and state[Y] > -2 * BIRD_HEIGHT:
        state[VELOCITY] = 0
        state[FLAPPED] = 1
    dies = False
    for pipe in range(PIPES):
        x = state[PIPE_X + pipe]
        if _hits(state, pipe):
            dies = True
        left = x - PIPE_WIDTH / 2
        if left <= BIRD_X < left + 4:
            reward += state[POSITIVE]
            state[SCORE] += 1
        if x < -PIPE_WIDTH:
            state[PIPE_X + pipe] = RETURN_X
            _open(state, pipe)
    if state[Y] >= GROUND - BIRD_HEIGHT or state[Y] <= 0:
        dies = True
    if state[VELOCITY] < 10 and state[THRUST] == 0:
        state[VELOCITY] += 1
    if state[FLAPPED] == 1 and state[THRUST] == 0:
        state[THRUST] = 1
        state[VELOCITY] -= 9
    else:
        state[THRUST] = 0
        state[FLAPPED] = 0
    state[Y] += state[VELOCITY]
    for pipe in range(PIPES):
        state[PIPE_X + pipe] -= 4
    if dies:
        reward += state[LOSS]
        state[OVER] = 1
    return reward, dies


@compiled
def state_vector(state: State, out: Vector) -> None:
    """Write PLE's numbers: the bird's y and velocity; of each of the next two pipes the distance, gap top and bottom.

    The distance is that of the pipe's right edge from x = 57, where PLE has the bird.

    Args:
        state: The state of the game.
        out: Where to write the 8 numbers.
    """
    out[0] = state[Y]
    out[1] = state[VELOCITY]
    first = _next(state, 0.0)
    second = _next(state, state[PIPE_X + first] + PIPE_WIDTH / 2 - BIRD_X)
    for place in range(2):
        pipe = first if place == 0 else second
        out[2 + 3 * place] = state[PIPE_X + pipe] + PIPE_WIDTH / 2 - BIRD_X
        out[3 + 3 * place] = state[GAP_TOP + pipe]
        out[4 + 3 * place] = state[GAP_TOP + pipe] + state[GAP_SIZE + pipe]


@compiled
def scaled_vector(state: State, out: Vector) -> None:
    """Write the same numbers on a scale for learning: from about -1 to 1, all heights on one scale.

    Args:
        state: The state of the game.
        out: Where to write the 8 numbers.
    """
    state_vector(state, out)
    out[0] = out[0] / 202 - 1  # the ground is at 404
    out[1] = out[1] / 10
    for place in range(2):
        out[2 + 3 * place] = out[2 + 3 * place] / 256 - 1
        out[3 + 3 * place] = out[3 + 3 * place] / 202 - 1
        out[4 + 3 * place] = out[4 + 3 * place] / 202 - 1


@compiled
def draw(state: State, canvas: Canvas, shades: Canvas) -> None:
    """Draw the picture, at the size of the canvas.

    Args:
        state: The state of the game.
        canvas: Where to draw.
        shades: The shades of the sky, the pipes, the ground and the bird.
    """
    height, width = canvas.shape
    for row in range(height):
        for column in range(width):
            canvas[row, column] = shades[0]
    across, down = width / WIDTH, height / HEIGHT
    ground = float(int(GROUND))
    for pipe in range(PIPES):
        left = np.trunc(state[PIPE_X + pipe]) - PIPE_WIDTH // 2
        right = left + PIPE_WIDTH
        top = state[GAP_TOP + pipe]
        bottom = top + state[GAP_SIZE + pipe]
        paint(canvas, left * across, 0.0, right * across, top * down, shades[1])
        paint(canvas, left * across, bottom * down, right * across, ground * down, shades[1])
    paint(canvas, 0.0, ground * down, float(width), float(height), shades[2])
    left, top = float(BIRD_X), state[Y]
    right, bottom = left + BIRD_WIDTH, top + BIRD_HEIGHT
    paint(canvas, left * across, top * down, right * across, bottom * down, shades[3])


@compiled
def _open(state: State, pipe: int) -> None:
    """Give a pipe a new gap."""
    gap = state[PIPE_GAP]
    lowest = int(gap / 4)
    highest = int(GROUND * 0.6 - gap / 2)
    state[GAP_TOP + pipe] = lowest + below(state, highest - lowest + 1)
    state[GAP_SIZE + pipe] = gap


@compiled
def _hits(state: State, pipe: int) -> bool:
    """Return whether the bird is at a pipe, by PLE's two rules, and not inside its gap."""
    x, y = state[PIPE_X + pipe], state[Y]
    left = np.trunc(x) - PIPE_WIDTH // 2
    bird = BIRD_X - BIRD_WIDTH // 2
    overlaps = bird < left + PIPE_WIDTH and left < bird + BIRD_WIDTH
    is_at = x - PIPE_WIDTH / 2 - 20 <= BIRD_X < x + PIPE_WIDTH / 2
    top = state[GAP_TOP + pipe]
    return bool(overlaps and is_at and (y <= top or y + BIRD_HEIGHT > top + state[GAP_SIZE + pipe]))


@compiled
def _next(state: State, beyond: float) -> int:
    """Return which pipe is the nearest of those whose right edge is farther ahead of the bird than this."""
    nearest = -1
    for pipe in range(PIPES):
        if state[PIPE_X + pipe] + PIPE_WIDTH / 2 - BIRD_X > beyond and (
            nearest < 0 or state[PIPE_X + pipe] < state[PIPE_X + nearest]
        ):
            nearest = pipe
    return nearest
