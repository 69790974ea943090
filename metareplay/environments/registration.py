"""Making the environments known to Gymnasium, by name."""

from importlib.util import find_spec

from metareplay.errors import GymnasiumMissingError

IDS = {"metareplay/Catcher-v0": "CatcherEnv", "metareplay/FlappyBird-v0": "FlappyBirdEnv"}


def is_installed() -> bool:
    """Return whether Gymnasium is installed."""
    try:
        return find_spec("gymnasium") is not None
    except ValueError:  # it stands as None in sys.modules: importing it has been blocked
        return False


def need_gymnasium() -> None:
    """Raise GymnasiumMissingError if Gymnasium is not installed."""
    if not is_installed():
        raise GymnasiumMissingError("environments need gymnasium: pip install 'metareplay[rl]'")


def register() -> None:
    """Make `metareplay/Catcher-v0` and `metareplay/FlappyBird-v0` known to `gymnasium.make`.

    Importing `metareplay.environments` does this already; doing it again changes nothing. Gymnasium has no plugins
    since version 1.0, so it does not find the names by itself, but it imports a package that is named before them:
    `gymnasium.make("metareplay.environments:metareplay/Catcher-v0")`.
    """
    need_gymnasium()
    import gymnasium

    for name, kind in IDS.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=f"metareplay.environments.environment:{kind}")
