"""What trackers have in common: which points are new, and settings and records as flat lists of names and values."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, final

from metareplay.experiments.base import BaseRecord, Curves
from metareplay.experiments.following import FollowedRun

RESULTS = ("ra", "la", "bti", "fti", "dot", "ta", "va", "final_mean")  # what records say in one number


@final
class NewPoints:
    """Know which points of curves have been written, so that each is written once."""

    def __init__(self) -> None:
        self._written: dict[str, int] = {}

    def of(self, curves: Curves) -> Iterator[tuple[str, int, float]]:
        """Return the name, the number of examples and the value of each point that is new.

        Args:
            curves: All curves as they are now.
        """
        for name, points in curves.items():
            last = self._written.get(name, -1)
            for at, value in points:
                if at > last:
                    yield grouped(name), at, value
            if points:
                self._written[name] = max(last, points[-1][0])


def grouped(name: str) -> str:
    """Return the name of a curve as trackers group them: by what stands before a slash.

    >>> grouped("accuracy of task 3"), grouped("prequential window accuracy"), grouped("examples per second")
    ('accuracy/task_03', 'prequential/window_accuracy', 'run/examples_per_second')

    Args:
        name: The name of a curve.
    """
    task = re.fullmatch(r"(\w+) of task (\d+)", name)
    if task is not None:
        return f"{task[1]}/task_{int(task[2]):02d}"
    group, _, rest = name.partition(" ")
    found = (group, rest) if group == "prequential" else ("run", name)
    return "/".join(part.replace(" ", "_") for part in found)


def flat(settings: Mapping[str, Any], before: str = "") -> dict[str, str | int | float | bool]:
    """Return nested settings as one list: {"stream": {"tasks": 3}} becomes {"stream.tasks": 3}.

    Args:
        settings: Plain JSON values.
        before: What all names begin with.
    """
    found: dict[str, str | int | float | bool] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{name}.")
        else:
            found[f"{before}{name}"] = value if isinstance(value, (str, int, float, bool)) else str(value)
    return found


def results(record: BaseRecord) -> dict[str, float]:
    """Return what a record says in single numbers.

    Args:
        record: The record of a finished run.
    """
    found = {name: getattr(record, name, None) for name in RESULTS}
    total = getattr(record, "total", None)
    found |= total if isinstance(total, Mapping) else {}
    return {name: float(value) for name, value in found.items() if isinstance(value, (int, float)) and value == value}


def run_name(run: FollowedRun) -> str:
    """Return a name for a run that can be that of a folder, and that no other run has.

    Args:
        run: The run.
    """
    return f"{'-'.join(re.findall(r'[A-Za-z0-9_.]+', run.label))[:80]}-{run.key}"
