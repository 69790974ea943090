"""What is going on in a folder of runs, from the files that the runs leave there."""

import re
import time
from collections import Counter
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any, Final, final

from metareplay._core.files import MACHINE, is_alive, names_in
from metareplay._core.palette import colour_of
from metareplay.errors import MetareplayError
from metareplay.experiments.folder import NAMES
from metareplay.experiments.following import SPEED
from metareplay.runners import announcement, live_file
from metareplay.runners.claims import is_claimed
from metareplay.runners.failure import SUFFIX as FAILED
from metareplay.runners.failure import Failure
from metareplay.watch.finished import BROKEN, NOT_SETTINGS, Finished, FinishedRuns, best_of
from metareplay.watch.plain import number, plain, read_document, text

STATES: Final = ("running", "failed", "stopped", "broken", "done", "waiting")  # in the order in which they are listed
LISTED: Final = 200  # runs in the list, at most
LATE: Final = 6  # news that the time left is estimated from
RECENT: Final = 900.0  # seconds for which news of another machine is believed, unless its run is claimed
QUIET: Final = 30.0  # seconds without news after which the page says so

Run = dict[str, Any]
Place = tuple[int, float, str, str]  # by which runs are ordered: state, newest first, label, key


@final
class WatchedFolder:
    """Look at a folder of runs, again and again.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._finished = FinishedRuns(folder)
        self._failures: dict[str, tuple[int, Run]] = {}
        self._known: dict[str, Finished] | None = None  # what the next two were made from
        self._best: Run | None = None
        self._order: list[Place] = []
        self._read: tuple[Finished, Run] | None = None  # the finished run that was shown in detail, and its details

    def look(self, chosen: str = "") -> dict[str, Any]:
        """Return everything that the page shows, as plain JSON values.

        Args:
            chosen: The key of the run that is shown in detail; if there is none, the first one in the list.
        """
        names = names_in(self.folder)
        finished = self._finished.all(names)
        if finished is not self._known:
            self._known, self._best = finished, best_of(list(finished.values()))
            self._order = sorted(_place(key, one.state, one.label, one.written) for key, one in finished.items())
        live = self._live(names)
        waiting, together = self._announced(names)
        others = self._failed(names, finished)
        others |= {
            key: _summary(one)
            for key, one in live.items()
            if one["state"] == "running" or not (key in finished or key in others)
        }
        others |= {key: one for key, one in waiting.items() if not (key in finished or key in others)}
        order = [place for place in self._order if place[-1] not in others]
        order = sorted([*order, *(_place(key, one["state"], one["label"], 0.0) for key, one in others.items())])
        listed = {key: others[key] if key in others else finished[key].summary() for *_, key in order[:LISTED]}
        _tell_apart(list(listed.values()))
        shown = chosen if chosen in others or chosen in finished else order[0][-1] if order else ""
        run = listed.get(shown) or others.get(shown) or (finished[shown].summary() if shown in finished else None)
        counts = Counter(place[0] for place in order)
        return {
            "folder": text(f"{self.folder}{'' if str(self.folder) == '/' else '/'}"),
            "counts": {state: counts[number] for number, state in enumerate(STATES)},
            "runs": [_coloured(one) for one in listed.values()],
            "more": max(0, len(order) - LISTED),
            "together": together,
            "best": self._best,
            "chosen": self._details(run, live, finished) if run is not None else None,
        }

    def _details(self, run: Run, live: dict[str, Run], finished: dict[str, Finished]) -> Run:
        """Return what is shown of one run in detail."""
        key, more = run["key"], Run()
        if run["state"] in ("running", "stopped", "failed") and key in live:
            more = {name: plain(live[key].get(name)) for name in ("settings", "curves", "memory")}
            more["accuracies"] = plain(live[key].get("accuracy"))
        elif key in finished:
            if self._read is None or self._read[0] is not finished[key]:
                self._read = (finished[key], finished[key].details())
            more = self._read[1]
        return _coloured({**run, **more})

    def _live(self, names: list[str]) -> dict[str, Run]:
        """Read the files that runs write while they learn."""
        found = {}
        for name in names:
            if name.startswith(".") and name.endswith(live_file.SUFFIX):
                key = name.removeprefix(".").removesuffix(live_file.SUFFIX)
                news = read_document(self.folder / name)
                if news is None and not (self.folder / name).exists():
                    continue  # the run has just finished
                if news is None or news.get("format") != live_file.FORMAT or not isinstance(news.get("key"), str):
                    found[key] = {"key": key, "label": name, "state": "broken", "reason": BROKEN}
                else:
                    found[key] = news | {"key": key, "state": _state(news, self.folder, key)}
        return found

    def _failed(self, names: list[str], done: Container[str]) -> dict[str, Run]:
        """Read the failures of runs that have not been finished since."""
        found: dict[str, tuple[int, Run]] = {}
        for name in names:
            key = name.removesuffix(FAILED).rpartition("-")[2]
            if not name.endswith(FAILED) or name.startswith(".") or key in done:
                continue
            try:
                changed = (self.folder / name).stat().st_mtime_ns
                before = self._failures.get(name)
                found[name] = before if before and before[0] == changed else (changed, self._failure(name))
            except OSError:
                continue
        self._failures = found
        return {run["key"]: run for _, run in found.values()}

    def _failure(self, name: str) -> Run:
        try:
            failure = Failure.read(self.folder / name)
            about = {"key": text(failure.key), "label": text(failure.label), "reason": text(failure.reason)}
            return about | {"learner": text(failure.settings.get("learner")), "state": "failed"}
        except (MetareplayError, AttributeError, RecursionError):
            return {"key": text(name), "label": text(name), "state": "broken", "reason": BROKEN}

    def _announced(self, names: list[str]) -> tuple[dict[str, Run], list[Run]]:
        """Return which runs processes are going to do, and how far those have come that advance together."""
        waiting, together = dict[str, Run](), list[Run]()
        for name in names:
            if not name.startswith(".") or not name.endswith(announcement.SUFFIX):
                continue
            said = read_document(self.folder / name)
            if said is None or said.get("format") != announcement.FORMAT or not isinstance(said.get("runs"), list):
                continue
            listed = [one for one in said["runs"] if isinstance(one, dict)]
            if not _is_alive(said, self.folder, (one.get("key") for one in listed)):
                continue
            for one in listed:
                key = text(one.get("key"))
                waiting[key] = {"key": key, "label": text(one.get("label")), "state": "waiting"}
                waiting[key]["settings"] = one.get("settings")
            if isinstance(said.get("together"), dict):
                together.append({part: number(said["together"].get(part)) for part in ("count", "seen", "total")})
        return waiting, together


def _place(key: str, state: str, label: str, written: float) -> Place:
    """Return the place of a run in the list."""
    return STATES.index(state), -written, label, key


def _state(news: Run, folder: Path, key: str) -> str:
    """Return the state of a run by its own file: one whose process has ended without a word was stopped."""
    said = news.get("state")
    if said == "failed":
        return "failed"
    return "running" if said == "running" and _is_alive(news, folder, [key]) else "stopped"


def _is_alive(said: Run, folder: Path, keys: Iterable[object]) -> bool:
    """Return whether the process that has written a file is still there.

    That of another machine is, if it has written recently, or if somebody has claimed one of its runs.
    """
    process, written = said.get("process"), number(said.get("written"))
    if said.get("machine") == MACHINE and isinstance(process, int):
        return process > 0 and is_alive(process)
    if written is not None and abs(time.time() - written) < RECENT:
        return True
    return any(isinstance(key, str) and re.fullmatch(r"\w+", key) and is_claimed(folder, key) for key in keys)


def _summary(news: Run) -> Run:
    """Return what the list of runs shows of one that is running, or was."""
    if news["state"] == "broken":
        return {name: text(value) for name, value in news.items()}
    numbers = ("seen", "total", "task", "tasks", "per_second", "seconds")
    found: Run = {name: number(news.get(name)) for name in numbers}
    learner = text(news.get("learner"))
    given = news.get("accuracy")
    tasks = given[: int(found["task"] or 0)] if isinstance(given, list) else []
    learned = [one for one in map(number, tasks) if one is not None]
    written, seen, total, speed = number(news.get("written")), found["seen"], found["total"], _speed(news)
    quiet = time.time() - written if written is not None else 0.0
    return found | {
        "key": text(news["key"]),
        "label": text(news.get("label")),
        "learner": NAMES.get(learner, learner),
        "state": news["state"],
        "doing": text(news.get("doing")),
        "reason": text(news.get("reason")),
        "accuracy": sum(learned) / len(learned) if learned else None,
        "left": number((total - seen) / speed) if None not in (seen, total, speed) else None,
        "settings": news["settings"].get("settings") if isinstance(news.get("settings"), dict) else None,
        "quiet": round(quiet, -1) if news["state"] == "running" and quiet > QUIET else None,
    }


def _speed(news: Run) -> float | None:
    """Return how many examples are learned per second, of late; None at first, when compiling may have taken long."""
    curves = news.get("curves")
    points = curves.get(SPEED) if isinstance(curves, dict) else None
    known = (
        [number(one[1]) for one in points if isinstance(one, list) and len(one) > 1] if isinstance(points, list) else []
    )
    late = [one for one in known[1:][-LATE:] if one is not None and one > 0]
    return sum(late) / len(late) if late else None


def _tell_apart(runs: list[Run]) -> None:
    """Say of runs with the same label in which settings they differ; their settings are not needed any more."""
    given = [(run, run.pop("settings", None)) for run in runs]
    labels: dict[str, list[tuple[Run, Run]]] = {}
    for run, found in given:
        if isinstance(found, dict):
            plain_ones = {text(name): one for name, one in found.items() if isinstance(one, (str, int, float))}
            labels.setdefault(run["label"], []).append((run, plain_ones))
    for same in labels.values():
        names = [name for name in same[0][1] if all(name in one for _, one in same) and name not in NOT_SETTINGS]
        differ = [name for name in names if len({repr(one[name]) for _, one in same}) > 1][:4]
        for run, one in same:
            run["apart"] = ", ".join(f"{name} {text(one[name], 40)}" for name in differ)


def _coloured(run: Run) -> Run:
    """Add the colour of the learner, which is the same on every page, for both backgrounds."""
    colour = colour_of(run.get("learner", ""))
    return {**run, "colour": [colour.light, colour.dark]}
