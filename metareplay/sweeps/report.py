"""What a sweep found, as a JSON document and as a page of Markdown."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final, final

from metareplay._core.checks import instance, mapping, text
from metareplay._core.files import write_atomically, write_text
from metareplay._core.rows import Rows, plain_text
from metareplay._core.seal import sealed_json
from metareplay._core.text import deviation, spread
from metareplay.experiments.record import now, versions
from metareplay.runners import Failure
from metareplay.sweeps.grid import Settings, told
from metareplay.sweeps.outcome import Outcome
from metareplay.sweeps.results import Sweep
from metareplay.sweeps.subject import MEASURES

TITLES: Final = {"ra": "RA", "la": "LA", "bti": "BTI", "final_mean": "score"}
SHOWN: Final = 20  # settings in the table of the page


@final
@dataclass(frozen=True)
class Report:
    """Tell what a sweep found.

    Args:
        sweep: The sweep.
        command: The command that runs the chosen setting again; None if there is none.
        published: The setting that the paper lists as its best for this, if it does.
    """

    sweep: Sweep
    command: str | None = None
    published: Settings | None = None

    def __post_init__(self) -> None:
        """Refuse what is no sweep, and what are no settings."""
        instance("sweep", self.sweep, Sweep, "a Sweep, which sweep() returns")
        if self.command is not None:
            text("command", self.command)
        if self.published is not None:
            mapping("published", self.published)

    def document(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        sweep, best = self.sweep, self.sweep.best
        return {
            "name": sweep.name,
            "grid": {name: list(values) for name, values in sweep.grid.values.items()},
            "settings": len(sweep.grid),
            "combinations": sweep.grid.whole,
            "seeds": list(sweep.seeds),
            "measure": sweep.measure,
            "chosen_by": sweep.chosen_by,
            "held_out": sweep.held_out,
            "rounds": [{"tasks": some[0].tasks, "settings": len(some)} for some in sweep.rounds if some],
            "best": _plain(best),
            "result": {name: _summary(sweep.values(name)) for name in sweep.metrics},
            "command": self.command,
            "published": self._published_document(),
            "ranking": [_plain(one) for one in sweep.ranking],
            "marginals": list(sweep.marginals()),
            "failures": [
                {"label": one.label, "kind": one.kind, "reason": one.reason, "key": one.key} for one in sweep.failures
            ],
            "versions": versions(),
            "date": now(),
        }

    def lines(self) -> list[str]:
        """Return what a person wants to know besides the tables, one sentence or two per line."""
        sweep, best = self.sweep, self.sweep.best
        what, score = MEASURES[sweep.measure], spread(best.scores)
        lines = [
            f"Best setting: {told(sweep.varied(best)) or 'the only one'}; {what} {score} ({_seeds(len(best.scores))})."
        ]
        numbers = [f"{TITLES[name]} {spread(sweep.values(name))}" for name in sweep.metrics if sweep.values(name)]
        if sweep.measure == "va":
            lost = len(sweep.result) - len(sweep.values(sweep.metrics[0]))
            failed = f"; {lost} of {_seeds(len(sweep.seeds))} failed" if lost else ""
            lines.append(f"Its result on test examples: {', '.join(numbers) or 'none'}{failed}.")
        elif sweep.measure == "ra":
            lines.append(f"Its result: {', '.join(numbers)}.")
        lines.append(sweep.chosen_by)
        lines += self._published_lines()
        if sweep.failures:
            lines.append(f"Failed runs: {sweep.reasons()}.")
        return lines

    def markdown(self) -> str:
        """Return the report as a page of Markdown."""
        sweep = self.sweep
        size = f"{len(sweep.grid)} settings" + (f" of {sweep.grid.whole}, sampled" if sweep.grid.sampled else "")
        parts = [
            f"# Sweep: {sweep.name}",
            f"{size}, {_seeds(len(sweep.seeds))} each.",
            "\n".join(f"- {line}" for line in self.lines()),
        ]
        if self.command is not None:
            parts += ["The chosen setting again:", f"```sh\n{self.command}\n```"]
        heads, cells = ranking_cells(sweep, SHOWN)
        rest = len(sweep.ranking) - SHOWN
        parts += ["## Best settings", _table(heads, cells)]
        parts += [f"{rest} more are in sweep.json."] if rest > 0 else []
        if sweep.grid.fields:
            parts += ["## Effect of each field", _effect(sweep), _table(*marginal_cells(sweep.marginals()))]
        if sweep.failures:
            parts += ["## Failed runs", _table(["setting", "seeds", "kind", "reason"], _failed(sweep))]
        return "\n\n".join(parts) + "\n"

    def write(self, folder: Path) -> None:
        """Write sweep.json and sweep.md.

        Args:
            folder: Where to write them.
        """
        with write_atomically(folder / "sweep.json") as file:
            file.write(sealed_json(self.document(), indent=1))
        write_text(folder / "sweep.md", self.markdown())

    def _published(self) -> tuple[int, Outcome] | None:
        """Return the paper's best setting with its rank, counted from 1; None if it is not among ours."""
        if self.published is None:
            return None
        wanted = {name: self.published[name] for name in self.sweep.grid.values if name in self.published}
        for rank, one in enumerate(self.sweep.ranking, 1):
            if all(one.settings[name] == value for name, value in wanted.items()):
                return rank, one
        return None

    def _published_lines(self) -> list[str]:
        if self.published is None:
            return []
        found, words = self._published(), told(self.published)
        if found is None:
            return [f"The paper's best setting ({words}) is not among these."]
        rank, one = found
        score = spread(one.scores) if one.scores else "no result"
        return [f"The paper's best setting ({words}) is number {rank} of {len(self.sweep.ranking)} here, with {score}."]

    def _published_document(self) -> dict[str, Any] | None:
        if self.published is None:
            return None
        found = self._published()
        rank = {} if found is None else {"rank": found[0], "mean": found[1].mean, "std": found[1].std}
        return {"settings": self.published} | rank


def ranking_cells(sweep: Sweep, most: int) -> tuple[list[str], list[list[str]]]:
    """Return the heads and the cells of a table of the best settings.

    Args:
        sweep: The sweep.
        most: How many settings to show.
    """
    halved = len(sweep.rounds) > 1
    heads = ["", *sweep.grid.fields, MEASURES[sweep.measure], "seeds", "failed", *(["tasks"] if halved else [])]
    cells = []
    for rank, one in enumerate(sweep.ranking[:most], 1):
        fields = [plain_text(one.settings[name]) for name in sweep.grid.fields]
        learned = ["all" if one.tasks is None else str(one.tasks)] if halved else []
        score = spread(one.scores) if one.scores else "-"
        cells.append([str(rank), *fields, score, str(len(one.scores)), str(one.failed or ""), *learned])
    return heads, cells


def marginal_cells(marginals: Rows) -> tuple[list[str], list[list[str]]]:
    """Return the heads and the cells of a table of the effect of each field.

    Args:
        marginals: What `Sweep.marginals` returned.
    """
    cells, before = [], None
    for row in marginals:
        name = row["field"] if row["field"] != before else ""
        before = row["field"]
        numbers = [f"{row[one]:.2f}" if one in row else "-" for one in ("mean", "best")]
        cells.append([name, plain_text(row["value"]), *numbers, str(row["settings"]), str(row["failed"] or "")])
    return ["field", "value", "mean", "best", "settings", "failed"], cells


def _failed(sweep: Sweep) -> list[list[str]]:
    """Return the settings of which a seed failed, with the reason of the first one."""
    outcomes = [one for some in sweep.rounds for one in some if one.failures]
    rows = [
        [
            told(sweep.varied(one)),
            ", ".join(str(f.seed) for f in one.failures),
            one.failures[0].kind,
            one.failures[0].reason,
        ]
        for one in outcomes[:SHOWN]
    ]
    lost = [one for one in sweep.result if isinstance(one, Failure)]
    return rows + [[f"{told(sweep.varied(sweep.best))}, all examples", str(f.seed), f.kind, f.reason] for f in lost]


def _effect(sweep: Sweep) -> str:
    stopped = sweep.rounds[0][0].tasks if sweep.rounds[0] else None
    when = "" if stopped is None else f", after the first {'task' if stopped == 1 else f'{stopped} tasks'}"
    return f"Mean and best {MEASURES[sweep.measure]} over all settings with that value{when}."


def _table(heads: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown; the first column is text, the others are numbers."""
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in cells]
    return "\n".join(lines)


def _plain(one: Outcome) -> dict[str, Any]:
    known = {"mean": one.mean, "std": one.std, "scores": one.scores, "failed": one.failed, "tasks": one.tasks}
    return {"settings": one.settings, **known}


def _summary(values: list[float]) -> dict[str, Any]:
    return {"mean": fmean(values) if values else None, "std": deviation(values), "values": values}


def _seeds(count: int) -> str:
    return f"{count} seed{'s' if count != 1 else ''}"
