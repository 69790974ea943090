"""An environment with a parameter that changes at regular intervals, about which the agent is told nothing."""

from collections.abc import Mapping
from typing import Any, TypeVar, final

import gymnasium
import numpy as np
from numpy.typing import NDArray

from metareplay._core.checks import instance, shown, text, whole
from metareplay.environments.schedule import Schedule
from metareplay.environments.wrapped import without_checks
from metareplay.errors import InputError

Observation = TypeVar("Observation")
Action = TypeVar("Action")


@final
class ScheduledEnv(gymnasium.Wrapper[Observation, Action, Observation, Action]):
    """Change a parameter of an environment by a schedule. Neither observations nor infos say so.

    The parameter is an attribute of the unwrapped environment. It is set before the first frame of each task, in the
    middle of an episode if need be: a player who never loses would otherwise never get to the next task. What the
    change means for an episode that has begun is for the environment to say: in Catcher it holds from the next tick on,
    in Flappy Bird for the pipes that come into the screen from then on.

    >>> from metareplay.environments import CatcherEnv
    >>> env = ScheduledEnv(CatcherEnv(), Schedule((0.06, 0.09), frames=2), "pellet_speed")
    >>> first = env.reset(seed=0)
    >>> for _ in range(3):
    ...     step = env.step(2)
    ...     print(env.unwrapped.pellet_speed)
    0.06
    0.06
    0.09

    Args:
        env: The environment.
        schedule: Which value holds at which frame. Every step is a frame; beginning an episode is none.
        parameter: The name of the attribute.
        start: The number of the first frame, for a run that goes on in the middle of a schedule.
    """

    def __init__(
        self, env: gymnasium.Env[Observation, Action], schedule: Schedule[Any], parameter: str, start: int = 0
    ) -> None:
        instance("env", env, gymnasium.Env, "a Gymnasium environment")
        instance("schedule", schedule, Schedule, "a Schedule")
        text("parameter", parameter)
        super().__init__(env)
        if not hasattr(env.unwrapped, parameter):
            raise InputError(f"parameter={parameter!r}: {type(env.unwrapped).__name__} has no such attribute")
        if whole("start", start) < 0:
            raise InputError(f"start={shown(start)}: use a whole number of at least 0")
        self.schedule = schedule
        self.parameter = parameter
        self.frame = whole("start", start)
        self._task: int | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode, with the value that the next frame has.

        Args:
            seed: The seed, for the environment.
            options: Options for the environment.
        """
        self.change()
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Action) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        """Play the next frame.

        Args:
            action: The action.
        """
        self.change()
        self.frame += 1
        return self.env.step(action)

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Return everything that the future depends on, to be passed to `restore`."""
        return {**self._resumable().snapshot(), "frame": np.array(self.frame)}

    def restore(self, snapshot: Mapping[str, NDArray[Any]]) -> None:
        """Go on from a snapshot, exactly as the environment did from which it was taken.

        Args:
            snapshot: What `snapshot` returned, in an environment with the same settings.
        """
        if "frame" not in snapshot:
            raise InputError("the snapshot is of another environment; make one with the same settings")
        self._resumable().restore({name: value for name, value in snapshot.items() if name != "frame"})
        self.frame, self._task = int(snapshot["frame"]), None

    def _resumable(self) -> Any:
        """Return the environment whose snapshots this one adds to."""
        env = without_checks(self.env)
        if not hasattr(env, "snapshot"):
            raise InputError(f"{type(env).__name__} cannot go on where it was: give it snapshot() and restore()")
        return env

    def change(self) -> None:
        """Set the parameter if the next frame belongs to another task; `reset` and `step` do that by themselves."""
        task = self.schedule.task(self.frame)
        if task != self._task:
            setattr(self.env.unwrapped, self.parameter, self.schedule.values[task])
            self._task = task


def schedules(env: gymnasium.Env[Any, Any]) -> list[ScheduledEnv[Any, Any]]:
    """Return the wrappers of an environment that change a parameter by a schedule.

    Args:
        env: The environment.
    """
    found = []
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, ScheduledEnv):
            found.append(env)
        env = env.env
    return found
