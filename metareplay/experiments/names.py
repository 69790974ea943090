"""Names on the command line. Each is made from the class that it stands for, so nothing has to be registered."""

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from metareplay import data
from metareplay.errors import InputError
from metareplay.learners import LEARNERS, Learner
from metareplay.memories import MEMORIES, Memory
from metareplay.streams import ManyPermutations, Omniglot, Permutations, Rotations, Stream


def name_of(kind: type) -> str:
    """Return the name of a class on the command line, where a class may say it itself as `command_name`.

    >>> from metareplay import DQNMER, ERTasks, MERCurrentRate
    >>> name_of(ERTasks), name_of(MERCurrentRate), name_of(DQNMER)
    ('er-tasks', 'mer-current-rate', 'dqn-mer')
    """
    said: str | None = getattr(kind, "command_name", None)
    return said or re.sub(r"(?<=[A-Z])(?=[A-Z][a-z])|(?<=[a-z])(?=[A-Z])", "-", kind.__name__).lower()


def _by_name(kinds: Iterable[type]) -> dict[str, Any]:
    return {name_of(kind): kind for kind in kinds}


LEARNERS_BY_NAME: dict[str, type[Learner]] = _by_name(LEARNERS)
MEMORIES_BY_NAME: dict[str, type[Memory]] = _by_name(MEMORIES)
STREAMS_BY_NAME: dict[str, Callable[..., Stream]] = _by_name((Rotations, Permutations, ManyPermutations, Omniglot))
IMAGES_BY_NAME: dict[str, Callable[[], data.Images]] = {"mnist": data.mnist, "fashion-mnist": data.fashion_mnist}


def find(what: str, name: str, known: dict[str, Any]) -> Any:
    """Return what a name stands for.

    Args:
        what: What the name is for, to be said in the message.
        name: The name.
        known: Everything that has a name.
    """
    if name not in known:
        raise InputError(f"{what} {name!r}: use one of {', '.join(known)}")
    return known[name]


def find_learner(name: str) -> type[Learner]:
    """Return a learner's class: one of ours by its name, or your own as `path/to/file.py:Class` or `module:Class`.

    Args:
        name: The name.
    """
    if ":" not in name:
        return find("learner", name, LEARNERS_BY_NAME)  # type: ignore[no-any-return]
    place, _, wanted = name.rpartition(":")
    found = getattr(_module(place, name), wanted, None)
    if not isinstance(found, type) or not issubclass(found, Learner):
        raise InputError(f"learner {name!r}: there is no subclass of metareplay.Learner called {wanted!r} in {place}")
    return found


@contextmanager
def _current_folder() -> Iterator[None]:
    """Let modules of the current folder be found, as `python -m` does."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        sys.path.remove(str(Path.cwd()))


def _module(place: str, name: str) -> Any:
    """Import a module by its name, or a file by its path; each file once."""
    path = Path(place)
    try:
        if path.suffix != ".py":
            with _current_folder():
                return importlib.import_module(place)
        known = f"metareplay_own_{path.stem}_{abs(hash(path.resolve()))}"
        if known not in sys.modules:
            spec = importlib.util.spec_from_file_location(known, path)
            if spec is None or spec.loader is None:
                raise ImportError(place)
            module = importlib.util.module_from_spec(spec)
            sys.modules[known] = module
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[known]
                raise
        return sys.modules[known]
    except Exception as error:  # whatever the user's own file raises
        raise InputError(f"learner {name!r}: cannot import {place} ({error})") from error
