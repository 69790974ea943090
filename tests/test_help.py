"""`help` explains every public name: what it is for, and what each of its parameters means."""

import inspect
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import pytest

import metareplay
from metareplay import (
    data,
    engines,
    environments,
    experiments,
    learners,
    lm,
    loops,
    memories,
    networks,
    reports,
    runners,
    streams,
    sweeps,
    trackers,
)
from metareplay.cli.options import documented

PACKAGES = (
    *(metareplay, data, engines, environments, experiments, learners, lm, loops, memories, networks, runners, streams),
    *(reports, sweeps, trackers),
)
CALLABLE = {
    f"{thing.__module__}.{thing.__qualname__}": thing
    for package in PACKAGES
    for thing in (getattr(package, name) for name in package.__all__)
    if inspect.isclass(thing) or inspect.isfunction(thing)
}


def own_methods(kind: type[Any]) -> Iterator[FunctionType]:
    """The public methods that a class defines itself; properties need no parameters."""
    for name, value in vars(kind).items():
        function = inspect.unwrap(getattr(value, "__func__", value))
        if isinstance(function, FunctionType) and not name.startswith("_"):
            yield function


METHODS = {
    f"{name}.{method.__name__}": (kind, method)
    for name, kind in CALLABLE.items()
    if inspect.isclass(kind)
    for method in own_methods(kind)
}


def parameters(thing: Any) -> set[str]:
    """The names of all parameters but self, cls, *args and **kwargs; an exception takes its message alone."""
    if inspect.isclass(thing) and issubclass(thing, BaseException):
        return set()
    given = inspect.signature(thing).parameters.values()
    named = [one for one in given if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    return {one.name for one in named if one.name not in ("self", "cls") and not one.name.startswith("_")}


def check_docstring(thing: Any) -> None:
    text = inspect.cleandoc(thing.__doc__ or "")
    assert text, "no docstring"
    first = text.splitlines()[0]
    assert first[0].isupper(), first
    assert first.endswith((".", ":")), first


def test_there_is_something_to_check() -> None:
    assert {getattr(metareplay, name) for name in ("MER", "Reservoir", "Rotations", "load")} <= set(CALLABLE.values())
    assert {data.load, networks.mlp, runners.Threads, engines.Engine, experiments.pack} <= set(CALLABLE.values())
    assert {"observe", "reshaping", "from_tensors", "of"} <= {name.rpartition(".")[2] for name in METHODS}


@pytest.mark.parametrize("name", sorted(CALLABLE))
def test_a_public_name_is_explained(name: str) -> None:
    thing = CALLABLE[name]
    check_docstring(thing)
    assert parameters(thing) - documented(thing).keys() == set()


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_public_method_is_explained(name: str) -> None:
    """The method that it overrides may explain its parameters."""
    kind, method = METHODS[name]
    check_docstring(method)
    overridden = [vars(base).get(method.__name__) for base in kind.__mro__]
    explained = {one for found in overridden for one in documented(found)}
    assert parameters(method) - explained == set()


def test_nothing_is_explained_that_is_not_there() -> None:
    """No entry of `Args:` is left over from a parameter that is gone."""
    methods = {name: method for name, (_, method) in METHODS.items()}
    for name, thing in (CALLABLE | methods).items():
        if documented(thing):
            assert documented(thing).keys() <= inspect.signature(thing).parameters.keys(), name
