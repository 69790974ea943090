"""Errors of environments, each told in one line that names the environment and says when it happened."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from metareplay.errors import InputError, MetareplayError
from metareplay.learners.input_checks import one_line


@contextmanager
def asking(name: str, when: str) -> Iterator[None]:
    """Ask an environment for something; whatever it raises becomes a MetareplayError.

    Args:
        name: The environment's name.
        when: When this happens, such as "at frame 7".
    """
    try:
        yield
    except Exception as error:
        kind = "" if isinstance(error, MetareplayError) else f"{type(error).__name__}: "
        raise MetareplayError(f"{name} failed {when}: {kind}{one_line(error)}") from error


@contextmanager
def learning_from(name: str, when: str) -> Iterator[None]:
    """Give an agent what an environment said; if that is bad input, the InputError names the environment.

    Args:
        name: The environment's name.
        when: When this happens, such as "at frame 7".
    """
    try:
        yield
    except InputError as error:
        raise InputError(f"{name} {when}: {error}") from error


def name_of(env: Any) -> str:
    """Return the name of an environment's class, without its wrappers.

    Args:
        env: The environment.
    """
    return type(getattr(env, "unwrapped", env)).__name__
