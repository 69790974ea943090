"""Looking through the wrappers that Gymnasium puts around what it makes."""

from typing import Any

import gymnasium
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker


def without_checks(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Return the environment inside the wrappers that only check how it is used, which `gymnasium.make` adds.

    Args:
        env: The environment.
    """
    while isinstance(env, OrderEnforcing | PassiveEnvChecker):
        env = env.env
    return env
