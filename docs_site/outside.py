"""Links that leave docs/: where the file that they name is on the site, if it is there at all."""

import posixpath
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path(__file__).parent.parent
PAGES: Final = {  # files of the repository that are pages of the site without a copy in docs/
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "README.md": "index.md",
    "examples": "gallery/index.md",
}
LINK: Final = re.compile(r"(\]\()(?!https?://|mailto:|#)([^)#\s]+)(#[^)\s]*)?(\))")
CODE: Final = re.compile(r"(^```.*?^```|^~~~.*?^~~~)", re.DOTALL | re.MULTILINE)


def place_on_site(path: str) -> str:
    """Return where a file of the repository is on the site, relative to the root of its sources.

    Args:
        path: The file, relative to the root of the repository.

    >>> place_on_site("docs/guide.md"), place_on_site("examples/compare.py"), place_on_site("results/table-2.png")
    ('guide.md', 'gallery/compare.md', 'results/table-2.png')
    """
    if path in PAGES:
        return PAGES[path]
    pure = PurePosixPath(path)
    if pure.parts[0] == "docs":
        return str(PurePosixPath(*pure.parts[1:]))
    if pure.parts[0] == "examples":
        return f"gallery/{pure.stem}.md"
    return path


def linked(markdown: str, source: str) -> list[str]:
    """Return which files of the repository a page links to, relative to the root.

    Args:
        markdown: The page.
        source: Where it is, relative to the root of the repository.
    """
    outside_code = CODE.split(markdown)[::2]
    return [_resolved(source, link[2]) for part in outside_code for link in LINK.finditer(part)]


def with_links_of_the_site(markdown: str, source: str) -> str:
    """Return a page with links that hold on the site.

    Args:
        markdown: The page as it is in the repository.
        source: Where it is, relative to the root of the repository.
    """
    here = posixpath.dirname(place_on_site(source))
    return _replaced(markdown, lambda target: posixpath.relpath(place_on_site(_resolved(source, target)), here or "."))


def _resolved(source: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


def _replaced(markdown: str, new: Callable[[str], str]) -> str:
    """Replace the target of every relative link outside blocks of code."""
    parts = CODE.split(markdown)
    parts[::2] = [
        LINK.sub(lambda link: f"{link[1]}{new(link[2])}{link[3] or ''}{link[4]}", part) for part in parts[::2]
    ]
    return "".join(parts)
