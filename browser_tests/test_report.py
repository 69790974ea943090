"""Reports in a browser: on our own results, on a thousand runs, and on hostile records."""

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect

import metareplay as mr
from metareplay.experiments import pack

ROOT = Path(__file__).parent.parent
TASKS = 20
RUN = mr.Record(
    learner="MER",
    settings={"lr": 0.1, "seed": 0, "engine": "auto", "memory": {"kind": "Reservoir", "capacity": 500}},
    model="Sequential( (0): Linear(in_features=784, out_features=100, bias=True) )",
    stream={"stream": "Rotations", "tasks": TASKS, "examples": 1000, "shape": [784], "seed": 0},
    seed=0,
    engine="cpu",
    examples=20_000,
    accuracy=np.zeros((TASKS + 1, TASKS)),
    weights="ab" * 32,
    seconds={"learn": 61.25, "evaluate": 3.5},
    versions={"metareplay": mr.__version__, "torch": "2.0", "python": "3.11", "processor": "some processor"},
    date="2026-01-02T03:04:05+00:00",
)
BEYOND = "tbody tr:nth-child(n + 31), details.detail:not([open]):nth-of-type(n + 31)"
EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"

Check = Callable[[Page], None]


def thousand(folder: Path) -> Path:
    """A thousand runs: 200 settings of four learners with 5 seeds each, every task measured after every task."""
    draws = np.random.default_rng(0)
    records = []
    for number in range(200):
        options = {"lr": [0.01, 0.03, 0.1, 0.3][number % 4], "k": 5 + number // 4 % 10, "s": 1 + number // 40}
        records += [
            replace(
                RUN,
                learner=("MER", "ER", "GEM", "Online")[number // 50],
                settings=RUN.settings | options | {"seed": seed},
                stream=RUN.stream | {"seed": seed},
                seed=seed,
                accuracy=draws.uniform(10, 95, (TASKS + 1, TASKS)).round(2),
            )
            for seed in range(5)
        ]
    pack(records, folder / "runs.jsonl")
    return folder


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mr.report(ROOT / "results", tmp_path_factory.mktemp("ours") / "report.html")


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    start = time.perf_counter()
    path = mr.report(thousand(folder), folder / "report.html")
    print(f"\n1,000 runs: {path.stat().st_size / 1e6:.1f} MB, written in {time.perf_counter() - start:.1f} s")
    return path


def opened(page: Page, path: Path) -> Page:
    page.goto(path.as_uri())
    ready = page.evaluate("() => Number(document.documentElement.dataset.ready)")
    print(f"\n{path.parent.name}: interactive after {ready} ms")
    return page


def show(page: Page, name: str) -> Any:
    """Open one setting as a reader does, and wait until its charts are drawn."""
    page.evaluate("name => { location.hash = name; }", name)
    details = page.locator(f"#{name}")
    figures = details.locator("figure")
    figures.first.wait_for()
    for number in range(figures.count()):
        figures.nth(number).scroll_into_view_if_needed()
        expect(figures.nth(number)).to_have_attribute("data-drawn", "yes")
    return details


def shorten(page: Page) -> None:
    """Leave the first rows of each list: axe-core would take a minute for thousands that all look alike."""
    page.evaluate(f"document.querySelectorAll('{BEYOND}').forEach((one) => one.remove())")


def test_our_results(page: Page, ours: Path, axe: Check, fits: Check) -> None:
    opened(page, ours)
    page.locator("#streams figure").first.scroll_into_view_if_needed()
    expect(page.locator("#streams figure").first).to_have_attribute("data-drawn", "yes")
    for name in ("streams-1", "games-1", "sweep-1"):
        details = show(page, name)
        assert details.locator("svg.main-svg").count() >= 1
        assert details.locator(".plot path").count() > 10
    assert "metareplay run" in page.locator("#streams-1 pre").inner_text()
    fits(page)
    shorten(page)
    for scheme in ("light", "dark"):
        page.locator("#theme").select_option(scheme)
        axe(page)
        fits(page)


def test_every_setting_can_be_opened(page: Page, ours: Path) -> None:
    opened(page, ours)
    page.evaluate("document.querySelectorAll('details.detail').forEach((one) => { one.open = true; })")
    page.wait_for_function(
        "() => [...document.querySelectorAll('details.detail')].every((one) => one.children.length > 1)"
    )
    assert page.locator("details.detail figure").count() > 300


def test_a_phone(page: Page, ours: Path, axe: Check, fits: Check) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    opened(page, ours)
    fits(page)
    for name in ("streams-1", "games-1", "sweep-1"):
        show(page, name)
        fits(page)
    shorten(page)
    axe(page)


def test_the_system_decides_the_colours(page: Page, ours: Path, axe: Check) -> None:
    page.emulate_media(color_scheme="dark")
    opened(page, ours)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 27)"
    show(page, "streams-1")
    shorten(page)
    axe(page)
    page.locator("#theme").select_option("light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_an_address_that_cannot_be_decoded(page: Page, tmp_path: Path) -> None:
    RUN.write(tmp_path)
    page.goto(f"{mr.report(tmp_path, tmp_path / 'report.html').as_uri()}#%")
    assert page.evaluate("document.documentElement.dataset.ready")


def test_a_thousand_runs(page: Page, many: Path, axe: Check) -> None:
    assert many.stat().st_size < 10e6
    opened(page, many)
    assert page.evaluate("() => Number(document.documentElement.dataset.ready)") < 2000
    show(page, "streams-7")
    axe(page)


def test_tables_are_sorted_by_the_keyboard(page: Page, many: Path, focus_visible: Check) -> None:
    opened(page, many)
    table = page.locator("#streams-table table")
    head = table.locator("th", has_text="RA").first
    column = head.evaluate("one => one.cellIndex")

    def numbers() -> list[float]:
        cells = table.locator(f"tbody tr td:nth-child({column + 1})").all_inner_texts()
        return [float(cell.split()[0]) for cell in cells]

    head.locator("button").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    focus_visible(page)
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert numbers() == sorted(numbers(), reverse=True)
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert numbers() == sorted(numbers())


def test_focus_is_visible_everywhere(page: Page, many: Path, focus_visible: Check) -> None:
    opened(page, many)
    for _ in range(25):
        page.keyboard.press("Tab")
        focus_visible(page)
    page.locator("#streams-1 summary").focus()
    page.keyboard.press("Enter")
    page.locator("#streams-1 figure").first.wait_for()
    for _ in range(8):
        page.keyboard.press("Tab")
        focus_visible(page)


def test_rows_are_filtered(page: Page, many: Path) -> None:
    opened(page, many)
    page.get_by_label("Show only rows with").fill("gem 0.03")
    shown = page.locator("#streams-table tbody tr:visible")
    assert 0 < shown.count() < 50
    assert all("gem" in text and "0.03" in text for text in shown.all_inner_texts())


def test_a_chart_is_also_a_table(page: Page, many: Path) -> None:
    opened(page, many)
    details = show(page, "streams-3")
    figure = details.locator("figure").first
    assert "Accuracy matrix" in (figure.locator("[role=img]").get_attribute("aria-label") or "")
    figure.locator("summary").click()
    assert figure.locator("tbody tr").count() == TASKS + 1


def test_hovering_shows_numbers(page: Page, many: Path) -> None:
    opened(page, many)
    plot = show(page, "streams-3").locator(".plot").first.locator(".nsewdrag").first
    plot.hover()
    hover = page.locator("#streams-3 .hoverlayer .hovertext").first
    expect(hover).to_contain_text(re.compile(r"tasks learned \d+.*task \d+.*\d %"))


def test_links_lead_past_a_long_table(page: Page, many: Path) -> None:
    opened(page, many)
    for name in ("Side by side", "Each setting"):
        page.locator("#streams").get_by_role("link", name=name).click()
        expect(page.get_by_role("heading", name=name)).to_be_in_viewport()


def test_a_command_is_broken_between_its_options(page: Page, ours: Path) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    opened(page, ours)
    command = show(page, "streams-1").locator("pre")
    assert command.inner_text().startswith("metareplay run er many-permutations --memory 500 ")
    heights = command.locator("span").evaluate_all("all => all.map((one) => one.offsetHeight)")
    assert len(heights) > 5
    assert len(set(heights)) == 1  # each is one line high


def test_a_rank_and_a_dot_lead_to_their_setting(page: Page, many: Path) -> None:
    opened(page, many)
    page.locator("#sweep-1 summary").click()
    page.locator("#sweep-1 tbody a").first.click()
    first = page.evaluate("location.hash")
    assert first.startswith("#streams-")
    expect(page.locator(f"{first} figure").first).to_have_attribute("data-drawn", "yes")
    figure = page.locator("#streams > figure").first
    figure.scroll_into_view_if_needed()
    expect(figure).to_have_attribute("data-drawn", "yes")
    page.evaluate("location.hash = ''")
    figure.locator(".points path").nth(1).click(force=True)
    expect(page.locator(page.evaluate("location.hash"))).to_have_attribute("open", "")


def test_paper_shows_what_is_open(page: Page, many: Path) -> None:
    opened(page, many)
    show(page, "streams-3")

    def width() -> Any:
        return page.locator("#streams-3 figure svg.main-svg").first.get_attribute("width")

    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("nav").is_hidden()
    assert page.locator("#streams-3 figure svg.main-svg").first.is_visible()
    assert page.locator("#streams-4").is_hidden()
    assert width() == "660"
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert width() != "660"


def test_hostile_records(page: Page, tmp_path: Path, axe: Check, fits: Check) -> None:
    for lr in range(5):
        named = {"stream": EVIL, "tasks": TASKS, EVIL: EVIL}
        settings = {"seed": 0, "lr": lr, EVIL: f"{EVIL}{lr}", "memory": {"kind": EVIL, "capacity": 5}}
        evil = replace(RUN, learner=EVIL, stream=named, settings=settings, model=EVIL, engine=EVIL)
        evil.write(tmp_path / str(lr))
    (tmp_path / "future.json").write_text(json.dumps(RUN.to_json() | {"format": EVIL}))
    opened(page, mr.report(tmp_path, tmp_path / "report.html", title=EVIL))
    assert page.locator("h1").inner_text() == EVIL
    assert page.locator("#streams-table tbody td").first.inner_text() == EVIL
    for name in ("streams-1", "sweep-1"):
        show(page, name)
    page.locator("#streams figure").first.scroll_into_view_if_needed()
    expect(page.locator("#streams figure").first).to_have_attribute("data-drawn", "yes")
    assert page.locator("img, main script").count() == 0
    assert EVIL in page.locator("#broken").inner_text()
    axe(page)
    page.set_viewport_size({"width": 390, "height": 800})
    fits(page)
