"""The harness notices what it is there for."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

GOOD = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>A page</title></head>
<body><main><h1>A page</h1><button id="shown">Press</button><button id="plain" style="outline: none">Press</button>
</main></body></html>"""

Check = Callable[[Page], None]


def opened(page: Page, folder: Path, text: str) -> Page:
    path = folder / "page.html"
    path.write_text(text)
    page.goto(path.as_uri())
    return page


def test_a_good_page_passes(page: Page, tmp_path: Path, axe: Check, fits: Check) -> None:
    opened(page, tmp_path, GOOD)
    axe(page)
    fits(page)


def test_an_inaccessible_page_fails(page: Page, tmp_path: Path, axe: Check) -> None:
    opened(page, tmp_path, GOOD.replace("<h1>", "<input><h1>"))
    with pytest.raises(AssertionError, match="label"):
        axe(page)


def test_a_wide_page_fails(page: Page, tmp_path: Path, fits: Check) -> None:
    opened(page, tmp_path, GOOD.replace("<h1>", "<h1 style='width: 3000px'>"))
    with pytest.raises(AssertionError, match="wider"):
        fits(page)


def test_an_invisible_focus_fails(page: Page, tmp_path: Path, focus_visible: Check) -> None:
    opened(page, tmp_path, GOOD)
    page.keyboard.press("Tab")
    focus_visible(page)
    page.keyboard.press("Tab")
    with pytest.raises(AssertionError, match="plain"):
        focus_visible(page)


def test_a_noisy_page_fails(page: Page, tmp_path: Path, complaints: list[str]) -> None:
    script = "console.error('no'); fetch('http://other.invalid/').catch(() => 0); alert(1); throw new Error('oh')"
    opened(page, tmp_path, GOOD.replace("<h1>", f"<script>{script}</script><h1>"))
    page.wait_for_load_state("networkidle")
    found = "\n".join(complaints)
    assert all(word in found for word in ("console: no", "http://other.invalid/", "dialog: 1", "error: oh"))
    complaints.clear()
