"""Compiled functions that draw ahead and play games, for several agents at once."""

from pathlib import Path
from typing import Any, TypeVar, cast

from numpy.typing import NDArray

from metareplay._core.numba_private import cached_njit, source_stamp
from metareplay.engines.cpu.q_compiling import OPTIONS
from metareplay.environments import play
from metareplay.rl.compiled import STAMP as OF_ONE_AGENT
from metareplay.rl.compiled import Habits, fraction, place

Array = NDArray[Any]
Function = TypeVar("Function")
STAMP = " ".join((OF_ONE_AGENT, source_stamp(Path(__file__).parent, ("kernels.py",))))
GREEDY = -1  # in place of an action: the best one that the agent knows


def compiled(function: Function) -> Function:
    """Compile a function for this CPU when it is first called, without the GIL, and keep the result on disk."""
    return cast(Function, cached_njit(cast(Any, function), OPTIONS, STAMP))


@compiled
def draw_ahead(
    first: int, times: Array, order: Array, held: Array, habits: Habits, actions: int, explored: Array, rows: Array
) -> None:
    """Draw everything for the next frames of one agent, as `QLearner.act` and a `Sampler` do frame by frame.

    None of it depends on what the agent sees or learns. A transition is named by the number of its frame.

    Args:
        first: The number of the first of these frames.
        times: The frame of the transition that is in each slot of the memory, -1 for none; it is brought up to date.
        order: The slots in the order they were first filled; it is brought up to date.
        held: How many transitions the memory holds, in an array of one number.
        habits: The agent's options and the keys of its draws.
        actions: How many actions there are.
        explored: Where to write the random action of each frame, or GREEDY.
        rows: Where to write, for each frame, the frames of the transitions in its batches.
    """
    capacity, size = len(order), habits.k - 1
    for i in range(len(explored)):
        frame = first + i
        done = min(1.0, frame / habits.epsilon_frames)
        epsilon = habits.epsilon_start + (habits.epsilon_end - habits.epsilon_start) * done
        explored[i] = GREEDY
        if fraction(habits.action_key, frame, 0) <= epsilon:
            explored[i] = int(fraction(habits.action_key, frame, 1) * actions)
        slot = place(frame, capacity, habits)
        if slot >= 0:
            if times[slot] < 0:
                order[held[0]] = slot
                held[0] += 1
            times[slot] = frame
        if frame < habits.warmup:
            continue
        at, drawn = 0, 0
        for _ in range(habits.s):
            rows[i, at] = frame
            at += 1
            for _ in range(size):
                rows[i, at] = times[order[int(fraction(habits.replay_key, frame, drawn) * held[0])]]
                at += 1
                drawn += 1


@compiled
def play_frames(
    states: Array,
    now: Array,
    used: Array,
    actions: Array,
    difficulties: Array,
    entry: int,
    shades: Array,
    pictures: Array,
    places: Array,
    stacks: Array,
    rewards: Array,
    ends: Array,
) -> None:
    """Play some frames of several games; a game that ends begins again at once.

    Every picture gets a number, game by game. An observation is a stack of such numbers.

    Args:
        states: The states of the games, one per row.
        now: The pictures that are observed now, of shape (games, stack); brought up to date.
        used: How many pictures each game has had so far; brought up to date.
        actions: The actions, of shape (games, frames).
        difficulties: The difficulty at each of these frames and at the one after, of shape (games, frames + 1).
        entry: Where the difficulty is in a state.
        shades: A shade for each of the game's colours.
        pictures: Where to draw: two pictures per frame, what follows the action and, if the game has ended, the first
            one of the next episode; of shape (games, 2 * frames, height, width).
        places: Where to write the numbers of these pictures, -1 for none; of shape (games, 2 * frames).
        stacks: Where to write what each transition shows: the pictures observed, and the one that follows.
        rewards: Where to write the rewards, of shape (games, frames).
        ends: Where to write whether a frame was the last of its episode.
    """
    games, frames = actions.shape
    deep = now.shape[1]
    for game in range(games):
        state = states[game]
        for frame in range(frames):
            state[entry] = difficulties[game, frame]
            reward, over = play.tick(state, int(actions[game, frame]))
            play.draw(state, pictures[game, 2 * frame], shades)
            new = used[game]
            used[game] += 1
            places[game, 2 * frame], places[game, 2 * frame + 1] = new, -1
            for i in range(deep):
                stacks[game, frame, i] = now[game, i]
            stacks[game, frame, deep] = new
            rewards[game, frame], ends[game, frame] = reward, over
            if over:
                state[entry] = difficulties[game, frame + 1]
                play.reset(state)
                play.draw(state, pictures[game, 2 * frame + 1], shades)
                new = used[game]
                used[game] += 1
                places[game, 2 * frame + 1] = new
                for i in range(deep):
                    now[game, i] = new
            else:
                for i in range(deep - 1):
                    now[game, i] = now[game, i + 1]
                now[game, deep - 1] = new


@compiled
def play_on(states: Array, actions: Array, over: Array, shades: Array, pictures: Array) -> None:
    """Play one frame of every game that is not over yet, and draw what follows.

    Args:
        states: The states of the games, one per row.
        actions: The action in each game.
        over: Whether each game is over; brought up to date.
        shades: A shade for each of the game's colours.
        pictures: Where to draw, of shape (games, height, width).
    """
    for game in range(len(states)):
        if not over[game]:
            _, over[game] = play.tick(states[game], int(actions[game]))
            play.draw(states[game], pictures[game], shades)
