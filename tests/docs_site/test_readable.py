"""What the API pages show of the source."""

from pathlib import Path

import pytest
from griffe import Class, Function, load, load_extensions

from docs_site.readable import Readable, readable, with_examples_as_code

SOURCE = '''
from dataclasses import dataclass, field


@dataclass
class Base:
    """Explain everything.

    >>> Base(1).learn()
    2
    """

    model: int

    def learn(self) -> int:
        """Explain this once."""
        return 2


@dataclass(kw_only=True)
class Own(Base):
    """Explain the rest."""

    memory: list = field(default_factory=lambda: list("ab"))

    def learn(self) -> int:
        """Do it in another way."""
        return 3

    def more(self) -> int:
        """Do more."""
        return 4
'''


def test_examples_become_code() -> None:
    given = "Do it.\n\n>>> 1 + 1\n2\n\nMore text.\n\n>>> for x in ():\n...     x"
    expected = "Do it.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nMore text.\n\n```pycon\n>>> for x in ():\n...     x\n```\n"
    assert with_examples_as_code(given) == expected
    assert with_examples_as_code("No example >>> here.") == "No example >>> here."


def test_defaults_are_what_a_caller_would_write() -> None:
    assert readable("(lambda: Reservoir(500))()") == "Reservoir(500)"
    assert readable("added_option(1)") == "1"
    assert readable("max(lambda: 1)") == "max(lambda: 1)"


def test_classes_are_shown_as_python_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A field of the base comes first and has no star before it; a method that the base explains is left out."""
    (tmp_path / "shown_classes.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    found = load("shown_classes", extensions=load_extensions("dataclasses", Readable), search_paths=[tmp_path])
    kind = found["Own"]
    assert isinstance(kind, Class)
    assert "more" in kind.members
    assert "learn" not in kind.members
    made = kind.members["__init__"]
    assert isinstance(made, Function)
    shown = {one.name: (str(one.kind and one.kind.value), str(one.default)) for one in made.parameters}
    assert list(shown.items())[1:] == [
        ("model", ("positional or keyword", "None")),
        ("memory", ("keyword-only", "list('ab')")),
    ]
    assert "```pycon\n>>> Base(1).learn()\n2\n```" in found["Base"].docstring.value


def test_a_function_is_preferred_to_the_module_of_its_name(tmp_path: Path) -> None:
    package = tmp_path / "shown_package"
    package.mkdir()
    (package / "__init__.py").write_text('from shown_package.load import load\n\n__all__ = ["load"]\n')
    (package / "load.py").write_text('def load() -> None:\n    """Load it."""\n')
    found = load("shown_package", extensions=load_extensions("dataclasses", Readable), search_paths=[tmp_path])
    assert found["load"].is_function
