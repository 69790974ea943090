"""The tables of docs/language-models.md have the numbers of the records in results/."""

import json
from pathlib import Path

from metareplay.lm import LmRecord, read_records
from metareplay.lm.report import table

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "language-models.md").read_text()
WORDS = " ".join(PAGE.split())  # without line breaks


def texts(records: list[LmRecord]) -> set[str]:
    """Return the fingerprints of the texts, all languages of a record in one."""
    return {json.dumps(record.settings["texts"], sort_keys=True) for record in records}


def test_the_table_of_costs_is_what_was_measured() -> None:
    found = json.loads((ROOT / "results" / "periodic-mer.json").read_text())
    (device, host), offered, opening = found["costs"], found["offered"], found["opening"]
    for line in (
        f"| `mix` and `step`, share of a plain step of {device['plain_ms']:.1f} ms, copy on the device | "
        f"{100 * device['share']:.2f} % | 3 % | 1 % |",
        f"| the same with the copy on the host | {100 * host['share']:.2f} % | 3 % | 1 % |",
        f"| extra device memory with the copy on the host, share of the weights | {100 * host['memory_share']:.2f} % | "
        f"1 % | 0 |",
        f"| rows of 512 tokens offered per second to a `DiskReservoir`, one core, while it fills | "
        f"{round(offered['while_it_fills'], -3):,.0f} | 50,000 | 200,000 |",
        f"| the same when it is full | {round(offered['when_it_is_full'], -3):,.0f} | 50,000 | 200,000 |",
        f"| opening a reservoir of {opening['rows'] // 10**6} million rows (of 20 tokens) | "
        f"{opening['seconds']:.3f} s | 1 s | 0.2 s |",
        f"| verified: `mix` and `step` take {100 * device['share']:.2f} % of a training step, or "
        f"{100 * host['share']:.2f} % with the copy on the host (below).",
    ):
        assert line in PAGE
    assert f"The host spends {100 * device['host_share']:.1f} % of a step's time" in WORDS
    assert (found["device"], found["rows"], found["context"], found["every"]) == ("NVIDIA H200", [48, 16], 512, 500)


def test_the_table_of_languages_is_that_of_the_records() -> None:
    records = read_records(ROOT / "results" / "lm")
    (heading, *lines), count = table(records), len(records[0].languages)
    assert f"| {' | '.join(heading[5 : 5 + count])} |\n" in PAGE
    for line in lines:
        each = [value.split(" ± ")[0] for value in line[5 : 5 + count]]
        assert f"| {' | '.join([*line[:5], *each])} |\n".replace("|  |", "| |").replace("|  |", "| |") in PAGE
    assert len(texts(records)) == 1
    of_arm = [sum(record.arm == line[0] for record in records) for line in lines]
    assert of_arm == [3] * 7  # as the page says
