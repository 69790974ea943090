"""What the API pages show of the source: signatures as `help` has them, examples as code, each method once."""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

from griffe import Alias, Attribute, Class, Extension, Function, Module, Object, ParameterKind, Parameters

OWN_DEFAULTS: Final = (  # what a default is written as in the source, and what a caller would write
    (re.compile(r"\(lambda: (.*)\)\(\)"), r"\1"),
    (re.compile(r"added_option\((.*)\)"), r"\1"),
)
EXAMPLE: Final = re.compile(r"^>>> .*\n?(?:.+\n?)*", re.MULTILINE)  # up to an empty line
KINDS: Final[dict[Any, ParameterKind]] = {
    inspect.Parameter.POSITIONAL_OR_KEYWORD: ParameterKind.positional_or_keyword,
    inspect.Parameter.KEYWORD_ONLY: ParameterKind.keyword_only,
}


class Readable(Extension):
    """Make what was read from the source readable."""

    def on_package(self, *, pkg: Module, **kwargs: Any) -> None:
        """Go through a package that has been read.

        Args:
            pkg: The package.
            **kwargs: Of no use here.
        """
        del kwargs
        _prefer_what_is_exported(pkg)
        classes = list(_improved(pkg))
        repeated = [(kind, name) for kind in classes for name in _explained_elsewhere(kind)]
        for kind, name in repeated:
            del kind.members[name]


def _prefer_what_is_exported(package: Module) -> None:
    """Let a name mean the function or class, as in Python, where a module has the same name."""
    for name, member in list(package.members.items()):
        if isinstance(member, Module):
            _prefer_what_is_exported(member)
            if name in (package.exports or ()) and name in member.members:
                package.members[name] = member.members[name]
        elif isinstance(member, Alias) and member.resolved and isinstance(member.target, Module):
            member.target = member.target.members.get(name, member.target)


def _improved(holder: Object) -> Iterator[Class]:
    """Show examples as code and correct signatures; yield every class."""
    for member in holder.members.values():
        if not isinstance(member, Object):  # a name that another module defines
            continue
        if member.docstring:
            member.docstring.value = with_examples_as_code(member.docstring.value)
        if isinstance(member, Class):
            _correct_signature(member)
            yield member
        yield from _improved(member)


def _explained_elsewhere(kind: Class) -> list[str]:
    """Return the methods of a class that one of its bases explains."""
    bases = kind.mro()
    return [
        name
        for name, member in kind.members.items()
        if isinstance(member, Function | Attribute) and not name.startswith("_")
        if any(name in base.members and base.members[name].has_docstring for base in bases)
    ]


def _correct_signature(kind: Class) -> None:
    """Order the parameters that a dataclass is made with as Python does, and make their defaults readable."""
    made = kind.members.get("__init__")
    if "dataclass" not in kind.labels or not isinstance(made, Function):
        return
    real = inspect.signature(getattr(import_module(kind.module.path), kind.name)).parameters
    known = {one.name: one for one in made.parameters}
    if not real.keys() <= known.keys():
        return
    for name, one in real.items():
        known[name].kind = KINDS.get(one.kind, known[name].kind)
        known[name].default = readable(str(known[name].default)) if known[name].default is not None else None
    made.parameters = Parameters(*([known["self"]] if "self" in known else []), *(known[name] for name in real))


def with_examples_as_code(docstring: str) -> str:
    """Return a docstring whose examples are marked as code.

    Args:
        docstring: The docstring, with lines that begin with >>> as in an interactive session.
    """
    return EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", docstring)


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
