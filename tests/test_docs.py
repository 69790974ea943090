"""Every Python example in the README and the docs runs; every command in them is one the program has."""

import re
from pathlib import Path

import numpy as np
import pytest

from metareplay.cli.app import make_app
from metareplay.data import Images

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def noise() -> Images:
    rng = np.random.default_rng(0)
    xs, ys = rng.integers(256, size=(300, 28, 28), dtype=np.uint8), rng.integers(10, size=300, dtype=np.uint8)
    return Images("noise", xs[:200], ys[:200], xs[200:], ys[200:])


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("metareplay.streams.images.mnist", noise)  # the examples must not need the network
    names: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_links_exist(page: Path) -> None:
    app = make_app([])
    known = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    known |= {group.name for group in app.registered_groups if group.name}
    for block in blocks(page, "sh"):
        for command in re.findall(r"^metareplay ([a-z-]+)", block, flags=re.MULTILINE):
            assert command in known, command
    for link in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / link).exists(), link


def test_there_are_examples() -> None:
    assert blocks(ROOT / "README.md", "python")
