"""The documentation site in a real browser: quiet, searchable, accessible, in light and dark and on a phone."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

ROOT = Path(__file__).parent.parent
PAGES = ("index.html", "tutorial.html", "gallery/index.html", "gallery/drift.html", "api/learners.html", "results.html")
MISSING = "() => [...document.querySelectorAll('article img')].filter(one => !one.naturalWidth).map(one => one.src)"
Check = Callable[[Page], None]


class Quiet(SimpleHTTPRequestHandler):
    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Say nothing."""


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True)
    return folder


@pytest.fixture(scope="session")
def site(built: Path) -> Iterator[str]:
    """The address of the site on a server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(built)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_quiet_and_accessible(
    page: Page, site: str, axe: Check, fits: Check, name: str, width: int, scheme: Any
) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{site}/{name}")
    expect(page.locator("h1")).to_be_visible()
    shown = page.evaluate("document.body.dataset.mdColorScheme")
    assert shown == {"light": "default", "dark": "slate"}[scheme]
    axe(page)
    fits(page)


@pytest.mark.parametrize("place", ["server", "files"])
def test_search_finds_the_reservoir(page: Page, built: Path, site: str, place: str) -> None:
    page.goto(f"{site if place == 'server' else built.as_uri()}/index.html")
    page.keyboard.press("/")
    page.keyboard.type("Reservoir")
    first = page.locator(".md-search-result__link").first
    expect(first).to_be_visible()
    expect(page.locator(".md-search-result__link[href*='api/memories.html']").first).to_be_attached()


@pytest.mark.parametrize("name", ["index.html", "api/memories.html"])
def test_the_focus_is_visible(page: Page, site: str, focus_visible: Check, name: str) -> None:
    page.goto(f"{site}/{name}")
    for _ in range(12):
        page.keyboard.press("Tab")
        focus_visible(page)


def test_names_lead_to_the_api(page: Page, site: str) -> None:
    page.goto(f"{site}/tutorial.html")
    page.locator("a[href*='api/memories.html']", has_text="mr.Reservoir").first.click()
    expect(page.locator("[id='metareplay.Reservoir']")).to_be_in_viewport()


def test_pictures_are_there(page: Page, site: str) -> None:
    for name in PAGES:
        page.goto(f"{site}/{name}")
        page.wait_for_load_state("networkidle")
        assert page.evaluate(MISSING) == []
