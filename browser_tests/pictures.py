"""Takes the pictures of site, report and live page in docs/pictures: `python -m browser_tests.pictures [NAME ...]`.

It needs Chromium, as the tests do, and takes some minutes, since the live page is shown during real runs.
"""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Page, expect, sync_playwright

import metareplay as mr
from browser_tests.conftest import ARGUMENTS, ROOT, find_chromium

PICTURES = ROOT / "docs" / "pictures"
SETTING = "rotations: mer 500, every task after every task"
PATIENCE = 1_200_000  # milliseconds that anything may take: the runs are real ones


def metareplay(*words: str) -> list[str]:
    """Return the command with these words."""
    return [sys.executable, "-m", "metareplay", *words]


def take_site(page: Page, folder: Path) -> None:
    """The start page of the documentation."""
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True)
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto((folder / "index.html").as_uri())
    page.screenshot(path=PICTURES / "site.png")


def take_report(page: Page, folder: Path) -> None:
    """One setting of the report on our results: its charts and its command."""
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(mr.report(ROOT / "results", folder / "report.html").as_uri())
    details = page.locator("details.detail", has_text=SETTING).first
    details.locator("> summary").click()
    for figure in details.locator("figure").all():
        figure.scroll_into_view_if_needed()
        expect(figure).to_have_attribute("data-drawn", "yes")
    details.evaluate("one => one.scrollIntoView()")
    details.locator("> summary").evaluate("one => one.blur()")
    place, end = details.bounding_box(), details.locator("pre").bounding_box()
    assert place is not None
    assert end is not None
    clip = {"x": place["x"] - 24, "y": place["y"], "width": place["width"] + 48}
    page.screenshot(path=PICTURES / "report.png", clip={**clip, "height": end["y"] + end["height"] + 16 - place["y"]})


def take_live_page(page: Page, folder: Path) -> None:
    """The live page when one run is well on its way, others are done, and one waits."""
    shared = ("rotations", "--tasks", "10", "--examples", "500", "--full-matrix", "--records", "runs")
    subprocess.run(metareplay("run", "er", *shared, "--seeds", "2"), cwd=folder, check=True)
    words = ("run", "mer", *shared, "--s", "3", "--alignment", "--seeds", "3", "--jobs", "1")
    with (
        subprocess.Popen(metareplay("watch", "runs"), cwd=folder, stdout=subprocess.PIPE, text=True) as server,
        subprocess.Popen(metareplay(*words), cwd=folder) as run,
    ):
        try:
            assert server.stdout is not None
            page.set_viewport_size({"width": 1280, "height": 900})
            page.goto(server.stdout.readline().strip())
            expect(page.locator("#counts")).to_contain_text("1 running, 1 waiting, 3 done")
            page.wait_for_function("() => document.querySelector('#bar').value > 0.65")
            page.screenshot(path=PICTURES / "watch.png", full_page=True)
        finally:
            run.kill()
            server.kill()


def main() -> None:
    """Take all pictures, or those that are named: site, report, watch."""
    expect.set_options(timeout=PATIENCE)
    takes = {"site": take_site, "report": take_report, "watch": take_live_page}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=ARGUMENTS)
        for name in sys.argv[1:] or takes:
            with TemporaryDirectory() as folder:
                page = browser.new_page(color_scheme="light")
                page.set_default_timeout(PATIENCE)
                takes[name](page, Path(folder))
                page.close()
        browser.close()


if __name__ == "__main__":
    main()
