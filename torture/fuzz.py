"""Wrong calls: every public function either does what it should or refuses by one line of ours."""

import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import nn

from metareplay.errors import MetareplayError
from torture.calls import Call, every_call, left_out
from torture.trial import Torture, Try

WRONG: tuple[Any, ...] = (
    *(None, "x", "", b"x", "auto", "sgd", -1, 0, 1, 2, 7, 1.5, -0.5, 0.1, True, False, 1j),
    *(float("nan"), float("inf"), -float("inf"), 10**15, 10**20, 10**400, -(10**400), 2**63, 2**64, 1e308),
    *([], [1], [[]], [None], (), (3,), (0,), {}, {"a": 1}, set(), object(), int, len, range(3), Ellipsis),
    *(np.int64(3), np.float32(0.5), np.array([1, 2]), np.array([]), np.array(["a"]), np.array([None], object)),
    *(np.zeros((2, 6)), np.zeros((2, 6), np.uint8), np.full((2, 6), np.nan), np.zeros((2, 6), complex)),
    *(np.ma.masked_array([1.0, 2.0], [True, False]), np.array([True, False]), np.datetime64("2020-01-01")),
    *(torch.tensor(1), torch.zeros(2, 6), torch.zeros(2, 6).bool(), torch.zeros(0), torch.tensor([0.5, 1.5])),
    *(torch.zeros(2, 6, dtype=torch.complex64), torch.full((2,), 10**9), torch.zeros(2, 1, dtype=torch.int64)),
    *(nn.Identity(), nn.Linear(2, 2), Path("nowhere/at/all"), "x" * 300, "\0", "[/x]", "a\nb"),
)


@final
class Fuzz(Torture):
    """Call constructors and functions with one or two wrong arguments."""

    name: ClassVar[str] = "a wrong call"
    few: ClassVar[int] = 400
    some: ClassVar[int] = 10_000
    many: ClassVar[int] = 100_000

    def tries(self, count: int, rng: random.Random, folder: Path) -> Iterator[Try]:
        """Draw a call, one or two of its arguments, and values for them."""
        calls = every_call(folder)
        for name in left_out(calls):
            yield Try(name, "a public name that torture/calls.py does not call")
        for name, call in calls.items():
            refused = _made(call)
            yield Try(f"{name} with arguments that are right", f"refused: {refused}" if refused else None)
        names = list(calls)
        for number in range(count):
            name = names[number % len(names)]
            call = calls[name]
            some = rng.sample(list(call.right), min(len(call.right), rng.choice([1, 1, 2])))
            wrong = {one: rng.choice(WRONG) for one in some}
            given = call.given() | wrong
            for one, most in (call.most or {}).items():
                if isinstance(given.get(one), int):
                    given[one] = min(given[one], most)
            shown = ", ".join(f"{one}={_shown(given[one])}" for one in some)
            yield Try(f"{name}({shown})", _wrong(call.function, given))


def _made(call: Call) -> str | None:
    """Make a call with arguments that are right; return the error that it raised."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call.function(**call.given())
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:150]}"
    return None


def _wrong(call: Callable[..., object], given: dict[str, Any]) -> str | None:
    """Make a call; return what is wrong with how it ended."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call(**given)
    except MetareplayError as error:
        return None if len(str(error).splitlines()) == 1 and len(str(error)) < 1_000 else f"a long message: {error}"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:150]}"
    return None


def _shown(value: object) -> str:
    try:
        return " ".join(repr(value).split())[:60]
    except ValueError:
        return "a very large number"
