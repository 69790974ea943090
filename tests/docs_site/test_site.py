"""The documentation site: every page is in its menu, every public name on an API page, nothing from another host."""

import inspect
import re
from collections import Counter
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import pytest

import metareplay
from docs_site.gallery import SCRIPTS
from docs_site.hooks import DOCUMENTED, FOREIGN, SOURCES, documented_names, with_names_linked
from docs_site.outside import ROOT

PACKAGES = [import_module(f"metareplay.{found.name}") for found in iter_modules(metareplay.__path__) if found.ispkg]
SUBPACKAGES = [one for one in PACKAGES if hasattr(one, "__all__") and one.__name__ != "metareplay.cli"]
DOCS = ROOT / "docs"


def site_configuration() -> str:
    return (ROOT / "mkdocs.yml").read_text()


def test_every_page_is_in_the_menu() -> None:
    menu = site_configuration().split("\nnav:\n")[1]
    listed = re.findall(r"([\w/-]+\.md)$", menu, flags=re.MULTILINE)
    made = {*SOURCES, *(f"gallery/{script.stem}.md" for script in SCRIPTS)}
    there = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} | made
    assert Counter(listed) == Counter(there)


def public() -> dict[str, Any]:
    """Return every public name with what it stands for, by the name that the API pages may give it."""
    names = {name: getattr(metareplay, name) for name in metareplay.__all__ if name != "__version__"}
    for package in SUBPACKAGES:
        short = package.__name__.removeprefix("metareplay.")
        names |= {f"{short}.{name}": getattr(package, name) for name in package.__all__}
    return {name: thing for name, thing in names.items() if not isinstance(thing, ModuleType)}


def test_every_public_name_is_on_an_api_page() -> None:
    shown = {id(thing) for name, thing in public().items() if name in documented_names()}
    assert sorted(name for name, thing in public().items() if id(thing) not in shown) == []


def test_every_public_name_is_explained() -> None:
    things = {name: thing for name, thing in public().items() if inspect.isclass(thing) or inspect.isfunction(thing)}
    assert [name for name, thing in things.items() if not inspect.getdoc(thing)] == []


def test_every_package_is_named_on_the_first_api_page() -> None:
    text = (DOCS / "api" / "index.md").read_text()
    assert [one.__name__ for one in SUBPACKAGES if f"`{one.__name__}`" not in text] == []


def test_no_name_is_described_twice() -> None:
    found = Counter(name for page in (DOCS / "api").glob("*.md") for name in DOCUMENTED.findall(page.read_text()))
    assert [name for name, count in found.items() if count > 1] == []


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("use `mr.MER` here", "use [`mr.MER`][metareplay.MER] here"),
        ("`mr.networks.mlp`", "[`mr.networks.mlp`][metareplay.networks.mlp]"),
        ("`mr.NoSuchName`, `mr.run(x)`", None),
        ("## `mr.MER`", None),
        ("[`mr.MER`](guide.md)", None),
        ("```python\n`mr.MER`\n```", None),
    ],
)
def test_names_lead_to_their_descriptions(written: str, expected: str | None) -> None:
    assert with_names_linked(written) == (expected or written)


@pytest.mark.parametrize(
    ("html", "is_foreign"),
    [
        ('<img alt="" src="https://other.example/a.png">', True),
        ('<link rel="stylesheet" href="//other.example/a.css">', True),
        ("<script async src=http://other.example/a.js></script>", True),
        ('<script src="assets/a.js"></script><a href="https://arxiv.org/abs/1810.11910">the paper</a>', False),
    ],
)
def test_nothing_comes_from_another_host(html: str, is_foreign: bool) -> None:
    """`make docs` looks at every page that it builds."""
    assert bool(FOREIGN.search(html)) == is_foreign


def test_fonts_are_those_of_the_system() -> None:
    assert "font: false" in site_configuration()
    for style in DOCS.rglob("*.css"):
        assert not re.search(r"url\(|@import|http", style.read_text())
