"""The table of speeds is made from the benches, and never typed."""

import json
from pathlib import Path

import pytest

from docs_site.speed import BENCHES, PAGES, SHOWN, speed_table, with_speed_table


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_have_the_table_of_the_benches(page: Path) -> None:
    assert with_speed_table(page.read_text()) == page.read_text()
    assert speed_table() in page.read_text()


def test_every_setting_is_shown_once() -> None:
    for words in SHOWN.values():
        assert speed_table().count(f"| {words} |") == 1


def test_numbers_are_rounded(tmp_path: Path) -> None:
    timing = {"name": next(iter(SHOWN)), "torch": 1234.4, "ours": 3.96, "ratio": 134.9}
    for name in BENCHES.values():
        (tmp_path / name).write_text(json.dumps({"timings": [timing, {"name": "another"}]}))
    assert speed_table(tmp_path).splitlines()[2].endswith("| one CPU core | 1,234 | 4.0 | 135 |")
