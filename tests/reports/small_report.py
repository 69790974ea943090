"""Records of every kind, made by hand, and a report on a folder as a reader sees it."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

import metareplay as mr
from metareplay.experiments.prequential_record import Prequential
from metareplay.lm import LmRecord
from metareplay.rl import GameRecord

RUN = mr.Record(
    learner="MER",
    settings={"lr": 0.1, "seed": 0, "engine": "auto", "loss": None, "memory": {"kind": "Reservoir", "capacity": 5}},
    model="Linear(in_features=4, out_features=3, bias=True)",
    stream={"stream": "Rotations", "tasks": 2, "shape": [784], "seed": 0},
    seed=0,
    engine="torch",
    examples=20,
    accuracy=np.array([[10.0, 10.0], [90.0, 30.0], [70.0, 80.0]]),
    weights="ab" * 32,
    seconds={"learn": 1.25, "evaluate": 0.5},
    versions={"metareplay": "0.1.0", "torch": "2.0"},
    date="2026-01-02T03:04:05+00:00",
)
PREQUENTIAL = mr.PrequentialRecord(
    learner="ER",
    settings=RUN.settings,
    model=RUN.model,
    stream=RUN.stream,
    scored=Prequential(),
    seed=0,
    engine="torch",
    examples=2000,
    weights="ab" * 32,
    points={"examples": [1000, 2000], "accuracy": [50.0, 60.0], "window_accuracy": [50.0, 70.0], "kappa": [0.4, None]},
    classes=[],
    seconds={"learn": 1.0, "predict": 0.5},
    versions=RUN.versions,
    date=RUN.date,
)
GAME = GameRecord(
    learner="DQN",
    settings={"lr": 0.001, "seed": 0, "engine": "auto", "memory": {"kind": "Recent", "capacity": 50}},
    model=RUN.model,
    game={
        "game": "catcher",
        "observation": "state",
        "values": [1.0, 2.0],
        "order": "reversed",
        "frames_per_task": 100,
        "task": None,
        "total_frames": 200,
        "game_seed": 0,
        "evaluation": {"tasks": 2, "episodes": 2, "cap": 10, "every": 100, "seed": 7},
    },
    seed=0,
    engine="cpu",
    frames=[0, 100, 200],
    scores=[[[0, 2], [1, 1]], [[3, 5], [8, 10]], [[6, 8], [4, 4]]],
    episodes=9,
    weights="ab" * 32,
    seconds={"learn": 2.0, "evaluate": 1.0},
    versions=RUN.versions,
    date=RUN.date,
)
LANGUAGES = LmRecord(
    arm="mer-0.5",
    settings={"lr": 0.01, "seed": 0, "arm": {"name": "mer-0.5"}},
    languages=["north", "south"],
    steps=[10, 20],
    losses=[[1.0, 3.0], [1.5, 2.0]],
    ends=[0, 1],
    parameters=1000,
    seconds=3.0,
    mer_seconds=0.5,
    device="cpu",
)
SWEEP = {
    "name": "mer on rotations",
    "grid": {"lr": [0.1, 0.3]},
    "measure": "va",
    "chosen_by": "Chosen by validation accuracy.",
    "command": "metareplay run mer rotations --lr 0.1",
    "ranking": [
        {"settings": {"lr": 0.1, "k": 5}, "scores": [80.0, 82.0], "failed": 0},
        {"settings": {"lr": 0.3, "k": 5}, "scores": [], "failed": 2},
    ],
}


def run(seed: int = 0, **changes: Any) -> mr.Record:
    """A record with another seed, and with other parts."""
    other = replace(RUN, **changes)
    return replace(other, seed=seed, settings=other.settings | {"seed": seed}, stream=other.stream | {"seed": seed})


@dataclass(frozen=True)
class Page:
    """A report as a reader sees it: the cells of its tables, the words of its details, and what is drawn later."""

    source: str
    tables: dict[str, list[list[str]]]
    summaries: list[str]
    tags: list[str]
    data: dict[str, Any]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.summaries: list[str] = []
        self.tags: list[str] = []
        self._into: list[str] = []
        self._rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        label = dict(attrs).get("aria-label")
        if tag == "div" and label:
            self._rows = self.tables.setdefault(label, [])
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")
            self._into = self._rows[-1]
        elif tag == "summary":
            self.summaries.append("")
            self._into = self.summaries
        elif tag == "small" and self._into:
            self._into[-1] += " | "

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th", "summary"):
            self._into = []

    def handle_data(self, data: str) -> None:
        if self._into:
            self._into[-1] += data


def read_page(path: Path) -> Page:
    """Read a report."""
    source = path.read_text()
    reader = _Reader()
    reader.feed(source)
    [data] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', source, flags=re.DOTALL)
    return Page(source, reader.tables, reader.summaries, reader.tags, json.loads(data))


def page_of(folder: Path) -> Page:
    """Write a report on a folder and read it."""
    return read_page(mr.report(folder, folder / "out" / "report.html"))
