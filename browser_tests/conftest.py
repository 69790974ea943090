"""What the tests in a real browser share: a page that must stay quiet, and checks of looks and accessibility.

`make browser-test` runs them. They need Chromium, and axe-core, which the make target fetches from npm.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Dialog, Page, Route, expect, sync_playwright

ROOT = Path(__file__).parent.parent
AXE = Path(os.environ.get("METAREPLAY_AXE", ROOT / ".venv/axe/node_modules/axe-core/axe.min.js"))
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
HERE = {"", "127.0.0.1", "localhost"}  # hosts that are no other machine
ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
FOCUS = """() => {
  const one = document.activeElement;
  const look = (element) => {
    const style = getComputedStyle(element);
    const parts = [style.outlineStyle, style.outlineWidth, style.outlineColor];
    return [...parts, style.boxShadow, style.backgroundColor, style.borderColor, style.textDecorationLine].join("|");
  };
  const focused = look(one);
  one.blur();
  const plain = look(one);
  one.focus({ preventScroll: true, focusVisible: true });
  return { visible: focused !== plain, where: one.outerHTML.slice(0, 120) };
}"""
TOO_WIDE = """() => {
  const scrolls = (element) => {
    for (let one = element.parentElement; one && one !== document.body; one = one.parentElement) {
      if (getComputedStyle(one).overflowX !== "visible") return true;
    }
    return false;
  };
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= width) return [];
  return [...document.body.querySelectorAll("*")]
    .filter((one) => one.getBoundingClientRect().right > width + 1 && !scrolls(one))
    .slice(0, 5).map((one) => one.outerHTML.slice(0, 120)).concat("the page is wider than the window");
}"""

PATIENCE = 30_000  # milliseconds that a busy machine may take for anything
expect.set_options(timeout=PATIENCE)

Check = Callable[[Page], None]


def find_chromium() -> str:
    """Return the path of Chromium; end with a message if there is none."""
    found = os.environ.get("METAREPLAY_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.exit(
            "no Chromium found: install it (Debian: apt install chromium), or name it in METAREPLAY_CHROMIUM", 2
        )
    return found


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def complaints() -> list[str]:
    """What was wrong with the page so far; it must be empty in the end."""
    return []


@pytest.fixture
def page(browser: Browser, complaints: list[str]) -> Iterator[Page]:
    """A page, 1280 pixels wide, that fails the test on errors in its console and on requests to another host."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(PATIENCE)

    def hear(dialog: Dialog) -> None:
        complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def refuse(route: Route) -> None:
        complaints.append(f"request to another host: {route.request.url}")
        route.abort()

    page.on("console", lambda said: complaints.append(f"console: {said.text}") if said.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    page.on("dialog", hear)
    context.route(lambda address: (urlsplit(address).hostname or "") not in HERE, refuse)
    yield page
    context.close()
    assert not complaints, "\n".join(complaints)


@pytest.fixture(scope="session")
def axe() -> Check:
    """Fails on serious and critical findings of axe-core in a page as it looks now: `axe(page)`."""
    if not AXE.is_file():
        pytest.exit(f"no axe-core at {AXE}: run `make browser-test`, or name axe.min.js in METAREPLAY_AXE", 2)
    source = AXE.read_text()

    def check(page: Page) -> None:
        if not page.evaluate("() => Boolean(window.axe)"):
            page.evaluate(source)  # not a script tag, which a page's own rules may forbid
        found = page.evaluate("() => axe.run({ resultTypes: ['violations'] })")
        bad = [
            f"{one['impact']} {one['id']}: {one['help']}: {node['html'][:160]} ({node['failureSummary'][:300]})"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"][:3]
        ]
        assert not bad, "\n".join(bad)

    return check


@pytest.fixture(scope="session")
def fits() -> Check:
    """Fails if a page is wider than its window, so that all of it would scroll sideways: `fits(page)`."""

    def check(page: Page) -> None:
        found = page.evaluate(TOO_WIDE)
        assert not found, "\n".join(found)

    return check


@pytest.fixture(scope="session")
def focus_visible() -> Check:
    """Fails if the element that has the keyboard's focus looks as it does without it: `focus_visible(page)`."""

    def check(page: Page) -> None:
        found = page.evaluate(FOCUS)
        assert found["visible"], f"no visible focus: {found['where']}"

    return check
