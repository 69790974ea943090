"""A learner's own options on the command line, made from its fields and explained by its docstring."""

import inspect
import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Annotated, Any

import typer

from metareplay.experiments.experiment import NOT_OPTIONS
from metareplay.experiments.names import name_of
from metareplay.learners import TableLearner
from metareplay.learners.option_types import option_types

NOT_TYPED = {"loss", "regression"}  # options that cannot be given as a word, or make no sense on these streams


def option_names(kind: type[TableLearner]) -> list[str]:
    """Return the fields of a learner that are options of the command line."""
    return [one.name for one in fields(kind) if one.name not in NOT_OPTIONS | NOT_TYPED]


def learner_options(kinds: Sequence[type[TableLearner]]) -> list[inspect.Parameter]:
    """Return one parameter for each option that any of these learners has.

    Args:
        kinds: The learners; of an option that several have, the first one says the type.
    """
    found: dict[str, inspect.Parameter] = {}
    for name in dict.fromkeys(name for kind in kinds for name in option_names(kind)):
        having = [kind for kind in kinds if name in option_names(kind)]
        kind = option_types(having[0])[name]
        value: Any = kind if kind in (int, bool) else float if kind in (float, float | None) else str
        annotation = Annotated[value | None, typer.Option(help=_help(name, having, len(kinds)))]
        found[name] = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
    return list(found.values())


def _help(name: str, having: list[type[TableLearner]], all_kinds: int) -> str:
    """Explain an option: what each learner's docstring says about it, and which learners have it."""
    said: dict[str, list[str]] = {}
    for kind in having:
        said.setdefault(documented(kind).get(name, ""), []).append(name_of(kind))
    if len(said) == 1 and len(having) == all_kinds:
        return next(iter(said))
    if len(having) == all_kinds:  # the same option, in slightly different words
        return min(said, key=len)
    return " ".join(f"{', '.join(names)}: {text}" for text, names in said.items())


def documented(thing: object) -> dict[str, str]:
    """Return what the docstring of a class or function says about each of its parameters.

    Args:
        thing: A class or function whose docstring has a section `Args:`.

    >>> from metareplay import MER
    >>> documented(MER)["s"]
    'Batches per incoming example.'
    """
    text = inspect.cleandoc(thing.__doc__ or "")
    section = re.search(r"^Args:\n((?:    .*\n|\n)*)", text + "\n", flags=re.MULTILINE)
    entries = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", section.group(1) if section else "", flags=re.MULTILINE)
    return {name: " ".join(said.split()) for name, said in entries}
