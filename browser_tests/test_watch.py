"""The live page in a real browser, during real runs that are killed and started again."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

ROOT = Path(__file__).parent.parent
HOSTILE = "<script>document.title='hacked'</script><img src=x onerror=alert(1)>"
PATIENCE = 120_000  # milliseconds: the first run compiles
RUN = ("run", "mer", "rotations", "--tasks", "6", "--examples", "1000", "--s", "5", "--k", "20", "--alignment")

Check = Callable[[Page], None]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts `metareplay` with these words; whatever still runs is ended after the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "metareplay", *words]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        started.append(process)
        return process

    yield begin
    for process in started:
        with process:  # which waits, and closes its output
            process.kill()


def watched(start: Start, folder: Path) -> tuple[str, subprocess.Popen[str]]:
    """The address of a new live page, and its process."""
    process = start("watch", str(folder))
    assert process.stdout is not None
    return process.stdout.readline().strip(), process


def seen(page: Page) -> int:
    """How many examples the page says have been learned."""
    text = page.locator("#facts div", has_text="Examples").first.locator("dd").inner_text()
    return int(text.partition(" of ")[0].replace(",", ""))


def test_a_run_is_followed_through_a_kill_and_a_restart(
    start: Start, page: Page, tmp_path: Path, axe: Check, fits: Check, focus_visible: Check, complaints: list[str]
) -> None:
    address, server = watched(start, tmp_path)
    page.goto(address)
    expect(page.locator("#connection")).to_have_text("Live")
    expect(page.locator("#none")).to_be_visible()
    axe(page)
    words = (*RUN, "--records", str(tmp_path))
    run = start(*words)
    expect(page.locator("#state")).to_contain_text("running, learning", timeout=PATIENCE)
    expect(page.locator("#chart-accuracy .scatterlayer .trace").first).to_be_visible(timeout=PATIENCE)
    expect(page.locator("#examples canvas").first).to_be_visible(timeout=PATIENCE)
    before = seen(page)
    page.wait_for_function(
        "before => Number(document.querySelector('#bar').value) * 6000 > before + 100", arg=before, timeout=PATIENCE
    )
    expect(page.locator("#chart-alignment .scatterlayer .trace")).to_be_visible(timeout=PATIENCE)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            axe(page)
            fits(page)
    page.set_viewport_size({"width": 1280, "height": 900})
    page.keyboard.press("Tab")
    focus_visible(page)

    run.kill()
    run.wait()
    expect(page.locator("#state")).to_contain_text("interrupted", timeout=PATIENCE)
    run = start(*words)
    expect(page.locator("#state")).to_contain_text("running", timeout=PATIENCE)

    server.kill()
    server.wait()
    expect(page.locator("#connection")).to_have_text("Connection lost, trying again")
    again, _ = watched(start, tmp_path)
    assert again == address
    expect(page.locator("#connection")).to_have_text("Live")
    complaints[:] = [one for one in complaints if "ERR_" not in one]  # what the browser says of a server that is gone
    run.send_signal(signal.SIGINT)
    expect(page.locator("#state")).to_contain_text("interrupted", timeout=PATIENCE)


def test_a_run_ends_and_its_record_is_shown(start: Start, page: Page, tmp_path: Path, axe: Check) -> None:
    address, _ = watched(start, tmp_path)
    page.goto(address)
    run = start("run", "er", "rotations", "--tasks", "2", "--examples", "500", "--records", str(tmp_path))
    expect(page.locator("#state")).to_have_text("done", timeout=PATIENCE)
    assert run.wait() == 0
    expect(page.locator("#facts")).to_contain_text("Retained accuracy (RA)")
    expect(page.locator("#chart-accuracy .scatterlayer .trace").first).to_be_visible()
    page.locator("#settings summary").click()
    expect(page.locator("#settings tbody")).to_contain_text("Rotations")
    axe(page)


def test_hostile_names_are_texts(start: Start, page: Page, tmp_path: Path) -> None:
    held = {"kind": HOSTILE, "held": 1, "capacity": HOSTILE, "labels": [HOSTILE], "classes": [[HOSTILE, 1]]}
    curves = {HOSTILE: [[0, 1]], "accuracy of task 1": [[0, HOSTILE]]}
    said = {
        "format": 1,
        "key": "aaaa",
        "label": HOSTILE,
        "learner": HOSTILE,
        "state": "failed",
        "reason": HOSTILE,
        "settings": {HOSTILE: HOSTILE},
        "curves": curves,
        "memory": held,
    }
    (tmp_path / ".aaaa.live").write_text(json.dumps(said))
    (tmp_path / "<img src=x onerror=alert(2)>.json").write_text("{")
    (tmp_path / "from-the-future-bbbb.json").write_text(json.dumps({"format": 99, "key": "bbbb", "settings": 3}))
    address, _ = watched(start, tmp_path)
    page.goto(address)
    expect(page.locator("#label")).to_have_text(HOSTILE)
    expect(page.locator("#reason")).to_have_text(HOSTILE)
    expect(page.locator("#runs li")).to_have_count(3)
    expect(page.locator("#runs")).to_contain_text("unreadable")
    assert page.locator("img").count() == 0
    assert "hacked" not in page.title()


def test_a_sweep_is_counted(start: Start, page: Page, tmp_path: Path) -> None:
    address, _ = watched(start, tmp_path)
    page.goto(address)
    grid = ("--lr", "0.01,0.1", "--seeds", "1", "--tasks", "3", "--examples", "300", "--on", "threads", "--jobs", "1")
    sweep = start("sweep", "er", "rotations", *grid, "--records", str(tmp_path), "--out", str(tmp_path / "out"))
    expect(page.locator("#counts")).to_contain_text("1 running, 1 waiting", timeout=PATIENCE)
    expect(page.locator("#best")).to_be_visible(timeout=PATIENCE)
    expect(page.locator("#measure")).to_contain_text("validation accuracy")
    assert sweep.wait() == 0


def test_the_page_comes_with_the_run(page: Page, tmp_path: Path, complaints: list[str]) -> None:
    words = [sys.executable, "-m", "metareplay", *RUN, "--records", str(tmp_path), "--watch"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        try:
            assert run.stderr is not None
            line = next(line for line in run.stderr if line.startswith("watch it: "))
            page.goto(line.removeprefix("watch it: ").strip())
            expect(page.locator("#state")).to_contain_text("running", timeout=PATIENCE)
        finally:
            run.kill()
    expect(page.locator("#connection")).to_have_text("Connection lost, trying again")
    complaints.clear()  # the browser has said that the server is gone
