"""Names on the command line, and learners of a user's own by the place of their file."""

import importlib
import sys
from pathlib import Path

import pytest
from small_runs import instead_of_mnist

import metareplay as mr
from metareplay.experiments import Experiment
from metareplay.experiments.names import (
    IMAGES_BY_NAME,
    LEARNERS_BY_NAME,
    MEMORIES_BY_NAME,
    STREAMS_BY_NAME,
    find_learner,
    name_of,
)
from metareplay.learners import LEARNERS
from metareplay.memories import MEMORIES
from metareplay.paper.best import WITH_MEMORY, WITHOUT_MEMORY

OWN = '''
from dataclasses import dataclass

import metareplay as mr
from metareplay.learners.online import step_once

print("imported")


@dataclass(eq=False, repr=False, kw_only=True)
class Repeated(mr.Learner):
    """Learn every example several times.

    Args:
        times: How often.
    """

    times: int = 2

    def learn(self, incoming, table):
        for example in incoming.pieces(1):
            for _ in range(self.times):
                step_once(self, example, table)
                self.seen -= 1
            self.seen += 1


class NotALearner:
    pass


a_function = print
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a learner of a user's own, in the folder where we are."""
    instead_of_mnist(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_file.py").write_text(OWN)
    (tmp_path / "broken.py").write_text("def learn(:\n")
    (tmp_path / "needs_more.py").write_text("import nothing_of_that_name\n")
    return tmp_path / "my_file.py"


def test_every_class_has_the_name_that_it_had() -> None:
    assert list(LEARNERS_BY_NAME) == [
        *("online", "independent", "task-input", "ewc", "gem", "er", "er-tasks"),
        *("mer", "mer-one-big-batch", "mer-current-rate"),
    ]
    assert list(MEMORIES_BY_NAME) == ["reservoir", "ring", "recent", "balanced", "mixed"]
    assert list(STREAMS_BY_NAME) == ["rotations", "permutations", "many-permutations", "omniglot"]
    assert list(IMAGES_BY_NAME) == ["mnist", "fashion-mnist"]
    assert LEARNERS_BY_NAME["mer-one-big-batch"] is mr.MEROneBigBatch
    assert MEMORIES_BY_NAME["ring"] is mr.Ring
    assert STREAMS_BY_NAME["many-permutations"] is mr.ManyPermutations


def test_no_learner_is_left_out() -> None:
    assert set(LEARNERS_BY_NAME.values()) == set(LEARNERS)
    assert set(MEMORIES_BY_NAME.values()) == set(MEMORIES)
    assert LEARNERS_BY_NAME.keys() == WITHOUT_MEMORY.keys() | WITH_MEMORY.keys()


@pytest.mark.parametrize("name", LEARNERS_BY_NAME)
def test_a_name_finds_the_class_and_the_class_its_name(name: str) -> None:
    assert find_learner(name) is LEARNERS_BY_NAME[name]
    assert name_of(find_learner(name)) == name


# Learners of one's own


def test_a_learner_in_a_file_is_found_however_the_path_is_written(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = find_learner("my_file.py:Repeated")
    assert found.__name__ == "Repeated"
    assert issubclass(found, mr.Learner)
    for place in (str(own), "./my_file.py", f"../{own.parent.name}/my_file.py"):
        assert find_learner(f"{place}:Repeated") is found
    assert capsys.readouterr().out == "imported\n"  # once


def test_files_of_the_same_name_are_told_apart(own: Path) -> None:
    other = own.parent / "other" / own.name
    other.parent.mkdir()
    other.write_text(OWN.replace("times: int = 2", "times: int = 5"))
    one, two = (find_learner(f"{path}:Repeated") for path in (own, other))
    assert one is not two
    assert [kind.__dataclass_fields__["times"].default for kind in (one, two)] == [2, 5]


def test_a_file_does_not_hide_a_module_of_its_name(own: Path) -> None:
    (own.parent / "json.py").write_text(OWN)
    before = sys.modules["json"]
    assert find_learner("json.py:Repeated").__name__ == "Repeated"
    assert sys.modules["json"] is importlib.import_module("json") is before


def test_a_learner_in_a_module_is_found(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_learner("metareplay:MER") is mr.MER
    assert find_learner("metareplay.learners.ewc:EWC") is mr.EWC
    package = own.parent / "my_package"
    package.mkdir()
    (package / "learners.py").write_text(OWN)
    monkeypatch.syspath_prepend(own.parent)
    assert find_learner("my_package.learners:Repeated").__module__ == "my_package.learners"


def test_a_learner_of_ones_own_runs(own: Path) -> None:
    del own
    given = Experiment(learner="my_file.py:Repeated", tasks=2, examples=3, hidden=(6,), options={"lr": 0.1, "times": 3})
    assert given.label == "my_file.py:Repeated, rotations, seed 0"
    assert given.key == given.start().key
    learner, stream = given.build()
    record = mr.run(learner, stream)
    assert (record.learner, record.settings["times"], record.examples, record.key) == ("Repeated", 3, 6, given.key)
    plain, _ = Experiment(learner="online", tasks=2, examples=3, hidden=(6,), options={"lr": 0.1}).build()
    for chunk in stream.chunks():
        for x, y in zip(chunk.xs, chunk.ys, strict=True):
            for _ in range(3):
                plain.observe(x, y)
    assert plain.weights.theta.equal(learner.weights.theta)
    with pytest.raises(mr.InputError, match=r"my_file.py:Repeated has no option 'k'; it takes clip, .*times"):
        Experiment(learner="my_file.py:Repeated", options={"k": 2}).start()


WRONG = {
    "unknown": ("merlin", "learner 'merlin': use one of online, independent, .*mer-current-rate"),
    "the name of a class": ("MER", "learner 'MER': use one of online,"),
    "nothing": ("", "learner '': use one of online,"),
    "a file without a class": ("my_file.py", "learner 'my_file.py': use one of online,"),
    "no such file": ("nowhere.py:Mine", r"learner 'nowhere.py:Mine': cannot import nowhere.py \(.*No such file"),
    "no such module": ("nowhere:Mine", r"learner 'nowhere:Mine': cannot import nowhere \(No module named"),
    "no such class": ("my_file.py:Mine", "no subclass of metareplay.Learner called 'Mine' in my_file.py"),
    "no class named": ("my_file.py:", "no subclass of metareplay.Learner called '' in my_file.py"),
    "not a learner": ("my_file.py:NotALearner", "no subclass of metareplay.Learner called 'NotALearner' in my_file.py"),
    "a function": ("my_file.py:a_function", "no subclass of metareplay.Learner called 'a_function' in my_file.py"),
    "a module in it": ("my_file.py:mr", "no subclass of metareplay.Learner called 'mr' in my_file.py"),
    "not Python": ("broken.py:Mine", r"learner 'broken.py:Mine': cannot import broken.py \(.*syntax"),
    "something missing": ("needs_more.py:Mine", "cannot import needs_more.py .*nothing_of_that_name"),
    "a folder": ("folder.py:Mine", "learner 'folder.py:Mine': cannot import folder.py"),
    "no place": (":Mine", "learner ':Mine': "),
    "a path without its ending": ("../my_file:Mine", "learner '../my_file:Mine': "),
    "a relative module": (".my_file:Mine", "learner '.my_file:Mine': "),
}


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(("name", "message"), WRONG.values(), ids=WRONG.keys())
def test_what_is_not_there_is_said_in_one_line(name: str, message: str) -> None:
    Path("folder.py").mkdir()
    with pytest.raises(mr.InputError, match=message) as caught:
        find_learner(name)
    assert "\n" not in str(caught.value)


def test_a_file_that_was_put_right_is_read_again(own: Path) -> None:
    with pytest.raises(mr.InputError, match="cannot import"):
        find_learner("broken.py:Repeated")
    (own.parent / "broken.py").write_text(OWN)
    assert find_learner("broken.py:Repeated").__name__ == "Repeated"
