"""A game that is shown in the terminal while it is played, with the keys that are pressed meanwhile."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from threading import Event
from typing import TYPE_CHECKING, Any, Final, final

from metareplay.cli.keyboard import LEAVE, Keys, has_keyboard, keyboard
from metareplay.cli.screen import Screen, screen

if TYPE_CHECKING:
    from metareplay.environments.environment import GameEnv
    from metareplay.environments.episodes import Episode

LOOK: Final = 0.02  # seconds between two looks at the keyboard, before an episode begins
LAST_PICTURE: Final = 1.0  # seconds for which the end of a lost game is shown


@final
class Hands:
    """Play with the keys that were pressed since the last frame; the last one counts.

    >>> hands = Hands({"left": 0, "right": 1}, nothing=2)
    >>> hands.keys = ["left", "right", "x"]
    >>> hands("any observation")
    1

    Args:
        actions: The action of each key.
        nothing: The action when none of these keys was pressed.
        hint: Says what the keys do.
    """

    def __init__(self, actions: Mapping[str, int], nothing: int, hint: str = "") -> None:
        self.actions, self.nothing, self.hint = actions, nothing, hint
        self.keys: list[str] = []

    def __call__(self, _observation: Any) -> int:
        """Return an action."""
        return next((self.actions[key] for key in reversed(self.keys) if key in self.actions), self.nothing)


@contextmanager
def live(env: "GameEnv", title: str, hands: Hands | None, speed: float, stop: Event) -> Iterator["Live"]:
    """Take over the terminal to show a game; afterwards everything is as it was before.

    Args:
        env: The game.
        title: A name for it, shown below the pictures.
        hands: Gets the keys, if a person plays.
        speed: How fast to show it; 1 means the game's own frames per second.
        stop: Ends all waiting when it is set.
    """
    pace = env.metadata["render_fps"] * speed
    with ExitStack() as stack:
        keys = stack.enter_context(keyboard()) if has_keyboard() else list
        yield Live(env, title, hands, stack.enter_context(screen(env.game.size, pace, stop.wait)), keys, stop)


@final
class Live:
    """Show a game frame by frame.

    Args:
        env: The game.
        title: A name for it, shown below the pictures.
        hands: Gets the keys, if a person plays.
        pictures: Shows pictures at a steady pace.
        keys: Reads the keyboard.
        stop: Ends all waiting when it is set.
    """

    def __init__(
        self, env: "GameEnv", title: str, hands: Hands | None, pictures: Screen, keys: Keys, stop: Event
    ) -> None:
        self._env, self._title, self._hands = env, title, hands
        self._pictures, self._keys, self._stop = pictures, keys, stop

    def show(self, now: "Episode") -> None:
        """Show the frame that has been played, wait until the next one is due, and read the keyboard.

        A person's episode begins with the first key. The key q sets `stop`.

        Args:
            now: How the episode stands.
        """
        waits = self._hands is not None and not now.frames
        hints = [self._hands.hint] if self._hands is not None else []
        hints += ["q: leave", *(["any key: begin"] if waits else [])]
        caption = [f"{self._title}, score {now.score}, frame {now.frames}", "; ".join(hints)]
        if waits or now.end == "lost":
            self._pictures.draw(self._env.picture, caption)
        else:
            self._pictures.show(self._env.picture, caption)
        if now.end == "lost":
            self._stop.wait(LAST_PICTURE)
        typed = self._keys()
        while waits and not typed and not self._stop.wait(LOOK):
            typed = self._keys()
        if waits or now.end == "lost":
            self._pictures.restart()
        if LEAVE in typed:
            self._stop.set()
        if self._hands is not None:
            self._hands.keys = typed
