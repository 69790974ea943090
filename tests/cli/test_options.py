"""A learner's own options on the command line, of ours and of a user's own, and how they are explained."""

import inspect
import json
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
from small_runs import Call

import metareplay as mr
from metareplay.cli.options import documented, learner_options, option_names
from metareplay.cli.run import run_command
from metareplay.experiments.names import LEARNERS_BY_NAME
from metareplay.learners import LEARNERS

SMALL = ["--tasks", "2", "--examples", "5", "--test-examples", "20"]
SET_BY_ITSELF = {"model", "memory", "loss", "regression", "classes", "head", "engine", "seed"}
OWN = '''
from dataclasses import dataclass

import metareplay as mr
from metareplay.learners.online import step_once


@dataclass(eq=False, repr=False, kw_only=True)
class MyLearner(mr.Learner):
    """Learn online.

    Args:
        its_option: A number that is written down, and
            nothing else.
        way: A word.
        share: A part of something.
        lr: How fast.
        twice: Whether to learn everything twice.
    """

    its_option: int = 1
    way: str = "straight"
    share: float | None = None
    lr: float = 0.25
    twice: bool = False

    def learn(self, incoming, table):
        step_once(self, incoming, table)
'''


def signature(*words: str) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(run_command([*words])).parameters)


def options_of(kind: type[mr.Learner]) -> dict[str, Any]:
    """The type and the help of each option."""
    found = {}
    for parameter in learner_options([kind]):
        typed, option = get_args(parameter.annotation)
        found[parameter.name] = (typed, option.help)
    return found


# Ours


def test_every_option_field_can_be_reached() -> None:
    own = {f.name for kind in LEARNERS_BY_NAME.values() for f in fields(kind)} - SET_BY_ITSELF
    assert own <= signature().keys()
    assert own == {*own, "lr", "beta", "gamma", "s", "k", "clip"}
    assert {name for kind in LEARNERS for name in option_names(kind)} == own


@pytest.mark.parametrize("kind", LEARNERS)
def test_every_option_has_the_type_of_its_field_and_is_explained(kind: type[mr.Learner]) -> None:
    found = options_of(kind)
    assert found.keys() == {f.name for f in fields(kind)} - SET_BY_ITSELF
    for field in fields(kind):
        if field.name in found:
            typed, text = found[field.name]
            expected = int if field.type is int else float if field.type in (float, float | None) else str
            assert typed == expected | None
            assert text == documented(kind)[field.name]
            assert text.endswith(".")


def test_the_help_speaks_the_papers_language(call: Call) -> None:
    answer = call("run", "--help")
    assert answer.code == 0
    text = " ".join(answer.out.split()).replace("- ", "-")  # words that were broken at their hyphen
    assert "--lr <float> alpha, the SGD rate" in text
    assert "mer: Reptile rate within a batch: how far to go along the steps of one batch, 0 < beta <= 1." in text
    assert "mer-current-rate: Examples per batch, the incoming one included (the paper's grids list k -1)" in text
    assert "mer: Batches per incoming example. mer-one-big-batch: Copies of the incoming example." in text
    for name in signature():
        assert name.removeprefix("as_").replace("_", "-") in text.lower()


def test_an_option_that_several_have_is_explained_once_for_each_meaning() -> None:
    (strength,) = [one for one in learner_options(LEARNERS) if one.name == "strength"]
    text = get_args(strength.annotation)[1].help
    assert text.count("ewc: ") == text.count("gem: ") == 1
    (optimizer,) = [one for one in learner_options(LEARNERS) if one.name == "optimizer"]
    assert get_args(optimizer.annotation)[1].help.startswith("er, er-tasks: What takes the steps")


def test_what_a_docstring_says_is_found() -> None:
    class Explained:
        """Do something.

        More of it, with a colon: here.

        Args:
            first: The first,
                on two lines.
            second: The second: a choice.

        Returns:
            third: Not a parameter.
        """

    class Silent:
        pass

    assert documented(Explained) == {"first": "The first, on two lines.", "second": "The second: a choice."}
    assert documented(Silent) == {}


# A user's own


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "my_file.py").write_text(OWN)
    return "my_file.py:MyLearner"


def test_a_learner_of_ones_own_runs_with_its_options(call: Call, own: str, tmp_path: Path) -> None:
    answer = call("run", own, "rotations", *SMALL, "--its-option", "3", "--share", "0.5", "--way", "winding", "--json")
    assert (answer.code, answer.err) == (0, "")
    document = json.loads(answer.out)
    assert document["learner"] == "MyLearner"
    assert {name: document["settings"][name] for name in ("its_option", "share", "way", "lr")} == {
        "its_option": 3,
        "share": 0.5,
        "way": "winding",
        "lr": 0.25,  # its own default: the paper has no best setting for it
    }
    (written,) = (tmp_path / "runs").iterdir()
    assert written.name == f"MyLearner-Rotations-seed0-{document['key']}.json"
    online = json.loads(call("run", "online", "rotations", *SMALL, "--lr", "0.25", "--json").out)
    assert document["weights"] == online["weights"]
    table = call("run", own, *SMALL, "--its-option", "3", "--share", "0.5", "--way", "winding")
    assert "my_file.py:MyLearner" in table.out
    assert f"1 of 1 runs are in {written.parent.name} already" in table.err


@pytest.mark.parametrize("before", [["--json"], ["--json", "--seed", "0"], ["--its-option", "3", "--json"]])
def test_a_learner_of_ones_own_may_come_after_options(before: list[str], call: Call, own: str) -> None:
    answer = call("run", *before, own, *SMALL, "--its-option", "3")
    assert (answer.code, answer.err) == (0, "")
    assert json.loads(answer.out)["settings"]["its_option"] == 3


def test_the_help_has_the_options_of_ones_own(call: Call, own: str) -> None:
    text = " ".join(call("run", own, "--help").out.split())
    assert "--its-option <int> my-learner: A number that is written down, and nothing else." in text
    assert "--way <str> my-learner: A word." in text
    assert "--share <float> my-learner: A part of something." in text
    assert "--its-option" not in call("run", "--help").out


WRONG = {
    "of another learner": (["--beta", "0.5"], "my_file.py:MyLearner has no option 'beta'; it takes clip, its_option, "),
    "of nobody": (["--zeta", "3"], "No such option: --zeta"),
    "not a whole number": (["--its-option", "2.5"], "Invalid value for '--its-option'"),
    "not a number": (["--share", "much"], "Invalid value for '--share'"),
}


@pytest.mark.parametrize(("words", "message"), WRONG.values(), ids=WRONG.keys())
def test_wrong_options_of_ones_own_are_named_in_one_line(words: list[str], message: str, call: Call, own: str) -> None:
    answer = call("run", own, *words)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert message in answer.err


def test_options_of_ones_own_are_those_of_its_learner_alone(call: Call, own: str) -> None:
    assert call("run", own, *SMALL, "--its-option", "3").code == 0
    answer = call("run", "mer", "--its-option", "3")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "No such option: --its-option" in answer.err


def test_types_that_are_written_as_text_are_types_too(call: Call, own: str, tmp_path: Path) -> None:
    (tmp_path / "my_file.py").write_text(f"from __future__ import annotations\n{OWN}")
    document = json.loads(call("run", own, *SMALL, "--its-option", "3", "--share", "0.5", "--json").out)
    assert (document["settings"]["its_option"], document["settings"]["share"]) == (3, 0.5)


@pytest.mark.parametrize("twice", [False, True])
def test_an_option_that_is_true_or_false(twice: bool, call: Call, own: str) -> None:
    answer = call("run", own, *SMALL, "--twice" if twice else "--no-twice", "--json")
    assert answer.code == 0
    assert json.loads(answer.out)["settings"]["twice"] is twice


def test_an_option_that_ours_have_too_has_the_type_of_ones_own(call: Call, own: str, tmp_path: Path) -> None:
    """Ours have a strength that is a real number, and a k that is a whole one."""
    path = tmp_path / "my_file.py"
    path.write_text(path.read_text().replace("its_option: int = 1", "strength: int = 1\n    k: float = 1.0"))
    answer = call("run", own, *SMALL, "--strength", "3", "--k", "2.5", "--json")
    assert (answer.code, answer.err) == (0, "")
    settings = json.loads(answer.out)["settings"]
    assert (settings["strength"], settings["k"]) == (3, 2.5)
