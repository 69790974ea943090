"""Pictures of records."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import numpy as np

from metareplay._core.checks import described, mapping, place_of, shown, text, whole_numbers
from metareplay._core.files import write_atomically
from metareplay._core.palette import LEARNER_COLOURS, OTHERS, colour_of
from metareplay.errors import InputError, MetareplayError, PicturesMissingError
from metareplay.experiments.base import BaseRecord
from metareplay.experiments.folder import NAMES
from metareplay.experiments.prequential_record import PrequentialRecord
from metareplay.experiments.record import Record
from metareplay.rl.game_record import GameRecord

PREQUENTIAL: Final = {"accuracy": "accuracy before learning (%)", "mae": "mean absolute error before learning"}
RARE: Final = 1e-4  # smaller shares of dot products are not shown
LINEAR: Final = 0.001  # up to this size dot products are shown on a linear scale, above it on a logarithmic scale


def plot_tasks(records: dict[str, Record], path: Path, title: str) -> None:
    """Draw each task's accuracy just after it was learned (dotted) and at the end of the stream, for each learner.

    Args:
        records: The records to show, by name.
        path: The picture to write; its ending says in which format.
        title: Its title.
    """
    _check(records, Record, title)
    figure = new_figure(8, 4.5)
    axes = figure.add_subplot()
    colours = learner_colours({name: record.learner for name, record in records.items()})
    for name, record in records.items():
        tasks = np.arange(1, record.accuracy.shape[1] + 1)
        colour = colours[name]
        axes.plot(tasks, record.accuracy[-1], color=colour, linewidth=2.2, marker="o", markersize=4, label=name)
        axes.plot(tasks, np.diag(record.accuracy[1:]), color=colour, linewidth=1, linestyle=":")
    axes.plot([], [], color="black", linewidth=2.2, label="at the end of the stream")
    axes.plot([], [], color="black", linewidth=1, linestyle=":", label="just after learning the task")
    axes.set(title=title, xlabel="task", ylabel="test accuracy (%)", ylim=(0, 100))
    axes.set_xticks(tasks if len(tasks) <= 20 else tasks[:: len(tasks) // 10])
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, loc="outside lower center", ncols=(len(records) + 3) // 2)
    save_figure(figure, path)


def plot_prequential(records: dict[str, PrequentialRecord], path: Path, title: str) -> None:
    """Draw how well examples were predicted before they were learned: in the latest window, and on the whole (dotted).

    Args:
        records: The records to show, by name, either all of labels or all of real targets.
        path: The picture to write; its ending says in which format.
        title: Its title.
    """
    _check(records, PrequentialRecord, title)
    names = {"accuracy" if "accuracy" in record.points else "mae" for record in records.values()}
    if len(names) != 1:
        raise MetareplayError("these records have no score in common: draw labels and real targets apart")
    [name] = names
    figure = new_figure(8, 4.5)
    axes = figure.add_subplot()
    colours = learner_colours({label: record.learner for label, record in records.items()})
    for label, record in records.items():
        colour, examples = colours[label], record.points["examples"]
        axes.plot(examples, record.points[f"window_{name}"], color=colour, linewidth=1.8, label=label)
        axes.plot(examples, record.points[name], color=colour, linewidth=1, linestyle=":")
    axes.plot([], [], color="black", linewidth=1.8, label="latest examples")
    axes.plot([], [], color="black", linewidth=1, linestyle=":", label="all examples so far")
    axes.set(title=title, xlabel="examples seen", ylabel=PREQUENTIAL[name])
    axes.set_ylim(0, 100 if name == "accuracy" else None)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, loc="outside lower center", ncols=(len(records) + 3) // 2)
    save_figure(figure, path)


def plot_scores(
    records: dict[str, list[GameRecord]],
    path: Path,
    title: str,
    tasks: Sequence[int] = (),
    colours: Mapping[str, str] | None = None,
) -> None:
    """Draw the score on each task over the frames played, one panel per game and task, for each agent.

    Lines are means over seeds, bands one standard deviation to both sides; vertical lines are changes of the task, and
    a panel is grey while its own task is played, if that is at the same time in all records. If agents have different
    numbers of seeds, the legend says so.

    Args:
        records: The records of the seeds of each agent, by name, all with the same order of tasks; with several games,
            the name is that of the game, ": " and that of the agent.
        path: The picture to write; its ending says in which format.
        title: Its title.
        tasks: The tasks to show, counted from 1; all of them if none is named.
        colours: The colour of each agent, by name; None for those of their learners.
    """
    if not mapping("records", records):
        raise InputError("records is empty: use a dictionary of lists of records, with one agent at least")
    for name, of_agent in records.items():
        if not isinstance(of_agent, list) or not of_agent:
            raise InputError(f"records has {shown(of_agent)} for {name!r}: use a list of records of agents")
        _check(dict(enumerate(of_agent)), GameRecord, title)
        if not all(len(record.final) for record in of_agent):
            raise MetareplayError(f"{name} has no scores to show: train it with an evaluation")
    games: dict[str, dict[str, list[GameRecord]]] = {}
    for name, of_agent in records.items():
        game, _, agent = name.rpartition(": ")
        games.setdefault(game, {})[agent] = of_agent
    learners = {agent: of_agent[0].learner for group in games.values() for agent, of_agent in group.items()}
    agents = list(learners)
    colours = learner_colours(learners) if colours is None else mapping("colours", colours)
    for agent in agents:
        if agent not in colours:
            raise InputError(f"colours has none for {shown(agent)}: give every agent a colour")
    seeds = {agent: len(of_agent) for group in games.values() for agent, of_agent in group.items()}
    most = len(next(iter(records.values()))[0].final)
    for one in (tasks := whole_numbers("tasks", tasks)):
        if one > most:
            raise InputError(f"tasks={shown(tasks)}: use numbers from 1 to {most}")
    chosen = [(game, task) for game in games for task in [one - 1 for one in tasks] or range(most)]
    columns = min(3, len(chosen))
    figure = new_figure(1 + 4 * columns, 0.8 + 2.9 * -(-len(chosen) // columns))
    _check_colours({agent: colours[agent] for agent in agents})
    panels = figure.subplots(-(-len(chosen) // columns), columns, squeeze=False).ravel()
    for axes, (game, task) in zip(panels, chosen, strict=False):
        _draw_scores(axes, games[game], task, colours)
        axes.set_title(f"{game}, task {task + 1}" if game else f"task {task + 1}", fontsize=10)
    for axes in panels[len(chosen) :]:
        axes.set_visible(False)
    figure.suptitle(title)
    for axes in panels[max(0, len(chosen) - columns) : len(chosen)]:
        axes.set_xlabel("thousand frames played")
    for axes in panels[: len(chosen) : columns]:
        axes.set_ylabel("score")
    found = [axes.get_legend_handles_labels() for axes in panels[: len(chosen)]]
    handles = {label: handle for lines, labels in found for handle, label in zip(lines, labels, strict=True)}
    differ = len(set(seeds.values())) > 1
    counts = {agent: f" ({count} seeds)" if count > 1 else " (one seed)" for agent, count in seeds.items()}
    named = {agent + (counts[agent] if differ else ""): handles[agent] for agent in agents}
    figure.legend(
        named.values(), named.keys(), frameon=False, loc="outside lower center", ncols=min(len(named), 2 * columns)
    )
    save_figure(figure, path)


def _check_colours(colours: Mapping[str, object]) -> None:
    """Refuse what matplotlib, which is there by now, does not take for a colour."""
    from matplotlib.colors import is_color_like

    for name, colour in colours.items():
        if not is_color_like(colour):
            raise InputError(f"colours has {shown(colour)} for {shown(name)}: use a colour such as '#0072b2'")


def _draw_scores(axes: Any, records: dict[str, list[GameRecord]], task: int, colours: dict[str, str]) -> None:
    """Draw the scores of all agents on one task."""
    first = next(iter(records.values()))[0]
    same_order = all(one.stretches() == first.stretches() for of_agent in records.values() for one in of_agent)
    for agent, of_agent in records.items():
        frames, scores = np.array(of_agent[0].frames) / 1000, np.stack([one.means[:, task] for one in of_agent])
        mean, std = scores.mean(axis=0), scores.std(axis=0, ddof=1) if len(scores) > 1 else None
        axes.plot(frames, mean, color=colours[agent], linewidth=1.8, label=agent)
        if std is not None:
            axes.fill_between(frames, mean - std, mean + std, color=colours[agent], alpha=0.18, linewidth=0)
    for start, end, played in first.stretches():
        if played == task and same_order:
            axes.axvspan(start / 1000, end / 1000, color="grey", alpha=0.15, linewidth=0)
        if start:
            axes.axvline(start / 1000, color="black", linewidth=0.6, alpha=0.5)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def plot_alignment(records: dict[str, Record], path: Path, title: str) -> None:
    """Draw dot products of gradients along the stream, one panel per record, and their histograms over all of it.

    Args:
        records: The records to show, by name; they were made with `alignment`.
        path: The picture to write; its ending says in which format.
        title: Its title.
    """
    _check(records, Record, title)
    found = {name: _measured(name, record) for name, record in records.items()}
    figure = new_figure(2.5 + (6 if len(records) == 1 else 4.5) * len(records), 4.5)
    *panels, last = figure.subplots(1, len(records) + 1, sharey=True, width_ratios=[5] * len(records) + [1.2])
    colours = learner_colours({name: record.learner for name, record in records.items()})
    for name, axes in zip(records, panels, strict=True):
        colour = colours[name]
        _along(axes, found[name], colour)
        axes.set_title(f"{name}: mean {records[name].dot:+.3f}", color=colour)
        shares = np.array(found[name]["counts"][1:-1]) / found[name]["count"]
        last.stairs(shares, found[name]["edges"], orientation="horizontal", color=colour, linewidth=1.5)
    for axes in (*panels, last):
        axes.axhline(0, color="black", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    reach = 2 * max(map(_reach, found.values()))
    last.set_yscale("symlog", linthresh=LINEAR, linscale=0.7)
    last.set(title="overall", xlabel="share", xscale="log", xlim=(RARE, 1), ylim=(-reach, reach))
    panels[0].set_ylabel("dot product of gradients\n← interference      transfer →")
    figure.suptitle(title)
    panels[0].plot([], [], color="grey", linewidth=2, label="median")
    panels[0].plot([], [], ".", color="black", markersize=3.5, label="mean")
    panels[0].fill_between([], [], [], color="grey", alpha=0.55, linewidth=0, label="middle half")
    panels[0].fill_between([], [], [], color="grey", alpha=0.25, linewidth=0, label="5 to 95 %")
    figure.legend(frameon=False, loc="outside lower center", ncols=4)
    save_figure(figure, path)


def plot_matrices(records: dict[str, Record], path: Path, title: str) -> None:
    """Draw the accuracy of every task after every task, one panel per record; forgetting shows as a row that fades.

    A task has been learned to the right of the white steps. What was not measured is grey.

    Args:
        records: The records to show, by name.
        path: The picture to write; its ending says in which format.
        title: Its title.
    """
    _check(records, Record, title)
    figure = new_figure(1.5 + 3.2 * len(records), 4)
    panels = figure.subplots(1, len(records), sharey=True, squeeze=False)[0]
    for axes, (name, record) in zip(panels, records.items(), strict=True):
        tasks = record.accuracy.shape[1]
        extent = (-0.5, tasks + 0.5, tasks + 0.5, 0.5)
        shown = axes.imshow(record.accuracy.T, vmin=0, vmax=100, cmap="viridis", extent=extent, aspect="auto")
        corners = np.repeat(np.arange(tasks + 1) + 0.5, 2)
        axes.plot(corners[:-1], corners[1:], color="white", linewidth=1.5)
        axes.set(title=f"{name}: RA {record.ra:.1f}", xlabel="tasks learned", facecolor="lightgrey")
        axes.set_xticks([0, *_ticks(tasks)])
        axes.set_yticks(_ticks(tasks))
    panels[0].set_ylabel("accuracy on task")
    figure.colorbar(shown, ax=panels.tolist(), label="test accuracy (%)", pad=0.01)
    figure.suptitle(title)
    save_figure(figure, path)


def _check(records: Mapping[Any, BaseRecord], kind: type[BaseRecord], title: str) -> None:
    """Raise InputError for records that cannot be drawn, or a title that is no text."""
    text("title", title)
    wanted = f"a dictionary of {kind.__name__}s by name, at least one"
    if not isinstance(records, Mapping) or not records:
        raise InputError(f"records is {described(records)}: use {wanted}")
    for name, record in records.items():
        if not isinstance(record, kind):
            raise InputError(f"records has {described(record)} for {shown(name)}: use {wanted}")


def _ticks(tasks: int) -> list[int]:
    """Return which tasks to number along an axis: the first and at most ten others."""
    step = 1 if tasks <= 10 else 5 * -(-tasks // 50)
    return sorted({1, *range(step, tasks + 1, step)})


def _measured(name: str, record: Record) -> dict[str, Any]:
    if record.alignment is None or not record.alignment["count"]:
        raise MetareplayError(f"{name} has no dot products to show: run it with alignment on two examples or more")
    return record.alignment


def _reach(found: dict[str, Any]) -> float:
    """Return the size of the largest dot products that are not rare."""
    edges, common = np.abs(found["edges"]), np.array(found["counts"][1:-1]) > RARE * found["count"]
    ends = [abs(value) for q in ("5", "95") for value in found["quantiles"][q] if value is not None]
    return float(max(LINEAR, *ends, *edges[1:][common].tolist(), *edges[:-1][common].tolist()))


def _along(axes: Any, found: dict[str, Any], colour: str) -> None:
    """Draw median, mean and two bands, one point per span of the stream; faint lines show changes of the task."""
    for change in found["changes"]:
        axes.axvline(change, color="black", alpha=0.13, linewidth=0.7)
    bounds = np.array(found["bounds"])
    middles = (bounds[1:] + bounds[:-1]) / 2
    quantiles = {q: np.array(values, np.float64) for q, values in found["quantiles"].items()}
    axes.plot(middles, quantiles["50"], color=colour, linewidth=2)
    axes.fill_between(middles, quantiles["25"], quantiles["75"], color=colour, alpha=0.33, linewidth=0)
    axes.fill_between(middles, quantiles["5"], quantiles["95"], color=colour, alpha=0.17, linewidth=0)
    axes.plot(middles, np.array(found["means"], np.float64), ".", color="black", markersize=3.5)
    axes.set(xlabel="examples seen", xlim=(0, bounds[-1]))


def learner_colours(learners: Mapping[str, str]) -> dict[str, str]:
    """Return a colour for each name in a picture: its learner's own, or another if that is taken.

    Args:
        learners: The class of each learner, or its name on the command line, by the name that the picture shows.

    >>> learner_colours({"MER": "MER", "ER": "ER"})
    {'MER': '#0072b2', 'ER': '#c44f00'}
    """
    own = {name: colour_of(NAMES.get(learner, learner)).light for name, learner in learners.items()}
    first = {colour: name for name, colour in reversed(own.items())}
    others = [one.light for one in (*OTHERS, *LEARNER_COLOURS.values()) if one.light not in first]
    free = cycle(dict.fromkeys(others) or own.values())
    return {name: colour if first[colour] == name else next(free) for name, colour in own.items()}


def new_figure(width: float, height: float) -> Any:
    """Make an empty figure; if matplotlib is missing, raise PicturesMissingError, which says what to install.

    Args:
        width: The width in inches.
        height: The height in inches.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PicturesMissingError("pictures need matplotlib: pip install 'metareplay[plots]'") from error
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure, whole or not at all.

    Args:
        figure: The figure.
        path: The picture to write; its ending says in which format.
    """
    path, known = place_of("path", path), sorted(figure.canvas.get_supported_filetypes())
    ending = path.suffix.removeprefix(".").lower()
    if ending not in known:
        raise InputError(f"path={shown(str(path))}: its ending says the format; use one of {', '.join(known)}")
    with write_atomically(path) as file:
        figure.savefig(file, format=ending)
