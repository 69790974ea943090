"""Bars on the screen."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from small_runs import instead_of_mnist

from metareplay.cli.progress import bars
from metareplay.experiments import Experiment
from metareplay.runners import Threads

SMALL = Experiment(learner="mer", memory=20, tasks=2, examples=60)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    instead_of_mnist(monkeypatch)


def screen(said: io.StringIO) -> Console:
    return Console(file=said, force_terminal=True, width=200)


def test_the_bars_count_runs(tmp_path: Path) -> None:
    said = io.StringIO()
    with bars(screen(said)) as watcher:
        Threads(2).run([replace(SMALL, seed=seed) for seed in range(3)], tmp_path, watcher=watcher)
    assert "all runs: 0 of 3 done" in said.getvalue()
    assert "all runs: 3 of 3 done" in said.getvalue()


def test_a_run_alone_has_one_bar_that_says_what_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with bars(screen(io.StringIO())) as watcher:
        progress = watcher._progress  # type: ignore[attr-defined]
        shown: list[str] = []

        def noted(*given: Any, **options: Any) -> None:
            update(*given, **options)
            shown.extend(task.description for task in progress.tasks if task.visible)

        update = progress.update
        monkeypatch.setattr(progress, "update", noted)
        Threads(1).run([SMALL], tmp_path, watcher=watcher)
        assert not [task for task in progress.tasks if task.visible]
    assert shown[0] == "mer 20, rotations, seed 0: evaluating, task 1/2"
    assert "mer 20, rotations, seed 0: learning, task 2/2" in shown


def test_where_nobody_looks_nothing_is_drawn_but_remarks_are_made(tmp_path: Path) -> None:
    said = io.StringIO()
    for _ in range(2):
        with bars(Console(file=said, width=30)) as watcher:
            Threads(1).run([SMALL], tmp_path, watcher=watcher)
    assert said.getvalue() == f"1 of 1 runs are in {tmp_path} already\n"


def test_runs_that_go_on_together_have_one_bar() -> None:
    said = io.StringIO()
    with bars(screen(said)) as watcher:
        watcher.begin([SMALL, replace(SMALL, seed=1)])
        for seen in (0, 60, 120):
            watcher.together(2, seen, 120)
        watcher.begin([SMALL])
        watcher.together(1, 5, 120)
        tasks = watcher._progress.tasks  # type: ignore[attr-defined]
        assert [(task.description, task.completed, task.total) for task in tasks if task.visible] == [
            ("1 runs at once", 5, 120)
        ]
