"""Both games as Gymnasium environments."""

import operator
from abc import ABC
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, final, get_args

import gymnasium
import numpy as np
from numpy.typing import NDArray

from metareplay._core.checks import check_count, check_room, choice, mapping, shown, whole
from metareplay._core.draws import Draws
from metareplay.environments import play
from metareplay.environments.catcher import Catcher
from metareplay.environments.flappy_bird import FlappyBird
from metareplay.environments.game import Game, Rewards
from metareplay.environments.kernels import SCORE, State
from metareplay.errors import InputError

Observation = Literal["pixels", "state", "raw"]
RenderMode = Literal["human", "rgb_array"]
Size = int | tuple[int, int] | None
Array = NDArray[Any]
Info = dict[str, Any]

TALL = 384  # pictures for people are enlarged in whole steps up to about this height


class GameEnv(gymnasium.Env[Array, np.int64 | int], ABC):
    """Play one game; `CatcherEnv` and `FlappyBirdEnv` say which.

    Args:
        game: The settings of the game.
        observation: "pixels", "state" (scaled for learning) or "raw" (PLE's numbers).
        size: The height and width of a picture in pixels.
        frames: How many pictures an observation has.
        render_mode: None, "rgb_array" or "human".
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["human", "rgb_array"], "render_fps": 30}  # type: ignore[misc]

    def __init__(
        self, game: Game, observation: Observation, size: tuple[int, int], frames: int, render_mode: RenderMode | None
    ) -> None:
        choice("observation", observation, get_args(Observation))
        if render_mode is not None:
            choice("render_mode", render_mode, get_args(RenderMode), "None")
        check_count("frames", frames, "an observation has at least one picture")
        frames = whole("frames", frames)
        check_room("frames", frames, frames * size[0] * size[1])
        self.game = game
        self.observation = observation
        self.render_mode = render_mode
        self.action_space: gymnasium.spaces.Discrete = gymnasium.spaces.Discrete(game.actions)
        if observation == "pixels":
            self.observation_space = gymnasium.spaces.Box(0, 255, (frames, *size), np.uint8)
        else:
            low, high = game.bounds(scaled=observation == "state")
            self.observation_space = gymnasium.spaces.Box(low, high, dtype=np.float32)
        self._greys = game.greys()
        self._stack = np.zeros((frames, *size), np.uint8)
        self._state: State | None = None
        self._window = _Window(self.metadata["render_fps"]) if render_mode == "human" else None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, Info]:
        """Begin an episode.

        With a seed, everything begins anew. Without one the game goes on drawing where it was; in the first episode it
        then takes a random seed.

        Args:
            seed: Decides everything that the game draws from now on.
            options: May hold a new value of the difficulty, by its name, which then holds from now on.
        """
        seed = None if seed is None else Draws(seed).seed
        super().reset(seed=seed)
        for name, value in ({} if options is None else mapping("options", options)).items():
            if name != self.game.difficulty:
                raise InputError(f"options has {name!r}; use {self.game.difficulty!r}")
            self._change(value)
        if seed is not None or self._state is None:
            self._state = self.game.new_state(int(self.np_random.integers(2**63)) if seed is None else seed)
        else:
            play.reset(self._state)
        if self.observation == "pixels":
            play.draw(self._state, self._stack[-1], self._greys)
            self._stack[:-1] = self._stack[-1]
        self._show()
        return self._seen(self._state), {"score": 0}

    def step(self, action: np.int64 | int) -> tuple[Array, float, bool, bool, Info]:
        """Play one tick.

        The game never truncates an episode: a perfect player goes on for ever. For a limit, pass `max_episode_steps` to
        `gymnasium.make`.

        Args:
            action: The number of the action.

        Returns:
            The observation, the reward, whether the game is over, False, and the pellets caught or pipes passed so far
            in this episode as `{"score": ...}`.
        """
        state, number = self._playing(), self._checked(action)
        if self.observation == "pixels":
            reward, over = play.tick_and_draw(state, number, self._stack, self._greys)
        else:
            reward, over = play.tick(state, number)
        if self._window is not None:
            self._show()
        return self._seen(state), reward, over, False, {"score": int(state[SCORE])}

    def render(self) -> Array | None:
        """Return the picture in colours, of shape (height, width, 3), or show it in a window, as `render_mode` says."""
        if self.render_mode is None:
            gymnasium.logger.warn('nothing to render: make the environment with render_mode="rgb_array"')
            return None
        if self._window is None:
            return self.picture()
        self._window.show(self.picture())
        return None

    def picture(self, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
        """Return the picture in colours, of shape (height, width, 3).

        Args:
            size: The height and width; by default the game's own, enlarged in whole steps.
        """
        if size is None:
            height, width = self.game.size
            times = max(1, TALL // height)
            size = times * height, times * width
        channels = np.empty((3, *size), np.uint8)
        for channel, shades in zip(channels, self.game.colours.T, strict=True):
            play.draw(self._playing(), channel, np.ascontiguousarray(shades))
        return np.ascontiguousarray(channels.transpose(1, 2, 0))

    def close(self) -> None:
        """Close the window, if there is one."""
        if self._window is not None:
            self._window.close()

    def look(self) -> Array:
        """Return what is observed now, which `reset` or `step` has returned before."""
        return self._seen(self._playing())

    def snapshot(self) -> dict[str, Array]:
        """Return everything that the game's future depends on, to be passed to `restore`."""
        return {"state": self._playing().copy(), "pictures": self._stack.copy()}

    def restore(self, snapshot: Mapping[str, Array]) -> None:
        """Go on from a snapshot, exactly as the environment did from which it was taken.

        Args:
            snapshot: What `snapshot` returned, in an environment with the same settings.
        """
        state, pictures = np.array(snapshot["state"]), np.array(snapshot["pictures"])
        if self._state is None:
            self._state = self.game.new_state(0)
        same = state.shape == self._state.shape and state.dtype == self._state.dtype and state[0] == self._state[0]
        if not same or pictures.shape != self._stack.shape or pictures.dtype != self._stack.dtype:
            raise InputError("the snapshot is of another environment; make one with the same settings")
        self._state, self._stack = state, pictures
        kind = type(getattr(self.game, self.game.difficulty))
        self._change(kind(state[self.game.difficulty_entry]))

    def _change(self, value: object) -> None:
        """Set the difficulty, in the running episode too."""
        number = self.game.checked_difficulty(value)
        changed: dict[str, Any] = {self.game.difficulty: value}
        self.game = replace(self.game, **changed)
        if self._state is not None:
            self._state[self.game.difficulty_entry] = number

    def _playing(self) -> State:
        """Return the state of the running game."""
        if self._state is None:
            raise InputError("no episode has begun; call reset() first")
        return self._state

    def _checked(self, action: np.int64 | int) -> int:
        """Return an action as Python's int."""
        try:
            number = operator.index(action)
        except Exception:  # arrays and tensors raise almost anything
            number = -1
        if not 0 <= number < self.game.actions:
            raise InputError(f"action={shown(action)}: use a whole number from 0 to {self.game.actions - 1}")
        return number

    def _seen(self, state: State) -> Array:
        """Return the observation."""
        if self.observation == "pixels":
            return self._stack.copy()
        vector = np.empty(self.game.values, np.float32)
        play.observe(state, self.observation == "state", vector)
        return vector

    def _show(self) -> None:
        """Show the picture, if there is a window."""
        if self._window is not None:
            self._window.show(self.picture())


@final
class CatcherEnv(GameEnv):
    """Play Catcher: a paddle catches pellets, and three that are missed end the game.

    The actions are 0 for left, 1 for right and 2 for nothing. The rules, tick by tick, are those of the PyGame Learning
    Environment (PLE). An observation is a stack of grey pictures, or the numbers player_x, player_vel, fruit_x and
    fruit_y.

    >>> env = CatcherEnv(observation="state")
    >>> vector, info = env.reset(seed=0)
    >>> vector.shape, env.step(0)[1:]
    ((4,), (0.0, False, False, {'score': 0}))
    >>> env.pellet_speed = 0.0908  # holds from the next tick on

    Args:
        observation: "pixels" for pictures, "state" for numbers on a scale for learning, "raw" for PLE's numbers.
        size: The height and width of a picture in pixels, or one number for both; by default that of the screen.
        frames: How many pictures an observation has, the newest last.
        screen: Width and height of the screen on which the game is played; this changes the game, not only the picture.
        pellet_speed: How fast pellets fall, in pixels per millisecond; by default 0.00095 times the screen.
        rounding: "truncate" drops what lies behind the point of a position, as pygame did when the paper was written;
            "round" rounds, as pygame does since version 2.3.
        rewards: Rewards that differ from PLE's: tick (0), positive (1), negative (-1), loss (-5).
        render_mode: None, "rgb_array" or "human", which needs pygame.
    """

    def __init__(
        self,
        *,
        observation: Observation = "pixels",
        size: Size = None,
        frames: int = 4,
        screen: int = 64,
        pellet_speed: float | None = None,
        rounding: Literal["truncate", "round"] = "truncate",
        rewards: Mapping[str, float] | None = None,
        render_mode: RenderMode | None = None,
    ) -> None:
        paid = Rewards.of({} if rewards is None else rewards)
        game = Catcher(screen=screen, pellet_speed=pellet_speed, rounding=rounding, rewards=paid)
        super().__init__(game, observation, _height_and_width(size, game.size), frames, render_mode)

    @property
    def pellet_speed(self) -> float:
        """How fast pellets fall, in pixels per millisecond; a change holds from the next tick on."""
        assert isinstance(self.game, Catcher)
        return self.game.checked_difficulty(self.game.pellet_speed)

    @pellet_speed.setter
    def pellet_speed(self, value: float) -> None:
        self._change(value)


@final
class FlappyBirdEnv(GameEnv):
    """Play Flappy Bird: flap to fly through the gaps of pipes that come closer.

    The actions are 0 for a flap and 1 for nothing. The rules, tick by tick, are those of the PyGame Learning
    Environment (PLE). An observation is a stack of grey pictures, or the numbers player_y, player_vel and, for each of
    the next two pipes, the distance of its right edge and the top and bottom of its gap.

    >>> env = FlappyBirdEnv(observation="raw", pipe_gap=95)
    >>> vector, info = env.reset(seed=0)
    >>> vector[:3]
    array([256.,   0., 309.], dtype=float32)

    Args:
        observation: "pixels" for pictures, "state" for numbers on a scale for learning, "raw" for PLE's numbers.
        size: The height and width of a picture in pixels, or one number for both.
        frames: How many pictures an observation has, the newest last.
        pipe_gap: The height of the gaps in pixels.
        carry_velocity: Whether an episode begins with the velocity at the end of the one before, as in PLE. An episode
            that begins with a seed never does.
        rewards: Rewards that differ from PLE's: tick (0), positive (1), loss (-5).
        render_mode: None, "rgb_array" or "human", which needs pygame.
    """

    def __init__(
        self,
        *,
        observation: Observation = "pixels",
        size: Size = 84,
        frames: int = 4,
        pipe_gap: int = 100,
        carry_velocity: bool = True,
        rewards: Mapping[str, float] | None = None,
        render_mode: RenderMode | None = None,
    ) -> None:
        game = FlappyBird(
            pipe_gap=pipe_gap, carry_velocity=carry_velocity, rewards=Rewards.of({} if rewards is None else rewards)
        )
        super().__init__(game, observation, _height_and_width(size, game.size), frames, render_mode)

    @property
    def pipe_gap(self) -> int:
        """The height of the gaps in pixels; a change holds for the pipes that come into the screen from then on."""
        assert isinstance(self.game, FlappyBird)
        return self.game.pipe_gap

    @pipe_gap.setter
    def pipe_gap(self, value: int) -> None:
        self._change(value)


class _Window:
    """A window of pygame, which is opened with the first picture."""

    def __init__(self, fps: int) -> None:
        try:
            import pygame
        except ImportError as error:
            raise InputError("render_mode='human' needs pygame: pip install pygame-ce") from error
        self._pygame: Any = pygame
        self._fps = fps
        self._surface: Any = None

    def show(self, picture: Array) -> None:
        """Show a picture and wait until it is time for the next."""
        pygame = self._pygame
        if self._surface is None:
            pygame.display.init()
            self._surface = pygame.display.set_mode((picture.shape[1], picture.shape[0]))
            self._clock = pygame.time.Clock()
        pygame.surfarray.blit_array(self._surface, picture.transpose(1, 0, 2))  # pygame has the width first
        pygame.event.pump()
        pygame.display.flip()
        self._clock.tick(self._fps)

    def close(self) -> None:
        """Close the window."""
        if self._surface is not None:
            self._pygame.display.quit()
            self._surface = None


def _height_and_width(size: Size, native: tuple[int, int]) -> tuple[int, int]:
    """Return the size of a picture as two whole numbers."""
    if size is None:
        return native
    sides = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    if len(sides) != 2 or not all(8 <= whole("size", side) <= 4096 for side in sides):
        raise InputError(f"size={shown(size)}: use a number of pixels from 8 to 4096, or (height, width)")
    return whole("size", sides[0]), whole("size", sides[1])
