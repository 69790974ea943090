"""The tables of docs/language-models.md have the numbers of the records in results/."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metareplay.lm import ARMS, LmRecord, read_records
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
        f"| verified with 31.5 million parameters: `mix` and `step` take {100 * device['share']:.2f} % of a training "
        f"step, or {100 * host['share']:.2f} % with the copy on the host (below).",
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


def test_the_claims_have_the_numbers_of_the_records() -> None:
    records = read_records(ROOT / "results" / "lm")
    seeds, names = sorted({record.settings["seed"] for record in records}), records[0].languages
    of = {(record.arm, record.settings["seed"]): record for record in records}

    def losses(arm: str, moment: int) -> NDArray[Any]:
        """Return the losses on all languages, one row per seed."""
        return np.array([of[arm, seed].losses[moment] for seed in seeds])

    def forgetting(arm: str, moment: int) -> str:
        learned = np.array([np.diag(np.array(of[arm, seed].losses)[of[arm, seed].ends]) for seed in seeds])
        return f"{(losses(arm, moment) - learned)[:, :-1].mean():.3f}"

    def spread(arm: str, moment: int) -> str:
        means = losses(arm, moment).mean(1)
        return f"{means.mean():.3f} ± {means.std(ddof=1):.3f}"

    steps = records[0].steps
    assert steps[-2:] == [2375, 2500]
    forgotten = {(arm, at): forgetting(arm, at) for arm in ARMS for at in (-2, -1) if arm != "joint"}
    quarter, half = ("replay-0.25", "mer-0.25"), ("replay-0.5", "mer-0.5")
    for said in (
        f"verified: {forgotten[quarter[0], -1]} with a quarter of replayed rows and {forgotten[half[0], -1]} with half "
        f"of them, instead of {forgotten['sequential', -1]} |",
        f"with every seed: {forgotten[quarter[1], -1]} instead of {forgotten[quarter[0], -1]} with a quarter of "
        f"replayed rows, {forgotten[half[1], -1]} instead of {forgotten[half[0], -1]} with half of them, "
        f"{forgotten['reptile', -1]} instead of {forgotten['sequential', -1]} without any",
        f"forgetting is {forgotten[quarter[1], -2]} instead of {forgotten[quarter[0], -2]} and "
        f"{forgotten[half[1], -2]} instead of {forgotten[half[0], -2]}",
        f"mean loss {spread('mer-0.25', -1)} with a quarter of replayed rows, and {spread('joint', -1)} with joint",
        f"at step 2,375 they have {spread('mer-0.25', -2)} and {spread('joint', -2)}",
        f"With half of them it is {spread('mer-0.5', -1)}, below joint training",
        f"Replay alone comes to {spread('replay-0.25', -1)} and {spread('replay-0.5', -1)}",
    ):
        assert said in WORDS, said
    ends = records[0].ends
    for line, plain, between, after in ((quarter[1], quarter[0], 0.03, -0.04), (half[1], half[0], 0.03, -0.02)):
        moments = [(at, sum(end < at for end in ends)) for at in range(len(steps))]  # and how many are learned before
        more = [(at, (losses(line, at) - losses(plain, at))[:, :count].mean(0)) for at, count in moments if count]
        wrong = np.concatenate([values for at, values in more if at not in ends])
        right = np.concatenate([values for at, values in more if at in ends])
        assert (wrong > 0).all()
        assert (right < 0).all()
        assert (round(wrong.mean(), 2), round(right.mean(), 2)) == (between, after)
    lower = {name: [0, 0] for name in names}
    for at, count in ((at, sum(end < at for end in ends)) for at in range(len(steps)) if at not in ends):
        for name, more in zip(names, (losses("reptile", at) - losses("sequential", at)).mean(0)[:count], strict=False):
            lower[name][0] += more < 0
            lower[name][1] += 1
    assert (lower["fr"], lower["de"], lower["en"], lower["ru"]) == ([9, 9], [6, 6], [3, 12], [1, 3])
    shares = [100 * one.mer_seconds / one.seconds for one in records if one.settings["arm"]["share"]]
    assert (
        f"{np.mean(shares):.0f} % of the time in the arms with replay ({min(shares):.1f} to {max(shares):.1f} %"
        in WORDS
    )
