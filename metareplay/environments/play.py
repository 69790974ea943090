"""Compiled functions that play either game, one or many at a time; the state says which game it is.

Code that is compiled itself, such as a learner with its game in one loop, may call these too: they allocate nothing and
do not hold the GIL.
"""

import numpy as np
from numpy.typing import NDArray

from metareplay.environments import catcher, flappy_bird
from metareplay.environments.kernels import CATCHER, GAME, Canvas, State, Vector, compiled

Actions = NDArray[np.uint8]  # of shape (ticks, games)
Rewards = NDArray[np.float32]  # of shape (ticks, games)
Ends = NDArray[np.bool_]  # of shape (ticks, games)


@compiled
def reset(state: State) -> None:
    """Begin an episode; settings stay, and the random draws go on.

    Args:
        state: The state of the game.
    """
    if state[GAME] == CATCHER:
        catcher.reset(state)
    else:
        flappy_bird.reset(state)


@compiled
def tick(state: State, action: int) -> tuple[float, bool]:
    """Play one tick and return the reward, and whether the game is over.

    Args:
        state: The state of the game.
        action: The number of the action, in PLE's order.
    """
    if state[GAME] == CATCHER:
        return catcher.tick(state, action)
    return flappy_bird.tick(state, action)


@compiled
def observe(state: State, scaled: bool, out: Vector) -> None:
    """Write the state vector.

    Args:
        state: The state of the game.
        scaled: Whether to write the numbers on the scale for learning; otherwise they are PLE's.
        out: Where to write them.
    """
    if state[GAME] == CATCHER:
        if scaled:
            catcher.scaled_vector(state, out)
        else:
            catcher.state_vector(state, out)
    elif scaled:
        flappy_bird.scaled_vector(state, out)
    else:
        flappy_bird.state_vector(state, out)


@compiled
def draw(state: State, canvas: Canvas, shades: Canvas) -> None:
    """Draw the picture, at the size of the canvas.

    Args:
        state: The state of the game.
        canvas: Where to draw.
        shades: A shade for each of the game's colours.
    """
    if state[GAME] == CATCHER:
        catcher.draw(state, canvas, shades)
    else:
        flappy_bird.draw(state, canvas, shades)


@compiled
def tick_and_draw(state: State, action: int, stack: NDArray[np.uint8], shades: Canvas) -> tuple[float, bool]:
    """Play one tick, drop the oldest picture of a stack and draw the newest; return the reward and whether it is over.

    Args:
        state: The state of the game.
        action: The number of the action.
        stack: The pictures, of shape (frames, height, width), the newest last.
        shades: A shade for each of the game's colours.
    """
    reward, over = tick(state, action)
    frames, height, width = stack.shape
    for frame in range(frames - 1):
        for row in range(height):
            for column in range(width):
                stack[frame, row, column] = stack[frame + 1, row, column]
    draw(state, stack[frames - 1], shades)
    return reward, over


@compiled
def tick_on(state: State, action: int) -> tuple[float, bool]:
    """Play one tick; if it ends the game, begin the next episode. Return the reward and whether the game has ended.

    Args:
        state: The state of the game.
        action: The number of the action.
    """
    reward, over = tick(state, action)
    if over:
        reset(state)
    return reward, over


@compiled
def play_many(states: NDArray[np.float64], actions: Actions, rewards: Rewards, ends: Ends) -> None:
    """Play many games by given actions; a game that ends begins again at once.

    Args:
        states: The states of the games, one per row.
        actions: The actions, of shape (ticks, games).
        rewards: Where to write the rewards, of the same shape.
        ends: Where to write whether a tick was the last of its episode.
    """
    ticks, games = actions.shape
    for game in range(games):
        state = states[game]
        for now in range(ticks):
            rewards[now, game], ends[now, game] = tick_on(state, actions[now, game])


@compiled
def play_many_states(
    states: NDArray[np.float64],
    actions: Actions,
    rewards: Rewards,
    ends: Ends,
    scaled: bool,
    seen: NDArray[np.float32],
) -> None:
    """Play many games as `play_many` does, and write what each action was given in answer to, as state vectors.

    Args:
        states: The states of the games, one per row.
        actions: The actions, of shape (ticks, games).
        rewards: Where to write the rewards, of the same shape.
        ends: Where to write whether a tick was the last of its episode.
        scaled: Whether to write the vectors on the scale for learning.
        seen: Where to write the vectors before each action, of shape (ticks, games, values).
    """
    ticks, games = actions.shape
    for game in range(games):
        state = states[game]
        for now in range(ticks):
            observe(state, scaled, seen[now, game])
            rewards[now, game], ends[now, game] = tick_on(state, actions[now, game])


@compiled
def play_many_pictures(
    states: NDArray[np.float64],
    actions: Actions,
    rewards: Rewards,
    ends: Ends,
    shades: Canvas,
    seen: NDArray[np.uint8],
) -> None:
    """Play many games as `play_many` does, and write what each action was given in answer to, as single pictures.

    Args:
        states: The states of the games, one per row.
        actions: The actions, of shape (ticks, games).
        rewards: Where to write the rewards, of the same shape.
        ends: Where to write whether a tick was the last of its episode.
        shades: A shade for each of the game's colours.
        seen: Where to draw the pictures before each action, of shape (ticks, games, height, width).
    """
    ticks, games = actions.shape
    for game in range(games):
        state = states[game]
        for now in range(ticks):
            draw(state, seen[now, game], shades)
            rewards[now, game], ends[now, game] = tick_on(state, actions[now, game])
