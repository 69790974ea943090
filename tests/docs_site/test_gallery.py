"""The gallery shows every example, with what it printed and drew."""

from pathlib import Path

import pytest

from docs_site.gallery import KEPT, SCRIPTS, page, title

SMALL = 200_000  # bytes


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_page_has_everything(script: Path) -> None:
    made = page(script)
    assert made.startswith(f"# {title(script)}\n")
    assert made.count("```python") == made.count("\n```\n") - 1  # the last block is what it printed
    assert "# %%" not in made
    for line in script.read_text().split('"""\n', maxsplit=1)[1].splitlines():
        assert line.lstrip("# %") in made


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_what_it_drew_is_kept(script: Path) -> None:
    """A script that draws has a small picture, and is shown in the list with it."""
    listed = (KEPT / "index.md").read_text()
    assert f"](../../examples/{script.name})" in listed
    picture = (KEPT / script.stem).with_suffix(".png")
    assert picture.exists() == ("plt.show()" in script.read_text())
    if picture.exists():
        assert picture.stat().st_size < SMALL
        assert f"({picture.name})" in listed
