"""What the compiled functions of both games share: the layout of a game's state, random draws and boxes of one shade.

The whole state of a game is one flat float64 array: its settings, where things are, and where its random numbers stand.
Two games with equal arrays go on in the same way, a copy of the array is a checkpoint, and many games are the rows of a
matrix. Every entry is exact: positions are small whole numbers, and the 64 bits of the key are kept in two halves.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from metareplay._core.numba_private import cached_njit, source_stamp

State = NDArray[np.float64]  # of shape (LENGTH,)
Vector = NDArray[np.float32]
Canvas = NDArray[np.uint8]  # of shape (height, width)
Function = TypeVar("Function", bound=Callable[..., Any])

LENGTH = 32  # numbers in the state of any game; a game need not use all of them

# Entries of the state that all games have. From OWN on, each game has entries of its own.
GAME = 0  # which game it is: CATCHER or FLAPPY_BIRD
KEY_HIGH, KEY_LOW = 1, 2  # the key of the random draws, 32 bits each
DRAWS = 3  # how many numbers have been drawn so far
OVER = 4  # 1 if the episode has ended
SCORE = 5  # pellets caught, or pipes passed, in this episode
TICK, POSITIVE, NEGATIVE, LOSS = 6, 7, 8, 9  # rewards: for every tick, a success, a failure, the end of the game
OWN = 10

CATCHER, FLAPPY_BIRD = 0, 1

MILLISECONDS = 1000 / 30  # in a tick; both games run at 30 frames per second

OPTIONS: dict[str, Any] = {"error_model": "numpy", "nogil": True}  # no fastmath: positions must be exact
KERNEL_FILES = ("kernels.py", "game.py", "catcher.py", "flappy_bird.py", "play.py")  # they decide the machine code
STAMP = source_stamp(Path(__file__).parent, KERNEL_FILES)


def compiled(function: Function) -> Function:
    """Compile a function for this CPU when it is first called, without the GIL, and keep the result on disk.

    Nothing may be allocated inside.

    Args:
        function: The function, written in the part of Python that numba compiles.
    """
    return cast(Function, cached_njit(function, OPTIONS, STAMP))


@compiled
def below(state: State, high: int) -> int:
    """Draw a whole number from 0 to high - 1; all are equally likely.

    The draws are SplitMix64's, addressed by position, as in `_core/draws.py`.

    Args:
        state: The state of a game, which counts the draw.
        high: How many numbers there are to choose from.
    """
    state[DRAWS] += 1
    word = (np.uint64(state[KEY_HIGH]) << np.uint64(32)) | np.uint64(state[KEY_LOW])
    word += np.uint64(state[DRAWS]) * np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    word = word ^ (word >> np.uint64(31))
    return int(np.float64(word >> np.uint64(11)) * 2.0**-53 * high)


@compiled
def paint(canvas: Canvas, left: float, top: float, right: float, bottom: float, shade: int) -> None:
    """Paint a box in one shade; a pixel that it covers in part is blended with what was there.

    Args:
        canvas: The picture; what lies outside it is cut off.
        left: The left edge of the box, in pixels.
        top: The upper edge.
        right: The right edge.
        bottom: The lower edge.
        shade: The shade, from 0 to 255.
    """
    height, width = canvas.shape
    left, right = max(left, 0.0), min(right, float(width))
    top, bottom = max(top, 0.0), min(bottom, float(height))
    if left >= right or top >= bottom:
        return
    first, last = int(left), int(np.ceil(right))
    inner = int(np.ceil(left))
    outer = int(right)
    for row in range(int(top), int(np.ceil(bottom))):
        tall = min(row + 1.0, bottom) - max(float(row), top)
        if tall == 1.0:  # the pixels between the left and the right edge are covered fully
            for column in range(inner, outer):
                canvas[row, column] = shade
            if first < inner:
                _blend(canvas, row, first, min(inner, right) - left, shade)
            if outer < last and outer >= inner:
                _blend(canvas, row, outer, right - outer, shade)
        else:
            for column in range(first, last):
                wide = min(column + 1.0, right) - max(float(column), left)
                _blend(canvas, row, column, tall * wide, shade)


@compiled
def _blend(canvas: Canvas, row: int, column: int, share: float, shade: int) -> None:
    """Let a shade cover a share of one pixel."""
    old = float(canvas[row, column])
    canvas[row, column] = int(old + (shade - old) * share + 0.5)
