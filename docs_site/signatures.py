"""Signatures of dataclasses on the API pages: as `help` shows them, with defaults that a reader can use."""

import inspect
import re
from importlib import import_module
from typing import Any, Final

from griffe import Class, Extension, Function, Module, ParameterKind, Parameters

OWN_DEFAULTS: Final = (  # what a default is written as in the source, and what a caller would write
    (re.compile(r"\(lambda: (.*)\)\(\)"), r"\1"),
    (re.compile(r"added_option\((.*)\)"), r"\1"),
)
KINDS: Final = {
    inspect.Parameter.POSITIONAL_OR_KEYWORD: ParameterKind.positional_or_keyword,
    inspect.Parameter.KEYWORD_ONLY: ParameterKind.keyword_only,
}


class Signatures(Extension):
    """Correct what was read from the source of a dataclass by what Python makes of it."""

    def on_package(self, *, pkg: Module, **kwargs: Any) -> None:
        """Correct all dataclasses of a package that has been read.

        Args:
            pkg: The package.
            **kwargs: Of no use here.
        """
        del kwargs
        _correct_all(pkg)


def _correct_all(holder: Module | Class) -> None:
    for member in holder.members.values():
        if isinstance(member, Module | Class):
            _correct_all(member)
        if isinstance(member, Class) and "dataclass" in member.labels and "__init__" in member.members:
            _correct(member)


def _correct(kind: Class) -> None:
    """Order the parameters of `__init__` as Python does, and make their defaults readable."""
    made = kind.members["__init__"]
    if not isinstance(made, Function):
        return
    real = inspect.signature(getattr(import_module(kind.module.path), kind.name)).parameters
    known = {one.name: one for one in made.parameters}
    if not real.keys() <= known.keys():
        return
    for name, one in real.items():
        known[name].kind = KINDS.get(one.kind, known[name].kind)
        known[name].default = readable(str(known[name].default)) if known[name].default is not None else None
    made.parameters = Parameters(*([known["self"]] if "self" in known else []), *(known[name] for name in real))


def readable(default: str) -> str:
    """Return a default as a caller would write it.

    Args:
        default: The default as it was read.

    >>> readable("(lambda: Reservoir(500))()"), readable("added_option(None)"), readable("0.1")
    ('Reservoir(500)', 'None', '0.1')
    """
    for pattern, new in OWN_DEFAULTS:
        if found := pattern.fullmatch(default):
            return found.expand(new)
    return default
