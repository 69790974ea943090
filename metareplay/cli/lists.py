"""Options that take a list of values, separated by commas, where another command takes a single one."""

import inspect
from collections.abc import Callable, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer

from metareplay.errors import InputError

NONE = {"norm": "none"}  # options with a word for having no value
WORDS = {"true": True, "yes": True, "false": False, "no": False}


def as_list(option: inspect.Parameter) -> inspect.Parameter:
    """Return an option that takes a list of what the given one takes.

    Args:
        option: An option with an annotation of typer's.
    """
    kind, about = get_args(option.annotation)[:2]
    del kind
    return option.replace(default=None, annotation=Annotated[str | None, typer.Option(help=about.help)])


def kind_of(option: inspect.Parameter) -> type:
    """Return the type of the values of an option.

    Args:
        option: An option with an annotation of typer's.
    """
    kind = get_args(option.annotation)[0]
    if get_origin(kind) in (Union, UnionType):
        [kind] = [one for one in get_args(kind) if one is not NoneType]
    found: type = kind
    return found


def values_of(name: str, kind: type, text: str) -> list[Any]:
    """Return the values that were typed for an option.

    Args:
        name: The option.
        kind: The type of its values.
        text: What was typed, values separated by commas.

    >>> values_of("lr", float, "0.01,0.1"), values_of("k", int, "6")
    ([0.01, 0.1], [6])
    """
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise InputError(f"{flag(name)} {text}: a value is missing; separate values by single commas")
    found = [None if NONE.get(name) == word else _value(name, kind, word, text) for word in words]
    for place, value in enumerate(found):
        if value in found[:place]:
            raise InputError(f"{flag(name)} {text}: {words[place]} is there twice; give each value once")
    return found


def flag(name: str) -> str:
    """Return how an option is typed.

    >>> flag("test_examples")
    '--test-examples'
    """
    return f"--{name.replace('_', '-')}"


def words_of(name: str, value: Any) -> list[str]:
    """Return the words with which a single value is given to an option of another command.

    Args:
        name: The option.
        value: The value.

    >>> words_of("lr", 0.1), words_of("double", False), words_of("norm", None)
    (['--lr', '0.1'], ['--no-double'], ['--norm', 'none'])
    """
    if isinstance(value, bool):
        return [flag(name) if value else f"--no-{name.replace('_', '-')}"]
    return [flag(name), NONE[name] if value is None else str(value)]


def listed(function: Callable[..., Any], names: Sequence[str]) -> list[inspect.Parameter]:
    """Return some of the options of a command.

    Args:
        function: The command.
        names: The names of the options.
    """
    parameters = inspect.signature(function).parameters
    return [parameters[name] for name in names]


def _value(name: str, kind: type, word: str, text: str) -> Any:
    if kind is bool:
        if word.lower() not in WORDS:
            raise InputError(f"{flag(name)} {text}: {word!r} is neither true nor false")
        return WORDS[word.lower()]
    try:
        return kind(word)
    except ValueError as error:
        wanted = {int: "a whole number", float: "a number"}.get(kind, f"a {kind.__name__}")
        raise InputError(f"{flag(name)} {text}: {word!r} is not {wanted}") from error
